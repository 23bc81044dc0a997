"""Stochastic gradient samplers against the exact laws of their own recursions, closed forms and another package."""

import math
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from architectures import made
from coset.errors import InputError
from coset.posterior.fit import device_stream
from coset.posterior.inference.chains import Plan, starts
from coset.posterior.inference.langevin import METHODS, PRECONDITIONERS, Dynamics, Langevin
from coset.posterior.inference.sgmcmc import batch_gradient, fit_sgmcmc, sample_sgmcmc
from coset.posterior.likelihoods import GaussianNoise
from coset.posterior.problem import pose
from coset.train import DivergenceError

CURVATURE = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
CHAINS = 5_000
ERRORS = 4.5
"""Standard errors allowed: for one normal number, exceeded once in 150,000 times."""


def quadratic(iteration, states):
    return -0.5 * (states.square() * CURVATURE).sum(-1), -states * CURVATURE


def stationary(curvature, rate, alpha, noise):
    """The covariance P of (θ, v) under v' = (1 − α)v − ηaθ + sξ, θ' = θ + v': P = APAᵀ + Q, solved as it stands."""
    step = torch.tensor([[1 - rate * curvature, 1 - alpha], [-rate * curvature, 1 - alpha]], dtype=torch.float64)
    added = noise * torch.ones(4, dtype=torch.float64)
    return torch.linalg.solve(torch.eye(4, dtype=torch.float64) - torch.kron(step, step), added).view(2, 2)


def assert_moments(draws, variances):
    """Independent draws (C, D) of centred Gaussians: means and variances within their standard errors."""
    count = len(draws)
    assert (draws.mean(0).abs() <= ERRORS * (variances / count).sqrt()).all()
    assert ((draws.square().mean(0) - variances).abs() <= ERRORS * variances * math.sqrt(2 / count)).all()


def last(gradient=quadratic, *, steps=300, **settings):
    """The last of many independent chains' states, (CHAINS, 3)."""
    start = torch.zeros(CHAINS, 3, dtype=torch.float64)
    return sample_sgmcmc(gradient, start, draws=1, burn_in=steps, **settings)[:, 0]


def regression(count=40):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([[1.0], [-2.0]], dtype=torch.float64) + 0.5
    y += 0.5 * torch.randn(count, 1, generator=generator, dtype=torch.float64)
    torch.manual_seed(0)
    return nn.Linear(2, 1).double(), (x, y)


def closed_form(x, y, noise, prior):
    """Posterior mean (D,) and precision (D, D) of (weights, bias)."""
    design = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    precision = design.T @ design / noise**2 + torch.eye(3, dtype=x.dtype) / prior**2
    return torch.linalg.solve(precision, design.T @ y.squeeze(1) / noise**2), precision


LINEAR = {"likelihood": GaussianNoise(0.5), "prior": 2.0, "show": False}


def test_langevin_has_the_exact_variance_of_its_discretisation():
    rate = 0.1
    assert_moments(last(method="sgld", step_size=rate), 1 / (CURVATURE * (1 - rate * CURVATURE / 2)))


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("friction", [0.15, 0.6])
def test_momentum_has_the_exact_variance_of_its_discretisation(friction, temperature):
    rate = 0.05
    noise = 2 * friction * rate * temperature
    exact = torch.stack([stationary(float(a), rate, friction, noise)[0, 0] for a in CURVATURE])
    draws = last(method="sghmc", step_size=rate, friction=friction, temperature=temperature)
    assert_moments(draws, exact)


def test_the_exact_variance_goes_to_that_of_the_target():
    for friction in (0.1, 1.0):
        bias = [float(stationary(2.0, rate, friction, 2 * friction * rate)[0, 0]) - 0.5 for rate in (0.02, 0.01)]
        # Of first order in the step size.
        assert bias[0] / bias[1] == pytest.approx(2, rel=0.05)
        assert abs(bias[1]) < 0.02


@pytest.mark.parametrize("method", ["sgld", "sghmc", "csghmc"])
def test_temperature_scales_the_noise_and_nothing_else(method):
    settings = {"method": method, "step_size": 0.05, "draws": 6, "burn_in": 10, "cycles": 1 + 2 * (method[0] == "c")}
    start = torch.zeros(5, 3, dtype=torch.float64)
    warm, cold = (sample_sgmcmc(quadratic, start, temperature=t, **settings) for t in (1.0, 0.04))
    # The recursion is linear, and begins at 0.
    torch.testing.assert_close(cold, 0.2 * warm, rtol=1e-12, atol=1e-14)


