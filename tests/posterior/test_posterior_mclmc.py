"""Microcanonical dynamics: its integrator, what it learns, and its draws against closed forms."""

import math

import pytest
import torch
from sampling_targets import (
    ERRORS,
    LINEAR,
    VARIANCES,
    assert_mean,
    assert_mixture,
    gaussian,
    linear_posterior,
    log_mixture,
    mixture_draws,
    normal,
    regression,
    rosenbrock,
    rosenbrock_draws,
    with_gradient,
)

from coset.errors import InputError
from coset.posterior import GaussianNoise, fit_mclmc
from coset.posterior.inference.chains import Plan, Target
from coset.posterior.inference.mclmc import sample_mclmc
from coset.posterior.inference.mclmc_chains import Microcanonical, Motion
from coset.posterior.inference.mclmc_tuning import StepSize, effective_steps
from coset.posterior.inference.microcanonical import (
    INTEGRATORS,
    directions,
    drift_of,
    refreshed,
    refreshment,
    turned,
)
from coset.train import DivergenceError

UNITS = torch.ones(5, dtype=torch.float64)


def moment(density, chains=20, size=5, seed=0):
    position = 0.3 * normal(chains, size, seed=seed)
    velocity = directions(position, torch.Generator().manual_seed(seed + 1))
    return position, velocity, *density(position)


def test_a_turn_is_the_solution_of_its_equation():
    """u(t) of du/dt = (I − uuᵀ)g/(D − 1) for constant g, by many steps of Runge and Kutta."""
    gradient, velocity = 3 * normal(4, 6), directions(normal(4, 6), torch.Generator().manual_seed(0))

    def slope(u):
        return (gradient - u * (u * gradient).sum(-1, keepdim=True)) / 5

    found, size = velocity, 1.3 / 400
    for _ in range(400):
        a = slope(found)
        b = slope(found + size / 2 * a)
        c = slope(found + size / 2 * b)
        found = found + size / 6 * (a + 2 * b + 2 * c + slope(found + size * c))
    torch.testing.assert_close(turned(velocity, gradient, 1.3)[0], found, rtol=0, atol=1e-9)


def test_a_turn_contracts_the_sphere_as_it_says():
    gradient, velocity = 2 * normal(1, 4), directions(normal(1, 4), torch.Generator().manual_seed(3))
    jacobian = torch.autograd.functional.jacobian(lambda u: turned(u[None], gradient, 0.8)[0][0], velocity[0])
    moved, kinetic = turned(velocity, gradient, 0.8)
    # Bases of the tangent spaces before and after.
    before, after = (torch.linalg.svd(u).Vh[1:] for u in (velocity, moved))
    volume = torch.linalg.det(after @ jacobian @ before.T).abs()
    assert float(volume.log()) == pytest.approx(-float(kinetic), abs=1e-10)


@pytest.mark.parametrize("strength", [0.0, 1e-30, 1e4, 1e15])
def test_turns_stay_finite(strength):
    velocity = directions(torch.zeros(3, 6), torch.Generator().manual_seed(0))
    moved, kinetic = turned(velocity, strength * velocity.flip(0), 1.0)
    assert moved.isfinite().all()
    assert kinetic.isfinite().all()
    torch.testing.assert_close(moved.norm(dim=-1), torch.ones(3))
    if strength < 1:
        torch.testing.assert_close(moved, velocity)


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_steps_run_backwards_as_they_ran_forwards(integrator):
    drift, scale = drift_of(gaussian, integrator), UNITS * VARIANCES.sqrt()
    position, velocity, value, gradient = moment(gaussian)
    size = torch.tensor(0.3, dtype=torch.float64)
    end, error = (position, velocity, value, gradient), 0
    for _ in range(10):
        *end, one = drift(*end, scale, size)
        error = error + one
    back, gained = (end[0], -end[1], *end[2:]), 0
    for _ in range(10):
        *back, one = drift(*back, scale, size)
        gained = gained + one
    torch.testing.assert_close(back[0], position, rtol=0, atol=1e-11)
    torch.testing.assert_close(-back[1], velocity, rtol=0, atol=1e-11)
    torch.testing.assert_close(gained, -error, rtol=0, atol=1e-10)


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_the_energy_error_of_a_step_is_of_third_order(integrator):
    density = with_gradient(lambda x: log_mixture(x[:, :2]) + log_mixture(x[:, 2:]))
    drift, begin = drift_of(density, integrator), moment(density, 200, 4)

    def error(size):
        return (
            drift(*begin, torch.ones(4, dtype=torch.float64), torch.tensor(size, dtype=torch.float64))
            .error.abs()
            .mean()
        )

    assert float(error(0.04) / error(0.02)) == pytest.approx(8, rel=0.1)


def test_the_minimal_norm_integrator_errs_less_for_the_same_gradients():
    begin = moment(gaussian, 500)

    def error(integrator, size, steps):
        now, total = begin, 0
        for _ in range(steps):
            *now, one = drift_of(gaussian, integrator)(*now, UNITS, torch.tensor(size, dtype=torch.float64))
            total = total + one
        return float(total.abs().median())

    assert error("minimal-norm", 0.1, 10) < 0.5 * error("leapfrog", 0.05, 20)


