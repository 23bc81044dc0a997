"""Scores of generated networks: planted copies, noise and good new ones; every number by another way."""

import json
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.spatial.distance import jensenshannon
from scipy.stats import binomtest
from torch import nn

import architectures
import coset
from coset.canonical import distance
from coset.distribution import Samples
from coset.errors import InputError
from coset.flow import (
    cheap_samples,
    compare_generators,
    jensen_shannon,
    measure_zoo,
    per_weight,
    score_against,
    score_samples,
)
from coset.models import MLP
from coset.posterior import predictive, score
from coset.symmetry.stacks import act_stack, network_of, random_stack
from coset.train import evaluate


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def near(params, count, size, seed=0):
    """Networks around one: normal numbers of ``size`` are added to all of its weights."""
    generator = seeded(seed)
    return {
        name: tensor + size * torch.randn(count, *tensor.shape, generator=generator, dtype=tensor.dtype)
        for name, tensor in params.items()
    }


def moved(sym, stack, seed=0):
    """Every network by an element of its own."""
    return act_stack(sym, random_stack(sym, len(next(iter(stack.values()))), seeded(seed)), stack)


def chosen(stack, numbers):
    return {name: tensor[numbers] for name, tensor in stack.items()}


def joined(*stacks):
    return {name: torch.cat([stack[name] for stack in stacks]) for name in stacks[0]}


def teacher(model, seed=0):
    return {
        name: torch.randn(tensor.shape, generator=seeded(seed + i), dtype=torch.float64)
        for i, (name, tensor) in enumerate(model.state_dict().items())
    }


@pytest.fixture(scope="module")
def setting():
    """Labels of one network; a zoo of networks near it, each at another place of its orbit."""
    model = MLP(4, [4], 3).double()
    x = torch.randn(90, 4, generator=seeded(1), dtype=torch.float64)
    sym = coset.discover(model, x[:3])
    truth = teacher(model)
    y = evaluate_outputs(model, truth, x).argmax(1)
    zoo = moved(sym, near(truth, 12, 0.15), 3)
    return model, sym, zoo, (x, y), truth


def evaluate_outputs(model, params, x):
    with torch.no_grad():
        return torch.func.functional_call(model, params, (x,))


@pytest.fixture(scope="module")
def measured(setting):
    model, sym, zoo, data, _ = setting
    return measure_zoo(model, sym, zoo, data, calibration=(data[0][:60], data[1][:60]), points=40)


def test_training_networks_given_back_are_no_new_ones(setting, measured):
    _, sym, zoo, *_ = setting
    found = score_against(measured, moved(sym, zoo, 7), bar=0.5, permutations=50)
    assert found.performant.all()
    assert not found.novel.any()
    assert found.memorised.all()
    assert found.novel_and_performant == 0
    assert found.distance_ratio < 1e-6
    # The same set in weights and in functions: no division is farther apart than the given one is near.
    for one in (*found.energy.values(), *found.discrepancy.values()):
        assert one.value < 0
        assert one.p_value == 1


def test_noise_is_new_and_useless_and_good_new_networks_are_both(setting, measured):
    _, sym, _, _, truth = setting
    far = score_against(measured, near(truth, 10, 5.0, 4), bar=0.75, permutations=99)
    assert far.novel.all()
    assert float(far.performant.double().mean()) < 0.3
    assert not far.memorised.any()
    assert far.energy["weights"].p_value == far.energy["functions"].p_value == 0.01
    good = score_against(measured, moved(sym, near(truth, 40, 0.15, 5), 6), bar=0.75, permutations=99)
    assert good.novel_and_performant > 0.3
    assert good.novel_and_performant == float((good.novel & good.performant).double().mean())
    assert good.energy["weights"].value < far.energy["weights"].value
    known = binomtest(round(40 * good.novel_and_performant), 40).proportion_ci(method="wilson")
    assert good.interval == pytest.approx(tuple(known), rel=1e-9)
    # Of the same distribution as the zoo.
    assert min(one.p_value for one in (*good.energy.values(), *good.discrepancy.values())) > 0.01


def numbers(value):
    """All numbers of nested dicts and lists, in their order."""
    if isinstance(value, dict):
        return [number for one in value.values() for number in numbers(one)]
    if isinstance(value, list):
        return [number for one in value for number in numbers(one)]
    return [value] if isinstance(value, int | float) else []


