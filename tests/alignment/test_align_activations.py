"""Activation matching: planted elements, moments against two passes, assignments against exhaustive search."""

from itertools import permutations, product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from architectures import CASES, evaluate, made, made_with_graph, randomized
from coset.alignment.matching.activations import match_activations
from coset.alignment.matching.feature_assignment import assign, objective
from coset.alignment.matching.feature_hidden_signs import settle_signs, solve
from coset.alignment.matching.feature_likeness import STATISTICS
from coset.errors import InputError
from coset.models import MLP, build
from coset.running import moments as running_moments
from coset.running.moments import PairMoments, merged_pairs, pair_moments_of
from coset.symmetry import Family, Parameter, Symmetry, discover
from coset.symmetry.axes import Product, Units
from coset.symmetry.structure import UnitClass
from declared import declared

PLANTED = [name for name in CASES if name != "rotary"]


def setting(name, seed=1, inputs=64, make=made_with_graph):
    model, sym, shape = make(name)
    generator = torch.Generator().manual_seed(seed)
    params = randomized(model, generator)
    x = torch.randn(inputs, *shape, generator=generator, dtype=torch.float64)
    return model, sym, params, x, generator


# Planted elements -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLANTED)
def test_planted_permutations_signs_and_scales(name):
    # In this residual network two units of width 5 happen to be dead for seed 1.
    model, sym, params, x, generator = setting(name, seed=2 if name == "residual mlp" else 1)
    g = sym.random(generator)
    planted = sym.act(g, params)
    result = match_activations(sym, params, planted, model=model, data=x, batch_size=30)
    undone = sym.compose(result.element, g)
    neutral = sym.identity()
    assert all(torch.equal(undone.permutations[key], p) for key, p in neutral.permutations.items())
    assert all(torch.equal(undone.signs[key], s) for key, s in neutral.signs.items())
    # Scales are left as they are: what remains between the networks is what was planted of them.
    back = sym.act(sym.inverse(sym.element(scales=undone.scales)), result.params)
    for key, tensor in params.items():
        assert torch.allclose(back[key], tensor, rtol=1e-8, atol=1e-10), key
    y = evaluate(model, params, x)
    assert torch.allclose(evaluate(model, result.params, x), y, rtol=1e-7, atol=1e-9 * float(y.abs().max()))
    assert result.objective > result.history[0]
    assert not result.stopped


@pytest.mark.parametrize("name", ["flatten", "concatenation", "grouped-query attention", "cct", "mlp, layer norm"])
def test_covariance_recovers_what_does_not_scale(name):
    """Of symmetries that were declared by hand, and get their graph while they are matched."""
    model, sym, params, x, generator = setting(name, make=made)
    part = sym.restrict(scales=False)
    planted = part.act(part.random(generator), params)
    result = match_activations(sym, params, planted, model=model, data=x, statistic="covariance")
    for key, tensor in params.items():
        assert torch.allclose(result.params[key], tensor, rtol=1e-9, atol=1e-12), key
    assert all(value == pytest.approx(1) for value in result.agreement.values())


def test_float32_networks():
    model, sym, params, x, generator = setting("cct", inputs=32)
    narrow = {key: tensor.float() if tensor.is_floating_point() else tensor for key, tensor in params.items()}
    part = sym.restrict(scales=False)
    planted = part.act(part.random(generator), narrow)
    result = match_activations(sym, narrow, planted, model=model, data=x)
    assert all(torch.equal(result.params[key], tensor) for key, tensor in narrow.items())


# Against direct computation -------------------------------------------------------------------------------------------


def channels(model, params, x):
    """What the flattening network's readers read, all positions: class → (units, samples)."""
    with torch.no_grad():
        first = F.max_pool2d(F.relu(F.conv2d(x, params["conv.weight"], params["conv.bias"])), 2)
        second = F.relu(F.conv2d(first, params["conv2.weight"], params["conv2.bias"]))
    return {"c1": first.transpose(0, 1).flatten(1).numpy(), "c2": second.transpose(0, 1).flatten(1).numpy()}


