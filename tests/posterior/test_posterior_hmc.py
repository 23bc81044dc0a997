"""Hamiltonian Monte Carlo: its integrator, its adaptation, and its draws against closed forms."""

import itertools
import math

import pytest
import torch
from sampling_targets import (
    CENTRES,
    ERRORS,
    LINEAR,
    VARIANCES,
    WEIGHTS,
    assert_mean,
    assert_mixture,
    gaussian,
    linear_posterior,
    log_mixture,
    mixture_draws,
    normal,
    regression,
    with_gradient,
)
from torch import nn

from coset.errors import InputError
from coset.posterior.inference.adaptation import (
    average_step,
    current_step,
    fresh_averaging,
    fresh_moments,
    inverse_mass_of,
    mass_windows,
    update_averaging,
    update_moments,
)
from coset.posterior.inference.chains import Plan, joint_density
from coset.posterior.inference.hamiltonian import Hamiltonian, Phase, Trajectories, energy, leapfrog
from coset.posterior.inference.hmc import fit_hmc, sample_hmc
from coset.posterior.inference.path_lengths import slope_of
from coset.posterior.likelihoods import GaussianNoise
from coset.posterior.problem import pose


def phase_at(density, position, momentum):
    return Phase(position, momentum, *density(position))


def test_the_leapfrog_runs_backwards_as_it_ran_forwards():
    density = with_gradient(log_mixture)
    begin = phase_at(density, normal(6, 2), normal(6, 2, seed=1))
    mass = torch.tensor([0.5, 2.0], dtype=torch.float64)
    end = leapfrog(density, begin, mass, 0.3, 12)
    back = leapfrog(density, Phase(end.position, -end.momentum, end.value, end.gradient), mass, 0.3, 12)
    torch.testing.assert_close(back.position, begin.position, rtol=0, atol=1e-12)
    torch.testing.assert_close(back.momentum, -begin.momentum, rtol=0, atol=1e-12)


def test_the_leapfrog_keeps_volume():
    def moved(both):
        def density(states):
            value = log_mixture(states)
            return value, torch.autograd.grad(value.sum(), states, create_graph=True)[0]

        position, momentum = both[:2].unsqueeze(0), both[2:].unsqueeze(0)
        end = leapfrog(density, phase_at(density, position, momentum), torch.ones(2, dtype=torch.float64), 0.4, 5)
        return torch.cat([end.position[0], end.momentum[0]])

    jacobian = torch.autograd.functional.jacobian(moved, normal(4))
    assert float(torch.linalg.det(jacobian)) == pytest.approx(1, abs=1e-12)


def test_the_energy_error_is_of_second_order():
    density = with_gradient(log_mixture)
    begin = phase_at(density, normal(50, 2), normal(50, 2, seed=1))
    mass = torch.ones(2, dtype=torch.float64)

    def error(steps):
        return (energy(leapfrog(density, begin, mass, 1.0 / steps, steps), mass) - energy(begin, mass)).abs().mean()

    assert float(error(20) / error(40)) == pytest.approx(4, rel=0.02)
    assert error(40) < 1e-3


def test_dual_averaging_follows_its_equations():
    state = fresh_averaging(0.5)
    accepts, target = [0.9, 0.2, 0.7], 0.8
    error = average = 0.0
    for t, accept in enumerate(accepts, 1):
        update_averaging(state, accept, target)
        error = (1 - 1 / (t + 10)) * error + (target - accept) / (t + 10)
        log_step = math.log(10 * 0.5) - math.sqrt(t) / 0.05 * error
        average = t**-0.75 * log_step + (1 - t**-0.75) * average
    assert current_step(state) == pytest.approx(math.exp(log_step))
    assert average_step(state) == pytest.approx(math.exp(average))


def test_moments_are_those_of_all_states_seen():
    moments, states = fresh_moments(torch.zeros(3)), 5 + normal(30, 3)
    for part in states.split([7, 1, 22]):
        update_moments(moments, part)
    torch.testing.assert_close(moments[1], states.mean(0))
    torch.testing.assert_close(inverse_mass_of(moments), (30 * states.var(0) + 5e-3) / 35)


@pytest.mark.parametrize("warmup", [0, 10, 32, 33, 100, 1000])
def test_windows_double_and_leave_time_for_the_step_size(warmup):
    windows = mass_windows(warmup)
    assert bool(windows) == (warmup >= 33)
    for one, other in itertools.pairwise(windows):
        assert one.stop == other.start
        assert len(other) >= 2 * len(one)
    assert all(window.start >= int(0.15 * warmup) and window.stop <= int(0.9 * warmup) for window in windows)


