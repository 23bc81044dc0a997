"""Barriers between posteriors: those of points in the limit, exact ends, and none where mass is only weighed anew."""

import math
import statistics

import pytest
import torch
from torch import nn
from torch.func import functional_call

from coset.alignment import align
from coset.distribution import Delta, MeanField, Samples
from coset.errors import InputError
from coset.landscape import (
    barrier,
    evidence_bound,
    geodesic,
    linear,
    loss,
    mixture,
    predictive_accuracy,
    predictive_error,
    predictive_likelihood,
    predictive_on,
)
from coset.landscape._barrier import read
from coset.posterior import fit_mean_field, predictive_log_likelihood
from coset.posterior.inference.negative_elbo import elbo
from coset.posterior.prediction.draws import draws_of
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
            expected = predictive_log_likelihood(model, q, *data, samples=16, seed=3).mean
            assert value == pytest.approx(expected, rel=1e-13)


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


def test_all_functionals_are_what_their_definitions_say(pair):
    """One pass for both splits against each network on its own."""
    model, (x, y), (q0, _) = pair
    splits = {"train": (x[:70], y[:70]), "test": (x[70:], y[70:])}
    functionals = {
        **predictive_on(model, samples=12, seed=5, **splits),
        "accuracy": predictive_accuracy(model, splits["test"], samples=12, seed=5),
        "bound": evidence_bound(model, splits["train"], prior=0.7, temperature=0.4, samples=12, seed=5),
        "other bound": evidence_bound(model, splits["train"], prior=1.7, samples=12, seed=5),
    }
    found = read(functionals, q0)
    draws = draws_of(q0, 12, 5)
    networks = [draws.draw(number) for number in range(12)]
    for split, (inputs, labels) in splits.items():
        logs = torch.stack([functional_call(model, network, (inputs,)).log_softmax(-1) for network in networks])
        mean = logs.exp().mean(0)
        log_p = logs[:, torch.arange(len(labels)), labels]
        assert found[f"{split} log-likelihood"].value == pytest.approx(
            float(log_p.exp().mean(0).log().mean()), rel=1e-12
        )
        assert found[f"{split} expected loss"].value == pytest.approx(-float(log_p.mean()), rel=1e-12)
        assert found[f"{split} expected loss"].error == pytest.approx(float(log_p.mean(1).std() / 12**0.5), rel=1e-12)
        assert found[f"{split} error"].value == pytest.approx(float((mean.argmax(-1) != labels).double().mean()))
        assert found[f"{split} error"].error is None
        if split == "test":
            assert found["accuracy"].value == 1 - found["test error"].value
            continue
        for name, std, temperature in (("bound", 0.7, 0.4), ("other bound", 1.7, 1.0)):
            prior = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), std)
            priors = torch.stack([sum(prior.log_prob(w).sum() for w in network.values()) for network in networks])
            whole = log_p.sum(1).mean() + priors.mean() + temperature * q0.entropy()
            assert found[name].value == pytest.approx(float(whole) / len(labels), rel=1e-12)


def test_the_bound_is_that_of_inference(pair):
    """Both estimate the same number from draws of their own."""
    model, data, (q0, _) = pair
    of_path = read({"bound": evidence_bound(model, data, prior=2.0, temperature=0.1, samples=400)}, q0)["bound"]
    other = elbo(model, q0, data, prior=2.0, temperature=0.1, samples=400)
    assert abs(of_path.value - other.value) < 5 * math.hypot(of_path.error, other.error)
    with pytest.raises(InputError, match="entropy"):
        evidence_bound(model, data)(q0.mean)


def test_standard_errors_are_the_spread_over_seeds(pair):
    """Of values, of the excess, in which common draws cancel, and none of points."""
    model, data, (q0, q1) = pair
    profiles = [
        barrier(geodesic(q0, q1), predictive_likelihood(model, data, samples=64, seed=seed), taus=[0.25], show=False)
        for seed in range(40)
    ]
    at = profiles[0].taus.index(0.25)
    for values, errors in (
        ([p.values[at] for p in profiles], [p.errors[at] for p in profiles]),
        ([p.excess[at] for p in profiles], [p.excess_errors[at] for p in profiles]),
    ):
        spread = statistics.stdev(values)
        # The spread of 40 values is itself known to 11 %.
        assert statistics.mean(errors) == pytest.approx(spread, rel=0.35)
    assert profiles[0].excess_errors[0] == profiles[0].excess_errors[-1] == 0
    exact = barrier(linear(q0.mean, q1.mean), predictive_likelihood(model, data), points=3, show=False)
    assert exact.errors == (0, 0, 0)
    assert exact.barrier_error == 0


def test_functionals_refuse_what_they_cannot_measure(pair):
    model, data, (q0, _) = pair
    with pytest.raises(InputError, match="classifies nothing"):
        predictive_error(model, data, likelihood="learned-noise")
    with pytest.raises(InputError, match="predictive_on has no data"):
        predictive_on(model)
    with pytest.raises(InputError, match="test log-likelihood: "):
        read(predictive_on(model, test=(data[0][:, :1], data[1])), q0)


def test_draws_keep_their_partners_up_to_the_end(pair):
    """A draw is on one line all along the path, however the end counts its draws; also where only some are taken."""
    model, data, (q0, _) = pair
    generator = torch.Generator().manual_seed(1)
    start = Samples({name: tensor.unflatten(0, (2, 6)) for name, tensor in q0.sample(12, generator).items()})
    order = torch.randperm(12, generator=generator)
    end = Samples({name: tensor[order].unflatten(0, (2, 6)) for name, tensor in start.flat.items()})
    path = geodesic(start, end)
    for name, tensor in start.flat.items():
        assert torch.equal(path(1.0).flat[name], tensor)
    functional = predictive_likelihood(model, data, samples=5)
    profile = barrier(path, functional, points=5, show=False)
    assert profile.values == pytest.approx([profile.values[0]] * 5, rel=1e-12)
    assert profile.errors is None
