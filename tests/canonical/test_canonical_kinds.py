"""Canonical forms of stacks, draws, posteriors, classifiers; with a reference; of dead and equal units; bad input."""

import math
from functools import cache

import pytest
import torch
from form_networks import setting
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import coset
from coset.canonical import canonicalize, decanonicalize
from coset.distribution import Delta, MeanField, Samples, normalize_scales

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh}


@cache
def mlp(activation="relu"):
    model = nn.Sequential(
        nn.Linear(5, 4), ACTIVATIONS[activation](), nn.Linear(4, 3), ACTIVATIONS[activation](), nn.Linear(3, 2)
    ).double()
    return model, coset.discover(model, torch.randn(2, 5, dtype=torch.float64))


def weights(model, seed, *lead):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(*lead, *tensor.shape, generator=generator, dtype=torch.float64)
        for name, tensor in model.state_dict().items()
    }


def apart(one, two):
    return max(float((one[name] - two[name]).abs().max()) for name in one)


def run(model, params, x):
    return torch.func.functional_call(model, dict(params), (x,))


def inputs(seed=3):
    return torch.randn(16, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias", ["outside", "inside"])
def test_a_stack_is_many_networks(activation, bias):
    model, sym = mlp(activation)
    stack = weights(model, 0, 7)
    together = canonicalize(sym, stack, bias=bias, classifier=True)
    for number in range(7):
        alone = canonicalize(sym, {name: t[number] for name, t in stack.items()}, bias=bias, classifier=True)
        assert apart(alone.params, {name: t[number] for name, t in together.params.items()}) < 1e-13
        assert float(alone.factor - together.factor[number]) == pytest.approx(0, abs=1e-13)
    assert apart(stack, decanonicalize(together)) < 1e-13


@pytest.mark.parametrize("name", ["mixing: layer norm", "turning: cosine", "discovered: group norm"])
def test_a_stack_of_networks_that_mix_turn_or_are_translated(name):
    _, sym, params, _ = setting(name)
    stack = {key: torch.stack([t, 1.5 * t]) if t.is_floating_point() else t.expand(2) for key, t in params.items()}
    together = canonicalize(sym, stack)
    for number in range(2):
        alone = canonicalize(sym, {key: t[number] for key, t in stack.items()})
        assert apart(alone.params, {key: t[number] for key, t in together.params.items()}) == 0
    back = decanonicalize(together)
    assert all(float((back[key] - stack[key]).abs().max()) < 1e-11 for key in stack)


def test_incoming_weights_have_unit_norm_with_the_bias_outside_or_inside():
    model, sym = mlp()
    params = weights(model, 1)
    outside, inside = (canonicalize(sym, params, bias=bias).params for bias in ("outside", "inside"))
    for layer in ("0", "2"):
        ones = torch.ones(len(outside[f"{layer}.bias"]), dtype=torch.float64)
        torch.testing.assert_close(outside[f"{layer}.weight"].norm(dim=1), ones)
        whole = torch.cat([inside[f"{layer}.weight"], inside[f"{layer}.bias"][:, None]], 1)
        torch.testing.assert_close(whole.norm(dim=1), ones)


def test_without_signs_and_order_it_is_normalize_scales():
    model, sym = mlp()
    params = weights(model, 2)
    form, (normal, _) = canonicalize(sym, params), normalize_scales(sym, params)
    order = sym.inverse(form.element).permutations
    torch.testing.assert_close(form.params, sym.act(sym.element(order), normal))


def test_logits_up_to_the_factor():
    model, sym = mlp()
    params, x = weights(model, 3), inputs()
    form = canonicalize(sym, params, classifier=True)
    assert form.last == ("4.weight", "4.bias")
    assert float(form.params["4.weight"].norm()) == pytest.approx(math.sqrt(2), abs=1e-14)
    torch.testing.assert_close(run(model, form.params, x), form.factor * run(model, params, x), rtol=1e-10, atol=1e-12)
    assert apart(params, decanonicalize(form)) < 1e-13
    named = canonicalize(sym, params, classifier="4")
    assert apart(named.params, form.params) == 0
    louder = dict(params) | {name: 3.7 * params[name] for name in form.last}
    assert apart(canonicalize(sym, louder, classifier=True).params, form.params) < 1e-13


@given(seed=st.integers(0, 2**31), factor=st.floats(0.1, 10))
@settings(max_examples=10)
def test_with_a_reference_an_orbit_has_one_form_whatever_the_scale_of_its_logits(seed, factor):
    model, sym = mlp("relu")
    reference, params = weights(model, 4), weights(model, 5)
    form = canonicalize(sym, params, reference, classifier=True)
    moved = sym.act(sym.random(torch.Generator().manual_seed(seed)), params)
    louder = moved | {name: factor * moved[name] for name in form.last}
    again = canonicalize(sym, louder, reference, classifier=True)
    assert apart(form.params, again.params) < 1e-10
    assert apart(louder, decanonicalize(again)) < 1e-10


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_planted_network_gets_the_form_of_its_reference(activation):
    model, sym = mlp(activation)
    reference = weights(model, 6)
    target = canonicalize(sym, reference)
    moved = sym.act(sym.random(torch.Generator().manual_seed(1)), reference)
    assert apart(canonicalize(sym, moved, target).params, target.params) < 1e-12
    stack = {name: torch.stack([moved[name], reference[name]]) for name in moved}
    both = canonicalize(sym, stack, target).params
    assert all(apart({k: t[i] for k, t in both.items()}, target.params) < 1e-12 for i in range(2))


def test_a_reference_of_rotations():
    """A stream that turns has no data-free form; to a reference it is brought, and nothing is left free."""
    _, sym, params, _ = setting("mixing: layer norm")
    free = canonicalize(sym, params)
    assert any(item.startswith("O(") for item in free.free)
    g = sym.random(torch.Generator().manual_seed(3))
    again = canonicalize(sym, sym.act(g, params), free)
    assert not again.free
    assert max(float((again.params[k] - free.params[k]).abs().max()) for k in params) < 1e-6


def test_sinkhorn_objectives_on_canonical_networks():
    model, sym = mlp()
    x, y = inputs(), torch.randint(0, 2, (16,), generator=torch.Generator().manual_seed(0))
    target = canonicalize(sym, weights(model, 7))
    params = weights(model, 8)
    form = canonicalize(sym, params, target, "sinkhorn", model=model, data=(x, y), steps=3)
    torch.testing.assert_close(run(model, form.params, x), run(model, params, x), rtol=1e-9, atol=1e-10)
    assert apart(params, decanonicalize(form)) < 1e-12


def test_distributions():
    model, sym = mlp("tanh")
    mean, x = weights(model, 9), inputs()
    spread = {name: 0.1 + tensor.abs() for name, tensor in weights(model, 10).items()}
    q = MeanField(mean, spread)
    form = canonicalize(sym, q)
    assert apart(form.params.mean, canonicalize(sym, mean).params) < 1e-13
    back = decanonicalize(form)
    assert apart(back.mean, mean) < 1e-13
    assert apart(back.std, spread) < 1e-13
    torch.testing.assert_close(run(model, form.params.mean, x), run(model, mean, x))
    point = canonicalize(sym, Delta(mean))
    assert isinstance(point.params, Delta)
    assert apart(decanonicalize(point).mean, mean) < 1e-13
    draws = Samples(weights(model, 11, 2, 3))
    several = canonicalize(sym, draws, classifier=True)
    assert (several.params.chains, several.params.draws) == (2, 3)
    flat = {name: tensor.flatten(0, 1) for name, tensor in draws.params.items()}
    alone = canonicalize(sym, {name: tensor[4] for name, tensor in flat.items()}, classifier=True)
    assert apart(alone.params, {name: t[4] for name, t in several.params.flat.items()}) < 1e-13
    assert apart(decanonicalize(several).params, draws.params) < 1e-13


def test_a_mean_field_of_a_network_that_mixes_is_moved_by_its_monomial_group_and_says_so():
    _, sym, params, _ = setting("mixing: layer norm")
    real = {name: tensor for name, tensor in params.items() if tensor.is_floating_point()}
    q = MeanField(real, {name: torch.full_like(tensor, 0.1) for name, tensor in real.items()})
    form = canonicalize(sym, q)
    assert any("permutations, scales and signs alone" in note for note in form.notes)
    assert apart(decanonicalize(form).mean, real) < 1e-12


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_dead_and_equal_units(activation):
    model, sym = mlp(activation)
    params, x = weights(model, 12), inputs()
    params["0.weight"][1], params["0.bias"][1] = 0.0, 0.0  # dead: nothing comes in
    params["2.weight"][:, 1] = 0.0
    params["0.weight"][3], params["0.bias"][3] = params["0.weight"][2], params["0.bias"][2]  # equal from both sides
    params["2.weight"][:, 3] = params["2.weight"][:, 2]
    form = canonicalize(sym, params)
    torch.testing.assert_close(run(model, form.params, x), run(model, params, x), rtol=1e-10, atol=1e-12)
    assert apart(params, decanonicalize(form)) < 1e-13
    for seed in range(5):
        moved = sym.act(sym.random(torch.Generator().manual_seed(seed)), params)
        assert apart(canonicalize(sym, moved).params, form.params) < 1e-12


def test_equal_sums_are_told_apart_by_the_units_they_go_to():
    model, sym = mlp()
    params = weights(model, 13)
    params["0.weight"] = torch.stack([row.roll(n) for n, row in enumerate([params["0.weight"][0]] * 4)])
    params["0.bias"][:] = 0.5
    params["2.weight"] = params["2.weight"][:, :1].expand(-1, 4).clone()
    form = canonicalize(sym, params)
    for seed in range(5):
        moved = sym.act(sym.random(torch.Generator().manual_seed(seed)), params)
        assert apart(canonicalize(sym, moved).params, form.params) < 1e-12


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: p | {"0.weight": p["0.weight"] * torch.nan}, r"'0\.weight' has entries that are NaN"),
        (lambda p: {k: t for k, t in p.items() if k != "2.bias"}, "'2.bias'"),
        (lambda p: p | {"extra": torch.zeros(2)}, "'extra'"),
        (lambda p: p | {"0.bias": torch.zeros(3, 4)}, "leading axes"),
        (lambda p: {k: t.expand(2, 3, *t.shape) for k, t in p.items()}, "leading axes"),
        (lambda p: {k: t.expand(0, *t.shape) for k, t in p.items()}, "no network"),
        (lambda p: p | {"0.weight": torch.zeros(4, 6)}, r"'0\.weight' has shape \(4, 6\)"),
        (lambda p: [p], "params is a list"),
    ],
)
def test_bad_networks(change, words):
    model, sym = mlp()
    with pytest.raises(coset.InputError, match=words):
        canonicalize(sym, change(weights(model, 0)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bias": "beside"}, "bias is 'beside'"),
        ({"method": "guess"}, "method is 'guess'"),
        ({"steps": 3}, "'steps' is an option"),
        ({"classifier": "fc"}, "classifier='fc' names a layer"),
        ({"reference": 3}, "reference is a int"),
    ],
)
def test_bad_options(options, words):
    model, sym = mlp()
    with pytest.raises(coset.InputError, match=words):
        canonicalize(sym, weights(model, 0), **options)


def test_a_stack_as_a_reference_is_refused():
    model, sym = mlp()
    with pytest.raises(coset.InputError, match="reference has a leading axis"):
        canonicalize(sym, weights(model, 0), weights(model, 1, 2))


def test_a_nan_among_many_is_named():
    model, sym = mlp()
    stack = weights(model, 0, 5)
    stack["2.bias"][3, 1] = torch.nan
    with pytest.raises(coset.InputError, match=r"'2\.bias' of network 3"):
        canonicalize(sym, stack)