def two_passes(x, y, statistic):
    dx, dy = x - x.mean(1, keepdims=True), y - y.mean(1, keepdims=True)
    cross = dx @ dy.T / x.shape[1]
    if statistic == "covariance":
        return cross
    lengths = np.outer(x.std(1), y.std(1))
    return np.divide(cross, lengths, out=np.zeros_like(cross), where=lengths > 0)


@pytest.mark.parametrize("statistic", STATISTICS)
def test_all_positions_of_a_convolution_are_samples(statistic):
    model, sym, params, x, generator = setting("flatten", seed=3, inputs=23)
    other = randomized(model, generator)
    result = match_activations(sym, params, other, model=model, data=x, batch_size=5, statistic=statistic)
    a, b = channels(model, params, x), channels(model, other, x)
    scores = {name: two_passes(a[name], b[name], statistic) for name in a}
    assert result.history[0] == pytest.approx(sum(np.trace(score) for score in scores.values()), rel=1e-12)
    best = {name: linear_sum_assignment(score, maximize=True)[1] for name, score in scores.items()}
    assert {name: p.tolist() for name, p in result.element.permutations.items()} == {
        name: p.tolist() for name, p in best.items()
    }
    assert result.objective == pytest.approx(
        sum(score[range(len(score)), best[name]].sum() for name, score in scores.items()), rel=1e-12
    )


def test_covariance_pools_places_and_correlation_adds_them():
    model, sym, params, x, generator = setting("residual mlp, one stream", seed=4)
    other = randomized(model, generator)

    def streams(theta):
        h, found = x, []
        for number in range(3):
            out = model.activations[number](
                F.linear(h, theta[f"layers.{number}.weight"], theta[f"layers.{number}.bias"])
            )
            h = h + out if number else out
            found.append(h.T.numpy())
        return found

    a, b = streams(params), streams(other)
    pooled = two_passes(np.concatenate(a, 1), np.concatenate(b, 1), "covariance")
    added = sum(two_passes(one, two, "correlation") for one, two in zip(a, b, strict=True))
    for statistic, expected in (("covariance", pooled), ("correlation", added)):
        result = match_activations(sym, params, other, model=model, data=x, statistic=statistic)
        assert result.history[0] == pytest.approx(np.trace(expected), rel=1e-12)
        assert result.element.permutations["stream"].tolist() == linear_sum_assignment(expected, True)[1].tolist()


@pytest.mark.parametrize("mean", [0.0, 1e6])
def test_streamed_moments_against_two_passes(mean, monkeypatch):
    monkeypatch.setattr(running_moments, "_ENTRIES", 40)
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(4, 101, generator=generator, dtype=torch.float64) + mean for _ in range(2))
    # The last samples are far from the first ones.
    x[:, 60:] += 3 + mean
    streamed = merged_pairs(pair_moments_of(x[:, :37], y[:, :37]), pair_moments_of(x[:, 37:], y[:, 37:]))
    a, b = x.numpy(), y.numpy()
    assert streamed.count == 101
    assert np.allclose(streamed.mean.numpy(), [a.mean(1), b.mean(1)], rtol=1e-14)
    scale = float(np.sqrt(a.var(1).max() * b.var(1).max()))
    for statistic, of in STATISTICS.items():
        error = np.abs(of(streamed).numpy() - two_passes(a, b, statistic)).max()
        # The two passes themselves know their means to about mean·1e-16.
        assert error <= 1e-13 * (1 + mean / 1e3) * (scale if statistic == "covariance" else 1)


def test_dead_units_correlate_with_nothing():
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(3, 50, generator=generator, dtype=torch.float64) for _ in range(2))
    x[1], y[2] = 0.1, 0  # a tenth has no exact binary form: its mean is off by rounding
    score = STATISTICS["correlation"](pair_moments_of(x, y))
    assert bool(torch.isfinite(score).all())
    assert torch.equal(score[1], torch.zeros(3, dtype=torch.float64))
    assert torch.equal(score[:, 2], torch.zeros(3, dtype=torch.float64))
    assert float(score[0, 0]) == pytest.approx(np.corrcoef(x[0], y[0])[0, 1])