@pytest.mark.parametrize("limit", [None, 1])
def test_no_score_sees_where_on_its_orbit_a_network_is(setting, limit):
    """Neither with exact distances nor with those of alignments."""
    model, sym, zoo, data, truth = setting
    samples = near(truth, 5, 0.3, 9)
    options = {"bar": 0.7, "permutations": 20, "limit": limit, "calibration": data}
    one = score_samples(model, sym, samples, zoo, data, **options)
    other = score_samples(model, sym, moved(sym, samples, 1), moved(sym, zoo, 2), data, **options)
    assert one.zoo.between.exact == (limit is None)
    mine, theirs = (numbers(found.to_dict()) for found in (one, other))
    assert len(mine) > 60
    np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("metric", ["geodesic", "euclidean"])
def test_distances_pair_by_pair(setting, metric):
    model, sym, zoo, data, truth = setting
    few, samples = chosen(zoo, slice(0, 4)), near(truth, 3, 0.2, 2)
    found = score_samples(model, sym, samples, few, data, bar=0.5, metric=metric, permutations=0)

    def apart(a, i, b, j):
        return distance(sym, network_of(a, i), network_of(b, j), metric=metric)

    nearest = [min(apart(samples, i, few, j) for j in range(4)) for i in range(3)]
    own = [min(apart(few, i, few, j) for j in range(4) if j != i) for i in range(4)]
    np.testing.assert_allclose(found.nearest, nearest, rtol=1e-9)
    np.testing.assert_allclose(found.zoo.nearest, own, rtol=1e-9)
    assert found.zoo.novel_from == pytest.approx(np.median(own))
    assert found.zoo.memorised_below == pytest.approx(np.quantile(own, 0.01))
    assert found.novel.tolist() == [value > np.median(own) for value in nearest]
    spread = np.mean([apart(samples, i, samples, j) for i in range(3) for j in range(i)])
    assert found.spread == pytest.approx(spread)
    assert found.energy["weights"].p_value is None


def test_losses_accuracies_and_averages(setting, measured):
    model, _, zoo, (x, y), truth = setting
    samples = near(truth, 5, 0.4, 2)
    found = score_against(measured, samples, bar=0.5, permutations=0)
    for stack, evaluation in ((samples, found.evaluation), (zoo, measured.evaluation)):
        for number in range(len(evaluation)):
            one = evaluate(model, x, y, params=network_of(stack, number))
            assert float(evaluation.losses[number]) == pytest.approx(one.loss, rel=1e-12)
            assert float(evaluation.measures[number]) == pytest.approx(one.accuracy)
    assert [(one.networks, one.groups) for one in found.evaluation.averages] == [(1, 5), (2, 2), (4, 1)]
    for one in found.evaluation.averages:
        groups = [chosen(samples, slice(k * one.networks, (k + 1) * one.networks)) for k in range(one.groups)]
        parts = [score(predictive(model, Samples({n: t[None] for n, t in group.items()}), x, y=y)) for group in groups]
        assert one.loss == pytest.approx(np.mean([part["nll"] for part in parts]), rel=1e-9)
        assert one.measure == pytest.approx(np.mean([part["accuracy"] for part in parts]))


def test_a_refitted_factor_is_the_best_one(setting, measured):
    """s·f(x) with the least loss on the calibration data; a last layer at another scale has the same."""
    model, _, _, (x, y), truth = setting
    samples = near(truth, 3, 0.6, 2)
    found = score_against(measured, samples, bar=0.5, permutations=0).evaluation
    for number in range(3):
        outputs = evaluate_outputs(model, network_of(samples, number), x)

        def loss(s, rows=slice(0, 60), outputs=outputs):
            return float(nn.functional.cross_entropy(s * outputs[rows], y[rows]))

        best = minimize_scalar(loss, bracket=(0.1, 1.0), tol=1e-12)
        assert float(found.factors[number]) == pytest.approx(best.x, rel=1e-6)
        assert float(found.refitted[number]) == pytest.approx(loss(best.x, slice(None)), rel=1e-6)
        assert loss(float(found.factors[number])) <= loss(1.0)
    last = [name for name in samples if name.startswith("layers.1.")] or sorted(samples)[-2:]
    scaled = {name: 7.0 * t if name in last else t for name, t in samples.items()}
    other = score_against(measured, scaled, bar=0.5, permutations=0).evaluation
    torch.testing.assert_close(other.refitted, found.refitted, rtol=1e-9, atol=0)
    torch.testing.assert_close(7 * other.factors, found.factors, rtol=1e-9, atol=0)


