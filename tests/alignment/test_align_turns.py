"""Alignment on the weights where units turn: planted elements are found back, and nothing is lost."""

import pytest
import torch

import coset
from coset.alignment import align_many
from coset.alignment.matching.turns import half_turn_gauge
from coset.distribution import MeanField
from turning_networks import TURNING, outputs, setting

PLANTED = [name for name, (_, _, kinds) in TURNING.items() if kinds]


def distance(one, two):
    return max(float((one[key] - two[key]).abs().max()) for key in two if two[key].is_floating_point())


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_element_is_found_back(name):
    model, sym, params, x = setting(name)
    for seed in range(3):
        planted = sym.random(torch.Generator().manual_seed(seed), turns=3)
        moved = sym.act(planted, params)
        assert distance(moved, params) > 0.1
        found = coset.align(sym, params, moved, gauge="normalized", scales=True)
        assert distance(found.params, params) < 1e-10
        assert distance(sym.act(found.element, moved), found.params) == 0
        assert torch.allclose(outputs(model, dict(found.params), x), outputs(model, params, x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", PLANTED)
def test_planted_elements_are_found_back_on_activations_and_in_a_common_frame(name):
    model, sym, params, x = setting(name)
    generator = torch.Generator().manual_seed(2)
    one, two = (sym.act(sym.random(generator, turns=3, spread=0.0), params) for _ in range(2))
    data = torch.randn(64, *x.shape[1:], generator=generator, dtype=x.dtype)
    found = coset.align(sym, params, one, method="activations", model=model, data=data)
    assert distance(found.params, params) < 1e-10
    assert distance(sym.act(found.element, one), found.params) == 0
    assert not any("turned" in note for note in found.notes)
    frame = align_many(sym, [params, one, two], gauge="normalized")
    assert max(distance(params_, params) for params_ in frame.aligned) < 1e-10
    assert distance(sym.act(frame.between(1, 2), two), one) < 1e-9
    assert not frame.notes


@pytest.mark.parametrize("name", ["siren", "cosine", "sigmoid", "relu6, convolutions"])
def test_turns_of_noisy_weights_are_undone(name):
    """Units near the ends of the gauge fall to either side of it; what is found is as near as what was planted."""
    _, sym, params, _ = setting(name)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        noise = {key: 1e-3 * torch.randn(value.shape, generator=generator).double() for key, value in params.items()}
        noisy = {key: value + noise[key] for key, value in params.items()}
        moved = sym.act(sym.random(generator, turns=3), noisy)
        found = coset.align(sym, params, moved)
        assert distance(found.params, params) <= distance(noisy, params) + 1e-9


def test_biases_in_the_gauge_lie_within_half_a_step():
    _, sym, params, _ = setting("siren")
    moved = sym.act(sym.random(torch.Generator().manual_seed(0), turns=5), params)
    step = sym.turns["layers.0"].places["layers.0.bias"][0].shift
    assert float(moved["layers.0.bias"].abs().max()) > step / 2
    inside = sym.act(half_turn_gauge(sym, moved), moved)
    assert float(inside["layers.0.bias"].abs().max()) <= step / 2 + 1e-12


def test_without_the_whole_group_turns_stay():
    _, sym, params, _ = setting("siren")
    moved = sym.act(sym.random(torch.Generator().manual_seed(0)), params)
    found = coset.align(sym, params, moved, continuous=False)
    assert not found.element.turns
    assert distance(found.params, params) > 1e-2
    spread = {key: torch.full_like(value, 0.1) for key, value in params.items()}
    assert not coset.align(sym, MeanField(params, spread), MeanField(moved, spread)).element.turns


@pytest.mark.parametrize("name", ["siren", "sigmoid", "sin in a residual block"])
def test_matching_begins_at_a_start(name):
    _, sym, params, _ = setting(name)
    planted = sym.random(torch.Generator().manual_seed(1), turns=3)
    found = coset.align(sym, params, sym.act(planted, params), start=sym.inverse(planted))
    assert distance(found.params, params) < 1e-10


@pytest.mark.parametrize("method", ["ste", "sinkhorn"])
@pytest.mark.parametrize("name", ["siren", "sigmoid"])
def test_methods_that_learn_begin_where_units_are_turned(method, name):
    _, sym, params, _ = setting(name)
    moved = sym.act(sym.random(torch.Generator().manual_seed(1), turns=3, spread=0.0), params)
    found = coset.align(sym, params, moved, method=method, objective="l2", steps=2, scales=False)
    assert not found.notes
    assert distance(found.params, params) < 1e-10


def test_half_turns_are_matched_again_at_what_is_learned():
    """From a start with every unit where it belongs, but turned: permutations alone would stay there."""
    _, sym, params, _ = setting("siren")
    planted = sym.random(torch.Generator().manual_seed(1), turns=3)
    moved, back = sym.act(planted, params), sym.inverse(planted)
    begun = sym.compose(sym.element(turns=sym.random(torch.Generator().manual_seed(2), turns=1).turns), back)
    assert distance(sym.act(begun, moved), params) > 0.01
    found = coset.align(sym, params, moved, method="ste", start=begun, objective="l2", steps=2, scales=False)
    assert distance(found.params, params) < 1e-10
    kept = coset.align(
        sym, params, moved, method="ste", start=begun, objective="l2", steps=2, scales=False, continuous=False
    )
    assert distance(kept.params, params) > 0.01