@pytest.mark.parametrize("target", [0.8, 0.9, 0.95])
def test_acceptance_is_near_its_target(target):
    def standard(states):
        return -0.5 * states.square().sum(-1), -states

    settings = {"draws": 100, "warmup": 400, "leapfrog_steps": 5, "target_accept": target}
    _, trace = sample_hmc(standard, normal(30, 400), **settings)
    sampling = [record["accept"] for record in trace if not record["burn_in"]]
    assert sum(sampling) / len(sampling) == pytest.approx(target, abs=0.05)
    assert len({record["step_size"] for record in trace if not record["burn_in"]}) == 1


@pytest.mark.parametrize("mass", ["identity", "diagonal"])
def test_an_ill_conditioned_gaussian_has_its_moments(mass):
    draws, trace = sample_hmc(gaussian, 2 * normal(2000, 5), draws=1, warmup=150, length=1.5, mass=mass)
    assert_mean(draws[:, 0], torch.zeros(5, dtype=torch.float64))
    assert_mean(draws[:, 0].square(), VARIANCES)
    if mass == "diagonal":
        # The mass removes the condition: steps are several times as long.
        assert trace[-1]["step_size"] > 0.4
    else:
        assert trace[-1]["step_size"] < 0.25


def test_two_modes_have_their_weights():
    start = CENTRES[0] + 0.1 * normal(2000, 2)
    draws, _ = sample_hmc(with_gradient(log_mixture), start, draws=1, warmup=60, length=2.5)
    assert_mixture(draws[:, 0])


def test_one_long_chain_has_the_weights_too():
    draws, _ = sample_hmc(with_gradient(log_mixture), normal(8, 2), draws=400, warmup=100, length=2.5)
    batches = (draws[..., 0] > 0).double().view(8 * 10, 40).mean(1)
    beyond = 0.5 * torch.erfc(-CENTRES[:, 0] / math.sqrt(2))
    # Means of 40 draws in a row are independent of each other but for their ends.
    assert_mean(batches, WEIGHTS @ beyond)


def test_exact_draws_stay_exact_at_any_step_size():
    start = mixture_draws(8000)
    # So large a step that the test of Metropolis matters.
    settings = {"draws": 3, "warmup": 0, "leapfrog_steps": 3, "step_size": 1.3}
    draws, trace = sample_hmc(with_gradient(log_mixture), start, **settings)
    assert 0.3 < trace[-1]["accept"] < 0.9
    for number in range(3):
        assert_mixture(draws[:, number])


@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_a_linear_model_has_its_closed_form(temperature):
    model, (x, y) = regression()
    mean, covariance = linear_posterior(x, y, temperature)
    fit = fit_hmc(
        model, (x, y), draws=1, warmup=60, leapfrog_steps=4, chains=1500, spread="prior", temperature=temperature,
        **LINEAR,
    )  # fmt: skip
    params = fit.posterior.params
    draws = torch.cat([params["weight"][:, 0, 0], params["bias"][:, 0]], 1) - mean
    assert_mean(draws, torch.zeros(3, dtype=x.dtype))
    assert_mean(draws.unsqueeze(1) * draws.unsqueeze(2), covariance)
    flat = torch.cat([params["weight"][:, 0, 0], params["bias"][:, 0]], 1)
    problem = pose(model, (x, y), GaussianNoise(0.5), 2.0)
    joint = problem.log_joints(flat, problem.x, problem.y)[0].mean() / 40
    assert fit.trace[-1]["log_joint"] == pytest.approx(float(joint))


def test_rows_at_a_time_change_nothing():
    model, data = regression()
    problem = pose(model, data, GaussianNoise(0.5), 2.0, temperature=0.5)
    states = normal(4, 3)
    for whole, parts in zip(joint_density(problem)(states), joint_density(problem, rows=7)(states), strict=True):
        torch.testing.assert_close(parts, whole)
    exact = problem.log_joints(states, problem.x, problem.y)[0] / 0.5
    torch.testing.assert_close(joint_density(problem)(states)[0], exact)


def test_the_number_of_steps_follows_length_step_and_jitter():
    by_time, by_steps = Trajectories(length=2.0, jitter=0.25), Trajectories(leapfrog_steps=8, jitter=0.25)
    assert [by_time.steps(u, 0.3) for u in (0.75, 1.0, 1.25)] == [5, 7, 9]
    assert [by_steps.steps(u, 0.3) for u in (0.75, 1.0, 1.25)] == [6, 8, 10]
    assert by_steps.steps(0.01, 0.3) == 1
    _, trace = sample_hmc(gaussian, normal(3, 5), draws=300, warmup=0, leapfrog_steps=8, jitter=0.25, step_size=0.1)
    used = trace["leapfrog_steps"]
    assert 6 <= min(used) < max(used) <= 10
    assert sum(used) / len(used) == pytest.approx(8, abs=ERRORS * 1.25 / math.sqrt(300))


