"""Every rule by small functions that use it; and no rule can be wrong without being noticed."""

import pytest
import torch
import torch.nn.functional as F
from groups import found_group, group
from probes import PROBES as COMMON
from probes import Probe
from probes_of_algebra import ALGEBRA, LIMITED
from probes_of_places import PLACES
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from coset.errors import InputError
from coset.symmetry import discover
from coset.symmetry.discovery.rules import RULES, passed

PROBES = {
    name: [probe for probes in (COMMON, PLACES, ALGEBRA) for probe in probes.get(name, ())]
    for name in (*COMMON, *PLACES, *ALGEBRA)
}

# Rules of operations that are elementwise: to treat them so is to do them right. (Broadcasting included.)
ELEMENTWISE = {"same_values", "copied", "expanded", "spread_out", "part", "unmarked"}

CASES = [(name, number) for name, probes in PROBES.items() for number in range(len(probes))]


@pytest.mark.parametrize(("name", "number"), CASES)
def test_the_maximal_group_of_a_function(name, number):
    probe = PROBES[name][number]
    sym = discover(probe.model(), probe.arguments())
    assert not sym.pinned
    assert found_group(sym) == probe.group


@pytest.mark.parametrize("name", LIMITED)
def test_where_knowledge_ends_is_reported(name):
    probe, operation = LIMITED[name]
    sym = discover(probe.model(), probe.arguments())
    assert found_group(sym) == probe.group
    assert any(line.startswith(f"{operation}:") for line in sym.pinned)


class InPlace(nn.Module):
    """Hidden units written into a tensor of zeros, beside a constant; ReLU in place."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(8, 3)

    def forward(self, x):
        hidden = self.first(x)
        F.relu(hidden, inplace=True)
        wide = torch.zeros(2, 8)
        wide[:, 1:6] = hidden
        wide[:, 0] = 1
        wide[:, 1:6] *= 2
        return self.last(wide)


def test_tensors_written_in_place():
    """Nothing notices the two columns that read the zeros that are left: they stay as they are."""
    sym = discover(InPlace(), torch.ones(2, 4))
    assert not sym.pinned
    assert found_group(sym) == group("5", scales=5, signs=0)


MIXED = {
    "residual": (lambda x, p, w, b: x * (F.relu(p @ w + p) * b).sum(), {"p": (3, 4), "w": (4, 4), "b": (3, 4)}),
    "similarities": (lambda x, p, q, b: x * (F.relu(p @ p.T @ q) * b).sum(), {"p": (3, 4), "q": (3, 5), "b": (3, 5)}),
    "rolled": (lambda x, p, b: x * (F.relu(p.roll(1, 0) + p) * b).sum(), {"p": (3, 4), "b": (3, 4)}),
    "cosines": (lambda x, p, b: x * (F.cosine_similarity(p, p.flip(0)) * b).sum(), {"p": (3, 4), "b": (3,)}),
    "pooled": (lambda x, p, b: x * (F.relu(F.avg_pool1d(p, 3, 1, 1) + p) * b).sum(), {"p": (4, 3), "b": (4, 3)}),
    "distances": (lambda x, p, q, b: x * (torch.cdist(p, p) @ q * b).sum(), {"p": (3, 4), "q": (3, 5), "b": (3, 5)}),
}


@pytest.mark.parametrize("name", MIXED)
def test_units_beside_summed_ones_do_not_move_by_themselves_at_each(name):
    """Rows of p meet all columns in p·w, units of q all rows in A·q, though what comes out has the same units."""
    function, shapes = MIXED[name]
    sym = discover(Probe(function, [(3,)], shapes, group("", scales=0, signs=0)).model(), torch.randn(2, 3))
    assert all(item.parent is None for item in sym.classes.values())


def test_operations_without_a_rule_are_reported_with_their_module():
    class Unknown(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):
            return self.last(torch.linalg.matrix_exp(self.first(x).diag_embed()).diagonal(dim1=1, dim2=2))

    sym = discover(nn.Sequential(Unknown()), torch.ones(2, 4))
    assert [line.partition(":")[0] for line in sym.pinned] == ["linalg_matrix_exp in 0"]
    assert found_group(sym) == group("", scales=0, signs=0)


def test_nothing_is_remarked_on_spectrally_normed_layers():
    """Their units are divided by a norm: no general linear map of them is told, and their outputs notice them."""
    layers = [spectral_norm(nn.Linear(4, 5)), nn.ReLU(), spectral_norm(nn.Linear(5, 3)), spectral_norm(nn.Linear(3, 2))]
    sym = discover(nn.Sequential(*layers).eval(), torch.ones(2, 4))
    assert sym.notes == sym.pinned == ()
    # ReLU; linear units with signs; of each layer the weight alone, and u against v.
    assert found_group(sym) == group("5 3", scales=5 + 3 + 3 * 2, signs=3 + 3 * 2)


def test_every_rule_is_probed():
    assert {rule.__name__ for rule in RULES.values()} == PROBES.keys() | ELEMENTWISE


def _as_elementwise(used):
    """A rule that takes any operation for an elementwise one: dimensions of one size meet, all scales pass."""

    def mutant(book, call):
        used.append(call.name)
        results = []
        for shape in call.shapes:
            result = book.like(shape, call.tensors())
            for value in call.tensors():
                offset = len(shape) - value.ndim
                dims = [
                    j - offset if j >= offset and value.shape[j - offset] == n else None for j, n in enumerate(shape)
                ]
                passed(book, value, result, dims)
            results.append(result)
        return results

    return mutant


@pytest.mark.parametrize("name", sorted(PROBES.keys() - ELEMENTWISE))
def test_a_wrong_rule_is_noticed(name, monkeypatch):
    used = []
    mutant = _as_elementwise(used)
    probes = [*PROBES[name], *(probe for probe, operation in LIMITED.values() if RULES[operation].__name__ == name)]
    for operation in [operation for operation, rule in RULES.items() if rule.__name__ == name]:
        monkeypatch.setitem(RULES, operation, mutant)
    noticed = []
    for probe in probes:
        try:
            noticed.append(found_group(discover(probe.model(), probe.arguments())) != probe.group)
        except InputError as error:
            noticed.append("preserve the function" in str(error))
    assert used, f"no probe of {name} uses it"
    assert any(noticed)