def test_friction_one_is_langevin_dynamics():
    start = torch.ones(4, 3, dtype=torch.float64)
    settings = {"draws": 5, "burn_in": 7, "step_size": 0.1, "seed": 3}
    with_momentum = sample_sgmcmc(quadratic, start, method="sghmc", friction=1.0, **settings)
    assert torch.equal(with_momentum, sample_sgmcmc(quadratic, start, method="sgld", **settings))


@pytest.mark.parametrize("known", [True, False])
def test_noise_of_the_gradient_is_subtracted_where_it_is_known(known):
    rate, friction, variance = 0.05, 0.3, 8.0
    generator = torch.Generator().manual_seed(11)

    def noisy(iteration, states):
        values, gradients = quadratic(iteration, states)
        noise = torch.empty_like(gradients).normal_(generator=generator)
        return values, gradients + math.sqrt(variance) * noise

    total = 2 * friction * rate + (0 if known else rate**2 * variance)
    exact = torch.stack([stationary(float(a), rate, friction, total)[0, 0] for a in CURVATURE])
    settings = {"step_size": rate, "friction": friction, "noise_estimate": variance if known else 0.0}
    assert_moments(last(noisy, **settings), exact)


def test_the_preconditioner_learns_in_the_burn_in_and_leaves_the_law_alone():
    rate, friction = 0.01, 0.5
    dynamics = Dynamics("sghmc", rate, friction, preconditioner="rms")
    plan = Plan(300, 1, thin=400)
    curvature = torch.tensor([1.0, 20.0], dtype=torch.float64)
    sampler = Langevin(
        lambda _, q: (-0.5 * (q.square() * curvature).sum(-1), -q * curvature),
        torch.ones(2000, 2, dtype=torch.float64),
        plan,
        dynamics,
    )
    scales = []
    for number, span in enumerate(plan.spans()):
        sampler.advance(span, device_stream("noise", 0, number, sampler.noise))
        scales.append(PRECONDITIONERS["rms"](sampler.state["second"], float(sampler.state["weight"])))
    scale = scales[-1]
    begin = sum(plan.burning(span.start) for span in plan.spans())
    assert not torch.equal(scales[begin - 2], scales[begin - 1])
    assert all(torch.equal(scales[begin - 1], later) for later in scales[begin:])
    torch.testing.assert_close(scale.mean(1), torch.ones(2000, dtype=torch.float64))
    assert scale[:, 0].mean() > 2 * scale[:, 1].mean()
    # With mass 1/G an entry moves as one of curvature Ga and target variance 1/(Ga), in units of √G.
    exact = torch.empty_like(scale)
    for entry, a in enumerate(curvature.tolist()):
        for chain, g in enumerate(scale[:, entry].tolist()):
            exact[chain, entry] = g * stationary(g * a, rate, friction, 2 * friction * rate)[0, 0]
    assert_moments(sampler.state["draws"][:, 0] / exact.sqrt(), torch.ones(2, dtype=torch.float64))


def test_cycles_fall_along_a_cosine_and_begin_without_noise():
    plan, dynamics = Plan(6, 4, 1, cycles=2), Dynamics("csghmc", 0.2)
    rates = [dynamics.rate(iteration, plan) for iteration in range(16)]
    assert rates[0] == rates[8] == 0.2
    assert rates[4] == pytest.approx(0.1)
    assert rates[:8] == sorted(rates[:8], reverse=True)
    assert rates[:8] == rates[8:]
    heats = [dynamics.heat(iteration, plan) for iteration in range(16)]
    assert heats == 2 * (6 * [0.0] + 2 * [1.0])
    start = torch.ones(3, 3, dtype=torch.float64)
    sampler = Langevin(quadratic, start, plan, dynamics)
    for number, span in enumerate(plan.spans()[:7]):
        sampler.advance(span, device_stream("noise", 0, number, start))
        position = sampler.state["position"]
        assert torch.equal(position[0], position[1]) == (number < 6)


