"""Mean-field variational inference against autograd of its definition and against conjugate models."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.func import functional_call

from architectures import CASES, evaluate, made
from coset.distribution import Gaussian, MeanField
from coset.errors import InputError
from coset.posterior import (
    Density,
    FanIn,
    GaussianNoise,
    Isotropic,
    LearnedNoise,
    Named,
    NoiseParameter,
    fit_mean_field,
)
from coset.posterior.inference.flat_optimizer import FlatOptimizer, optimization
from coset.posterior.inference.negative_elbo import NegativeELBO, elbo
from coset.posterior.problem import pose
from coset.train import DivergenceError

COUNT = 12


@pytest.fixture
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).double()


@pytest.fixture
def points():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(COUNT, 3, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 4, (COUNT,), generator=generator)


def _laplace_density(params):
    """A prior that is not Gaussian, and smooth."""
    return -sum((1 + tensor.square()).log().sum() for tensor in params.values())


def _definition(problem, values, noises, x, y, kl, weight):
    """ℓ(μ, ρ) written down from its definition with torch's own distributions; differentiable in ``values``."""
    mean, deviation = values[0], values[1].exp()
    q = Normal(mean, deviation)
    total = 0.0
    for noise in noises:
        theta = mean + deviation * noise
        logits = functional_call(problem.model, problem.layout.views(theta), (x,))
        total = total + nn.functional.cross_entropy(logits, y) / len(noises)
        if kl != "closed":
            log_prior = problem.prior.log_prob(problem.layout.views(theta))
            total = total - weight * log_prior / problem.count / len(noises)
        if kl == "sticking":
            fixed = Normal(mean.detach(), deviation.detach())
            total = total + weight * problem.temperature * fixed.log_prob(theta).sum() / problem.count / len(noises)
    if kl == "closed":
        prior_mean, prior_std = problem.prior_moments()
        p = Normal(prior_mean, prior_std)
        # −E_q[log p] − T·H(q) = KL + (1 − T)·H(q)
        divergence = kl_divergence(q, p).sum() + (1 - problem.temperature) * q.entropy().sum()
        total = total + weight * divergence / problem.count
    if kl == "monte-carlo":
        total = total - weight * problem.temperature * q.entropy().sum() / problem.count
    return total


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("antithetic", [False, True])
@pytest.mark.parametrize(
    ("kl", "prior"),
    [
        ("closed", Isotropic(0.7)),
        ("closed", FanIn(1.5, 0.4)),
        ("closed", Named({"0.bias": (0.3, 0.2)}, Isotropic(2.0))),
        ("monte-carlo", Density(_laplace_density)),
        ("monte-carlo", Isotropic(0.7)),
        ("sticking", Density(_laplace_density)),
        ("sticking", Isotropic(0.7)),
    ],
)
def test_the_gradient_is_that_of_the_definition(network, points, kl, prior, temperature, samples, antithetic):
    """Two steps, the second with the mirrored noise of the first where draws are antithetic."""
    x, y = points
    problem = pose(network, points, "categorical", prior, temperature)
    objective = NegativeELBO(problem, samples, kl, antithetic=antithetic)
    generator = torch.Generator().manual_seed(3)
    values = torch.stack([problem.start, torch.linspace(-3, 0, problem.layout.size, dtype=torch.float64)])
    gradient = torch.full_like(values, math.nan)
    same = torch.Generator().manual_seed(3)
    drawn = []
    for _ in range(2 * samples):
        mirrored = antithetic and len(drawn) % 2
        drawn.append(-drawn[-1] if mirrored else torch.empty_like(problem.start).normal_(generator=same))
    for step in range(2):
        loss = objective.write_gradient(values, x[:5], y[:5], generator, gradient, weight=0.6)
        leaf = values.clone().requires_grad_()
        noises = drawn[step * samples : (step + 1) * samples]
        whole = _definition(problem, leaf, noises, x[:5], y[:5], kl, 0.6)
        (expected,) = torch.autograd.grad(whole, leaf)
        torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-13)
        nll = _definition(problem, values, noises, x[:5], y[:5], "none", 0.0)
        torch.testing.assert_close(loss, nll, rtol=1e-12, atol=0)