def test_dead_units_do_no_harm_to_the_others():
    model, sym, params, x, generator = setting("concatenation")
    dead = [0, 2]
    params["a.weight"][dead], params["a.bias"][dead] = 0.0, 0.0
    part = sym.restrict(scales=False)
    g = part.random(generator)
    result = match_activations(sym, params, part.act(g, params), model=model, data=x)
    undone = g.permutations["a"][result.element.permutations["a"]]
    assert [i for i, p in enumerate(undone.tolist()) if i != p and i not in dead] == []
    assert torch.allclose(evaluate(model, result.params, x), evaluate(model, params, x))


# The assignment -------------------------------------------------------------------------------------------------------


def wreath():
    """Two blocks of two units, blocks with a sign and units with two; two units beside; a sign common to all."""
    classes = [UnitClass("g", 2), UnitClass("u", 2, "g"), UnitClass("v", 2), UnitClass("one", 1)]
    families = [Family(owner, name, signs=True) for owner, name in (("g", ""), ("u", ""), ("u", "t"), ("one", ""))]
    axes = {"w": Product((Units("g"), Units("u"))), "x": Units("v"), "y": Units("one")}
    sizes = {"w": 4, "x": 2, "y": 1}
    parameters = {name: Parameter((sizes[name],), (node,)) for name, node in axes.items()}
    return Symmetry({c.name: c for c in classes}, {family.key: family for family in families}, parameters)