def test_divergences_pair_by_pair(monkeypatch):
    generator = seeded()
    p, q = (torch.rand(n, 6, 3, generator=generator, dtype=torch.float64) for n in (5, 4))
    p[0, 0] = torch.tensor([0.0, 0.0, 1.0])
    p, q = (part / part.sum(-1, keepdim=True) for part in (p, q))

    def brute(a, b):
        return np.mean([jensenshannon(one, other) ** 2 for one, other in zip(a.numpy(), b.numpy(), strict=True)])

    expected = [[brute(a, b) for b in q] for a in p]
    np.testing.assert_allclose(jensen_shannon(p, q), expected, rtol=1e-9)
    own = jensen_shannon(p)
    np.testing.assert_allclose(own, [[brute(a, b) for b in p] for a in p], rtol=1e-9, atol=1e-12)
    monkeypatch.setattr("coset.flow._evaluation._HELD", 40)
    torch.testing.assert_close(jensen_shannon(p), own)
    one = torch.eye(2, dtype=torch.float64)[:, None]
    assert float(jensen_shannon(one)[0, 1]) == pytest.approx(math.log(2))


def test_blocks_change_nothing(setting, measured, monkeypatch):
    _, _, _, _, truth = setting
    samples = near(truth, 5, 0.3, 2)
    whole = score_against(measured, samples, bar=0.7, permutations=20)
    monkeypatch.setattr("coset.flow._evaluation._HELD", 100)
    parts = score_against(measured, samples, bar=0.7, permutations=20)
    np.testing.assert_allclose(numbers(parts.to_dict()), numbers(whole.to_dict()), rtol=1e-9)


def test_samples_that_are_not_finite_are_counted(setting, measured):
    """They are of those that are neither new nor good; all else is that of the others."""
    *_, truth = setting
    good, bad = near(truth, 6, 0.2, 8), near(truth, 3, 0.2, 9)
    name = next(iter(bad))
    bad[name][0].view(-1)[1] = torch.nan
    bad[name][1] *= torch.inf
    for tensor in bad.values():
        # Finite weights, and outputs that are not.
        tensor[2] *= 1e200
    order = [6, 0, 1, 7, 2, 3, 4, 8, 5]
    alone = score_against(measured, good, bar=0.6, permutations=20)
    mixed = score_against(measured, chosen(joined(good, bad), order), bar=0.6, permutations=20)
    assert mixed.usable.tolist() == [number < 6 for number in order]
    assert mixed.evaluation.losses.isnan().sum() == 3
    assert mixed.novel_and_performant == pytest.approx(alone.novel_and_performant * 6 / 9)
    assert alone.novel_and_performant > 0
    one, other = alone.to_dict(), mixed.to_dict()
    assert (one["finite"], other["finite"], other["samples"]) == (6, 6, 9)
    for key in ("networks", "divergence", "spread", "energy distance", "mean discrepancy", "distance ratio"):
        np.testing.assert_allclose(numbers(other[key]), numbers(one[key]), rtol=1e-9)
    assert "not finite" in str(mixed)
    nothing = score_against(measured, bad, bar=0.0, permutations=20)
    assert nothing.novel_and_performant == 0
    assert (float(nothing.performant.sum()), nothing.divergence, dict(nothing.energy)) == (0, None, {})
    json.dumps(nothing.to_dict(), allow_nan=False)
    str(nothing)


def test_some_networks_of_the_zoo_and_others_held_out(setting):
    model, sym, zoo, data, truth = setting
    kept = near(truth, 8, 0.15, 11)
    part = measure_zoo(model, sym, zoo, data, compared=5, held_out=kept, seed=2)
    assert (part.count, part.compared, part.held_out, len(part.evaluation)) == (12, 5, 8, 12)
    again = measure_zoo(model, sym, chosen(part.networks, slice(None)), data)
    torch.testing.assert_close(again.between.values, part.between.values)
    samples = near(truth, 4, 0.2, 3)
    found = score_against(part, samples, bar=0.5, permutations=20)
    torch.testing.assert_close(found.nearest, score_against(again, samples, bar=0.5, permutations=0).nearest)
    other = score_against(measure_zoo(model, sym, kept, data, seed=2), samples, bar=0.5, permutations=20)
    assert found.energy["functions"] == other.energy["functions"]
    text = str(found)
    assert "to 5 of the 12 training networks" in text
    assert "against 8 held-out networks; p among 20 random divisions" in text


