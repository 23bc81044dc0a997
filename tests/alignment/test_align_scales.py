"""Scales that bring one network closest to another: planted ones, derivatives at the result, what has no best scale."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from architectures import made, randomized
from coset.alignment import align
from coset.alignment.matching.scale_fit import LARGEST, fit_scales
from coset.distribution import normalize_scales
from coset.models import MLP
from coset.symmetry import Element, Symmetry, discover
from coset.symmetry.action import Action

SEEDS = st.integers(0, 2**31)
# Two families on one axis, blocks, coupled classes, segments, powers ±1, streams.
CASES = [
    "flatten", "batchnorm+depthwise", "grouped+groupnorm", "grouped-query attention", "tied embeddings",
    "concatenation", "rotary", "residual mlp", "residual mlp, one stream", "mlp, layer norm", "cct",
]  # fmt: skip


class Recurrent(nn.Module):
    """A class with scales on both axes of a parameter."""

    def __init__(self):
        super().__init__()
        self.cells, self.read = nn.RNN(3, 5, nonlinearity="relu"), nn.Linear(5, 2)

    def forward(self, x):
        return self.read(self.cells(x)[0][-1])


def recurrent():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Recurrent().double().eval()
    return model, discover(model, torch.randn(4, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))


def network(name):
    return recurrent() if name == "recurrent" else made(name)[:2]


def finite_part(sym, g):
    return sym.element(g.permutations, signs=g.signs)


def trained(sym):
    return [name for name in sym.structures if not sym.parameters[name].buffer]


def distance(sym, left, g, right):
    moved = sym.act(g, right)
    return sum(float((left[name] - moved[name]).square().sum()) for name in trained(sym))


@pytest.mark.parametrize("name", [*CASES, "recurrent"])
def test_planted_scales_are_recovered(name):
    model, sym = network(name)
    generator = torch.Generator().manual_seed(0)
    reference, planted = randomized(model, generator), sym.random(generator, spread=0.8)
    back = sym.inverse(planted)
    found = fit_scales(sym, reference, sym.act(planted, reference), finite_part(sym, back))
    for key, scales in back.scales.items():
        torch.testing.assert_close(found.scales[key], scales, rtol=1e-8, atol=0)
    assert finite_part(sym, found) == finite_part(sym, back)


@pytest.mark.parametrize("name", [*CASES, "recurrent"])
def test_no_derivative_is_left_and_nothing_is_farther(name):
    """Between unrelated networks; by automatic differentiation through the action itself."""
    model, sym = network(name)
    generator = torch.Generator().manual_seed(1)
    left, right, g = randomized(model, generator), randomized(model, generator), sym.random(generator)
    g = finite_part(sym, g)
    found = fit_scales(sym, left, right, g)
    start, end = distance(sym, left, g, right), distance(sym, left, found, right)
    assert end < start
    logs = {key: torch.zeros_like(scales, requires_grad=True) for key, scales in found.scales.items()}
    moved = {key: tensor for key, tensor in sym.act(found, right).items() if key in trained(sym)}
    more = Action(sym, Element(scales={key: log.exp() for key, log in logs.items()}), whole=False)
    once = {moved[key].data_ptr(): key for key in reversed(list(moved))}.values()
    again = more(moved, partial=True)
    gap = sum((left[key] - again[key]).square().sum() for key in once)
    added = sym.compose(found, sym.inverse(g)).scales
    for key, slope in zip(logs, torch.autograd.grad(gap, list(logs.values())), strict=True):
        # A unit that keeps its scale comes closest by vanishing; nothing else is left.
        kept = added[key] == 1
        assert float(torch.where(kept, 0, slope).abs().max()) < 2e-4 * end
        assert bool((slope[kept] > 0).all())
        assert float(added[key].log().abs().max()) < 1 + torch.log(torch.tensor(LARGEST))


def test_a_scale_by_hand():
    """One unit with incoming a and outgoing b: min over d of (a₀ − d·a₁)² + (b₀ − b₁/d)²."""
    model = {"a": torch.zeros(1, 1), "b": torch.zeros(1, 1)}
    sym = Symmetry.from_axes({"a": "h", "b": "- /h"}, model, scales="positive")
    left = {"a": torch.tensor([[3.0]]).double(), "b": torch.tensor([[1.0]]).double()}
    right = {"a": torch.tensor([[1.0]]).double(), "b": torch.tensor([[1.0]]).double()}
    found = fit_scales(sym, left, right, sym.identity()).scales["h"]
    d = torch.linspace(0.5, 5, 450001, dtype=torch.float64)
    best = d[((3 - d).square() + (1 - 1 / d).square()).argmin()]
    assert float(found) == pytest.approx(float(best), abs=2e-5)


def test_units_that_vanish_keep_their_scale():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MLP(4, [5, 3], 2).double()
    sym = discover(model, torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    generator = torch.Generator().manual_seed(0)
    left, right = randomized(model, generator), randomized(model, generator)
    first = next(name for name in sym.classes if "layers.0.weight" in sym.carriers(name))
    for name, axis in (("layers.0.weight", 0), ("layers.0.bias", 0), ("layers.1.weight", 1)):
        right[name].select(axis, 2).zero_()
    found = fit_scales(sym, left, right, sym.identity())
    assert float(found.scales[first][2]) == 1.0
    assert bool((found.scales[first][[0, 1, 3, 4]] != 1).all())


def test_a_unit_that_points_the_other_way_keeps_its_scale():
    """Scaled towards zero it would come closest, which is no scale; the others are fitted all the same."""
    sym = Symmetry.from_axes({"a": "h"}, {"a": torch.zeros(3, 2)}, scales="positive")
    left = {"a": torch.tensor([[1.0, 1], [2, 2], [0, 0]]).double()}
    right = {"a": torch.tensor([[-1.0, -1], [1, 1], [1, 1]]).double()}
    found = fit_scales(sym, left, right, sym.identity()).scales["h"]
    torch.testing.assert_close(found, torch.tensor([1, 2, 1]).double())


def test_all_zero_networks():
    sym = Symmetry.from_axes({"a": "h"}, {"a": torch.zeros(3, 2)}, scales="positive")
    zero = {"a": torch.zeros(3, 2)}
    assert fit_scales(sym, zero, zero, sym.identity()) == sym.identity()


@settings(max_examples=3)
@given(seed=SEEDS)
def test_never_farther_than_without(seed):
    model, sym, _ = made("mlp, batch norm")
    generator = torch.Generator().manual_seed(seed)
    left, right = randomized(model, generator), randomized(model, generator)
    g = finite_part(sym, sym.random(generator))
    assert distance(sym, left, fit_scales(sym, left, right, g), right) <= distance(sym, left, g, right)


# Through align -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gauge", ["given", "normalized"])
def test_align_returns_scales_only_where_they_are_wanted(gauge):
    model, sym, _ = made("residual mlp")
    generator = torch.Generator().manual_seed(0)
    left, right = randomized(model, generator), randomized(model, generator)
    without = align(sym, left, right, gauge=gauge)
    assert all(bool((scales == 1).all()) for scales in without.element.scales.values())
    within = align(sym, left, right, gauge=gauge, scales=True)
    assert any(bool((scales != 1).any()) for scales in within.element.scales.values())
    assert finite_part(sym, within.element) == without.element
    # The permutation, and what is maximised, know nothing of the scales that follow.
    assert within.objective == without.objective


def test_the_normalized_gauge_does_not_see_scales():
    """However each network was scaled, the same permutation, and aligned to the same weights."""
    model, sym, _ = made("flatten")
    generator = torch.Generator().manual_seed(0)
    left, right = randomized(model, generator), randomized(model, generator)
    only = sym.restrict(permutations=False, signs=False)
    plain = align(sym, left, right, gauge="normalized", scales=True)
    for _ in range(3):
        d = sym.element(scales=only.random(generator, spread=2.0).scales)
        scaled = align(sym, left, sym.act(d, right), gauge="normalized", scales=True)
        assert finite_part(sym, scaled.element) == finite_part(sym, plain.element)
        for name, tensor in plain.params.items():
            torch.testing.assert_close(scaled.params[name], tensor, rtol=1e-9, atol=1e-12)


def test_the_normalized_gauge_gives_the_scales_of_the_reference():
    model, sym, _ = made("flatten")
    generator = torch.Generator().manual_seed(0)
    left, right = randomized(model, generator), randomized(model, generator)
    aligned = align(sym, left, right, gauge="normalized", scales=True)
    of_reference, of_aligned = (normalize_scales(sym, params)[1] for params in (left, dict(aligned.params)))
    for key, scales in of_reference.scales.items():
        torch.testing.assert_close(of_aligned.scales[key], scales, rtol=1e-10, atol=0)


def test_given_scales_bring_the_networks_closer():
    model, sym, _ = made("residual mlp")
    generator = torch.Generator().manual_seed(0)
    left, right = randomized(model, generator), randomized(model, generator)
    without, within = (align(sym, left, right, scales=scales) for scales in (False, True))
    assert distance(sym, left, within.element, right) < distance(sym, left, without.element, right)
