"""Weight matching as a whole: against exhaustive search, step by step, from any start; posteriors; refusals."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import coset
from architectures import CASES, made, randomized
from coset.alignment import align
from coset.distribution import Delta, MeanField
from coset.errors import InputError
from coset.models import MLP
from coset.symmetry import discover


def inner(a, b):
    return sum(float((a[name] * b[name]).sum()) for name in a)


def tiny(activation="relu", widths=(3, 3)):
    model = MLP(2, list(widths), 2, activation=activation).double().eval()
    return model, discover(model, torch.zeros(2, 2, dtype=torch.float64), verify=False).restrict(scales=False)


def elements(sym):
    """Every element of a finite group whose classes are not nested."""
    permutations = [list(itertools.permutations(range(sym.shape(name)[0]))) for name in sym.permuting]
    signs = [list(itertools.product((1, -1), repeat=sym.shape(sym.families[key].owner)[0])) for key in sym.flipping]
    for choice in itertools.product(*permutations, *signs):
        orders, flips = choice[: len(permutations)], choice[len(permutations) :]
        yield sym.element(
            {name: torch.tensor(p) for name, p in zip(sym.permuting, orders, strict=True)},
            signs={key: torch.tensor(s, dtype=torch.int8) for key, s in zip(sym.flipping, flips, strict=True)},
        )


@pytest.mark.parametrize(("activation", "widths"), [("relu", (3, 3)), ("tanh", (2, 2)), ("relu", (4, 2))])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=12)
def test_restarts_find_the_optimum_of_exhaustive_search(activation, widths, seed):
    model, sym = tiny(activation, widths)
    generator = torch.Generator().manual_seed(seed)
    a, b = randomized(model, generator), randomized(model, generator)
    best = max(inner(a, sym.act(g, b)) for g in elements(sym))
    found = align(sym, a, b, restarts=20, seed=seed)
    fixed = inner({n: a[n] for n in a if n not in sym.structures}, {n: b[n] for n in b if n not in sym.structures})
    assert found.objective + fixed == pytest.approx(best, rel=1e-10)
    assert found.objective + fixed == pytest.approx(inner(a, found.params), rel=1e-10)


@pytest.mark.parametrize("name", ["flatten", "grouped+groupnorm", "grouped-query attention", "tied embeddings", "cct"])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=5)
def test_the_default_is_never_below_one_ascent_from_the_same_start(name, seed):
    model, sym, _ = made(name)
    generator = torch.Generator().manual_seed(seed)
    a, b = randomized(model, generator), randomized(model, generator)
    start = sym.restrict(scales=False).random(generator)
    start = sym.element(start.permutations, signs=start.signs)
    plain = align(sym, a, b, relax=False, start=start, seed=seed)
    default = align(sym, a, b, start=start, seed=seed)
    assert default.objective >= plain.objective * (1 - 1e-12)
    assert plain.history[0] == default.history[0]


@pytest.mark.parametrize("name", CASES)
def test_every_step_raises_the_objective(name):
    """As the steps report it, and as it is when the element is put to work."""
    model, sym, _ = made(name)
    generator = torch.Generator().manual_seed(1)
    a, b = randomized(model, generator), randomized(model, generator)
    seen = []
    result = align(sym, a, b, relax=False, callback=lambda step: seen.append(step.objective))
    assert list(result.history[1:]) == seen
    assert all(later > earlier for earlier, later in itertools.pairwise(result.history))
    # The same run stopped after each step ends where the history says.
    names, once = [], set()
    for key in sym.structures:
        if not sym.parameters[key].buffer and b[key].data_ptr() not in once:
            once.add(b[key].data_ptr())
            names.append(key)
    for count in range(1, min(len(seen), 4) + 1):
        stopped = align(sym, a, b, relax=False, callback=lambda step, last=count: step.number >= last)
        assert stopped.stopped
        direct = inner({key: a[key] for key in names}, {key: stopped.params[key] for key in names})
        assert direct == pytest.approx(seen[count - 1], rel=1e-9)


def gaussian_kl(q1, q0):
    """KL[q1 ‖ q0] over all weights."""
    return sum(
        float((s0.log() - s1.log() + (s1**2 + (m0 - m1) ** 2) / (2 * s0**2) - 0.5).sum())
        for m0, m1, s0, s1 in ((q0.mean[n], q1.mean[n], q0.std[n], q1.std[n]) for n in q0.mean)
    )


def wasserstein(q0, q1):
    return sum(float(((q0.mean[n] - q1.mean[n]) ** 2 + (q0.std[n] - q1.std[n]) ** 2).sum()) for n in q0.mean)


@pytest.mark.parametrize("divergence", ["wasserstein", "kl"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_posteriors_are_matched_by_the_divergence_itself(divergence, activation):
    model, sym = tiny(activation, (2, 2))
    generator = torch.Generator().manual_seed(0)

    def posterior():
        mean = randomized(model, generator)
        std = {n: 0.2 + torch.rand(mean[n].shape, generator=generator, dtype=torch.float64) for n in mean}
        return MeanField(mean, std)

    measure = wasserstein if divergence == "wasserstein" else lambda q0, q1: gaussian_kl(q1, q0)
    for seed in range(5):
        q0, q1 = posterior(), posterior()
        found = align(sym, q0, q1, divergence=divergence, restarts=20, seed=seed)
        least = min(measure(q0, sym.act(g, q1)) for g in elements(sym))
        assert measure(q0, found.aligned) == pytest.approx(least, rel=1e-10)
        # The objective differs from minus the divergence by a constant.
        identity = align(sym, q0, q1, divergence=divergence, relax=False, callback=lambda _: True)
        scale = 0.5 if divergence == "wasserstein" else 1.0
        drop = scale * (measure(q0, identity.aligned) - measure(q0, found.aligned))
        assert found.objective - identity.objective == pytest.approx(drop, rel=1e-9, abs=1e-9)


def test_means_alone_do_not_see_what_deviations_tell():
    """Two Gaussians that mirror each other: one unit wide, one narrow, means equal; only W₂ and the exact KL see it."""
    model = MLP(1, [2], 1).double().eval()
    sym = discover(model, torch.zeros(2, 1, dtype=torch.float64), verify=False).restrict(scales=False)
    mean = {name: torch.ones_like(tensor) for name, tensor in model.state_dict().items()}
    wide = torch.tensor([1.0, 0.2], dtype=torch.float64)

    def spread(values):
        std = {name: torch.full_like(tensor, 0.5) for name, tensor in mean.items()}
        return MeanField(mean, {**std, "layers.0.bias": values})

    q0, q1 = spread(wide), spread(wide.flip(0))
    moved = {d: align(sym, q0, q1, divergence=d).element.permutations["layers.0"].tolist() for d in
             ("wasserstein", "kl", "kl-means")}  # fmt: skip
    assert moved == {"wasserstein": [1, 0], "kl": [1, 0], "kl-means": [0, 1]}


def test_a_start_keeps_its_scales():
    model, sym, _ = made("flatten")
    generator = torch.Generator().manual_seed(0)
    a = randomized(model, generator)
    g = sym.random(generator)
    b = sym.act(g, a)
    result = align(sym, a, b, start=sym.inverse(g))
    for name in a:
        torch.testing.assert_close(result.params[name], a[name], rtol=1e-12, atol=1e-12)


def test_tied_weights_count_once_in_one_piece_of_memory_or_two():
    model, sym, _ = made("tied embeddings")
    generator = torch.Generator().manual_seed(0)
    a, b = randomized(model, generator), randomized(model, generator)
    apart = [{name: tensor.clone() for name, tensor in params.items()} for params in (a, b)]
    assert align(sym, *apart).objective == pytest.approx(align(sym, a, b).objective, rel=1e-12)


def test_same_seed_same_result_and_nothing_is_changed():
    model, sym, _ = made("cct")
    generator = torch.Generator().manual_seed(0)
    a, b = randomized(model, generator), randomized(model, generator)
    copies = [{name: tensor.clone() for name, tensor in params.items()} for params in (a, b)]
    state = torch.get_rng_state()
    one, two = align(sym, a, b, seed=3), align(sym, a, b, seed=3)
    assert one.element == two.element
    assert one.history == two.history
    assert torch.equal(torch.get_rng_state(), state)
    for params, copy in zip((a, b), copies, strict=True):
        assert all(torch.equal(params[name], copy[name]) for name in params)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_types_are_kept(dtype):
    model = MLP(4, [8, 8], 3).eval()
    sym = discover(model, torch.zeros(2, 4), verify=False).restrict(scales=False)
    generator = torch.Generator().manual_seed(0)
    a = {name: torch.randn(t.shape, generator=generator).to(dtype) for name, t in model.state_dict().items()}
    result = coset.align(sym, Delta(a), sym.act(sym.random(generator), Delta(a)))
    assert isinstance(result.aligned, Delta)
    assert all(torch.equal(result.params[name], a[name]) for name in a)
    assert {tensor.dtype for tensor in result.params.values()} == {dtype}


@pytest.fixture
def pair():
    model = MLP(3, [4], 2).eval()
    sym = discover(model, torch.zeros(2, 3), verify=False)
    return sym, dict(model.state_dict()), dict(MLP(3, [4], 2).state_dict())


def test_refusals(pair):
    sym, a, b = pair
    wide = dict(MLP(3, [5], 2).state_dict())
    deep = dict(MLP(3, [4, 4], 2).state_dict())
    broken = {**b, "layers.0.weight": torch.full_like(b["layers.0.weight"], math.nan)}
    std = {name: torch.ones_like(tensor) for name, tensor in a.items()}
    cases = [
        ((a, wide), {}, r"'layers.0.weight' of the other network has shape \(5, 3\); this symmetry expects \(4, 3\)"),
        ((a, deep), {}, "the other network has 'layers.2.weight', which this symmetry does not know"),
        ((a, broken), {}, "'layers.0.weight' of the other network has 12 entries that are NaN or infinite"),
        ((a, {"layers.0.weight": a["layers.0.weight"]}), {}, "the other network lacks 'layers.0.bias'"),
        ((a, MeanField(b, std)), {}, "the reference is a point and the other network a posterior"),
        ((a, [1]), {}, "the other network is a list"),
        ((a, b), {"method": "magic"}, "method is 'magic'; expected one of weights, activations"),
        ((a, b), {"speed": 1}, "the method 'weights' has no option 'speed'"),
        ((a, b), {"gauge": "x"}, "gauge is 'x'"),
        ((a, b), {"restarts": -1}, "restarts is -1"),
        ((a, b), {"start": 5}, "start is a int"),
        ((a, b), {"divergence": "kl"}, "has no deviations: the KL between points is infinite"),
        ((a, b), {"divergence": "tv"}, "divergence is 'tv'; expected one of wasserstein, kl, kl-means"),
        ((MeanField(a, {"layers.0.bias": std["layers.0.bias"]}), MeanField(b, {"layers.0.bias": std["layers.0.bias"]})),
         {"divergence": "kl"}, "'layers.0.weight' has no deviations"),
    ]  # fmt: skip
    for networks, options, message in cases:
        with pytest.raises(InputError, match=message):
            align(sym, *networks, **options)
