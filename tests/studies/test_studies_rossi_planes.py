"""Parts of the study of planes: samples with noise of their own, the line between them, and its run on an MLP."""

import math
from pathlib import Path

import pytest
import torch
from torch.func import functional_call

from coset.distribution import MeanField
from coset.posterior import Isotropic
from coset.store import Store
from coset.study import Context
from coset.study.images import Images, load_images
from coset_studies.rossi._mlps import Layers
from coset_studies.rossi._pairs import Inference, pair_of
from coset_studies.rossi.planes import Config, _levels, draw_sample, log_posterior_line, run

HOW = Inference(epochs=2, rate=1e-2, point_epochs=1, point_rate=1e-2, batch_size=50, prior_variance=0.1)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(0, torch.device("cpu"), Store(tmp_path / "store"), show=False)


def test_samples_have_noise_of_their_own(context: Context) -> None:
    q = MeanField({"w": torch.zeros(4000)}, {"w": torch.ones(4000)})
    names = ("q0", "q1", "halfway")
    noise = torch.stack([draw_sample(context, q, name)["w"] for name in names])
    assert torch.equal(noise[0], draw_sample(context, q, "q0")["w"])
    correlations = torch.corrcoef(noise) - torch.eye(3)
    assert float(correlations.abs().max()) < 5 / math.sqrt(4000)


def test_the_line_is_likelihood_and_prior_by_hand(context: Context) -> None:
    data = load_images(context, Images("digits", train=60, test=20, flat=True))
    pair = pair_of(context, data, Layers((5,)), HOW)
    x, y = data.train.x[:40], data.train.y[:40]
    a, b = dict(pair.first.mean), dict(pair.second.mean)
    line = log_posterior_line(pair, [a, b], (x, y), Isotropic(0.3), 60)
    middle = {name: (a[name] + b[name]) / 2 for name in a}
    log_p = torch.log_softmax(functional_call(pair.model, middle, (x,)).double(), 1)
    prior = sum(
        float((-0.5 * (tensor.double() / 0.3) ** 2 - math.log(0.3) - 0.5 * math.log(2 * math.pi)).sum())
        for tensor in middle.values()
    )
    expected = float(log_p[torch.arange(40), y].mean()) + prior / 60
    assert line.midpoint.value == pytest.approx(expected, rel=1e-5)


def test_planes_of_an_mlp(context: Context) -> None:
    config = Config(Images("digits", train=60, test=20, flat=True), Layers((5,)), HOW, points=40, grid=3)
    found = run(config, context)
    assert set(found.numbers) >= {"naive_drop", "aligned_drop", "prior_spread", "likelihood_range"}
    # Permutations leave the prior as it is, so that two of the three means share it.
    assert found.numbers["prior_spread"] == pytest.approx(_spread(context, config), rel=1e-5)


def _spread(context: Context, config: Config) -> float:
    data = load_images(context, config.images)
    pair = pair_of(context, data, config.network, config.inference)
    squares = [sum(float(t.double().square().sum()) for t in q.mean.values()) for q in (pair.first, pair.second)]
    return abs(squares[0] - squares[1]) / (2 * config.inference.prior_variance) / len(data.train)


def test_panels_can_have_colours_of_one_span() -> None:
    wide, narrow = torch.linspace(-5.0, 0.4, 20), torch.linspace(4.0, 4.5, 20)
    for values in (wide, narrow):
        levels = _levels(values, span=5.4)
        assert levels == sorted(levels)
        assert (levels[0], levels[-1]) == pytest.approx((float(values.max()) - 5.4, float(values.max())))
    # Without a span, from the least of all values to the greatest.
    assert _levels(wide, narrow)[:: len(_levels(wide)) - 1] == pytest.approx([-5.0, 4.5])