@pytest.mark.parametrize("antithetic", [True, False])
@pytest.mark.parametrize("prior", [Isotropic(0.7), FanIn(1.5, 0.4)])
@pytest.mark.parametrize(
    ("optimizer", "reference"),
    [
        (("sgd", 0.9), lambda leaf: torch.optim.SGD([leaf], lr=1e-2, momentum=0.9)),
        (("sgd", 0.0), lambda leaf: torch.optim.SGD([leaf], lr=1e-2)),
        (("adam", 0.0), lambda leaf: torch.optim.Adam([leaf], lr=1e-2)),
        (("adamw", 0.0), lambda leaf: torch.optim.AdamW([leaf], lr=1e-2, weight_decay=0.0)),
    ],
)
def test_steps_are_those_of_the_optimizer_on_the_definition(network, points, optimizer, reference, prior, antithetic):
    x, y = points
    problem = pose(network, points, "categorical", prior, 0.8)
    start = torch.stack([problem.start, torch.linspace(-3, 0, problem.layout.size, dtype=torch.float64)])
    recipe = optimization(1, 5, 1e-2, optimizer[0], optimizer[1], "constant", 0)
    flat = FlatOptimizer(start, recipe, 1)
    objective = NegativeELBO(problem, 1, "closed", antithetic=antithetic)
    generator, same = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    leaf = start.clone().requires_grad_()
    expected, noise = reference(leaf), None
    for step in range(4):
        weight = (1.0, 0.5, 0.0, 2.0)[step]
        objective.write_gradient(flat.state["values"], x[:5], y[:5], generator, flat.gradient, weight)
        flat.step(step)
        noise = -noise if antithetic and step % 2 else torch.empty_like(problem.start).normal_(generator=same)
        expected.zero_grad()
        _definition(problem, leaf, [noise], x[:5], y[:5], "closed", weight).backward()
        expected.step()
        torch.testing.assert_close(flat.state["values"], leaf.detach(), rtol=1e-9, atol=1e-12)


def test_the_divergence_is_the_kl(network, points):
    prior = Named({"2.weight": (0.1, 0.5)}, Isotropic(0.7))
    problem = pose(network, points, "categorical", prior, 1.0)
    values = torch.stack([problem.start, torch.linspace(-3, 0, problem.layout.size, dtype=torch.float64)])
    mean, std = problem.prior_moments()
    expected = float(kl_divergence(Normal(values[0], values[1].exp()), Normal(mean, std)).sum())
    found = NegativeELBO(problem, 1, "closed").divergence(values, torch.Generator())
    assert found == pytest.approx(expected, rel=1e-12)
    sampled = NegativeELBO(problem, 4000, "monte-carlo")
    errors = [sampled.divergence(values, torch.Generator().manual_seed(seed)) - expected for seed in range(4)]
    # The variance of Σ ½((θ − m)/s)² under q, summed over entries.
    scaled_mean, scaled_var = (values[0] - mean) / std, ((2 * values[1]).exp() / std.square())
    deviation = float((scaled_var.square() / 2 + scaled_var * scaled_mean.square()).sum().sqrt()) / math.sqrt(4000)
    assert max(map(abs, errors)) < 4.5 * deviation


class _Linear(nn.Module):
    """y = x·w, the conjugate model."""

    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, features, dtype=torch.float64))

    def forward(self, x):
        return x @ self.weight.T