def test_generators_beside_each_other(setting, measured):
    *_, truth = setting
    canonical = measured.networks
    stacks = {"truth": near(truth, 8, 0.15, 5), **cheap_samples(canonical, 8, generators=["noise", "gaussian"])}
    found = compare_generators(measured, stacks, bar=0.6, permutations=20)
    values = {name: one.novel_and_performant for name, one in found.scores.items()}
    assert found.not_beaten("truth") == tuple(name for name in ("noise", "gaussian") if values[name] >= values["truth"])
    assert found.not_beaten("noise") != ()
    lines = str(found).splitlines()
    assert [line.split("  ")[0] for line in lines[2:6]] == ["training networks", "truth", "noise", "gaussian"]
    beaten = found.not_beaten("truth")
    assert lines[6].startswith(
        f"truth does not beat {', '.join(beaten)}: " if beaten else "truth is above all others: "
    )
    assert json.loads(json.dumps(found.to_dict()))["noise"]["memorised"] == values_of(found, "noise")


def values_of(found, name):
    return float(found.scores[name].memorised.double().mean())


def test_log_likelihood_per_weight(measured, setting):
    logs = torch.tensor([10.0, 14.0, 12.0])
    found = per_weight(logs, 4)
    assert found.value == 3
    assert found.error == pytest.approx(2 / 4 / math.sqrt(3))
    scores = score_against(measured, near(setting[-1], 2, 0.1), bar=0.5, permutations=0, log_likelihood=found)
    assert "log-likelihood per weight" in str(scores)
    assert scores.to_dict()["log-likelihood per weight"] == {"value": 3.0, "error": found.error}