def test_a_length_is_found_where_none_is_given():
    """On a Gaussian of condition number 100 a length near that of the widest direction, and exact moments."""
    draws, trace = sample_hmc(gaussian, 2 * normal(600, 5), draws=1, warmup=200)
    assert_mean(draws[:, 0], torch.zeros(5, dtype=torch.float64))
    assert_mean(draws[:, 0].square(), VARIANCES)
    found = trace[-1]["leapfrog_steps"] * trace[-1]["step_size"]
    assert 0.7 < found < 4


def test_the_slope_by_the_length_is_that_of_the_criterion():
    """Of ¼(‖z′ − m‖² − ‖z − m‖²)² for free motion z′ = z + t v, by differences."""
    begin, velocity, centre = normal(5, 3), normal(5, 3, seed=1), normal(5, 3, seed=2)
    accept = torch.rand(5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    unit = (begin - centre).square().sum(-1).mean()

    def criterion(log_time):
        end = begin + math.exp(log_time) * velocity
        change = (end - centre).square().sum(-1) - (begin - centre).square().sum(-1)
        return float((accept * 0.25 * change.square()).sum() / accept.sum() / unit.square())

    time = 0.7
    slope = slope_of(begin, begin + time * velocity, velocity, centre, accept, time)
    step = 1e-5
    numeric = (criterion(math.log(time) + step) - criterion(math.log(time) - step)) / (2 * step)
    assert slope == pytest.approx(numeric, rel=1e-6)


def test_the_first_step_is_accepted_about_half_of_the_time():
    sampler = Hamiltonian(gaussian, normal(2000, 5) * VARIANCES.sqrt(), Plan(1, 1), Trajectories(leapfrog_steps=1))
    step = sampler._first_step(torch.Generator().manual_seed(0))
    rates = []
    for factor in (0.5, 1, 2):
        _, lost, _ = sampler._propose(factor * step, 1, torch.Generator().manual_seed(1))
        rates.append(float(lost.clamp(max=0).exp().mean()))
    assert rates[0] > 0.5 > rates[2]


def test_divergences_are_counted_rejected_and_told():
    model, data = regression()
    fit = fit_hmc(model, data, draws=6, warmup=0, leapfrog_steps=5, jitter=0.0, step_size=50.0, chains=2, **LINEAR)
    assert sum(fit.trace["divergences"]) == 12
    assert any("12 trajectories diverged" in note for note in fit.notes)
    assert any("chain 0 hardly moved" in note for note in fit.notes)
    weight = fit.posterior.params["weight"]
    assert torch.equal(weight, weight[:, :1].expand_as(weight))
    assert torch.equal(weight[0, 0], model.weight)


def test_trajectories_are_cut_and_it_is_told():
    model, data = regression()
    fit = fit_hmc(model, data, draws=4, warmup=0, length=1.0, step_size=0.01, max_steps=3, **LINEAR)
    assert set(fit.trace["leapfrog_steps"]) == {3}
    assert "4 trajectories were cut at max_steps=3" in fit.notes


def test_a_network_that_cannot_be_batched_is_refused():
    class Branching(nn.Linear):
        def forward(self, x):
            return super().forward(x) if self.bias.sum() > 9 else x @ self.weight.T

    with pytest.raises(InputError, match="cannot be run with the weights of many chains at once"):
        fit_hmc(Branching(2, 1).double(), regression()[1], draws=2, warmup=1, leapfrog_steps=2, **LINEAR)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"length": 1.0}, "leapfrog_steps is 3 and length is 1.0; expected one of both"),
        ({"leapfrog_steps": None, "warmup": 0, "step_size": 0.1}, "neither leapfrog_steps nor length is given"),
        ({"leapfrog_steps": 0}, "leapfrog_steps is 0"),
        ({"jitter": 1.0}, "jitter is 1.0"),
        ({"target_accept": 1.0}, "target_accept is 1.0"),
        ({"mass": "dense"}, "mass is 'dense'; expected one of identity, diagonal"),
        ({"step_size": -1.0}, "step_size is -1.0"),
        ({"warmup": 0}, "warmup is 0 and step_size is None"),
        ({"draws": 0}, "draws is 0"),
        ({"thin": 1.5}, "thin is 1.5"),
        ({"rows": 0}, "rows is 0"),
        ({"max_steps": 0}, "max_steps is 0"),
        ({"start": {"weight": torch.full((1, 2), math.inf), "bias": torch.zeros(1)}}, "start has values that are NaN"),
    ],
)
def test_bad_settings_are_named(wrong, message):
    model, data = regression()
    settings = {"draws": 3, "warmup": 3, "leapfrog_steps": 3, **LINEAR, **wrong}
    with pytest.raises(InputError, match=message):
        fit_hmc(model, data, **settings)


def test_a_start_without_a_density_is_refused():
    def half_line(states):
        return states.log().sum(-1), states.reciprocal()

    with pytest.raises(InputError, match="where chain 1 begins"):
        sample_hmc(half_line, torch.tensor([[1.0], [-1.0]]), draws=1, warmup=1, leapfrog_steps=1)
