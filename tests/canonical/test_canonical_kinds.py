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
        ({"classifier": None}, "classifier is None"),
        ({"classifier": ["4"]}, r"classifier is \['4'\]"),
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


# Networks that are not in general position -------------------------------------------------------------------------


def forms_differ(model, params, count=10):
    sym = coset.discover(model, inputs()[:2, : next(iter(params.values())).shape[1]].to(next(model.parameters()).dtype))
    form = canonicalize(sym, params)
    moved = (sym.act(sym.random(torch.Generator().manual_seed(seed)), params) for seed in range(count))
    return max(apart(canonicalize(sym, other).params, form.params) for other in moved), form


def test_signs_whose_sums_are_zero_are_settled_by_positions():
    model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.Tanh(), nn.Linear(3, 2, bias=False)).double()
    params = {
        "0.weight": torch.tensor([[1.0, -1], [2, -2], [3, -3]]),
        "2.weight": torch.tensor([[1.0, 2, 3], [-1, -2, -3]]),
    }
    far, form = forms_differ(model, {name: tensor.double() for name, tensor in params.items()})
    assert far < 1e-12
    assert not form.free


def test_signs_that_nothing_settles_are_said():
    """Between hidden layers, where no axis is fixed, sums of 0 decide nothing."""
    layers = [
        nn.Linear(2, 2, bias=False),
        nn.Tanh(),
        nn.Linear(2, 2, bias=False),
        nn.Tanh(),
        nn.Linear(2, 1, bias=False),
    ]
    model = nn.Sequential(*layers).double()
    sym = coset.discover(model, torch.randn(2, 2, dtype=torch.float64))
    params = {"0.weight": torch.eye(2), "2.weight": torch.tensor([[1.0, -1], [2, 1]]), "4.weight": torch.zeros(1, 2)}
    form = canonicalize(sym, {name: tensor.double() for name, tensor in params.items()})
    assert len(form.free) == 1
    assert form.free[0].startswith("signs of")
    params["2.weight"][0] = 0.0  # a dead unit has no sign to settle
    assert not canonicalize(sym, {name: tensor.double() for name, tensor in params.items()}).free


def test_units_that_are_told_apart_along_a_chain():
    """Equal first layers, a cyclic second layer, one bias that marks a unit: ties break one after the other."""
    model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).double()
    params = {name: torch.ones_like(tensor) for name, tensor in model.state_dict().items()}
    params["2.weight"] = torch.eye(8, dtype=torch.float64) + 0.5 * torch.eye(8, dtype=torch.float64).roll(1, 0)
    params["2.bias"][3] = 2.0
    assert forms_differ(model, params)[0] < 1e-12


def test_units_that_are_exchanged_together():
    """W₂ = I between equal units: any order of both layers together is the same network."""
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)).double()
    params = {name: torch.ones_like(tensor) for name, tensor in model.state_dict().items()}
    params["2.weight"] = torch.eye(4, dtype=torch.float64)
    assert forms_differ(model, params)[0] < 1e-12


def test_copies_of_units_in_single_precision():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    for seed in range(10):
        params = {name: tensor.float() for name, tensor in weights(model, seed).items()}
        params["0.weight"][1], params["0.bias"][1] = params["0.weight"][0], params["0.bias"][0]
        assert forms_differ(model, params)[0] < 1e-4


def test_equal_singular_values_are_left_open_and_said():
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 4, bias=False)).double()
    sym = coset.discover(model, torch.randn(2, 4, dtype=torch.float64))
    q = torch.linalg.qr(torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).Q
    form = canonicalize(sym, {"0.weight": q.mT.contiguous(), "1.weight": q})
    assert any("equal singular values" in item for item in form.free)


