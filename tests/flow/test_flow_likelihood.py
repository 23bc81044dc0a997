"""Densities of flows: against closed forms, determinants of the flow's Jacobian, and integrals over whole spheres."""

import math

import pytest
import torch
from flow_spaces import (
    SPACES,
    climbing,
    generator,
    normal,
    plane,
    points,
    smooth,
    sphere,
    sphere_quadrature,
    tangents,
    turning,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from coset.errors import InputError
from coset.flow import Solver, integrate, log_density, push

FINE = Solver("dopri5", tolerance=1e-9)


def log_normal(x, mean=0.0, std=1.0):
    parts = -0.5 * ((x - mean) / std) ** 2 - torch.log(torch.as_tensor(std)) - 0.5 * math.log(2 * math.pi)
    return parts.sum(-1)


def uniform(space):
    """The log density of uniform points on spheres and normal ones of the Euclidean coordinates."""
    return lambda x: space.manifold.uniform_log_density(space.coordinates(x))


# Closed forms ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["rk4", "dopri5"])
def test_a_linear_flow_of_a_gaussian(method):
    """x' = Ax + b: x₁ = e^A x₀ + A⁻¹(e^A − 1)b, so that p₁ is the Gaussian of this mean and covariance e^A e^Aᵀ."""
    a, b = normal(3, 3) * 0.7, normal(3, seed=1)
    whole = torch.linalg.matrix_exp(a)
    mean = torch.linalg.solve(a, (whole - torch.eye(3, dtype=a.dtype)) @ b)
    target = torch.distributions.MultivariateNormal(mean, whole @ whole.mT)
    x = normal(6, 3, seed=2) * 2
    solver = Solver(method, steps=64, tolerance=1e-9)
    found = log_density(plane(3), lambda t, x: x @ a.mT + b, log_normal, x, solver)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, target.log_prob(x), rtol=0, atol=1e-6)


def test_scaling_and_turning():
    """x' = (s + ωJ)x in the plane: a Gaussian of deviation e^s."""
    s, turn = 0.8, torch.tensor([[0.0, -3.0], [3.0, 0.0]], dtype=torch.float64)
    x = normal(6, 2)
    found = log_density(plane(), lambda t, x: s * x + x @ turn.mT, log_normal, x, FINE)
    torch.testing.assert_close(found, log_normal(x, std=math.exp(s)), rtol=0, atol=1e-6)


def test_straight_paths_between_gaussians():
    """The marginal velocity of independent coupling brings N(0, 1) to N(m, diag s²)."""
    m, s = torch.tensor([2.0, -1.0]).double(), torch.tensor([0.3, 1.5]).double()

    def velocity(t, x):
        return m + (t * s**2 - (1 - t)) / ((1 - t) ** 2 + t**2 * s**2) * (x - t * m)

    x = m + s * normal(6, 2)
    torch.testing.assert_close(
        log_density(plane(), velocity, log_normal, x, FINE), log_normal(x, m, s), rtol=0, atol=1e-6
    )


def test_chosen_steps_hold_the_error_of_the_density():
    """x' = 5 sin(ωx)/ω for a large ω: x hardly moves, tan(ωx/2) grows by e⁵, dx₁/dx₀ = sin(ωx₁)/sin(ωx₀)."""
    omega, x = 1e4, normal(40, 1)
    start = torch.remainder(x * omega, 2 * math.pi) - math.pi
    before = 2 * torch.atan(math.exp(-5) * torch.tan(start / 2))
    expected = torch.log(torch.sin(before) / torch.sin(start))[:, 0]
    found = log_density(
        plane(1),
        lambda t, x: 5 * torch.sin(omega * x) / omega,
        lambda x: torch.zeros(len(x)),
        start / omega,
        Solver("dopri5", tolerance=1e-4),
    )
    assert float((found - expected).abs().max()) < 20 * 1e-4


def test_a_rotation_keeps_the_uniform_density():
    space = sphere(1.7)
    x = points(space, 5)
    found = log_density(space, turning().velocity, uniform(space), x, Solver("midpoint", 8))
    torch.testing.assert_close(found, uniform(space)(x), rtol=0, atol=1e-13)
    torch.testing.assert_close(found, torch.full_like(found, -math.log(4 * math.pi * 1.7**2)), rtol=0, atol=1e-13)


