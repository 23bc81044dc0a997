"""SWAG against stored iterates, and against the stationary covariance of a descent on a quadratic."""

import pytest
import torch
from torch import nn

from coset.errors import InputError
from coset.models import MLP
from coset.posterior.fit import epoch_batches
from coset.posterior.inference.point import fit_map
from coset.posterior.inference.swag import Moments, fit_swag
from coset.posterior.likelihoods import GaussianNoise
from coset.posterior.problem import pose

DOUBLE = {"dtype": torch.float64}


class Constant(nn.Module):
    """Outputs that do not look at the input: θ."""

    def __init__(self, size):
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(size, **DOUBLE))

    def forward(self, x):
        return self.theta.expand(len(x), -1)


def blobs(count=60):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(count) % 3
    centres = 2 * torch.randn(3, 4, generator=generator, **DOUBLE)
    return centres[y] + torch.randn(count, 4, generator=generator, **DOUBLE), y


def network():
    torch.manual_seed(0)
    return MLP(4, [5], 3).double()


def direct_moments(iterates, rank):
    """Definition, from all iterates (n, D): mean, Σ_diag, and θ_i − θ̄_i of the last ``rank``."""
    n = len(iterates)
    running = iterates.cumsum(0) / torch.arange(1, n + 1, **DOUBLE)[:, None]
    return running[-1], (iterates - running[-1]).square().mean(0), (iterates - running)[-rank:]


@pytest.mark.parametrize("rank", [2, 7, 30])
def test_moments_are_those_of_the_stored_iterates(rank):
    iterates = 100 + torch.randn(30, 6, generator=torch.Generator().manual_seed(1), **DOUBLE)
    moments = Moments(iterates[0], rank)
    for theta in iterates:
        moments.add(theta)
    mean, variance, deviations = direct_moments(iterates, rank)
    torch.testing.assert_close(moments.state["mean"], mean, rtol=1e-14, atol=0)
    torch.testing.assert_close(moments.state["squares"] / 30, variance, rtol=1e-11, atol=0)
    found = moments.state["deviations"]
    torch.testing.assert_close(found.T @ found, deviations.T @ deviations, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("every", "burn_in"), [(None, 0), (3, 2)])
@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_it_is_the_gaussian_of_a_plain_descent(every, burn_in, temperature):
    data, rank, rate = blobs(), 4, 0.1
    settings = {"epochs": 8, "batch_size": 16, "learning_rate": rate, "rank": rank, "seed": 3}
    fit = fit_swag(network(), data, **settings, collect_every=every, burn_in_epochs=burn_in, temperature=temperature)
    problem = pose(network(), data, "categorical", 1.0)
    theta, iterates, number = problem.start.clone(), [], 0
    for epoch in range(8):
        for x, y in epoch_batches(problem, 16, 3, epoch):
            theta = theta + rate * torch.func.grad(problem.log_joint)(theta, x, y) / 60
            number += 1
            if number > 4 * burn_in and (number - 4 * burn_in) % (every or 4) == 0:
                iterates.append(theta)
    mean, variance, deviations = direct_moments(torch.stack(iterates), rank)
    covariance = temperature / 2 * (variance.diag() + deviations.T @ deviations / (rank - 1))
    assert fit.trace[-1]["collected"] == len(iterates)
    torch.testing.assert_close(fit.posterior.dense.covariance, covariance, rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(problem.layout.flatten(fit.posterior.mean), mean, rtol=1e-10, atol=1e-12)


def test_stationary_variance_on_a_quadratic():
    # θ ← θ − η(θ − y_i), y_i ~ N(μ, σ²): the stationary variance is ησ²/(2 − η).
    generator = torch.Generator().manual_seed(2)
    size, count, rate = 80, 2000, 0.2
    y = 3 + 2 * torch.randn(count, size, generator=generator, **DOUBLE)
    data = (torch.zeros(count, 1, **DOUBLE), y)
    start = {"theta": y.mean(0)}
    settings = {"epochs": 1, "batch_size": 1, "learning_rate": rate, "collect_every": 1, "rank": 2}
    fit = fit_swag(Constant(size), data, likelihood=GaussianNoise(1.0), prior=None, start=start, **settings)
    variance = 2 * fit.posterior.diagonal["theta"].square().mean()
    # Of 160,000 numbers (1 − ρ²)/(1 + ρ²) count as independent, ρ = 1 − η: their error is √(2/35,000) < 0.008.
    assert float(variance) == pytest.approx(4 * rate / (2 - rate), rel=0.03)
    torch.testing.assert_close(fit.posterior.mean["theta"], y.mean(0), rtol=0, atol=0.2)


def test_it_begins_at_a_fit_and_keeps_buffers_as_points():
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.read, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)

        def forward(self, x):
            return self.norm(self.read(x))

    torch.manual_seed(0)
    model, (x, y) = Normed(), blobs()
    data = (x.float(), y)
    first = fit_map(model, data, epochs=3, batch_size=16, learning_rate=0.05)
    fit = fit_swag(model, data, start=first, epochs=4, batch_size=16, learning_rate=1e-12, rank=4)
    assert set(fit.posterior.random_names) == {"read.weight", "read.bias", "norm.weight", "norm.bias"}
    assert set(fit.posterior.mean) == set(model.state_dict())
    torch.testing.assert_close(fit.posterior.mean["read.weight"], first.posterior.params["read.weight"])
    assert fit.posterior.mean["norm.num_batches_tracked"].dtype == torch.int64


def test_too_few_weights_are_refused_and_early_ends_are_noted():
    settings = {"epochs": 5, "batch_size": 16, "learning_rate": 0.05}
    with pytest.raises(InputError, match="rank is 20 and 5 weights are collected in 5 epochs of 4 steps"):
        fit_swag(network(), blobs(), **settings)
    with pytest.raises(InputError, match="rank is 1"):
        fit_swag(network(), blobs(), rank=1, **settings)
    with pytest.raises(InputError, match="stopped with 1 weights collected"):
        fit_swag(network(), blobs(), rank=3, callback=lambda number, record: True, **settings)
    fit = fit_swag(network(), blobs(), rank=3, callback=lambda number, record: number == 1, **settings)
    assert fit.posterior.rank == 2
    assert fit.notes == ("stopped with 2 of 5 weights collected",)