def test_small_variances_come_back():
    """Where a variance is small beside its ε, scales are taken up by the gain: the element alone does not go back."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).double().eval()
    own = {n: torch.randn_like(t) for n, t in model.named_parameters()}
    params = dict(model.state_dict()) | own | {"0.weight": 10 * own["0.weight"]}
    params |= {"1.running_var": torch.full((4,), 5e-4).double(), "1.num_batches_tracked": torch.tensor(3)}
    x = torch.randn(5, 3, dtype=torch.float64)
    sym = coset.discover(model, x[:2])
    for stacked in (False, True):
        theta = {name: torch.stack([t, t]) for name, t in params.items()} if stacked else params
        form = canonicalize(sym, theta)
        back = decanonicalize(form)
        assert all(float((back[name] - theta[name]).abs().max()) < 1e-10 for name in params)
        one = {name: t[1] for name, t in form.params.items()} if stacked else form.params
        torch.testing.assert_close(run(model, one, x), run(model, params, x), rtol=1e-9, atol=1e-9)


class Fourier(nn.Module):
    """A complex weight, behind which units are real again."""

    def __init__(self):
        super().__init__()
        self.filters = nn.Parameter(torch.randn(3, 5, dtype=torch.complex128))
        self.last = nn.Linear(3, 2).double()

    def forward(self, x):
        waves = torch.fft.rfft(x)[:, None] * self.filters
        return self.last(torch.relu(torch.fft.irfft(waves, n=8)).mean(-1))


def test_complex_weights_have_unit_norms():
    torch.manual_seed(0)
    model = Fourier()
    x = torch.randn(4, 8, dtype=torch.float64)
    sym, params = coset.discover(model, x), dict(model.state_dict())
    form = canonicalize(sym, params)
    torch.testing.assert_close(torch.linalg.vector_norm(form.params["filters"], dim=1), torch.ones(3).double())
    imaginary = params | {"filters": 1j * params["filters"].imag.to(torch.complex128)}
    for theta in (params, imaginary):
        form = canonicalize(sym, theta)
        moved = sym.act(sym.random(torch.Generator().manual_seed(3)), theta)
        assert apart(canonicalize(sym, moved).params, form.params) < 1e-12


def test_a_posterior_and_its_reference_are_in_one_gauge():
    _, sym, params, _ = setting("mixing: layer norm")
    real = {name: tensor for name, tensor in params.items() if tensor.is_floating_point()}
    q = MeanField(real, {name: torch.full_like(tensor, 0.1) for name, tensor in real.items()})
    own = canonicalize(sym, q)
    for reference in (real, q, own):
        again = canonicalize(sym, sym.monomial.act(sym.monomial.random(torch.Generator().manual_seed(4)), q), reference)
        target = own if reference is own else canonicalize(sym, q, reference)
        assert apart(again.params.mean, target.params.mean) < 1e-10


@pytest.mark.parametrize(
    ("made", "asked", "words"),
    [({}, {"classifier": True}, "without classifier"), ({"bias": "inside"}, {}, "bias='inside'")],
)
def test_a_reference_of_other_options_is_refused(made, asked, words):
    model, sym = mlp()
    reference = canonicalize(sym, weights(model, 0), **made)
    with pytest.raises(coset.InputError, match=words):
        canonicalize(sym, weights(model, 1), reference, **asked)


def test_scales_are_the_forms_own():
    model, sym = mlp()
    with pytest.raises(coset.InputError, match="scales is given"):
        canonicalize(sym, weights(model, 0), weights(model, 1), scales=True)
    with pytest.raises(coset.InputError, match="canonical is a dict"):
        decanonicalize({})
    with pytest.raises(coset.InputError, match="sym is a NoneType"):
        canonicalize(None, weights(model, 0))


def test_a_form_that_overflows_is_refused():
    model, sym = mlp()
    params = {name: tensor.float() for name, tensor in weights(model, 0).items()}
    params["4.weight"] = params["4.weight"] * 1e-39
    with pytest.raises(coset.InputError, match=r"overflows torch\.float32"):
        canonicalize(sym, params, classifier=True)


def test_a_last_bias_that_is_tied_is_not_scaled():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(3, 2), nn.Linear(2, 2)
            self.shift = self.last.bias

        def forward(self, x):
            return self.last(torch.relu(self.first(x) + self.shift))

    model = Tied().double()
    sym = coset.discover(model, torch.randn(2, 3, dtype=torch.float64))
    with pytest.raises(coset.InputError, match="is tied to"):
        canonicalize(sym, model.state_dict(), classifier="last")


def test_matrices_of_a_fused_weight_are_balanced_in_single_precision():
    """Queries and values stand in one parameter, in other entries: nothing has to settle between them."""
    _, sym, params, _ = setting("discovered: encoder layer, post-norm")
    exact = canonicalize(sym, params)
    single = {name: t.float() if t.is_floating_point() else t for name, t in params.items()}
    form = canonicalize(sym, single)
    assert form.notes == exact.notes == ()
    for name, tensor in form.params.items():
        assert tensor.dtype == single[name].dtype
        torch.testing.assert_close(tensor.double(), exact.params[name].double(), rtol=1e-4, atol=1e-4)
