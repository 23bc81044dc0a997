"""Scores against cases worked by hand, closed forms and numerical integration."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from coset.distribution.samples import Samples
from coset.errors import InputError
from coset.models import MLP
from coset.posterior._calibration import SCHEMES, ece, plot_reliability, reliability
from coset.posterior.likelihoods import GaussianNoise
from coset.posterior.prediction._predictive import predictive
from coset.posterior.scores import Scores, accuracy, brier, crps, crps_values, mixture_nll, nll, rmse, score

# Confidences .9, .8, .6, .55 on labels 0, 1, 0, 1; right, right, wrong, wrong.
PROBABILITIES = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.45, 0.55]], dtype=torch.float64)
LABELS = torch.tensor([0, 1, 1, 0])


def test_label_scores_by_hand():
    assert nll(PROBABILITIES.log(), LABELS) == pytest.approx(-math.log(0.9 * 0.8 * 0.4 * 0.45) / 4)
    assert accuracy(PROBABILITIES, LABELS) == 0.5
    # 2·(.1² + .2² + .6² + .55²)/4
    assert brier(PROBABILITIES, LABELS) == pytest.approx(2 * (0.01 + 0.04 + 0.36 + 0.3025) / 4)


def test_calibration_by_hand():
    # Two bins of equal width: all in (1/2, 1], mean confidence .7125, accuracy .5.
    assert ece(PROBABILITIES, LABELS, 2) == pytest.approx(0.2125)
    # Five: (.4, .6] has .55 and .6, both wrong; (.6, .8] has .8, right; (.8, 1] has .9, right.
    curve = reliability(PROBABILITIES, LABELS, 5)
    assert curve.count == (0, 0, 2, 1, 1)
    assert reliability(PROBABILITIES.float(), LABELS, 5).count == curve.count
    assert curve.confidence[2:] == pytest.approx((0.575, 0.8, 0.9))
    assert curve.accuracy[2:] == (0, 1, 1)
    assert math.isnan(curve.accuracy[0])
    assert curve.ece == pytest.approx((2 * 0.575 + 0.2 + 0.1) / 4)
    assert curve.largest_gap == pytest.approx(0.575)
    assert curve.gaps == pytest.approx((-0.575, 0.2, 0.1))
    # Two of equal mass: {.55, .6} both wrong, {.8, .9} both right.
    halves = reliability(PROBABILITIES, LABELS, 2, "mass")
    assert halves.count == (2, 2)
    assert halves.edges == (0.0, 0.6, 1.0)
    assert halves.ece == pytest.approx((0.575 + 0.15) / 2)
    assert "0.5750" in str(curve)


def test_equal_confidences_share_a_bin_whatever_their_order():
    p = torch.tensor([0.7, 0.7, 0.7, 0.9], dtype=torch.float64)
    rows = torch.stack([p, 1 - p], 1)
    y = torch.tensor([0, 0, 1, 0])
    curve = reliability(rows, y, 4, "mass")
    assert curve.count == (3, 0, 0, 1)
    assert curve.ece == pytest.approx((3 * abs(2 / 3 - 0.7) + 0.1) / 4)
    order = torch.tensor([2, 3, 1, 0])
    assert reliability(rows[order], y[order], 4, "mass").ece == pytest.approx(curve.ece)
    same = torch.full((5, 2), 0.5).double()
    assert reliability(same, torch.tensor([0, 0, 1, 1, 1]), 3, "mass").count == (5, 0, 0)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_certain_and_right_or_wrong(scheme):
    sure = torch.eye(3).double()
    assert ece(sure, torch.arange(3), scheme=scheme) == 0
    assert ece(sure, torch.tensor([1, 2, 0]), scheme=scheme) == 1
    assert reliability(sure, torch.arange(3), 15, scheme).count[-1 if scheme == "width" else 0] == 3
    assert brier(sure, torch.tensor([1, 2, 0])) == 2
    assert nll(sure.log(), torch.arange(3)) == 0
    assert nll(sure.log(), torch.tensor([1, 2, 0])) == math.inf


@given(st.lists(st.integers(1, 98), min_size=1, max_size=60), st.integers(1, 20), st.sampled_from(sorted(SCHEMES)))
def test_bins_hold_every_point_between_their_edges(percents, bins, scheme):
    p = torch.tensor(percents, dtype=torch.float64) / 100
    rows = torch.stack([p, 1 - p], 1)
    y = (torch.arange(len(p)) % 3 == 0).long()
    curve = reliability(rows, y, bins, scheme)
    assert sum(curve.count) == len(p)
    confidence, right = rows.max(1).values, (rows.argmax(1) == y).double()
    total = 0.0
    for k in range(bins):
        inside = (confidence > curve.edges[k]) & (confidence <= curve.edges[k + 1])
        assert int(inside.sum()) == curve.count[k]
        if curve.count[k]:
            total += abs(float((right - confidence)[inside].sum())) / len(p)
    assert curve.ece == pytest.approx(total, abs=1e-12)
    if scheme == "mass" and len(set(confidence.tolist())) == len(p):
        assert max(curve.count) - min(curve.count) <= 1


def test_more_bins_than_points():
    assert sum(reliability(PROBABILITIES, LABELS, 100).count) == 4
    assert max(reliability(PROBABILITIES, LABELS, 100, "mass").count) == 1


def integral_crps(means, stds, y):
    """∫ (F(z) − 1[z ≥ y])² dz."""

    def distribution(z):
        return sum(norm.cdf(z, m, s) for m, s in zip(means, stds, strict=True)) / len(means)

    low, high = min([*means, y]) - 12 * max(stds), max([*means, y]) + 12 * max(stds)
    left, _ = quad(lambda z: distribution(z) ** 2, low, y, limit=400, epsabs=1e-12)
    right, _ = quad(lambda z: (1 - distribution(z)) ** 2, y, high, limit=400, epsabs=1e-12)
    return left + right


@pytest.mark.parametrize("y", [-1.5, 0.3, 4.0])
def test_crps_of_a_mixture_is_the_integral(y):
    means, stds = [0.0, 1.0, -2.0], [1.0, 0.3, 0.7]
    value = crps_values(
        torch.tensor(means, dtype=torch.float64),
        torch.tensor(stds, dtype=torch.float64),
        torch.tensor(y, dtype=torch.float64),
    )
    assert float(value) == pytest.approx(integral_crps(means, stds, y), abs=1e-9)


def test_crps_of_one_gaussian_and_of_points():
    y, m, s = (
        torch.tensor([0.7], dtype=torch.float64),
        torch.tensor([[0.2]], dtype=torch.float64),
        torch.tensor([[1.3]], dtype=torch.float64),
    )
    z = 0.5 / 1.3
    closed = 1.3 * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / math.sqrt(math.pi))
    assert crps(m, s, y) == pytest.approx(closed, rel=1e-12)
    again = crps(m.repeat(7, 1), s.repeat(7, 1), y)
    assert again == pytest.approx(closed, rel=1e-12)
    # Points 0 and 1, target 3: (3 + 2)/2 − ½·½.
    points = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    assert crps(points, torch.zeros_like(points), torch.tensor([3.0], dtype=torch.float64)) == pytest.approx(2.25)


def test_crps_does_not_depend_on_its_chunks(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    means, y = torch.randn(5, 11, 2, generator=generator).double(), torch.randn(11, 2, generator=generator).double()
    stds = torch.rand(5, 11, 2, generator=generator).double()
    whole = crps_values(means, stds, y)
    monkeypatch.setattr("coset.posterior.scores.ENTRIES", 30)
    torch.testing.assert_close(crps_values(means, stds, y), whole)
    assert whole.shape == y.shape


def test_real_scores_by_hand():
    assert rmse(torch.tensor([[1.0], [2.0]]), torch.tensor([[2.0], [4.0]])) == pytest.approx(math.sqrt(2.5))
    means, stds = torch.tensor([[[0.0]], [[2.0]]], dtype=torch.float64), torch.ones(2, 1, 1).double()
    expected = -math.log((norm.pdf(1) + norm.pdf(1)) / 2)
    assert mixture_nll(means, stds, torch.tensor([[1.0]])) == pytest.approx(expected)


@pytest.fixture(scope="module")
def labelled():
    torch.manual_seed(0)
    model = MLP(3, [5], 4).double()
    draws = Samples.stack([{k: torch.randn_like(v) for k, v in model.state_dict().items()} for _ in range(6)])
    x, y = torch.randn(40, 3).double(), torch.randint(4, (40,))
    return model, draws, x, y


def test_all_scores_of_labels(labelled):
    model, draws, x, y = labelled
    result = predictive(model, draws, x, y=y)
    found = score(result)
    p = result.probabilities
    assert isinstance(found, Scores)
    assert found["nll"] == pytest.approx(-result.likelihood.mean, rel=1e-12)
    assert found["nll_error"] == result.likelihood.mean_error
    assert found["accuracy"] == float((p.argmax(1) == y).double().mean())
    assert found["brier"] == pytest.approx(brier(p, y))
    assert (found["ece"], found["ece_mass"]) == (ece(p, y), ece(p, y, scheme="mass"))
    assert found["mutual_information"] == pytest.approx(found["entropy"] - found["expected_entropy"])
    assert found["mutual_information"] > 0.05
    # Other targets, or a predictive that has seen none: all but the Monte Carlo error.
    other = (y + 1) % 4
    assert set(found) - set(score(result, other)) == {"nll_error"}
    assert score(result, other) == pytest.approx(dict(score(predictive(model, draws, x), other)))
    assert score(result, y.to(torch.int32)) == found
    assert "accuracy" in str(found)
    assert "%" in str(found)


def test_labels_of_two_classes_as_the_likelihood_takes_them(labelled):
    _, _, x, y = labelled
    model = MLP(3, [5], 1).double()
    binary = (y > 1).double().unsqueeze(1)
    result = predictive(model, dict(model.state_dict()), x, y=binary, likelihood="bernoulli")
    assert dict(score(result, binary)) == dict(score(result))
    assert score(result, binary)["nll_error"] == 0


@pytest.fixture(scope="module")
def real():
    torch.manual_seed(1)
    model = MLP(3, [5], 2).double()
    draws = Samples.stack([{k: torch.randn_like(v) for k, v in model.state_dict().items()} for _ in range(6)])
    return model, draws, torch.randn(20, 3).double(), torch.randn(20, 2).double()


def test_all_scores_of_real_targets(real):
    model, draws, x, y = real
    result = predictive(model, draws, x, y=y, likelihood=GaussianNoise(0.5))
    found = score(result)
    assert found["nll"] == pytest.approx(mixture_nll(result.member_means, result.member_stds, y), rel=1e-12)
    assert found["rmse"] == pytest.approx(rmse(result.mean, y))
    assert found["crps"] == pytest.approx(crps(result.member_means, result.member_stds, y))
    assert found["noise_std"] == pytest.approx(0.5)
    assert found["std"] == pytest.approx(math.hypot(found["noise_std"], found["model_std"]))
    single = Samples({name: tensor.float() for name, tensor in draws.params.items()})
    assert "nll_error" in score(predictive(model, single, x, y=y, likelihood=GaussianNoise(0.5)), y)
    unseen = predictive(model, draws, x, likelihood=GaussianNoise(0.5))
    assert score(unseen, y) == pytest.approx({name: found[name] for name in found if name != "nll_error"})
    lean = predictive(model, draws, x, y=y, likelihood=GaussianNoise(0.5), keep=False)
    assert dict(score(lean)) == pytest.approx({name: found[name] for name in found if name != "crps"})
    assert {"nll", "crps"}.isdisjoint(score(lean, y + 1))


def test_scale_gives_scores_in_original_units(real):
    _, _, x, y = real
    # A network whose outputs, noise and targets are all c times as large.
    units = torch.tensor([3.0, 0.2], dtype=torch.float64)
    means = torch.randn(4, 20, 2, generator=torch.Generator().manual_seed(0)).double()

    class Fixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.outputs = torch.nn.Parameter(torch.zeros(20, 4).double())

        def forward(self, x):
            return self.outputs[: len(x)]

    def scores(factor, **options):
        outputs = torch.cat([means * factor, (0.5 * factor).log().expand_as(means)], -1)
        draws = Samples({"outputs": outputs.unsqueeze(0)})
        return score(predictive(Fixed(), draws, x, likelihood="learned-noise", y=y * factor), **options)

    scaled, original = scores(torch.ones(2).double(), scale=units), scores(units)
    assert dict(scaled) == pytest.approx(dict(original), rel=1e-10)
    single = scores(torch.ones(2).double(), scale=3.0)
    assert dict(single) == pytest.approx(dict(scores(torch.tensor([3.0, 3.0], dtype=torch.float64))), rel=1e-10)


def test_reliability_is_drawn():
    curves = {"network": reliability(PROBABILITIES, LABELS), "posterior": reliability(PROBABILITIES, LABELS, 2)}
    figure = plot_reliability(curves)
    shares, axes = figure.axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        f"{name}: {curve.ece:.4f}" for name, curve in curves.items()
    ]
    assert list(axes.lines[2].get_xdata()) == pytest.approx([0.7125])
    assert sum(shares.lines[0].get_ydata()) == pytest.approx(100)
    assert len(plot_reliability(curves["network"]).axes) == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nll(torch.zeros(0, 2), torch.zeros(0).long()), "at least one point"),
        (lambda: reliability(torch.zeros(0, 2), torch.zeros(0).long()), "at least one point"),
        (lambda: accuracy(PROBABILITIES[0], LABELS), r"expected a tensor \(N, C\)"),
        (lambda: accuracy(PROBABILITIES, LABELS[:2]), "expected labels"),
        (lambda: brier(PROBABILITIES, LABELS.double()), "expected labels"),
        (lambda: brier(PROBABILITIES, LABELS + 1), "labels from 1 to 2"),
        (lambda: ece(PROBABILITIES * 2, LABELS), "do not sum to 1"),
        (lambda: ece(PROBABILITIES * math.nan, LABELS), "do not sum to 1"),
        (lambda: ece(PROBABILITIES, LABELS, 0), "bins is 0"),
        (lambda: ece(PROBABILITIES, LABELS, 3, "size"), "scheme is 'size'"),
        (lambda: rmse(torch.zeros(0, 1), torch.zeros(0, 1)), "not empty"),
        (lambda: rmse(torch.zeros(2, 1), torch.zeros(2)), "expected the same"),
        (lambda: crps(torch.zeros(0, 3), torch.zeros(0, 3), torch.zeros(3)), "none of them empty"),
        (lambda: mixture_nll(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(3)), r"\(M, N, D\)"),
        (lambda: plot_reliability({}), "curves is empty"),
        (lambda: score("no", LABELS), "predictive is a str"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_bad_input_of_score_is_named(labelled, real):
    model, draws, x, y = labelled
    result = predictive(model, draws, x)
    with pytest.raises(InputError, match="made without targets"):
        score(result)
    with pytest.raises(InputError, match="scale is given for labels"):
        score(result, y, scale=2.0)
    model, draws, x, y = real
    result = predictive(model, draws, x, y=y, likelihood=GaussianNoise(1.0))
    with pytest.raises(InputError, match="scale is -1"):
        score(result, scale=-1.0)
    with pytest.raises(InputError, match="expected finite targets"):
        score(result, y[:, :1])
