"""Stein variational gradient descent against its definition, closed forms and a target with two modes."""

import math

import pytest
import torch
from torch import nn

from coset.errors import InputError
from coset.models import MLP
from coset.posterior.inference.point import fit_map
from coset.posterior.inference.svgd import fit_svgd, median_bandwidth, stein_direction
from coset.posterior.likelihoods import GaussianNoise

DOUBLE = {"dtype": torch.float64}


def blobs(count=60, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(count) % 3
    centres = 2 * torch.randn(3, 4, generator=generator, dtype=dtype)
    return centres[y] + torch.randn(count, 4, generator=generator, dtype=dtype), y


def network(dtype=torch.float64):
    torch.manual_seed(0)
    return MLP(4, [5], 3).to(dtype)


class Point(nn.Module):
    """A parameter on which the data say nothing: the posterior is the prior."""

    def __init__(self, size=1):
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(size, **DOUBLE))

    def forward(self, x):
        return 0 * self.theta.sum() + x


NOTHING = (torch.zeros(1, 1, **DOUBLE), torch.zeros(1, 1, **DOUBLE))


def spread_starts(count, size=1, width=1.0):
    generator = torch.Generator().manual_seed(7)
    return [{"theta": width * torch.randn(size, generator=generator, **DOUBLE)} for _ in range(count)]


@pytest.mark.parametrize("bandwidth", [None, 0.8])
def test_direction_is_the_double_sum_of_its_definition(bandwidth):
    generator = torch.Generator().manual_seed(1)
    particles, scores = torch.randn(2, 6, 3, generator=generator, **DOUBLE)
    pairs = [float((particles[i] - particles[j]).square().sum()) for i in range(6) for j in range(i)]
    h = bandwidth or sorted(pairs)[(len(pairs) - 1) // 2] / math.log(7)
    expected = torch.zeros(6, 3, **DOUBLE)
    for i in range(6):
        for j in range(6):
            kernel, slope = torch.func.grad_and_value(lambda a, b: torch.exp(-(a - b).square().sum() / h))(
                particles[j], particles[i]
            )[::-1]
            expected[i] += (kernel * scores[j] + slope) / 6
    direction, found = stein_direction(particles, scores, bandwidth)
    assert float(found) == pytest.approx(h, rel=1e-12)
    torch.testing.assert_close(direction, expected, rtol=1e-11, atol=1e-13)


def test_particles_that_coincide_move_together():
    particles = torch.zeros(3, 2, **DOUBLE)
    scores = torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 6.0]], **DOUBLE)
    assert bool(median_bandwidth(torch.zeros(3, 3, **DOUBLE)) > 0)
    torch.testing.assert_close(stein_direction(particles, scores)[0], scores.mean(0).expand(3, -1))


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_one_particle_is_the_map(temperature):
    start = network().state_dict()
    settings = {"epochs": 4, "batch_size": 16, "learning_rate": 0.1, "optimizer": "sgd", "momentum": 0.5}
    stein = fit_svgd(network(), blobs(), particles=1, starts=[start], temperature=temperature, **settings)
    point = fit_map(network(), blobs(), start=start, **settings)
    for name, tensor in point.posterior.params.items():
        torch.testing.assert_close(stein.posterior.params[name][0, 0], tensor, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_moments_of_a_gaussian(temperature):
    def log_prob(params):
        return -0.5 * ((params["theta"] - 3) / 0.5).square().sum()

    settings = {"epochs": 600, "batch_size": 1, "learning_rate": 0.05, "schedule": "linear"}
    fit = fit_svgd(
        Point(),
        NOTHING,
        particles=60,
        starts=spread_starts(60),
        likelihood=GaussianNoise(1.0),
        prior=log_prob,
        temperature=temperature,
        **settings,
    )
    theta = fit.posterior.params["theta"].reshape(-1)
    deviation = 0.5 * math.sqrt(temperature)
    # 60 equally likely points reproduce a Gaussian to about 1/60 of its deviation where they are quantiles.
    assert float(theta.mean()) == pytest.approx(3, abs=deviation / 60)
    assert float(theta.std(correction=0)) == pytest.approx(deviation, rel=0.05)
    quantiles = torch.distributions.Normal(3.0, deviation).icdf((torch.arange(60, **DOUBLE) + 0.5) / 60)
    assert float((theta.sort().values - quantiles).abs().mean()) < 0.05 * deviation


def test_both_modes_keep_their_particles():
    def log_prob(params):
        theta = params["theta"]
        return torch.logsumexp(torch.stack([-0.5 * ((theta - mode) / 0.3).square().sum() for mode in (-1, 1)]), 0)

    settings = {"epochs": 600, "batch_size": 1, "learning_rate": 0.05, "schedule": "linear"}
    fit = fit_svgd(
        Point(),
        NOTHING,
        particles=40,
        starts=spread_starts(40, width=1.5),
        likelihood=GaussianNoise(1.0),
        prior=log_prob,
        **settings,
    )
    theta = fit.posterior.params["theta"].reshape(-1)
    assert 0.3 < float((theta > 0).double().mean()) < 0.7
    for mode in (-1, 1):
        near = theta[theta * mode > 0]
        assert float(near.mean()) == pytest.approx(mode, abs=0.1)
        assert float(near.std()) == pytest.approx(0.3, rel=0.2)


def test_particles_begin_at_fresh_weights_and_improve():
    fit = fit_svgd(network(), blobs(), particles=5, epochs=15, batch_size=16, learning_rate=0.05, seed=2)
    assert (fit.posterior.chains, fit.posterior.draws) == (5, 1)
    joints = fit.trace["log_joint"]
    assert joints[-1] > joints[0]
    assert all(h > 0 for h in fit.trace["bandwidth"])
    again = fit_svgd(network(), blobs(), particles=5, epochs=15, batch_size=16, learning_rate=0.05, seed=2)
    assert fit.posterior.params["layers.0.weight"].equal(again.posterior.params["layers.0.weight"])
    with pytest.raises(InputError, match="bandwidth is 0"):
        fit_svgd(network(), blobs(), particles=5, epochs=1, batch_size=16, learning_rate=0.05, bandwidth=0)