@pytest.mark.parametrize("radius", [0.6, 2.0])
def test_the_climbing_flow_of_a_uniform_density(radius):
    space, climb = sphere(radius), climbing(radius)
    x, weights = sphere_quadrature(radius, 40)
    torch.testing.assert_close((climb.log_density(x).exp() * weights).sum(), torch.tensor(1.0).double())
    found = log_density(space, climb.velocity, uniform(space), x[::400], FINE)
    torch.testing.assert_close(found, climb.log_density(x[::400]), rtol=0, atol=1e-7)
    start = points(space, 5)
    ends, log_p = push(space, climb.velocity, start, uniform(space)(start), FINE)
    torch.testing.assert_close(ends, climb.end(start), rtol=0, atol=1e-7)
    torch.testing.assert_close(log_p, climb.log_density(ends), rtol=0, atol=1e-7)


def von_mises_fisher(x, kappa, axis):
    kappa = torch.as_tensor(kappa, dtype=x.dtype)
    return torch.log(kappa / (4 * math.pi * torch.sinh(kappa))) + kappa * (x @ axis)


def concentrating(axis, first=0.4, last=3.0):
    """A velocity along meridians under which the density at t is von Mises-Fisher's with κ = κ₀ + t(κ₁ − κ₀).

    The heights u = ⟨a, x⟩ have the distribution function F = (e^{κu} − e^{−κ})/(2 sinh κ); they keep their quantiles
    where u' = −(∂F/∂κ)κ'/(∂F/∂u), and βa has the tangent part under which u' = β(1 − u²).
    """

    def velocity(t, x):
        kappa, u = first + t * (last - first), x @ axis
        below = (torch.exp(kappa * u) - torch.exp(-kappa)) / (2 * torch.sinh(kappa))
        by_kappa = (u * torch.exp(kappa * u) + torch.exp(-kappa)) / (2 * torch.sinh(kappa)) - below / torch.tanh(kappa)
        by_u = kappa * torch.exp(kappa * u) / (2 * torch.sinh(kappa))
        speed = -by_kappa * (last - first) / by_u
        return (speed / (1 - u**2))[:, None] * axis

    return velocity


def test_a_flow_from_one_von_mises_fisher_density_to_another():
    space, axis = sphere(), climbing(1.0).axis
    x, weights = sphere_quadrature(1.0)
    torch.testing.assert_close((von_mises_fisher(x, 3.0, axis).exp() * weights).sum(), torch.tensor(1.0).double())
    found = log_density(space, concentrating(axis), lambda x: von_mises_fisher(x, 0.4, axis), x[5::200], FINE)
    torch.testing.assert_close(found, von_mises_fisher(x[5::200], 3.0, axis), rtol=0, atol=1e-6)
    half = log_density(
        space, concentrating(axis), lambda x: von_mises_fisher(x, 0.4, axis), x[5::200], FINE, times=(0.0, 0.5)
    )
    torch.testing.assert_close(half, von_mises_fisher(x[5::200], 1.7, axis), rtol=0, atol=1e-6)


# Any field ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPACES)
def test_densities_are_those_of_the_determinant(name):
    """log p₁(φ(x)) = log p₀(x) − log|det dφ_x|, the differential in orthonormal bases of both tangent spaces."""
    space, field = SPACES[name], smooth(SPACES[name])
    start = points(space, 1)
    solver = Solver("rk4", 24)
    ends, found = push(space, field, start, torch.zeros(1), solver)
    for x, y, log_p in zip(start, ends, found, strict=True):
        # Of space.project, too, whose differential on tangent vectors is the identity.
        jacobian = torch.autograd.functional.jacobian(
            lambda x: integrate(space, field, space.project(x[None]), solver=solver)[0], x
        )
        across = tangents(space, y).mT @ jacobian @ tangents(space, x)
        assert across.shape == (space.manifold.dimension,) * 2
        assert float(log_p) == pytest.approx(-float(torch.linalg.slogdet(across).logabsdet), abs=1e-6)
    torch.testing.assert_close(
        log_density(space, field, uniform(space), ends, solver), uniform(space)(start) + found, rtol=0, atol=1e-6
    )


