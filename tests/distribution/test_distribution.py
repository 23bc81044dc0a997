"""Distributions under the action, and the gauge in which scales are removed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from architectures import CASES, discovered, evaluate, made, randomized
from coset.distribution import Delta, MeanField, normalize_scales
from coset.distribution.ties import map_tied, ties
from coset.errors import InputError
from coset.models import MLP
from coset.symmetry import Symmetry
from declared import declared

SEEDS = st.integers(0, 2**20)


def deviations(params, generator):
    """Of everything but running statistics; names that are one tensor have one deviation."""
    drawn = map_tied(lambda key: torch.rand(params[key].shape, generator=generator, dtype=torch.float64), ties(params))
    return {key: value for key, value in drawn.items() if params[key].is_floating_point() and "running" not in key}


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=3)
@given(seed=SEEDS)
def test_a_mean_field_moves_as_its_samples_do(name, seed):
    """θ = m + s·ε: g·θ has mean g·m and deviation |g|·s, with ε moved by the same element up to signs."""
    model, sym, _ = made(name)
    generator = torch.Generator().manual_seed(seed)
    mean = randomized(model, generator)
    q = MeanField(mean, deviations(mean, generator))
    g = sym.random(generator, spread=0.2)
    moved = sym.act(g, q)
    assert moved.mean.keys() == q.mean.keys()
    plus = {key: value + q.std[key] if key in q.std else value for key, value in mean.items()}
    minus = {key: value - q.std[key] if key in q.std else value for key, value in mean.items()}
    high, low = sym.act(g, plus), sym.act(g, minus)
    for key in q.std:
        torch.testing.assert_close(moved.mean[key], (high[key] + low[key]) / 2, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(moved.std[key], (high[key] - low[key]).abs() / 2, rtol=1e-11, atol=1e-12)
        assert bool((moved.std[key] >= 0).all())


def test_signs_flip_the_mean_and_never_the_deviation():
    mean = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, 4.0])}
    sym = Symmetry.from_axes({"a": "h", "b": "/h"}, mean, scales="nonzero")
    g = sym.element(scales={"h": torch.tensor([2.0, 4.0])}, signs={"h": torch.tensor([-1, 1], dtype=torch.int8)})
    moved = sym.act(g, MeanField(mean, {"a": torch.tensor([0.5, 0.25])}))
    assert moved.mean["a"].tolist() == [-2.0, 8.0]
    assert moved.mean["b"].tolist() == [-1.5, 1.0]
    assert moved.std["a"].tolist() == [1.0, 1.0]
    assert "b" not in moved.std


def test_a_small_batch_norm_scale_corrects_the_deviation_of_the_gain_too():
    model, sym, _ = made("batchnorm+depthwise")
    generator = torch.Generator().manual_seed(0)
    mean = randomized(model, generator)
    q = MeanField(mean, deviations(mean, generator))
    g = sym.element(scales={"c:pre": torch.full((6,), 1e-4, dtype=torch.float64)})
    moved = sym.act(g, q)
    ratio = moved.mean["bn.weight"] / mean["bn.weight"]
    assert bool((ratio > 1.1).all())
    torch.testing.assert_close(moved.std["bn.weight"], q.std["bn.weight"] * ratio)


def test_a_delta_is_its_params():
    model, sym, _ = made("flatten")
    params = randomized(model, torch.Generator().manual_seed(0))
    g = sym.random(torch.Generator().manual_seed(1))
    moved, expected = sym.act(g, Delta(params)), sym.act(g, params)
    assert isinstance(moved, Delta)
    assert all(torch.equal(moved.mean[key], expected[key]) for key in expected)


def test_bad_mean_fields_are_named():
    mean = {"a": torch.zeros(2)}
    with pytest.raises(InputError, match="std has 'b', which mean has not"):
        MeanField(mean, {"b": torch.zeros(2)})
    with pytest.raises(InputError, match=r"std\['a'\] has shape \(3,\); its mean has \(2,\)"):
        MeanField(mean, {"a": torch.zeros(3)})
    with pytest.raises(InputError, match=r"std\['a'\] has values that are negative"):
        MeanField(mean, {"a": torch.tensor([1.0, -1.0])})
    with pytest.raises(InputError, match=r"std\['a'\] has values"):
        MeanField(mean, {"a": torch.tensor([1.0, torch.nan])})


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=3)
@given(seed=SEEDS)
def test_the_gauge_does_not_depend_on_the_scales(name, seed):
    """Same orbit under scales, same representative; the element undoes it; the function is kept."""
    model, sym, shape = made(name)
    generator = torch.Generator().manual_seed(seed)
    params = randomized(model, generator)
    scaled = sym.act(sym.element(scales=sym.random(generator, spread=0.2).scales), params)
    first, undo = normalize_scales(sym, params)
    second, _ = normalize_scales(sym, scaled)
    back = sym.act(undo, first)
    for key in params:
        torch.testing.assert_close(second[key], first[key], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(back[key], params[key], rtol=1e-11, atol=1e-11)
    x = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    before, after = evaluate(model, params, x), evaluate(model, first, x)
    assert float((after - before).abs().max()) <= 1e-10 * float(before.abs().max())


def test_incoming_norms_are_one():
    torch.manual_seed(0)
    model = MLP(6, [5, 4, 3], 2).double()
    sym = declared(model)
    params = randomized(model, torch.Generator().manual_seed(0))
    first, undo = normalize_scales(sym, params)
    for layer in range(3):
        norms = first[f"layers.{layer}.weight"].norm(dim=1)
        torch.testing.assert_close(norms, torch.ones_like(norms))
    # The first layer's scales are its norms; later ones are those of what the first leaves.
    torch.testing.assert_close(undo.scales["h1"], params["layers.0.weight"].norm(dim=1))
    second = (params["layers.1.weight"] * params["layers.0.weight"].norm(dim=1)).norm(dim=1)
    torch.testing.assert_close(undo.scales["h2"], second)
    assert torch.equal(undo.permutations["h1"], torch.arange(5))


def test_dead_units_have_a_rule():
    """Incoming weights 0: the bias is measured instead; nothing at all: the unit keeps its scale."""
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)).double()
    sym = Symmetry.from_axes({"0.weight": "h", "0.bias": "h", "2.weight": "- /h"}, model, scales="positive")
    params = {key: torch.ones_like(value) for key, value in model.state_dict().items()}
    params["0.weight"] = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    params["0.bias"] = torch.tensor([1.0, -2.0, 0.0], dtype=torch.float64)
    first, undo = normalize_scales(sym, params)
    assert undo.scales["h"].tolist() == [5.0, 2.0, 1.0]
    assert first["0.bias"].tolist() == [0.2, -1.0, 0.0]
    assert first["2.weight"].tolist() == [[5.0, 2.0, 1.0]]


def test_distributions_are_normalised_by_their_means():
    model = MLP(4, [5], 2).double()
    sym = declared(model)
    generator = torch.Generator().manual_seed(0)
    mean = randomized(model, generator)
    q = MeanField(mean, deviations(mean, generator))
    first, undo = normalize_scales(sym, q)
    torch.testing.assert_close(first.mean["layers.0.weight"].norm(dim=1), torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close(first.std["layers.0.bias"], q.std["layers.0.bias"] / undo.scales["h1"])
    point, _ = normalize_scales(sym, Delta(mean))
    assert isinstance(point, Delta)


def test_scales_that_cannot_be_ordered_and_missing_parameters_are_named():
    params = {"a": torch.ones(2, 2), "b": torch.ones(2, 2)}
    circle = Symmetry.from_axes({"a": "h /k", "b": "k /h"}, params, scales="positive")
    with pytest.raises(InputError, match="scales of 'h', 'k' cannot be normalised one after the other"):
        normalize_scales(circle, params)
    plain = Symmetry.from_axes({"a": "h", "b": "- /h"}, params, scales="positive")
    with pytest.raises(InputError, match="'a' is needed to normalise the scales of 'h'"):
        normalize_scales(plain, {"b": params["b"]})
    with pytest.raises(InputError, match="'a' has leading sample axes"):
        normalize_scales(plain, {key: value.expand(3, 2, 2) for key, value in params.items()})


def deep(layers, dtype, scale=1.0):
    generator = torch.Generator().manual_seed(0)
    params = {f"{i}.w": scale * torch.randn(8, 8, generator=generator, dtype=dtype) for i in range(layers)}
    axes = {f"{i}.w": f"{f'h{i}' if i < layers - 1 else '-'} {f'/h{i - 1}' if i else '-'}" for i in range(layers)}
    return Symmetry.from_axes(axes, params, scales={f"h{i}": "positive" for i in range(layers - 1)}), params


def test_deep_networks():
    """Norms multiply along the depth and may leave float32 on the way; what overflows at the end is told by name."""
    sym, params = deep(150, torch.float64, 30.0)
    first, _ = normalize_scales(sym, params)
    assert all(torch.allclose(first[f"{i}.w"].norm(dim=1), torch.ones(8, dtype=torch.float64)) for i in range(149))
    sym, params = deep(60, torch.float32)
    first, _ = normalize_scales(sym, params)
    assert all(torch.allclose(first[f"{i}.w"].norm(dim=1), torch.ones(8)) for i in range(59))
    sym, params = deep(150, torch.float32)
    with pytest.raises(InputError, match=r"'149.w' overflows torch.float32 without its scales"):
        normalize_scales(sym, params)


def test_tied_weights_are_measured_once_and_nan_is_named():
    weight = torch.full((2, 3), 2.0, dtype=torch.float64)
    params = {"a": weight, "b": weight, "c": torch.ones(1, 2, dtype=torch.float64)}
    sym = Symmetry.from_axes({"a": "h", "c": "- /h"}, params, scales="positive")
    first, _ = normalize_scales(sym, params)
    assert torch.allclose(first["a"].norm(dim=1), torch.ones(2, dtype=torch.float64))
    broken = torch.full((2, 3), torch.nan, dtype=torch.float64)
    with pytest.raises(InputError, match="'a' has entries that are NaN"):
        normalize_scales(sym, {**params, "a": broken, "b": broken})


def test_a_variance_kept_positive_keeps_the_function_on_the_way_back():
    """Dead channels: what comes back has the same function, though not the same gain and variance."""
    model, sym, shape = made("batchnorm+depthwise")
    generator = torch.Generator().manual_seed(0)
    params = randomized(model, generator)
    params["bn.running_var"] = torch.zeros(6, dtype=torch.float64)
    params["conv.weight"] = 5 * params["conv.weight"]
    first, undo = normalize_scales(sym, params)
    x = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    before = evaluate(model, params, x)
    for other in (first, sym.act(undo, first)):
        assert float((evaluate(model, other, x) - before).abs().max()) <= 1e-10 * float(before.abs().max())
        assert bool((other["bn.running_var"] >= 0).all())


@pytest.mark.parametrize("name", CASES)
def test_discovered_groups_can_be_normalised(name):
    """Their scales are oriented from those who write units to those who read them, as in declared ones."""
    model, _, _ = made(name)
    generator = torch.Generator().manual_seed(0)
    params = randomized(model, generator)
    sym = discovered(name)
    scaled = sym.act(sym.element(scales=sym.random(generator, spread=0.2).scales), params)
    first, second = normalize_scales(sym, params)[0], normalize_scales(sym, scaled)[0]
    for key in params:
        torch.testing.assert_close(second[key], first[key], rtol=1e-10, atol=1e-10)


def test_the_gauge_of_complex_weights_has_their_absolute_values():
    """Turning every complex weight by a phase changes no norm, and the representative is turned along."""
    generator = torch.Generator().manual_seed(0)
    weights = {
        "a": torch.randn(3, 4, generator=generator, dtype=torch.complex128),
        "b": torch.randn(2, 3, generator=generator, dtype=torch.complex128),
    }
    sym = Symmetry.from_axes({"a": "h -", "b": "- /h"}, weights, scales="positive")
    plain, g = normalize_scales(sym, weights)
    torch.testing.assert_close(plain["a"].abs().square().sum(1), torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(sym.act(g, plain)["b"], weights["b"])
    phase = torch.exp(torch.tensor(0.7j, dtype=torch.complex128))
    turned, _ = normalize_scales(sym, {name: phase * tensor for name, tensor in weights.items()})
    torch.testing.assert_close(turned["a"], phase * plain["a"])