def test_a_velocity_is_forgotten_over_the_length():
    """⟨u_0, u_t⟩ falls as exp(−t/L) in high dimensions."""
    generator, size = torch.Generator().manual_seed(0), 400
    first = velocity = directions(torch.zeros(300, size, dtype=torch.float64), generator)
    share = refreshment(0.1, 2.0, size)
    for _ in range(20):
        noise = torch.empty_like(velocity).normal_(generator=generator)
        velocity = refreshed(velocity, noise, share)
    assert float((first * velocity).sum(-1).mean()) == pytest.approx(math.exp(-1), abs=0.02)


def test_the_step_size_meets_its_energy_error():
    state = StepSize(3.0)
    for _ in range(400):
        state.learn(7.0 * state.size**6, 5e-4)
    assert state.size == pytest.approx((5e-4 / 7) ** (1 / 6), rel=1e-3)
    state.broken()
    assert state.size == pytest.approx(0.8 * (5e-4 / 7) ** (1 / 6), rel=1e-3)
    limit = state.size
    state.learn(1e-12, 5e-4)
    assert state.size == limit


def test_effective_steps_are_those_of_an_autoregression():
    """x_t = ρ x_{t−1} + ξ: (1 + ρ)/(1 − ρ) steps."""
    noise, rho = normal(20, 4000, 3), 0.8
    states = [noise[:, 0] / math.sqrt(1 - rho**2)]
    for number in range(1, 4000):
        states.append(rho * states[-1] + noise[:, number])
    assert effective_steps(torch.stack(states, 1)) == pytest.approx(9, rel=0.05)
    assert effective_steps(noise) == pytest.approx(1, rel=0.1)


FORMS = [{"adjusted": True}, {"energy_error": 2e-5, "thin": 1}]
every_form = pytest.mark.parametrize("form", FORMS, ids=["adjusted", "plain"])


@every_form
@pytest.mark.parametrize("mass", ["identity", "diagonal"])
def test_an_ill_conditioned_gaussian_has_its_moments(form, mass):
    warmup = 120 if "adjusted" in form else 400
    draws, trace = sample_mclmc(gaussian, 2 * normal(1000, 5), draws=1, warmup=warmup, mass=mass, **form)
    assert_mean(draws[:, 0], torch.zeros(5, dtype=torch.float64))
    assert_mean(draws[:, 0].square(), VARIANCES)
    assert trace[-1]["step_size"] > 0


@every_form
def test_rosenbrock_has_its_moments(form):
    """x ~ N(1, 1), y | x ~ N(x², 0.1²), three times."""
    warmup = 150 if "adjusted" in form else 600
    draws, _ = sample_mclmc(with_gradient(rosenbrock), rosenbrock_draws(600), draws=1, warmup=warmup, **form)
    x, y = draws[:, 0].view(-1, 3, 2).unbind(-1)
    assert_mean(x, torch.ones(3, dtype=torch.float64))
    assert_mean(x.square(), 2 * torch.ones(3, dtype=torch.float64))
    assert_mean((y - x.square()).square(), 0.01 * torch.ones(3, dtype=torch.float64))


@every_form
def test_two_modes_have_their_weights(form):
    warmup = 80 if "adjusted" in form else 500
    draws, _ = sample_mclmc(
        with_gradient(log_mixture), torch.tensor([[-1.5, 0.0]], dtype=torch.float64) + 0.1 * normal(1500, 2),
        draws=1, warmup=warmup, length=2.5, **form,
    )  # fmt: skip
    assert_mixture(draws[:, 0])


def test_adjusted_draws_stay_exact_at_any_step_size():
    settings = {"draws": 3, "warmup": 0, "length": 4.0, "step_size": 1.5, "adjusted": True}
    draws, trace = sample_mclmc(with_gradient(log_mixture), mixture_draws(6000), **settings)
    assert 0.3 < sum(trace["accept"]) / 3 < 0.95
    assert_mixture(draws[:, -1])


def test_the_bias_of_the_plain_form_falls_with_the_square_of_the_step():
    """E[Σ x²/s²]/D − 1 of chains begun at exact draws, against the step size."""

    def bias(step):
        start = normal(4000, 20, seed=1)
        settings = {"draws": 4, "thin": 30, "warmup": 0, "length": 4.0, "step_size": step}
        draws, _ = sample_mclmc(lambda x: (-0.5 * x.square().sum(-1), -x), start, **settings)
        each = draws.square().mean((1, 2))
        return float(each.mean()) - 1, float(each.std()) / math.sqrt(4000)

    (large, error), (small, _) = bias(3.2), bias(1.6)
    assert abs(large) > 10 * error
    assert large / small == pytest.approx(4, rel=0.25)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@every_form