def _conjugate(orthogonal, noise=0.5, prior=0.8):
    """Data, and the exact posterior's mean and precision matrix."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    if orthogonal:
        x = torch.linalg.qr(x).Q * torch.tensor([3.0, 5.0, 8.0], dtype=torch.float64)
    y = x @ torch.tensor([[1.0], [-0.5], [0.2]], dtype=torch.float64)
    y = y + noise * torch.randn(40, 1, generator=generator, dtype=torch.float64)
    precision = x.T @ x / noise**2 + torch.eye(3, dtype=torch.float64) / prior**2
    return (x, y), torch.linalg.solve(precision, x.T @ y / noise**2)[:, 0], precision


def _log_evidence(data, noise=0.5, prior=0.8):
    x, y = data
    covariance = prior**2 * x @ x.T + noise**2 * torch.eye(len(x), dtype=torch.float64)
    return float(
        torch.distributions.MultivariateNormal(torch.zeros(len(x), dtype=torch.float64), covariance).log_prob(y[:, 0])
    )


@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_the_posterior_of_an_orthogonal_linear_model_is_found_exactly(temperature):
    """There mean field is exact, so the noise of the path gradient vanishes at the optimum and descent reaches it."""
    data, mean, precision = _conjugate(orthogonal=True)
    fit = fit_mean_field(
        _Linear(3), data, epochs=1500, batch_size=40, learning_rate=0.02, schedule="cosine", kl="sticking",
        likelihood=GaussianNoise(0.5), prior=0.8, temperature=temperature, std=0.1, show=False,
    )  # fmt: skip
    torch.testing.assert_close(fit.posterior.mean["weight"][0], mean, rtol=0, atol=1e-5)
    expected = (temperature / precision.diagonal()).sqrt()
    torch.testing.assert_close(fit.posterior.std["weight"][0], expected, rtol=1e-4, atol=0)


def test_the_elbo_of_a_conjugate_model_is_its_closed_form():
    """E_q[log p(Y|θ)] − KL for a mean-field q, and the evidence for the exact posterior."""
    data, mean, precision = _conjugate(orthogonal=False)
    x, y = data
    deviations = torch.tensor([0.1, 0.05, 0.2], dtype=torch.float64)
    q = MeanField({"weight": mean[None] + 0.1}, {"weight": deviations[None]})
    squared = (y[:, 0] - x @ (mean + 0.1)).square().sum() + (deviations.square() * x.square().sum(0)).sum()
    expected = -0.5 * squared / 0.25 - len(x) * math.log(0.5 * math.sqrt(2 * math.pi))
    expected = expected - kl_divergence(Normal(mean + 0.1, deviations), Normal(0.0, 0.8)).sum()
    settings = {"likelihood": GaussianNoise(0.5), "prior": 0.8}
    found = elbo(_Linear(3), q, data, samples=2000, **settings)
    assert abs(found.value - float(expected) / 40) < 4.5 * found.error
    assert found.error < 0.05
    exact = Gaussian({"weight": mean[None]}, torch.linalg.inv(precision), ("weight",))
    bound = elbo(_Linear(3), exact, data, samples=50, **settings)
    # log p(Y, θ) − log q(θ) is constant there, but log q enters by its mean: what is left is ½(‖ε‖² − D).
    assert abs(bound.value - _log_evidence(data) / 40) < 4.5 * bound.error
    assert found.value < bound.value


def test_the_gradient_vanishes_on_average_at_the_best_mean_field():
    """m the posterior's mean, s_i² = T/Λ_ii: the known optimum for a correlated Gaussian posterior."""
    data, mean, precision = _conjugate(orthogonal=False)
    problem = pose(_Linear(3), data, GaussianNoise(0.5), 0.8, 0.7)
    objective = NegativeELBO(problem, 1, "closed", antithetic=False)
    values = torch.stack([mean, 0.5 * (0.7 / precision.diagonal()).log()])
    generator, gradient = torch.Generator().manual_seed(0), torch.empty_like(values)
    found = []
    for _ in range(3000):
        objective.write_gradient(values, *data, generator, gradient)
        found.append(gradient.clone())
    errors = torch.stack(found).std(0) / math.sqrt(len(found))
    assert (torch.stack(found).mean(0).abs() < 4.5 * errors).all()
    # Away from it by a tenth of a deviation, or by a tenth in the deviation, it does not.
    for off in (torch.stack([0.1 * values[1].exp(), 0 * mean]), torch.stack([0 * mean, torch.full_like(mean, 0.1)])):
        shifted = []
        for _ in range(3000):
            objective.write_gradient(values + off, *data, generator, gradient)
            shifted.append(gradient.clone())
        assert (torch.stack(shifted).mean(0).abs() > 4.5 * errors).any()


