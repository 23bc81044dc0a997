"""Functions made to mislead discovery: what comes out is sound and counted once, or one clear error."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import coset
from coset.errors import InputError
from scale_directions import jacobian_rank


class Functional(nn.Module):
    """A function of x and of parameters given by their shapes."""

    def __init__(self, function, **shapes):
        super().__init__()
        self.function = function
        generator = torch.Generator().manual_seed(0)
        for name, shape in shapes.items():
            values = torch.randn(shape, generator=generator, dtype=torch.float64)
            # Statistics (m, v) are not trained.
            self.register_parameter(name, nn.Parameter(values, requires_grad=name not in ("m", "v")))

    def forward(self, x):
        return self.function(x, **dict(self.named_parameters()))


GRAM = {
    "gram": (lambda x, u, w, v: F.relu(x @ u @ (w @ w.T)) @ v, {"u": (3, 4), "w": (4, 6), "v": (4, 2)}),
    "positions": (lambda x, p, v: torch.softmax(x @ x.mT + p @ p.T, -1) @ (x @ v), {"p": (5, 4), "v": (3, 2)}),
    "adjacency": (lambda x, e, a: torch.softmax(F.relu(e @ e.T), -1) @ F.relu(x @ a), {"e": (5, 4), "a": (3, 2)}),
    "symmetrised": (lambda x, p, q: (p @ q.T + (p @ q.T).T) @ x, {"p": (5, 4), "q": (5, 4)}),
    "pairs": (lambda x, a: F.relu(a[:, None] + a[None]).sum(-1) @ x, {"a": (5, 4)}),
    "einsum": (
        lambda x, u, w: torch.einsum("nh,hd,gd->ng", F.relu(x @ u), w, w), {"u": (3, 4), "w": (4, 6)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAM)
def test_units_that_meet_two_different_blocks_are_not_nested(name):
    function, shapes = GRAM[name]
    model = Functional(function, **shapes)
    sym = coset.discover(model, torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    assert all(item.parent is None for item in sym.classes.values())
    assert jacobian_rank(sym, dict(model.state_dict())) == sym.scale_dimension


def counts(sym):
    """Permutations (their number), scales and signs."""
    return (
        round(math.exp(sym.log_permutations)),
        sym.scale_dimension,
        round((sym.log_order - sym.log_permutations) / math.log(2)),
    )


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        # No scale passes; signs of a, m and b together, and of v, which stands under a square or a modulus.
        (
            lambda x, m, v, a, b: F.batch_norm(x @ a, m, v.view(-1).square(), None, None, False, 0.0, 1e-2) @ b,
            (24, 0, 8),
        ),
        # The detour over (2, 2) leaves blocks of two: 2!·(2!)² permutations.
        (
            lambda x, m, v, a, b: F.batch_norm(x @ a, m, v.abs().view(2, 2).view(-1), None, None, False, 0.0, 1e-2) @ b,
            (8, 0, 8),
        ),
        # The sign of v now goes with b.
        (lambda x, m, v, a, b: (F.batch_norm(x @ a, m, v.abs(), None, None, False, 0.0, 1e-2) / v) @ b, (24, 0, 8)),
    ],
)
def test_variances_that_are_computed_or_read_twice(function, expected):
    model = Functional(function, m=(4,), v=(4,), a=(3, 4), b=(4, 2))
    assert counts(coset.discover(model, torch.randn(5, 3, dtype=torch.float64))) == expected


def test_one_variance_under_two_epsilons():
    def function(x, m, v, a, b):
        first = F.batch_norm(x @ a, m, v, None, None, False, 0.0, 1e-1)
        return (first + F.batch_norm(x @ a, m, v, None, None, False, 0.0, 1.0)) @ b

    model = Functional(function, m=(4,), v=(4,), a=(3, 4), b=(4, 2))
    model.v.data = model.v.data.abs()
    assert counts(coset.discover(model, torch.randn(5, 3, dtype=torch.float64))) == (24, 0, 4)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, a, b: F.relu(10 * (x @ a)).long().to(x.dtype) @ b, (24, 0, 0)),
        # A sign does not see scales: those of a are free, and no other parameter takes them up.
        (lambda x, a, b: (x @ a > 0).to(x.dtype) @ b, (24, 4, 0)),
        (lambda x, a, b: F.relu(x @ a).bool().to(x.dtype) @ b, (24, 4, 0)),
        # A count does not see scales either; those of a pass on to b.
        (lambda x, a, b: (x @ a) @ b * (x @ a).norm(p=0, dim=-1, keepdim=True), (24, 4, 4)),
        (
            lambda x, a, b: F.relu(x @ a) @ b * torch.linalg.vector_norm(F.relu(x @ a), ord=0, dim=-1, keepdim=True),
            (24, 4, 0),
        ),
    ],
)
def test_casts_and_counts(function, expected):
    model = Functional(function, a=(3, 4), b=(4, 2))
    assert counts(coset.discover(model, torch.randn(5, 3, dtype=torch.float64))) == expected


@pytest.mark.parametrize(
    ("dim", "expected"),
    [
        # Norms of rows: v scales by row, g and the bias pass a positive scale on through ReLU, v and g flip together.
        (0, (24, 8, 4)),
        # Norms of columns: v scales and flips against g by column, and one scale of the whole layer passes on.
        (1, (24, 4, 3)),
        # One norm: v as a whole scales; g, a single number, passes a scale of the layer on and flips with v.
        (None, (24, 2, 1)),
    ],
)
def test_weight_norm(dim, expected):
    model = nn.Sequential(weight_norm(nn.Linear(3, 4), dim=dim), nn.ReLU(), nn.Linear(4, 2)).double()
    assert counts(coset.discover(model, torch.randn(5, 3, dtype=torch.float64))) == expected


NEVER_APART = {
    "flattened": lambda x, w, v: F.relu(x @ w.reshape(6, 3).T) @ v.reshape(6, 2),
    "einsum": lambda x, w, v: torch.einsum("nab,abo->no", F.relu(torch.einsum("ni,abi->nab", x, w)), v),
}


@pytest.mark.parametrize("name", NEVER_APART)
def test_atoms_that_are_never_apart_are_counted_once(name):
    model = Functional(NEVER_APART[name], w=(2, 3, 3), v=(2, 3, 2))
    sym = coset.discover(model, torch.randn(5, 3, dtype=torch.float64))
    assert sym.scale_dimension == jacobian_rank(sym, dict(model.state_dict())) == 6


def test_three_levels_of_blocks_are_counted_once():
    model = nn.Sequential(
        nn.Conv1d(3, 8, 1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv1d(8, 4, 1, groups=4), nn.ReLU(), nn.Conv1d(4, 2, 1)
    ).double()
    sym = coset.discover(model, torch.randn(2, 3, 5, dtype=torch.float64))
    assert sym.scale_dimension == jacobian_rank(sym, dict(model.state_dict()))


@pytest.mark.parametrize(
    ("x", "function"),
    [
        (torch.zeros(5, 3), lambda x, a, b: F.relu((x + 1) @ a) @ b),
        (torch.rand(5, 3) + 0.1, lambda x, a, b: F.relu(x.log() @ a) @ b),
        (torch.rand(5, 3) + 0.1, lambda x, a, b: F.relu(x.sqrt() @ a) @ b),
        (torch.tensor([[0.0, -torch.inf, 0.0]] * 5), lambda x, a, b: F.relu(torch.softmax(x, -1) @ a) @ b),
        (torch.arange(5.0)[:, None].expand(5, 3), lambda x, a, b: F.relu(a[x.long() % 3].sum(1)) @ b),
        (torch.randn(5, 3), lambda x, a, b: (F.relu(x @ a) @ b).masked_fill(x[:, :2] > 0, -torch.inf)),
    ],
)
def test_inputs_with_a_domain_and_outputs_that_are_masked(x, function):
    sym = coset.discover(Functional(function, a=(3, 4), b=(4, 2)), x.double())
    assert 4 in {item.size for item in sym.classes.values()}
    assert sym.scale_dimension == 4


def test_a_wrong_group_does_not_hide_behind_large_entries(monkeypatch):
    """One huge constant entry, or an input of zeros, must not make a wrong rule look right."""
    from coset.symmetry.discovery import elementwise
    from coset.symmetry.discovery.rules import RULES

    monkeypatch.setitem(RULES, "softmax", lambda book, call: elementwise.same_values(book, call))
    functions = [
        lambda x, a, b: torch.cat([torch.softmax(x @ a, -1) @ b, 1e12 * torch.ones_like(x)], -1),
        lambda x, a, b: torch.softmax((x + 1) @ a, -1) @ b,
    ]
    for function, x in zip(functions, (torch.randn(5, 3), torch.zeros(5, 3)), strict=True):
        with pytest.raises(InputError, match="does not preserve the function"):
            coset.discover(Functional(function, a=(3, 4), b=(4, 2)), x.double())


def test_outputs_that_notice_nothing_are_told():
    model = Functional(lambda x, a, b: F.relu(F.relu(x @ a) @ b - 1e9), a=(3, 4), b=(4, 2))
    sym = coset.discover(model, torch.randn(5, 3, dtype=torch.float64))
    (line,) = sym.unverified
    assert "'b': no output notices how it moves a, b" in line
    with pytest.raises(InputError, match="1 classes cannot be verified on these inputs: 'b'"):
        coset.discover(model, torch.randn(5, 3, dtype=torch.float64), strict=True)


def test_random_functions_are_refused():
    model = Functional(lambda x, a: F.dropout(x @ a, 0.5, training=True), a=(3, 4))
    with pytest.raises(InputError, match="random"):
        coset.discover(model, torch.randn(5, 3, dtype=torch.float64))


def test_plain_modules_and_small_weights_do_not_crash():
    pooled = nn.Sequential(nn.Conv1d(3, 4, 1), nn.ReLU(), nn.AdaptiveMaxPool1d(2), nn.Flatten(), nn.Linear(8, 2))
    assert coset.discover(pooled, torch.randn(2, 3, 6)).scale_dimension == 4
    vector = Functional(lambda x, a, w: F.linear(F.relu(x @ a), w), a=(3, 4), w=(4,))
    assert coset.discover(vector, torch.randn(5, 3, dtype=torch.float64)).scale_dimension == 4


def test_what_depends_on_the_data_is_one_clear_error():
    for function in (lambda x, a: (x @ a)[x[:, 0] > 0], lambda x, a: torch.nonzero(x @ a > 0)):
        with pytest.raises(InputError):
            coset.discover(Functional(function, a=(3, 4)), torch.randn(5, 3, dtype=torch.float64))


def test_models_without_values_need_no_verification():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(InputError, match="verify=False"):
        coset.discover(model, torch.randn(2, 3, device="meta"))
    assert coset.discover(model, torch.randn(2, 3, device="meta"), verify=False).scale_dimension == 4


def test_extra_state_is_left_alone():
    class Extra(nn.Linear):
        def get_extra_state(self):
            return {"version": 1}

        def set_extra_state(self, state):
            assert state

    model = nn.Sequential(Extra(3, 4), nn.ReLU(), nn.Linear(4, 2))
    assert coset.discover(model, torch.randn(2, 3)).scale_dimension == 4


def test_parameters_without_entries_stay_fixed():
    model = Functional(lambda x, a, b, e: F.relu(x @ a) @ b + e.sum(), a=(3, 4), b=(4, 2), e=(0, 5))
    sym = coset.discover(model, torch.randn(5, 3, dtype=torch.float64))
    assert sym.scale_dimension == 4
    assert [item.size for item in sym.classes.values() if item.permutes and item.size != 5] == [4]