def test_a_linear_model_has_its_posterior(form, temperature):
    model, (x, y) = regression()
    warmup = 60 if "adjusted" in form else 400
    fit = fit_mclmc(
        model, (x, y), draws=1, warmup=warmup, chains=800, spread="prior", temperature=temperature, **LINEAR, **form
    )
    found = torch.cat([fit.posterior.params["weight"].reshape(800, 2), fit.posterior.params["bias"].reshape(800, 1)], 1)
    mean, covariance = linear_posterior(x, y, temperature)
    assert_mean(found, mean)
    assert_mean(torch.einsum("ni,nj->nij", found - mean, found - mean), covariance)


def test_minibatches_sample_a_linear_model_but_for_their_noise():
    """Batches of nine tenths of the data leave little noise: its bias is within a fifth of a deviation."""
    model, (x, y) = regression(200)
    mean, covariance = linear_posterior(x, y, 1.0)
    fit = fit_mclmc(
        model, (x, y), draws=1, warmup=600, chains=300, start={"weight": mean[None, :2], "bias": mean[2:]}, spread=0.02,
        batch_size=180, own_batches=True, **LINEAR,
    )  # fmt: skip
    found = fit.posterior.params["weight"].reshape(300, 2)
    std = covariance.diagonal().sqrt()[:2]
    assert ((found.mean(0) - mean[:2]).abs() < 0.2 * std + ERRORS * std / math.sqrt(300)).all()
    torch.testing.assert_close(found.std(0), std, rtol=0.2 + ERRORS / math.sqrt(600), atol=0)


def test_broken_steps_are_undone_counted_and_make_the_step_smaller():
    """Beyond a wall the density is not a number."""

    def walled(states):
        value, gradient = gaussian(states)
        outside = (states[:, :1].abs() > 0.25).expand_as(states)
        return torch.where(outside[:, 0], math.nan, value), torch.where(outside, math.nan, gradient)

    sampler = Microcanonical(Target(walled), 0.01 * normal(50, 5), Plan(0, 40), Motion(step_size=0.5, length=1.0))
    records = sampler.records(0)
    broken = sampler.state["broken"]
    assert int(broken.sum()) == sum(record["broken"] for record in records) > 0
    steps = sum(int(record["broken"] > 0) for record in records)
    assert sampler.state["tuning"][0] == pytest.approx(0.5 * 0.8**steps)
    assert sampler.state["draws"].isfinite().all()
    assert (sampler.state["draws"][..., 0].abs() <= 0.25).all()


def test_a_density_that_always_breaks_ends_the_run():
    def point(states):
        here = (states == 0).all(-1)
        return torch.where(here, 0.0, math.nan), torch.where(here[:, None], torch.ones_like(states), math.nan)

    with pytest.raises(DivergenceError, match="the step size fell below 1e-12"):
        sample_mclmc(point, torch.zeros(2, 3), draws=200, thin=1, warmup=0, step_size=1.0, length=1.0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"step_size": 0.0}, "step_size is 0.0"),
        ({"length": "long"}, "length is 'long'"),
        ({"length": -1.0}, "length is -1.0"),
        ({"energy_error": 0.0}, "energy_error is 0.0"),
        ({"mass": "dense"}, "mass is 'dense'"),
        ({"integrator": "euler"}, "integrator is 'euler'"),
        ({"warmup": 3}, "warmup is 3; step size, length and mass are learned there"),
        ({"adjusted": True, "warmup": 0}, "warmup is 0"),
        ({"adjusted": True, "length": "spread"}, "length is 'spread' and adjusted is True"),
        ({"adjusted": True, "batch_size": 5}, "batch_size is 5 and adjusted is True"),
        ({"batch_size": 5, "rows": 5}, "batch_size is 5 and rows is 5"),
        ({"compile": "yes"}, "compile is 'yes'; expected True, False or 'auto'"),
    ],
)
def test_bad_settings_are_named(wrong, message):
    model, data = regression()
    with pytest.raises(InputError, match=message):
        fit_mclmc(model, data, **{"draws": 3, "warmup": 30, **LINEAR, **wrong})


def test_one_weight_is_refused():
    model = torch.nn.Linear(1, 1, bias=False).double()
    with pytest.raises(InputError, match="there is one weight"):
        fit_mclmc(model, (normal(9, 1), normal(9, 1)), draws=1, warmup=30, likelihood=GaussianNoise(1.0))


def test_a_start_without_a_density_names_the_parameter():
    model, data = regression()
    start = {"weight": torch.tensor([[1e200, 0.0]], dtype=torch.float64), "bias": torch.zeros(1, dtype=torch.float64)}
    with pytest.raises(InputError, match="the log-density where chain 0 begins is"):
        fit_mclmc(model, data, draws=1, warmup=30, start=start, spread=0.1, **LINEAR)


def test_a_module_without_derivatives_is_refused():
    class Rounded(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x).detach()

    with pytest.raises(InputError, match="model is not differentiable"):
        fit_mclmc(Rounded(2, 1).double(), regression()[1], draws=1, warmup=30, **LINEAR)