def test_the_best_mean_field_of_a_correlated_linear_model_is_found():
    """m is the posterior's mean, s_i² = 1/Λ_ii; and the trace ends at the ELBO of that q."""
    data, mean, precision = _conjugate(orthogonal=False)
    fit = fit_mean_field(
        _Linear(3), data, epochs=1200, batch_size=40, learning_rate=0.005, schedule="cosine", samples=8, std=0.1,
        likelihood=GaussianNoise(0.5), prior=0.8, show=False,
    )  # fmt: skip
    deviations = precision.diagonal().rsqrt()
    assert ((fit.posterior.mean["weight"][0] - mean).abs() < 0.05 * deviations).all()
    torch.testing.assert_close(fit.posterior.std["weight"][0], deviations, rtol=0.03, atol=0)
    tail = fit.trace["elbo"][-100:]
    at_optimum = elbo(_Linear(3), fit.posterior, data, samples=2000, likelihood=GaussianNoise(0.5), prior=0.8)
    assert sum(tail) / 100 == pytest.approx(at_optimum.value, abs=5 * at_optimum.error)


def test_learned_noise_is_a_weight_like_any_other():
    data, _, _ = _conjugate(orthogonal=False)
    model = NoiseParameter(_Linear(3), start=1.0)
    fit = fit_mean_field(
        model, data, epochs=500, batch_size=40, learning_rate=0.05, schedule="cosine", samples=4, std=0.1,
        likelihood=LearnedNoise(), prior=Named({"log_noise": (0.0, 3.0)}, Isotropic(0.8)), show=False,
    )  # fmt: skip
    # The posterior of log σ given 40 residuals has a deviation of about 1/√80.
    assert abs(float(fit.posterior.mean["log_noise"]) - math.log(0.5)) < 4.5 / math.sqrt(80)
    assert float(fit.posterior.std["log_noise"]) == pytest.approx(1 / math.sqrt(80), rel=0.1)


class _Quadratic:
    """A likelihood of one's own: log p = −½‖outputs‖², whatever their shape."""

    task = "regression"

    def fit_targets(self, targets, outputs, name="y"):
        return targets

    def log_prob(self, outputs, targets):
        return -0.5 * outputs.flatten(1).square().sum(1)


@pytest.mark.parametrize("name", sorted(CASES))
def test_any_discovered_model_gets_a_posterior_on_which_its_group_acts(name):
    """With a likelihood of the user's own: both samples give the same outputs, whatever the architecture."""
    model, sym, shape = made(name)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, *shape, generator=generator, dtype=torch.float64)
    if name == "tied embeddings":
        x = torch.randint(0, 5, (4, *shape), generator=generator)
    settings = {"epochs": 2, "batch_size": 2, "learning_rate": 1e-3, "likelihood": _Quadratic(), "show": False}
    q = fit_mean_field(model, (x, torch.zeros(4)), **settings).posterior
    assert set(q.mean) == set(model.state_dict())
    assert set(q.std) == {name for name, tensor in model.state_dict(keep_vars=True).items() if tensor.requires_grad}
    moved = sym.act(sym.random(generator), q)
    # The mean of a posterior is a network, so its image computes the same.
    a, b = evaluate(model, dict(q.mean), x), evaluate(model, dict(moved.mean), x)
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_divergence_says_where_and_what_may_help(network, points):
    with pytest.raises(DivergenceError, match=r"epoch \d+, step \d+ of 3; .*; a lower learning_rate"):
        fit_mean_field(network, points, epochs=20, batch_size=5, learning_rate=1e200, optimizer="sgd", show=False)


def test_a_loss_that_blows_up_stops_before_it_overflows():
    data, _, _ = _conjugate(orthogonal=False)
    settings = {"epochs": 200, "batch_size": 40, "learning_rate": 1.0, "optimizer": "sgd", "show": False}
    with pytest.raises(
        DivergenceError, match=r"the loss is \d.*; the last finite value was \d.*; a lower learning_rate"
    ):
        fit_mean_field(_Linear(3), data, likelihood=GaussianNoise(0.1), **settings)