def best_by_search(scores):
    """The largest objective over the whole group of ``wreath``, all signs at once."""
    units = {"g": 2, "u": 4, "v": 2}
    counts = {"g": 2, "u": 4, "u:t": 4, "one": 1}
    every = np.array(list(product((1, -1), repeat=11)))
    signs = dict(zip(counts, np.split(every, np.cumsum(list(counts.values()))[:-1], axis=1), strict=True))
    best = -np.inf
    for blocks, first, second, v in product(permutations(range(2)), repeat=4):
        inner = (first, second)  # told by the old block
        source = {"g": list(blocks), "u": [2 * a + i for a in blocks for i in inner[a]], "v": list(v)}
        total = np.zeros(len(every))
        for name, parts in scores.items():
            for shown, score in parts.items():
                pairs = np.tile(score.numpy()[range(units[name]), source[name]], (len(every), 1))
                for key in shown:
                    pairs *= signs[key].repeat(units[name] // counts[key], axis=1)[:, source[name]]
                total += pairs.sum(1)
        best = max(best, total.max())
    return best


SHOWN = [
    {"u": [(), ("u",)], "v": [()]},
    {"u": [("g",), ("g", "u")], "g": [()]},
    {"u": [("u",), ("u:t",), ("u", "u:t"), ()]},
    {"g": [("g",), ("one",)], "v": [("one",), ()]},
    {"u": [("g", "one"), ("u", "one")], "v": [("one",)]},
]


@pytest.mark.parametrize("shown", SHOWN, ids=str)
def test_assignment_is_the_best_of_the_whole_group(shown):
    sym = wreath()
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        scores = {}
        for name, products in shown.items():
            shape = (int(np.prod(sym.shape(name))),) * 2
            scores[name] = {frozenset(one): torch.randn(shape, generator=generator).double() for one in products}
        *_, (_, g) = assign(sym, scores)
        assert objective(sym, scores, g) == pytest.approx(best_by_search(scores), rel=1e-12)


@given(st.integers(0, 5), st.integers(0, 4), st.integers(0, 2**32 - 1))
def test_systems_over_two_elements(rows, columns, seed):
    generator = np.random.default_rng(seed)
    matrix = generator.integers(0, 2, (rows, columns)).astype(bool)
    values = generator.integers(0, 2, rows).astype(bool)
    every = [np.array(x, dtype=bool) for x in product((False, True), repeat=columns)]
    solutions = [x for x in every if np.array_equal((matrix.astype(int) @ x.astype(int)) % 2 == 1, values)]
    found = solve(matrix, values)
    assert (found is None) == (not solutions)
    assert found is None or any(np.array_equal(found, x) for x in solutions)


def test_hidden_signs_are_the_best_that_features_do_not_notice():
    """Two families whose product shows, on one class: against all signs that keep the product."""
    like = {"a": torch.zeros(3, 4), "b": torch.zeros(3, 4), "c": torch.zeros(2, 3)}
    axes = {"a": "u", "b": "u^0{t:1}", "c": "- u{t:1}"}
    sym = Symmetry.from_axes(axes, like, scales={"u": "sign", "u:t": "sign"})
    generator = torch.Generator().manual_seed(0)
    reference, other = (
        {name: torch.randn(t.shape, generator=generator, dtype=torch.float64) for name, t in like.items()} for _ in "12"
    )

    def value(u, t):
        g = sym.element({}, signs={"u": torch.tensor(u, dtype=torch.int8), "u:t": torch.tensor(t, dtype=torch.int8)})
        moved = sym.act(g, other)
        return sum(float((reference[name] * moved[name]).sum()) for name in like)

    every = list(product((1, -1), repeat=3))
    h = settle_signs(sym, reference, other, {"u": [frozenset({"u", "u:t"})]})
    assert torch.equal(h.signs["u"], h.signs["u:t"])
    assert value(h.signs["u"].tolist(), h.signs["u:t"].tolist()) == pytest.approx(max(value(s, s) for s in every))
    h = settle_signs(sym, reference, other, {"u": [frozenset({"u"})]})
    assert h.signs["u"].tolist() == [1, 1, 1]
    assert value([1, 1, 1], h.signs["u:t"].tolist()) == pytest.approx(max(value([1, 1, 1], s) for s in every))


class Elementwise(nn.Module):
    """Units that no contraction reads: Σ_i c_i·tanh(a_i·s + b_i), behind a hidden layer that one does."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 1)
        self.a, self.b, self.c = (nn.Parameter(torch.randn(5)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return (torch.tanh(self.second(F.relu(self.first(x))) * self.a + self.b) * self.c).sum(-1)


def test_classes_seen_nowhere_are_matched_on_the_weights():
    torch.manual_seed(0)
    model = Elementwise().double()
    axes = {"first.weight": "h", "first.bias": "h", "second.weight": "- /h", "a": "u", "b": "u", "c": "u"}
    sym = Symmetry.from_axes(axes, model, scales={"h": "positive", "u": "sign"})
    params = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    part = sym.restrict(scales=False)
    planted = part.act(part.random(torch.Generator().manual_seed(0)), params)
    result = match_activations(sym, params, planted, model=model, data=torch.randn(50, 4, dtype=torch.float64))
    assert all(torch.equal(result.params[name], tensor) for name, tensor in params.items())
    assert "no contraction shows the units of 'u': they were matched on the weights" in result.notes


# Ways to call it ------------------------------------------------------------------------------------------------------


def test_loader_and_tensor_give_the_same():
    model, sym, params, x, generator = setting("concatenation", seed=6)
    other = randomized(model, generator)
    data = torch.utils.data.TensorDataset(x, torch.zeros(len(x)))
    whole = match_activations(sym, params, other, model=model, data=x, batch_size=7)
    loaded = match_activations(sym, params, other, model=model, data=torch.utils.data.DataLoader(data, batch_size=9))
    once = match_activations(sym, params, other, model=model, data=iter([x[:20], x[20:]]))
    for result in (loaded, once):
        assert result.element == whole.element
        assert result.history == pytest.approx(whole.history, rel=1e-12)


def test_callback_stops_after_a_batch_with_what_was_seen():
    model, sym, params, x, generator = setting("flatten", seed=3)
    other = randomized(model, generator)
    steps = []
    stopped = match_activations(
        sym, params, other, model=model, data=x, batch_size=16, callback=lambda step: steps.append(step) or True
    )
    part = match_activations(sym, params, other, model=model, data=x[:16])
    assert stopped.stopped
    assert not part.stopped
    assert [step.what for step in steps] == ["batch 1"]
    assert steps[0].objective == pytest.approx(part.history[0])
    assert stopped.element == part.element
    assert stopped.history == pytest.approx(part.history)


def test_callback_sees_every_batch_and_class_and_stops_among_classes():
    model, sym, params, x, generator = setting("flatten", seed=3)
    other = randomized(model, generator)
    steps = []
    whole = match_activations(sym, params, other, model=model, data=x, batch_size=30, callback=steps.append)
    assert [step.what for step in steps] == ["batch 1", "batch 2", "batch 3", "class c1", "class c2"]
    assert [step.number for step in steps] == [1, 2, 3, 4, 5]
    assert [step.objective for step in steps[2:]] == pytest.approx(whole.history)
    part = match_activations(sym, params, other, model=model, data=x, callback=lambda step: step.what == "class c1")
    assert part.stopped
    assert torch.equal(part.element.permutations["c1"], whole.element.permutations["c1"])
    assert torch.equal(part.element.permutations["c2"], sym.identity().permutations["c2"])


def test_trained_networks_agree_as_well_from_anywhere_on_their_orbit(checkpoint_folder):
    model = build("tiny10")
    files = [load_file(checkpoint_folder / f"tiny10-seed{seed}.safetensors") for seed in (0, 1)]
    a, b = ({name: t.double() if t.is_floating_point() else t for name, t in file.items()} for file in files)
    sym = declared(model)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 3, 32, 32, generator=generator)
    here = match_activations(sym, a, b, model=model, data=x)
    there = match_activations(sym, a, sym.act(sym.random(generator), b), model=model, data=x)
    # Units that are dead on this noise may be matched otherwise; nothing else may.
    assert there.objective == pytest.approx(here.objective, rel=1e-9)
    assert here.objective > 2 * here.history[0]


class Fickle(nn.Module):
    """Skips a layer where there are many inputs."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        return h if len(x) > 8 else self.last(h)


def test_control_flow_that_follows_the_data_is_refused():
    model = Fickle()
    sym = Symmetry.from_axes({"first.weight": "h", "first.bias": "h", "last.weight": "- h"}, model)
    params = dict(model.state_dict())
    with pytest.raises(InputError, match=r"call 1 \(linear\) of Fickle is not made on inputs of shape \(9, 4\)"):
        match_activations(sym, params, params, model=model, data=torch.randn(9, 4))


def assert_refused(message, name="flatten", **changes):
    model, sym, params, x, _ = setting(name, inputs=8)
    options = {"model": model, "data": x} | changes
    with pytest.raises(InputError, match=message):
        match_activations(sym, options.pop("reference", params), options.pop("other", params), **options)


def test_bad_input_is_refused_by_name():
    _, _, params, x, _ = setting("flatten", inputs=8)
    assert_refused("data holds no batches", data=[])
    assert_refused(r"FlattenCNN cannot be run on data of shape \(2, 3, 8, 8\)", data=torch.zeros(2, 3, 8, 8))
    assert_refused("batch 1 of data has entries that are NaN", data=[x, x / 0])
    assert_refused(r"batch 1 of data has shape \(0, 2, 8, 8\)", data=[x, x[:0]])
    assert_refused("statistic is 'cosine'; expected one of correlation, covariance", statistic="cosine")
    assert_refused("batch_size is 0", batch_size=0)
    assert_refused("no units of this symmetry permute", name="rotary")
    assert_refused("the symmetry knows 'conv.weight', which model", model=nn.Linear(2, 2))
    huge = params | {"conv.weight": params["conv.weight"] * 1e300, "conv2.weight": params["conv2.weight"] * 1e300}
    for end, whose in (("reference", "the reference"), ("other", "the other network")):
        message = rf"activations of 'c1' in {whose}, as call 1 \(conv2d\) reads them on batch 0 of data, are NaN"
        assert_refused(message, **{end: huge})


def test_moments_are_values():
    one = pair_moments_of(torch.ones(2, 3), torch.ones(2, 3))
    with pytest.raises(AttributeError):
        one.count = 4
    assert isinstance(merged_pairs(one, one), PairMoments)
    assert merged_pairs(one, one).count == 6


@pytest.mark.parametrize("data", [torch.zeros(10, 6), torch.ones(1, 6), torch.ones(8, 6)])
def test_singular_statistics_are_refused(data):
    model = MLP(6, [5, 4], 3).eval()
    sym = discover(model, torch.randn(2, 6, generator=torch.Generator().manual_seed(0)))
    a, b = (dict(MLP(6, [5, 4], 3).state_dict()) for _ in range(2))
    with pytest.raises(InputError, match="inputs that differ"):
        match_activations(sym, a, b, model=model, data=data)
