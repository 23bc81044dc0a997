"""The action under derivatives and transforms of the element, and on mappings of every kind."""

import copy
import pickle
from collections.abc import Mapping

import pytest
import torch
from torch.autograd import forward_ad

from architectures import made, randomized
from coset.distribution import Delta, MeanField
from coset.errors import InputError
from coset.models import MLP
from coset.symmetry import Element, Symmetry


def two_layers(width=4):
    params = {
        "a": torch.randn(width, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
        "b": torch.randn(2, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64),
    }
    return Symmetry.from_axes({"a": "h", "b": "- /h"}, params, scales="nonzero"), params


@pytest.mark.parametrize("value", [1.0, 1.7])
def test_forward_and_backward_derivatives_by_the_scales_agree(value):
    """Also at the identity, where there is nothing to multiply but something to differentiate."""
    sym, params = two_layers()

    def moved(d):
        result = sym.act(sym.element(scales={"h": d}), params)
        return torch.cat([result["a"].flatten(), result["b"].flatten()])

    d = torch.full((4,), value, dtype=torch.float64)
    forward, backward = torch.func.jacfwd(moved)(d), torch.func.jacrev(moved)(d)
    torch.testing.assert_close(forward, backward)
    exact = torch.cat([params["a"], params["b"].T * -(value**-2)], 1)
    torch.testing.assert_close(forward[:12].reshape(4, 3, 4).diagonal(dim1=0, dim2=2).T, exact[:, :3])


def test_vmap_over_elements():
    sym, params = two_layers()
    generator = torch.Generator().manual_seed(0)
    elements = [sym.random(generator) for _ in range(5)]
    stacked = [torch.stack([getattr(g, part)["h"] for g in elements]) for part in ("permutations", "scales", "signs")]
    mapped = torch.vmap(lambda p, d, s: sym.act(Element({"h": p}, {"h": d}, {"h": s}), params))(*stacked)
    for number, g in enumerate(elements):
        single = sym.act(g, params)
        for key in params:
            torch.testing.assert_close(mapped[key][number], single[key], rtol=1e-15, atol=0)


def test_forward_derivatives_through_large_parameters():
    model = MLP(300, [256], 10)
    params = dict(model.state_dict())
    sym = Symmetry.from_axes({"layers.0.weight": "h", "layers.0.bias": "h", "layers.1.weight": "- /h"}, params)
    g = sym.random(torch.Generator().manual_seed(0))
    tangent = torch.randn(256, 300)
    with forward_ad.dual_level():
        dual = {**params, "layers.0.weight": forward_ad.make_dual(params["layers.0.weight"], tangent)}
        found = forward_ad.unpack_dual(sym.act(g, dual)["layers.0.weight"]).tangent
    assert torch.equal(found, tangent[g.permutations["h"]])


class Lazy(Mapping):
    """A mapping that makes its tensors anew at every look."""

    def __init__(self, items):
        self.items_ = items

    def __getitem__(self, key):
        return self.items_[key].clone()

    def __iter__(self):
        return iter(self.items_)

    def __len__(self):
        return len(self.items_)


def test_mappings_that_make_their_tensors_anew():
    model, sym, _ = made("resnet20, batch")
    params = randomized(model, torch.Generator().manual_seed(0))
    g = sym.random(torch.Generator().manual_seed(1))
    lazy, plain = sym.act(g, Lazy(params)), sym.act(g, params)
    assert all(torch.equal(lazy[key], plain[key]) for key in plain)


def test_ties_are_seen_by_their_memory():
    """state_dict() gives a tied weight as two tensors on one piece of memory; they leave as one."""
    model, sym, _ = made("tied embeddings")
    params = model.state_dict()
    assert params["embed.weight"] is not params["head.weight"]
    moved = sym.act(sym.random(torch.Generator().manual_seed(0)), params)
    assert moved["embed.weight"] is moved["head.weight"]


def test_extreme_scales_that_cancel():
    both = Symmetry.from_axes({"w": "h{a:1,b:-1}"}, {"w": torch.ones(3)}, scales={"h:a": "positive", "h:b": "positive"})
    g = both.element(scales={key: torch.full((3,), 1e39, dtype=torch.float64) for key in ("h:a", "h:b")})
    assert both.act(g, {"w": torch.ones(3)})["w"].tolist() == [1.0, 1.0, 1.0]
    narrow = both.element(scales={"h:a": torch.full((3,), 1e39, dtype=torch.float64)})
    assert both.act(narrow, {"w": torch.full((3,), 1e-30)})["w"].tolist() == pytest.approx([1e9] * 3, rel=1e-6)


def test_identity_and_permutations_leave_a_variance_as_it_is():
    from torch import nn

    from coset.symmetry import Variance

    model = nn.BatchNorm1d(3)
    axes = {"running_var": Variance("c{pre:2}", 1e-5, "weight"), "weight": "c^0", "running_mean": "c{pre:1}"}
    sym = Symmetry.from_axes(axes, model, scales={"c:pre": "positive"})
    params = {**model.state_dict(), "running_var": torch.tensor([1e-12, 1e-38, 3.0])}
    turned = sym.act(sym.element(permutations={"c": torch.tensor([2, 0, 1])}), params)
    assert torch.equal(turned["running_var"], params["running_var"][[2, 0, 1]])
    assert torch.equal(sym.act(sym.identity(), params)["running_var"], params["running_var"])
    # Without the gain among the parameters nothing could make up for a variance kept positive: it stays exact.
    shrunk = sym.element(scales={"c:pre": torch.full((3,), 0.1, dtype=torch.float64)})
    alone = sym.act(shrunk, {"running_var": params["running_var"]}, partial=True)["running_var"]
    torch.testing.assert_close(alone + 1e-5, 0.01 * (params["running_var"] + 1e-5))


def test_values_can_be_copied_and_pickled():
    model, sym, _ = made("grouped-query attention")
    params = randomized(model, torch.Generator().manual_seed(0))
    g = sym.random(torch.Generator().manual_seed(0))
    for value in (pickle.loads(pickle.dumps(sym)), copy.deepcopy(sym)):
        assert value == sym
    assert pickle.loads(pickle.dumps(g)) == g
    q = MeanField(params, {"q.bias": torch.ones(24)})
    assert torch.equal(pickle.loads(pickle.dumps(q)).std["q.bias"], q.std["q.bias"])
    assert list(copy.deepcopy(Delta(params)).params) == list(params)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"permutations": {"h": torch.zeros(4, dtype=torch.long)}}, "is not a permutation"),
        ({"permutations": {"h": torch.arange(4, dtype=torch.int32)}}, r"of type torch.int32; expected torch.int64"),
        ({"permutations": {"h": [0, 1, 2, 3]}}, "is a list; expected a tensor"),
        ({"scales": {"h": torch.full((4,), -1.0)}}, "not all positive"),
        ({"scales": {"h": torch.ones(4, dtype=torch.long)}}, "expected floating point"),
        ({"signs": {"h": torch.full((4,), 7)}}, "not all"),
    ],
)
def test_no_member_no_action(parts, message):
    sym, params = two_layers()
    whole = {part: dict(getattr(sym.identity(), part)) for part in ("permutations", "scales", "signs")}
    with pytest.raises(InputError, match=message):
        sym.act(Element(**{**whole, **parts}), params)