def test_same_seed_same_result_and_the_model_is_left_alone(network, points):
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    settings = {"epochs": 2, "batch_size": 5, "learning_rate": 0.05, "show": False}
    first, second, third = (fit_mean_field(network, points, seed=seed, **settings) for seed in (1, 1, 2))
    assert torch.equal(first.posterior.mean["0.weight"], second.posterior.mean["0.weight"])
    assert not torch.equal(first.posterior.mean["0.weight"], third.posterior.mean["0.weight"])
    assert network.training
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())


def test_frozen_parameters_and_buffers_are_points(points):
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4)).double()
    model[0].bias.requires_grad_(False)
    fit = fit_mean_field(model, points, epochs=1, batch_size=12, learning_rate=0.05, show=False)
    assert set(fit.posterior.mean) == set(model.state_dict())
    assert set(fit.posterior.std) == {"0.weight", "1.weight", "1.bias", "3.weight", "3.bias"}
    for name in ("0.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert torch.equal(fit.posterior.mean[name], model.state_dict()[name])


def test_the_weight_of_the_kl_may_change_from_epoch_to_epoch(network, points):
    settings = {"epochs": 3, "batch_size": 12, "learning_rate": 0.05, "show": False}
    plain = fit_mean_field(network, points, **settings)
    ones = fit_mean_field(network, points, kl_weight=lambda epoch: 1.0, **settings)
    rising = fit_mean_field(network, points, kl_weight=lambda epoch: epoch / 2, **settings)
    assert torch.equal(plain.posterior.mean["0.weight"], ones.posterior.mean["0.weight"])
    assert rising.trace["kl_weight"] == [0.0, 0.5, 1.0]
    assert not torch.equal(plain.posterior.mean["0.weight"], rising.posterior.mean["0.weight"])


def test_a_posterior_is_a_place_to_go_on_from(network, points):
    settings = {"batch_size": 12, "learning_rate": 0.01, "show": False, "prior": 0.5}
    first = fit_mean_field(network, points, epochs=300, **settings)
    again = fit_mean_field(network, points, epochs=1, start=first.posterior, **settings)
    assert abs(again.trace["kl"][0] - first.trace["kl"][-1]) < 0.05 * first.trace["kl"][-1]
    rises = [after - before for before, after in pairwise(first.trace["elbo"][::100])]
    assert min(rises) > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kl": "closed", "prior": Density(_laplace_density)}, "a closed form needs a Gaussian prior"),
        ({"kl": "exact"}, "kl is 'exact'; expected one of closed, monte-carlo, sticking"),
        ({"samples": 0}, "samples is 0; expected a whole number ≥ 1"),
        ({"std": -1.0}, "std is -1.0; expected a number > 0"),
        ({"temperature": 0.0}, "temperature is 0.0; expected a number > 0"),
        ({"likelihood": "gauss"}, "likelihood is 'gauss'; expected one of categorical"),
        ({"prior": -2.0}, "std is -2.0; a standard deviation is a number > 0"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"seed": -1}, "seed is -1"),
        ({"start": {"0.weight": torch.zeros(5, 3)}}, "'0.bias' is not among the parameters given"),
    ],
)
def test_bad_settings_are_refused_by_name(network, points, change, message):
    settings = {"epochs": 1, "batch_size": 5, "learning_rate": 0.1, "show": False} | change
    with pytest.raises(InputError, match=message):
        fit_mean_field(network, points, **settings)


def test_bad_data_are_refused_by_name(network, points):
    x, y = points
    settings = {"epochs": 1, "batch_size": 5, "learning_rate": 0.1, "show": False}
    for data, message in [
        ((x, y[:-1]), "x has 12 examples and y has 11"),
        ((x[:, :2], y), "the model cannot take inputs of shape"),
        ((x, y + 1), "y has labels from 1 to 4; the model has 4 classes"),
        ((x, y.double()), "expected labels, whole numbers"),
        ((x / 0, y), "not finite"),
        ([x, y], "data is a list; expected inputs and targets"),
    ]:
        with pytest.raises(InputError, match=message):
            fit_mean_field(network, data, **settings)