@given(seed=st.integers(0, 1000), radius=st.floats(0.5, 2), method=st.sampled_from(["rk4", "dopri5"]))
@settings(max_examples=3, deadline=None)
def test_densities_on_a_sphere_integrate_to_one(seed, radius, method):
    space = sphere(radius)
    x, weights = sphere_quadrature(radius)
    solver = Solver(method, steps=6, tolerance=1e-5)
    # Not too far, so that no peak of the density falls between the points.
    log_p = log_density(space, smooth(space, seed), uniform(space), x, solver, times=(0, 0.3))
    assert float(log_p.max() - log_p.min()) > 0.1
    assert float((log_p.exp() * weights).sum()) == pytest.approx(1, abs=1e-4)


@given(seed=st.integers(0, 1000), name=st.sampled_from(sorted(SPACES)), method=st.sampled_from(["rk4", "dopri5"]))
@settings(max_examples=4, deadline=None)
def test_round_trips(seed, name, method):
    space, solver = SPACES[name], Solver(method, steps=16, tolerance=1e-7)
    field = smooth(space, seed)
    x = points(space, 4, seed)
    ends, log_p = push(space, field, x, uniform(space)(x), solver)
    assert float((log_p - uniform(space)(x)).abs().max()) > 1e-2
    torch.testing.assert_close(log_density(space, field, uniform(space), ends, solver), log_p, rtol=0, atol=1e-5)


def test_densities_of_independent_factors_add():
    """On the product of spheres and a plane each with a field of its own, whose densities are known."""
    space = SPACES["product"]
    x = points(space, 4)
    climb = climbing(1.0)

    def velocity(t, x):
        parts = space.coordinates(x)
        b = parts["b"]
        # The circle is made of the entries 0 and 2 of b, the plane of 1 and 3, which grow by e^{0.5}.
        own = torch.stack([-b[:, 2], 0.5 * b[:, 1], b[:, 0], 0.5 * b[:, 3]], 1)
        pulled = climb.velocity(t, parts["a"].flatten(0, 1)).reshape(-1, 6)
        return torch.cat([own, pulled], 1)

    parts = space.coordinates(x)
    expected = (
        climb.log_density(parts["a"].flatten(0, 1)).reshape(-1, 2).sum(1)
        - math.log(2 * math.pi * 2.0)
        + log_normal(parts["b"][:, [1, 3]], std=math.exp(0.5))
    )
    torch.testing.assert_close(log_density(space, velocity, uniform(space), x, FINE), expected, rtol=0, atol=1e-7)


# Hutchinson -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", ["rademacher", "gaussian"])
@pytest.mark.parametrize("name", ["plane", "sphere"])
def test_estimates_are_unbiased(name, noise):
    """Copies of each point have probes of their own; along one way, so that estimates average as integrals do."""
    space, field, count = SPACES[name], smooth(SPACES[name]), 3000
    x = points(space, 3)
    solver = Solver("rk4", 5)
    exact = log_density(space, field, uniform(space), x, solver)
    found = log_density(
        space, field, uniform(space), x.repeat(count, 1), solver, trace="hutchinson", noise=noise, generator=generator()
    ).reshape(count, 3)
    deviation = found.std(0)
    assert bool((deviation > 0.01).all())
    assert bool(((found.mean(0) - exact).abs() < 4 * deviation / math.sqrt(count)).all())
    more = log_density(
        space,
        field,
        uniform(space),
        x.repeat(count, 1),
        solver,
        trace="hutchinson",
        noise=noise,
        probes=4,
        generator=generator(1),
    ).reshape(count, 3)
    torch.testing.assert_close(more.std(0), deviation / 2, rtol=0.1, atol=0)


def test_probes_stay_for_a_trajectory_and_come_from_the_generator():
    space, field, x = SPACES["sphere"], smooth(SPACES["sphere"]), points(SPACES["sphere"], 3)

    def found(seed, steps):
        options = {"trace": "hutchinson", "generator": generator(seed)}
        return push(space, field, x, torch.zeros(3), Solver("rk4", steps), **options)[1]

    assert torch.equal(found(0, 10), found(0, 10))
    assert float((found(0, 10) - found(1, 10)).abs().max()) > 0.01
    # With one ε all the way the estimate is an integral, to which steps converge.
    torch.testing.assert_close(found(0, 20), found(0, 80), rtol=0, atol=1e-6)


