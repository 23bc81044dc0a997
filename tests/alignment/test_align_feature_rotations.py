"""Matching on activations over the whole group: elements planted on random weights are found back from features."""

from functools import lru_cache

import pytest
import torch

from coset.alignment import align
from coset.alignment.matching.feature_rotations import alike
from coset.alignment.matching.rotations import matching_gauge
from coset.distribution import MeanField
from coset.running.moments import pair_moments_of
from coset.symmetry import discover
from mixing_networks import NETWORKS, outputs, setting, tokens
from rotary_networks import RotaryModel

PLANTED = [name for name in NETWORKS if name != "deep linear"]


def inputs_of(x):
    """Many inputs, and large ones: features of a stream must span it, units must not be dead."""
    generator = torch.Generator().manual_seed(11)
    if x.is_floating_point():
        return 5 * torch.randn(40, *x.shape[1:], generator=generator, dtype=x.dtype)
    return torch.randint(12, (20, x.shape[1]), generator=generator)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_element_of_the_whole_group_is_found_back(name):
    model, sym, params, x = setting(name)
    planted = sym.random(torch.Generator().manual_seed(5))
    # Scales that no matrix holds are not matched on features.
    mixed = {key for key in sym.scaling if sym.families[key].owner in sym.continuous}
    planted = sym.element(
        planted.permutations, {key: planted.scales[key] for key in mixed}, planted.signs, planted.matrices
    )
    other = sym.act(planted, params)
    found = align(sym, params, other, "activations", model=model, data=inputs_of(x))
    before, after = (outputs(model, weights, x) for weights in (params, found.params))
    assert torch.allclose(after, before, rtol=1e-9, atol=1e-9 * float(before.abs().max()))
    gauge = matching_gauge(sym, params)
    wanted, reached = (sym.act(gauge, weights) for weights in (params, found.params))
    for key in wanted:
        assert torch.allclose(reached[key], wanted[key], atol=1e-5 * float(wanted[key].abs().max())), key


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("heads", "layers"), [(2, 2), (4, 1)])
def test_signs_of_heads_beside_signs_of_coordinates_are_found_back(heads, layers, seed):
    """Norms of queries and keys: a sign for every head, others for coordinates of all heads, none of which show."""
    model, sym, params, x = normed_heads(heads, layers)
    planted = sym.random(torch.Generator().manual_seed(seed))
    planted = sym.element(planted.permutations, signs=planted.signs, matrices=planted.matrices)
    other = sym.act(planted, params)
    found = align(sym, params, other, "activations", model=model, data=inputs_of(x))
    gauge = matching_gauge(sym, params)
    wanted, reached = (sym.act(gauge, weights) for weights in (params, found.params))
    for key in wanted:
        assert torch.allclose(reached[key], wanted[key], atol=1e-5 * float(wanted[key].abs().max())), key


@lru_cache
def normed_heads(heads, layers):
    model = RotaryModel(d=4 * heads, heads=heads, layers=layers, normed=True).double().eval()
    generator = torch.Generator().manual_seed(7)
    params = {
        name: torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
        for name, tensor in model.state_dict().items()
    }
    model.load_state_dict(params)
    x = tokens(torch.Generator().manual_seed(1))
    return model, discover(model, x), params, x


def test_without_matrices_it_is_the_monomial_group():
    model, sym, params, x = setting("low-rank adapter")
    other = sym.act(sym.random(torch.Generator().manual_seed(5)), params)
    options = {"model": model, "data": inputs_of(x)}
    one = align(sym, params, other, "activations", **options, continuous=False)
    two = align(sym.monomial, params, other, "activations", **options)
    assert one.element == two.element
    assert one.history == two.history
    q = MeanField(params, {name: torch.full_like(tensor, 0.1) for name, tensor in params.items()})
    assert not align(sym, q, q, "activations", **options).element.matrices


def test_networks_without_a_gauge_are_permuted_and_a_note_says_so():
    model, sym, params, x = setting("rms norm")
    dead = params | {"norm.weight": params["norm.weight"] * torch.tensor([0.0] + [1.0] * 7)}
    found = align(sym, dead, params, "activations", model=model, data=inputs_of(x))
    assert not found.element.matrices
    assert found.notes[0].endswith("cannot be mixed: units were permuted")


def test_other_networks_are_turned_by_all_classes_and_keep_their_function():
    """Two networks that have nothing to do with each other."""
    model, sym, params, x = setting("rms norm")
    generator = torch.Generator().manual_seed(9)
    other = {
        name: torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype) for name, tensor in params.items()
    }
    for statistic in ("correlation", "covariance"):
        found = align(sym, params, other, "activations", model=model, data=inputs_of(x), statistic=statistic)
        assert found.element.matrices.keys() == sym.continuous.keys()
        assert found.objective > found.history[0]
        assert torch.allclose(outputs(model, found.params, x), outputs(model, other, x))


def test_likeness_of_features_turns_with_them():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 5, 40, generator=generator, dtype=torch.float64)
    u, v = torch.linalg.qr(torch.randn(2, 5, 5, generator=generator, dtype=torch.float64)).Q
    for statistic in ("correlation", "covariance"):
        plain, turned = (alike(pair_moments_of(*pair), statistic) for pair in ((x, y), (u @ x, v @ y)))
        assert torch.allclose(turned, u @ plain @ v.T)
    assert float(alike(pair_moments_of(x, 3 * x), "correlation").trace()) == pytest.approx(5)


def test_features_that_do_not_span_a_stream_keep_the_function():
    """Two tokens at three places each, for a stream of eight units."""
    model, sym, params, x = setting("rms norm")
    other = sym.act(sym.random(torch.Generator().manual_seed(5)), params)
    found = align(sym, params, other, "activations", model=model, data=torch.tensor([[1, 2, 1, 2, 1, 2]]))
    before = outputs(model, params, x)
    assert torch.allclose(outputs(model, found.params, x), before, rtol=1e-9, atol=1e-9 * float(before.abs().max()))