LOSSES = {
    "mse": lambda f: f,
    "binary-cross-entropy": lambda f: (f > 0).double(),
    "shares": lambda f: f.sigmoid(),
    "cross-entropy": lambda f: f.argmax(-1),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_other_losses_and_sequences(loss):
    """Outputs (examples, 5, 3) of a network that reads every position alike."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    x = torch.randn(20, 5, 4, generator=seeded(3), dtype=torch.float64)
    sym, truth = coset.discover(model, x[:2]), teacher(model)
    zoo = near(truth, 4, 0.1)
    y = LOSSES[loss](evaluate_outputs(model, truth, x))
    samples = joined(near(truth, 3, 0.2, 2), {name: tensor[None] for name, tensor in truth.items()})
    found = score_samples(model, sym, samples, zoo, (x, y), bar=0.5, loss=loss, permutations=0)
    for number in range(4):
        one = evaluate(model, x, y, params=network_of(samples, number), loss=loss)
        assert float(found.evaluation.losses[number]) == pytest.approx(one.loss, rel=1e-9)
        assert float(found.evaluation.measures[number]) == pytest.approx(
            one.rmse if one.accuracy is None else one.accuracy
        )
    exact = found.evaluation.measures[3]
    assert float(exact) == pytest.approx(1.0 if "entropy" in loss else 0.0, abs=1e-12)
    assert bool(found.performant[3])
    assert (found.divergence is None) == ("entropy" not in loss)
    outputs = torch.stack([evaluate_outputs(model, network_of(samples, number), x) for number in range(4)])
    averaged = {
        "mse": lambda: outputs.mean(0),
        "shares": lambda: outputs.sigmoid().mean(0).logit(),
        "binary-cross-entropy": lambda: outputs.sigmoid().mean(0).logit(),
        "cross-entropy": lambda: outputs.softmax(-1).mean(0).log(),
    }[loss]()
    assert found.evaluation.averages[-1].loss == pytest.approx(by_formula(averaged, y, loss), rel=1e-9)


def by_formula(outputs, y, loss):
    """The loss by its formula."""
    if loss == "mse":
        return float((outputs - y).square().mean())
    if loss == "cross-entropy":
        return -float(outputs.log_softmax(-1).gather(-1, y[..., None]).mean())
    p = outputs.sigmoid()
    cross = -(y * p.log() + (1 - y) * (1 - p).log()).mean()
    return float(cross if loss != "shares" else cross - torch.special.entr(torch.stack([y, 1 - y])).sum(0).mean())


@pytest.mark.parametrize("name", ["batchnorm+depthwise", "tied embeddings"])
def test_no_architecture_is_special(name):
    """Statistics, tied names; labels at every position."""
    model, sym, shape = architectures.made(name)
    sym = sym.monomial
    single = [architectures.randomized(model, seeded(seed)) for seed in range(7)]
    stack = {key: torch.stack([one[key] for one in single]) for key in single[0]}
    if name == "tied embeddings":
        x = torch.randint(0, 5, (12, *shape), generator=seeded(1))
    else:
        x = torch.randn(12, *shape, generator=seeded(1), dtype=torch.float64)
    y = evaluate_outputs(model, single[0], x).argmax(-1)
    options = {"bar": 0.0, "permutations": 20, "limit": 100}
    found = score_samples(model, sym, chosen(stack, slice(4, 7)), chosen(stack, slice(0, 4)), (x, y), **options)
    assert found.usable.all()
    assert float(found.zoo.evaluation.measures[0]) == 1
    given = score_against(found.zoo, moved(sym, found.zoo.networks, 1), bar=0.0, permutations=0)
    assert given.memorised.all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": lambda s: chosen(s, slice(0, 0))}, "samples holds no network"),
        ({"samples": lambda s: network_of(s, 0)}, "samples is a single network"),
        ({"samples": lambda s: None}, "samples is a NoneType"),
        ({"zoo": lambda s: {"other": torch.zeros(3, 2)}}, "the zoo is not of the architecture of this symmetry"),
        ({"zoo": lambda s: chosen(s, slice(0, 1))}, "the zoo holds 1 network; expected at least 2"),
        ({"zoo": lambda s: {n: t / 0 for n, t in s.items()}}, "network 0 of the zoo has entries that are NaN"),
        ({"zoo": lambda s: {n: 1e200 * t for n, t in s.items()}}, "network 0 of the zoo has outputs that are NaN"),
        ({"held_out": lambda s: {n: t[:1] for n, t in s.items()}}, "held_out holds 1 network"),
        ({"data": lambda d: d[0]}, r"data is a Tensor; expected tensors \(x, y\): accuracies need labels"),
        ({"data": lambda d: (d[0], d[1][:5])}, "x of data has 90 examples and y of data has 5"),
        ({"data": lambda d: (d[0], d[1] + 5)}, "y of data has labels from"),
        ({"data": lambda d: (d[0][:, :2], d[1])}, "x of data: the model cannot take inputs"),
        ({"calibration": lambda d: (d[0], d[1] + 5)}, "y of calibration has labels from"),
        ({"calibration": lambda d: d, "loss": "mse", "bar": 0.5, "data": lambda d: (d[0], torch.zeros(90, 3).double())},
         "y of calibration has shape|calibration is given and the loss is 'mse'"),
        ({"loss": "hinge"}, "loss is 'hinge'; expected one of"),
        ({"bar": 1.5}, "bar is 1.5; expected an accuracy from 0 to 1"),
        ({"bar": -0.1}, "bar is -0.1; expected an accuracy from 0 to 1"),
        ({"bar": "high"}, "bar is 'high'"),
        ({"bar": math.nan}, "bar is nan"),
        ({"compared": 13}, "compared is 13; expected at most the 12 networks"),
        ({"compared": 1}, "compared is 1; expected a whole number ≥ 2"),
        ({"points": 0}, "points is 0"),
        ({"metric": "cosine"}, "metric is 'cosine'"),
        ({"seed": -1}, "seed is -1"),
        ({"log_likelihood": 3.0}, "log_likelihood is a float; expected what per_weight gives"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(setting, change, message):
    model, sym, zoo, data, truth = setting
    given = {"samples": near(truth, 2, 0.1), "zoo": zoo, "data": data, "held_out": zoo, "calibration": data, "bar": 0.5}
    made = {key: value(given[key]) if callable(value) else value for key, value in change.items()}
    for key in ("held_out", "calibration"):
        if key not in made:
            given.pop(key)
    with pytest.raises(InputError, match=message) as error:
        score_samples(model, sym, **{**given, "permutations": 0, **made})
    assert "\n" not in str(error.value)


def test_bad_log_probabilities_are_one_line():
    with pytest.raises(InputError, match=r"log_probs is \(2, 1\); expected a tensor \(N,\)"):
        per_weight(torch.zeros(2, 1), 3)
    with pytest.raises(InputError, match=r"log_probs\[1\] is nan"):
        per_weight(torch.tensor([0.0, torch.nan]), 3)
    with pytest.raises(InputError, match="weights is 0"):
        per_weight(torch.zeros(2), 0)