# Gradients and memory -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trace", ["exact", "hutchinson"])
@pytest.mark.parametrize("name", ["plane", "sphere"])
def test_densities_can_be_differentiated(name, trace):
    space = SPACES[name]

    def found(x, factor, log_p):
        return push(
            space,
            lambda t, x: factor * smooth(space)(t, x),
            space.project(x),
            log_p,
            Solver("midpoint", 2),
            trace=trace,
            generator=generator(),
            differentiable=True,
        )

    x = points(space, 1).requires_grad_()
    factor, log_p = normal(space.size, seed=1).requires_grad_(), normal(1).requires_grad_()
    assert torch.autograd.gradcheck(found, (x, factor, log_p))


class LiveTensors(TorchDispatchMode):
    """The largest number of tensors that operations gave and that were alive at once."""

    def __init__(self):
        super().__init__()
        self.alive, self.most = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        import weakref

        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.alive += 1
                self.most = max(self.most, self.alive)
                weakref.finalize(tensor, self._gone)
        return out

    def _gone(self):
        self.alive -= 1


@pytest.mark.parametrize("trace", ["exact", "hutchinson"])
def test_memory_does_not_depend_on_the_number_of_steps(trace):
    space = SPACES["sphere"]
    x = points(space, 2)
    factor = normal(space.size).requires_grad_()

    def most(steps, **options):
        with LiveTensors() as live:
            log_density(
                space,
                lambda t, x: factor * smooth(space)(t, x),
                uniform(space),
                x,
                Solver("midpoint", steps),
                trace=trace,
                generator=generator(),
                **options,
            )
        return live.most

    assert most(2) == most(6)
    assert most(6, differentiable=True) > 2 * most(2, differentiable=True) > 2 * most(2)


def test_modes_of_autograd():
    space, field, x = SPACES["sphere"], smooth(SPACES["sphere"]), points(SPACES["sphere"], 2)
    plain = log_density(space, field, uniform(space), x, Solver())
    assert not plain.requires_grad
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            found = log_density(space, field, uniform(space), points(space, 2), Solver(), differentiable=True)
        assert torch.equal(found, plain)
        assert not found.requires_grad


def test_modules_in_single_precision():
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))

    def velocity(t, x):
        return network(torch.cat([x, t.expand(len(x), 1)], 1))

    space = SPACES["sphere"]
    x = points(space, 3).float()
    found = log_density(space, velocity, uniform(space), x, Solver("rk4", 8))
    assert found.dtype == torch.float64
    assert all(parameter.grad is None for parameter in network.parameters())
    network.double()
    wide = log_density(space, velocity, uniform(space), space.project(x.double()), Solver("rk4", 8))
    torch.testing.assert_close(found, wide, rtol=0, atol=1e-5)


def test_what_is_refused():
    space, x = SPACES["sphere"], points(SPACES["sphere"], 3)
    field, source = smooth(space), uniform(space)
    for rows, velocity, log_source, options, message in [
        (1.1 * x, field, source, {}, "x has points that are not on the spheres of the space"),
        (x, field, lambda x: x, {}, r"log_source is of shape \(3, 3\); expected one log density a row, \(3,\)"),
        (x, field, source, {"trace": "skilling"}, "trace is 'skilling'; expected one of exact, hutchinson"),
        (x, field, source, {"trace": "hutchinson"}, "generator is None with the trace 'hutchinson'"),
        (x, field, source, {"probes": 0}, "probes is 0"),
        (x, field, source, {"noise": "uniform"}, "noise is 'uniform'; expected one of rademacher, gaussian"),
        (x, torch.no_grad()(field), source, {}, "velocity gives numbers that autograd does not trace back to x"),
        (x, lambda t, x: field(t, x.detach()), source, {}, "does not trace back to x"),
        (x, lambda t, x: x[:2], source, {}, r"velocity gives shape \(2, 3\)"),
        (x, lambda t, x: x / (1 - t), source, {}, "velocity is not finite at t = 1, row 0"),
    ]:
        with pytest.raises(InputError, match=message):
            log_density(space, velocity, log_source, rows, Solver(), **options)
    detached = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    with pytest.raises(InputError, match="does not trace back to x"):
        log_density(space, lambda t, x: detached * x.detach(), source, x, Solver())
    with pytest.raises(InputError, match=r"log_p is of shape \(\); expected one log density a row"):
        push(space, field, x, torch.tensor(0.0), Solver())