@given(st.integers(0, 30), st.integers(1, 9), st.integers(1, 4), st.integers(1, 4))
def test_a_plan_keeps_every_draw_once_and_in_order(burn_in, per_cycle, thin, cycles):
    plan = Plan(burn_in, per_cycle * cycles, thin, cycles)
    iterations = [iteration for span in plan.spans() for iteration in span]
    assert iterations == list(range(cycles * (burn_in + per_cycle * thin)))
    kept = [plan.kept(iteration) for iteration in iterations]
    assert [number for number in kept if number is not None] == list(range(plan.draws))
    assert all(number is None for number, i in zip(kept, iterations, strict=True) if plan.burning(i))
    assert all(len({plan.burning(i) for i in span}) == 1 for span in plan.spans())
    assert [plan.drawn(r) for r in (0, len(plan.spans()))] == [0, plan.draws]


@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_a_linear_model_has_its_closed_form_up_to_discretisation(temperature):
    model, (x, y) = regression()
    mean, precision = closed_form(x, y, 0.5, 2.0)
    rate = 0.2 / float(torch.linalg.eigvalsh(precision)[-1])
    chains = 1500
    fit = fit_sgmcmc(
        model, (x, y), method="sgld", step_size=rate, draws=1, burn_in=250, batch_size=40, chains=chains, spread=0.0,
        temperature=temperature, **LINEAR,
    )  # fmt: skip
    draws = torch.cat([fit.posterior.params["weight"][:, 0, 0], fit.posterior.params["bias"][:, 0]], 1)
    values, vectors = torch.linalg.eigh(precision)
    slowest = (1 - rate * float(values[0])) ** 250 * float((mean - draws.mean(0)).norm())
    variances = temperature / (values * (1 - rate * values / 2))
    assert slowest < 1e-3 * float((variances / chains).sqrt().min())
    assert_moments((draws - mean) @ vectors, variances)
    # No more than the discretisation lies between this and the posterior: a tenth, at this step size.
    assert ((variances * values / temperature - 1) <= 0.12).all()


