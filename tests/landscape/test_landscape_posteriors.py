"""Barriers between posteriors: those of points in the limit, exact ends, and none where mass is only weighed anew."""

import pytest
import torch
from torch import nn

from coset.alignment import align
from coset.distribution import Delta, MeanField
from coset.landscape import barrier, geodesic, linear, loss, mixture, predictive_likelihood
from coset.posterior import fit_mean_field, predictive_log_likelihood
from coset.symmetry import discover


@pytest.fixture(scope="module")
def pair():
    """Two posteriors of one small network on two moons of points, from different initial weights."""
    generator = torch.Generator().manual_seed(0)
    angle = 3.14159 * torch.rand(120, generator=generator, dtype=torch.float64)
    y = torch.arange(120) % 2
    sign = 1.0 - 2.0 * y
    x = torch.stack([angle.cos() + 0.5 * y, sign * angle.sin() + 0.25 * y], 1)
    x = x + 0.1 * torch.randn(120, 2, generator=generator, dtype=torch.float64)
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 2)).double()
        settings = {"epochs": 150, "batch_size": 120, "learning_rate": 0.03, "std": 0.02, "prior": 2.0, "show": False}
        found.append(fit_mean_field(model, (x, y), seed=seed, temperature=0.1, **settings).posterior)
    return model.eval(), (x, y), found


def test_the_barrier_of_points_is_that_of_the_loss(pair):
    """With delta posteriors the drop of the log-likelihood is Entezari's barrier of the cross-entropy."""
    model, data, (q0, q1) = pair
    of_points = barrier(linear(q0.mean, q1.mean), loss(model, data), show=False)
    of_deltas = barrier(geodesic(Delta(q0.mean), Delta(q1.mean)), predictive_likelihood(model, data), show=False)
    assert of_deltas.barrier == pytest.approx(of_points.barrier, rel=1e-9)
    narrow = [MeanField(q.mean, {name: 1e-9 * std for name, std in q.std.items()}) for q in (q0, q1)]
    of_narrow = barrier(geodesic(*narrow), predictive_likelihood(model, data), show=False)
    assert of_narrow.barrier == pytest.approx(of_points.barrier, rel=1e-5)


def test_ends_are_those_of_the_posteriors(pair):
    model, data, (q0, q1) = pair
    functional = predictive_likelihood(model, data, samples=16, seed=3)
    for path in (geodesic(q0, q1), mixture(q0, q1)):
        profile = barrier(path, functional, points=5, show=False)
        for value, q in ((profile.values[0], q0), (profile.values[-1], q1)):
            assert value == predictive_log_likelihood(model, q, *data, samples=16, seed=3).mean


def test_alignment_lowers_the_barrier_and_a_mixture_has_none(pair):
    """Rossi et al. 2023, fig. 3 and 4, in small."""
    model, data, (q0, q1) = pair
    sym = discover(model, data[0][:2])
    aligned = align(sym, q0, q1, show=False).aligned
    functional = predictive_likelihood(model, data)
    naive, after, mixed = (
        barrier(path, functional, show=False).barrier
        for path in (geodesic(q0, q1), geodesic(q0, aligned), mixture(q0, q1))
    )
    assert after < naive / 2
    assert mixed < 0.1 * naive
