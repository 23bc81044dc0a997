"""Posteriors: what is maximised is the divergence itself, for every element; what only deviations tell; refusals."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_groups import LINEAR, tiny, weights

from coset.alignment import align
from coset.alignment.matching.class_places import layout_of
from coset.alignment.matching.products import build_terms, matched_names
from coset.alignment.matching.scores import Scoring
from coset.distribution import MeanField
from coset.errors import InputError
from coset.models import MLP
from coset.symmetry import Symmetry, discover

SEEDS = st.integers(0, 2**31)


def posterior(sym, generator):
    std = {name: 0.2 + tensor.abs() for name, tensor in weights(sym, generator).items()}
    return MeanField(weights(sym, generator), std)


def half_wasserstein(q0, q1):
    """½W₂² of Gaussians with diagonal covariances: ½(‖m0 − m1‖² + ‖s0 − s1‖²)."""
    parts = ((q0.mean[n] - q1.mean[n]).square() + (q0.std[n] - q1.std[n]).square() for n in q0.mean)
    return sum(float(part.sum()) for part in parts) / 2


def kl(q0, q1):
    """KL[q1 ‖ q0], by torch."""
    normal = torch.distributions.Normal
    pairs = ((normal(q1.mean[n], q1.std[n]), normal(q0.mean[n], q0.std[n])) for n in q0.mean)
    return sum(float(torch.distributions.kl_divergence(one, two).sum()) for one, two in pairs)


def kl_means(q0, q1):
    """½‖(m0 − m1)/s0‖²."""
    return sum(float(((q0.mean[n] - q1.mean[n]) / q0.std[n]).square().sum()) for n in q0.mean) / 2


MEASURES = {"wasserstein": half_wasserstein, "kl": kl, "kl-means": kl_means}


@pytest.mark.parametrize("divergence", MEASURES)
@pytest.mark.parametrize("name", LINEAR)
@settings(max_examples=3)
@given(seed=SEEDS)
def test_the_objective_is_minus_the_divergence_up_to_a_constant(name, divergence, seed):
    """Signs flip means and not deviations; blocks, coupled classes and segments included."""
    sym, generator = tiny(name).restrict(scales=False), torch.Generator().manual_seed(seed)
    q0, q1 = posterior(sym, generator), posterior(sym, generator)
    scoring = Scoring(layout_of(sym), build_terms(sym, q0, q1, divergence))
    constants = []
    for _ in range(3):
        g = sym.random(generator)
        constants.append(scoring.objective(g) + MEASURES[divergence](q0, sym.act(g, q1)))
    assert constants == pytest.approx([constants[0]] * 3, rel=1e-11)


@pytest.mark.parametrize("divergence", MEASURES)
def test_alignment_brings_posteriors_closer_in_the_divergence_it_is_told(divergence):
    sym, generator = tiny("two layers").restrict(scales=False), torch.Generator().manual_seed(0)
    q0, q1 = posterior(sym, generator), posterior(sym, generator)
    measure, found = MEASURES[divergence], {}
    for option in MEASURES:
        result = align(sym, q0, q1, divergence=option, restarts=20)
        found[option] = measure(q0, result.aligned)
        assert result.objective - result.history[0] == pytest.approx(
            MEASURES[option](q0, q1) - MEASURES[option](q0, result.aligned), rel=1e-9
        )
    assert found[divergence] == min(found.values())


def test_two_gaussians_that_mirror_each_other():
    """Two units, one wide and one narrow, q1 the mirror image of q0 about the diagonal (Rossi et al. 2023, fig. A13).

    The exchange makes them equal, or nearly. Where the means lie almost on the diagonal, means alone see no reason for
    it; and if they agree a little better as they are, they decide against it.
    """
    sym = Symmetry.from_axes({"w": "h"}, {"w": torch.zeros(2)})

    def gaussian(mean, std):
        return MeanField({"w": torch.tensor(mean).double()}, {"w": torch.tensor(std).double()})

    q0, mirrored = gaussian([2.0, 1.0], [3.0, 0.5]), gaussian([1.0, 2.0], [0.5, 3.0])
    for divergence, measure in MEASURES.items():
        swapped = align(sym, q0, mirrored, divergence=divergence)
        assert swapped.element.permutations["h"].tolist() == [1, 0]
        assert measure(q0, swapped.aligned) == pytest.approx(0, abs=1e-12)
    on_the_diagonal = [1.0 + 1e-3, 1.0]
    q0, q1 = gaussian(on_the_diagonal, [3.0, 0.5]), gaussian(on_the_diagonal, [0.5, 3.0])
    chosen = {d: align(sym, q0, q1, divergence=d).element.permutations["h"].tolist() for d in MEASURES}
    assert chosen == {"wasserstein": [1, 0], "kl": [1, 0], "kl-means": [0, 1]}


def test_names_without_deviations_are_points():
    """Frozen layers and running statistics: matched by their means."""
    sym, generator = tiny("two layers").restrict(scales=False), torch.Generator().manual_seed(0)
    whole = posterior(sym, generator)
    partly = MeanField(whole.mean, {"b": whole.std["b"]})
    g = sym.random(generator)
    result = align(sym, partly, sym.act(g, partly))
    assert result.aligned.std.keys() == {"b"}
    assert all(torch.equal(result.aligned.mean[name], whole.mean[name]) for name in whole.mean)
    assert torch.equal(result.aligned.std["b"], whole.std["b"])


def test_only_deviations_tell_the_units_apart():
    """Means of zero: a posterior that has learned nothing but how wide it is."""
    model = MLP(3, [6], 2).double()
    sym = discover(model, torch.zeros(2, 3, dtype=torch.float64), verify=False).restrict(scales=False)
    generator = torch.Generator().manual_seed(0)
    mean = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    std = {name: 0.1 + torch.rand(t.shape, generator=generator, dtype=torch.float64) for name, t in mean.items()}
    reference = MeanField(mean, std)
    for divergence in ("wasserstein", "kl"):
        result = align(sym, reference, sym.act(sym.random(generator), reference), divergence=divergence)
        assert all(torch.equal(result.aligned.std[name], std[name]) for name in std)


def test_equal_means_with_different_deviations_are_not_one_weight():
    """Two norms with offsets of zero: tied by their means, and told apart by their deviations."""
    like = {"a": torch.zeros(3), "b": torch.zeros(3)}
    sym = Symmetry.from_axes({"a": "h", "b": "h"}, like)
    zero, ones = {"a": torch.zeros(3), "b": torch.zeros(3)}, torch.ones(3)
    wide = torch.tensor([1.0, 2.0, 3.0])
    assert matched_names(sym, [zero, zero], buffers=False) == ["a"]
    q0 = MeanField(zero, {"a": ones, "b": wide})
    q1 = MeanField(zero, {"a": ones, "b": wide.flip(0)})
    assert [term.name for term in build_terms(sym, q0, q1)] == ["a", "a", "b", "b"]
    assert torch.equal(align(sym, q0, q1).aligned.std["b"], wide)
    same = MeanField(zero, {"a": wide, "b": wide.clone()})
    assert [term.name for term in build_terms(sym, same, same)] == ["a", "a"]


@pytest.mark.parametrize("divergence", ["kl", "kl-means"])
def test_a_deviation_of_zero_has_no_kl(divergence):
    sym, generator = tiny("two layers").restrict(scales=False), torch.Generator().manual_seed(0)
    q = posterior(sym, generator)
    narrow = MeanField(q.mean, {**q.std, "b": torch.zeros_like(q.std["b"])})
    with pytest.raises(InputError, match="deviations of 0 in 'b': its KL is infinite; use divergence='wasserstein'"):
        align(sym, narrow, q, divergence=divergence)
    # Of the other posterior they are only a constant, and for Wasserstein no trouble at all.
    assert align(sym, q, narrow, divergence=divergence).history
    assert align(sym, narrow, narrow).history


def test_deviations_too_small_to_be_squared_in_float32_are_squared_in_float64_or_refused_by_name():
    sym, generator = tiny("two layers").restrict(scales=False), torch.Generator().manual_seed(0)
    q = posterior(sym, generator)
    for dtype, least in ((torch.float32, 1e-25), (torch.float64, 1e-100)):
        mean = {name: tensor.to(dtype) for name, tensor in q.mean.items()}
        narrow = MeanField(mean, {name: torch.full_like(tensor, least) for name, tensor in mean.items()})
        if dtype == torch.float32:
            moved = sym.act(sym.random(torch.Generator().manual_seed(1)), narrow)
            assert min(align(sym, narrow, moved, divergence="kl").agreement.values()) == pytest.approx(1)
        else:
            with pytest.raises(InputError, match=r"the products of 'a' overflow torch.float64"):
                align(sym, narrow, narrow, divergence="kl")


@pytest.mark.parametrize("gauge", ["given", "normalized"])
def test_scales_move_deviations_along(gauge):
    """In the gauge of the means; planted scales come back for means and deviations."""
    sym, generator = tiny("two layers"), torch.Generator().manual_seed(0)
    reference = posterior(sym, generator)
    spread = sym.restrict(permutations=gauge == "normalized").random(generator)
    planted = sym.element(spread.permutations, spread.scales, spread.signs)
    result = align(sym, reference, sym.act(planted, reference), gauge=gauge, scales=True, restarts=5)
    for part in ("mean", "std"):
        for name, tensor in getattr(reference, part).items():
            torch.testing.assert_close(getattr(result.aligned, part)[name], tensor, rtol=1e-7, atol=1e-9)