@pytest.mark.parametrize("name", ["batchnorm+depthwise", "grouped+groupnorm", "concatenation", "cct", "resnet20, frn"])
def test_chains_side_by_side_are_what_each_is_alone(name):
    model, _, shape = made(name)
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(2, 3, *shape, dtype=torch.float64, generator=generator)
    y = torch.randn(2, 3, model(x[0]).shape[1], dtype=torch.float64, generator=generator)
    problem = pose(model, (x.flatten(0, 1), y.flatten(0, 1)), GaussianNoise(1.0), 1.0)
    flats = starts(problem, None, 0.1, 2, seed=0)
    for own in (False, True):
        values, gradients = problem.log_joints(flats, x if own else x[0], y if own else y[0], own=own)
        for chain, flat in enumerate(flats):
            alone = flat.clone().requires_grad_()
            value = problem.log_joint(alone, x[chain * own], y[chain * own])
            (gradient,) = torch.autograd.grad(value, alone)
            torch.testing.assert_close(values[chain], value.detach(), rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(gradients[chain], gradient, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("own", [False, True])
def test_batches_of_a_pass_make_the_whole_gradient(own):
    model, data = regression()
    problem = pose(model, data, GaussianNoise(0.5), 2.0)
    flats = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gradient = batch_gradient(problem, 8, own, seed=4)
    parts = [gradient(iteration, flats) for iteration in range(5, 10)]
    values, slopes = problem.log_joints(flats, problem.x, problem.y)
    torch.testing.assert_close(torch.stack([part[0] for part in parts]).mean(0), values)
    torch.testing.assert_close(torch.stack([part[1] for part in parts]).mean(0), slopes)
    same = flats[:1].expand(3, -1)
    seen = gradient(0, same)[0]
    assert (seen[0] == seen[1]) == (not own)
    # A step sees the same points whatever came before.
    assert torch.equal(batch_gradient(problem, 8, own, seed=4)(7, flats)[1], parts[2][1])


def test_posteriors_takes_the_same_steps():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posteriors = pytest.importorskip("posteriors")

    def log_posterior(params, batch):
        return -0.5 * (params.square() * CURVATURE).sum(), torch.tensor([])

    rate, draws = 0.05, 30
    start = torch.tensor([[1.0, -1.0, 0.5]], dtype=torch.float64)
    ours = sample_sgmcmc(quadratic, start, method="sgld", step_size=rate, temperature=0.7, draws=draws, burn_in=0)
    theirs = posteriors.sgmcmc.sgld.build(log_posterior, lr=rate, temperature=0.7)
    state, path = theirs.init(start[0]), []
    with torch.random.fork_rng(devices=[]):
        for number in range(draws):
            # One round a step: our noise is the first of a fresh stream, and so is theirs.
            torch.manual_seed(device_stream("noise", 0, number, start).initial_seed())
            state, _ = theirs.update(state, None, inplace=False)
            path.append(state.params)
        torch.testing.assert_close(ours[0], torch.stack(path), rtol=1e-12, atol=1e-14)

        # They move θ by the momentum before the step and we by that after it; the momenta are the same: v = εr.
        lr, alpha, beta = 0.2, 1.5, 0.8
        dynamics = Dynamics("sghmc", lr**2, lr * alpha, noise_estimate=beta)
        sampler = Langevin(quadratic, start, Plan(0, 1), dynamics)
        momentum = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)
        sampler.state["velocity"].copy_(lr * momentum)
        sampler.advance(range(1), torch.Generator().manual_seed(5))
        torch.manual_seed(5)
        theirs = posteriors.sgmcmc.sghmc.build(log_posterior, lr=lr, alpha=alpha, beta=beta)
        state, _ = theirs.update(theirs.init(start[0], momenta=momentum), None, inplace=False)
    torch.testing.assert_close(sampler.state["velocity"][0], lr * state.momenta, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(sampler.state["position"], start + sampler.state["velocity"])


def test_a_run_that_was_ended_says_so():
    model, data = regression()
    settings = {"step_size": 1e-3, "draws": 50, "burn_in": 50, "batch_size": 40, "chains": 2, **LINEAR}
    part = fit_sgmcmc(model, data, callback=lambda number, record: number == 29, **settings)
    assert part.posterior.draws == 10
    assert part.notes == ("the run was ended after 10 of 50 draws",)
    early = fit_sgmcmc(model, data, callback=lambda number, record: number == 3, **settings)
    assert early.posterior.draws == 1
    assert "burn-in" in early.notes[0]


def test_buffers_and_tied_weights_are_where_they_belong():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(2)
            self.inner, self.outer = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
            self.outer.weight = self.inner.weight

        def forward(self, x):
            return self.outer(torch.tanh(self.inner(self.norm(x))))

    torch.manual_seed(0)
    model, x = Tied(), torch.randn(12, 2)
    fit = fit_sgmcmc(model, (x, torch.arange(12) % 2), step_size=1e-3, draws=3, burn_in=2, batch_size=4, chains=2)
    params = fit.posterior.params
    assert set(params) == set(model.state_dict())
    assert all(params[name].shape == (2, 3, *tensor.shape) for name, tensor in model.state_dict().items())
    assert params["outer.weight"] is params["inner.weight"]
    assert (params["norm.running_var"] == 1).all()


def test_chains_begin_as_stated():
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    problem = pose(model, (torch.zeros(3, 2), torch.zeros(3)), GaussianNoise(1.0), 1.5)
    first = starts(problem, None, "initial", 4, seed=0)
    assert torch.equal(first[0], problem.start)
    assert len({tuple(row.tolist()) for row in first}) == 4
    # nn.Linear draws from U(−1/√fan-in, 1/√fan-in).
    assert (first[1:, :12].abs() <= 2**-0.5).all()
    assert torch.equal(first, starts(problem, None, "initial", 4, seed=0))
    assert not torch.equal(first[1:], starts(problem, None, "initial", 4, seed=1)[1:])
    assert torch.equal(problem.layout.flatten(dict(problem.model.named_parameters())), problem.start)
    many = starts(problem, None, "prior", 2000, seed=0)[1:]
    scale = 1.5 * math.sqrt(1 / (2 * many.numel()))
    assert float(many.std()) == pytest.approx(1.5, abs=ERRORS * scale)
    assert torch.equal(starts(problem, None, 0, 3, seed=0), problem.start.repeat(3, 1))
    near = starts(problem, None, 0.1, 2000, seed=0)[1:] - problem.start
    assert float(near.std()) == pytest.approx(0.1, abs=ERRORS * 0.1 * math.sqrt(1 / (2 * near.numel())))
    given = problem.layout.views(many[:3])
    assert torch.equal(starts(problem, given, "initial", 3, seed=0), many[:3])
    with pytest.raises(InputError, match=r"leading axes \(3,\); expected \(4,\)"):
        starts(problem, given, "initial", 4, seed=0)
    with pytest.raises(InputError, match="spread is 'far'"):
        starts(problem, None, "far", 2, seed=0)


class Bare(nn.Module):
    """A module without ``reset_parameters``."""

    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.ones(2, 1, dtype=torch.float64))

    def forward(self, x):
        return x @ self.slope


def test_what_cannot_be_reinitialized_or_drawn_is_refused():
    _, data = regression()
    settings = {"step_size": 1e-3, "draws": 2, "burn_in": 1, "batch_size": 9}
    with pytest.raises(
        InputError, match=r"'slope' belongs to a Bare that has no reset_parameters\(\).* or spread: 'prior' or a number"
    ):
        fit_sgmcmc(Bare(), data, **settings, **LINEAR)
    density = LINEAR | {"prior": lambda params: -params["slope"].square().sum()}
    with pytest.raises(InputError, match="prior is a Density; drawing from it needs a Gaussian"):
        fit_sgmcmc(Bare(), data, spread="prior", **settings, **density)
    assert fit_sgmcmc(Bare(), data, spread=0.1, **settings, **density).posterior.chains == 4


def test_a_network_that_cannot_be_batched_is_refused():
    class Branching(Bare):
        def forward(self, x):
            return x @ self.slope if self.slope.sum() > 0 else x @ self.slope.abs()

    with pytest.raises(InputError, match=r"cannot be run with the weights of many chains at once \(torch.func.vmap: "):
        fit_sgmcmc(Branching(), regression()[1], step_size=1e-3, draws=2, burn_in=1, batch_size=9, **LINEAR)


def test_divergence_stops_with_step_and_advice():
    model, data = regression()
    with pytest.raises(
        DivergenceError, match=r"in step \d+; the last finite value was -.*; a smaller step_size may help"
    ):
        fit_sgmcmc(model, data, step_size=10.0, draws=900, burn_in=1, batch_size=40, **LINEAR)


def test_states_have_two_axes():
    with pytest.raises(InputError, match=r"start has shape \(3,\)"):
        sample_sgmcmc(quadratic, torch.zeros(3), draws=1, burn_in=0, step_size=0.1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"method": "nuts"}, f"method is 'nuts'; expected one of {', '.join(METHODS)}"),
        ({"step_size": 0.0}, "step_size is 0.0"),
        ({"friction": 1.5}, "friction is 1.5"),
        ({"method": "sgld", "friction": 0.5}, "'sgld' has no momentum"),
        ({"cycles": 2}, "cycles is 2; 'sghmc' has one"),
        ({"method": "csghmc", "cycles": 4}, "draws is 6; expected a multiple of the 4 cycles"),
        ({"noise_estimate": 1e9}, "noise_estimate is 1000000000.0"),
        ({"noise_estimate": 1.0, "preconditioner": "rms"}, "noise_estimate is 1.0 and preconditioner is 'rms'"),
        ({"preconditioner": "adam"}, "preconditioner is 'adam'"),
        ({"preconditioner": "rms", "burn_in": 0}, "burn_in is 0; the preconditioner 'rms' learns there"),
        ({"draws": 0}, "draws is 0"),
        ({"thin": 0}, "thin is 0"),
        ({"chains": 0}, "chains is 0"),
        ({"batch_size": 2.5}, "batch_size is 2.5"),
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"seed": -1}, "seed is -1"),
        ({"spread": -1.0}, "spread is -1.0"),
    ],
)
def test_bad_settings_are_named(wrong, message):
    model, data = regression()
    settings = {"step_size": 1e-3, "draws": 6, "burn_in": 2, "batch_size": 9, **LINEAR, **wrong}
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        fit_sgmcmc(model, data, **settings)
