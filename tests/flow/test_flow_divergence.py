"""The divergence of tangent fields, and the continuity equation of known flows."""

import math

import pytest
import torch
from flow_spaces import SPACES, climbing, generator, normal, plane, points, smooth, sphere, tangents
from test_flow_likelihood import concentrating, von_mises_fisher

from coset.flow import divergence


@pytest.mark.parametrize("name", SPACES)
def test_divergence_is_the_trace_along_geodesics(name):
    """Σᵢ ⟨eᵢ, d/ds v(exp_x(s·eᵢ))⟩ over a basis of the tangent space, by central differences."""
    space, x = SPACES[name], points(SPACES[name], 4)
    field, step = smooth(space), 1e-5

    def tangent(rows):
        return space.tangent(rows, field(0.3, rows))

    found = divergence(space, field, 0.3, x)
    for row, value in zip(x, found, strict=True):
        basis = tangents(space, row).mT
        rows = row.expand(len(basis), -1)
        slopes = (tangent(space.exp(rows, step * basis)) - tangent(space.exp(rows, -step * basis))) / (2 * step)
        assert float(value) == pytest.approx(float((slopes * basis).sum()), abs=1e-8)


def test_divergences_that_are_known():
    x = points(sphere(2.0), 5)
    # div Π(κa) = −2κ⟨a, x⟩/r² on S² of radius r; radial parts do not matter.
    climb = climbing(2.0)
    expected = -2 * 1.3 * (x @ climb.axis) / 4
    torch.testing.assert_close(divergence(sphere(2.0), climb.velocity, 0.0, x), expected, rtol=0, atol=1e-14)
    shifted = divergence(sphere(2.0), lambda t, x: climb.velocity(t, x) + x * x.sum(1, keepdim=True), 0.0, x)
    torch.testing.assert_close(shifted, expected, rtol=0, atol=1e-13)
    a = normal(3, 3)
    found = divergence(plane(3), lambda t, x: x @ a.mT, 0.0, x)
    torch.testing.assert_close(found, a.trace().expand(5), rtol=0, atol=1e-14)


@pytest.mark.parametrize("noise", ["rademacher", "gaussian"])
def test_estimates(noise):
    """Unbiased; on the plane the variance is that of a quadratic form, Σ over pairs of (Jᵢⱼ + Jⱼᵢ)², and 2·Σ Jᵢᵢ² more
    for normal probes.
    """
    a, count = normal(3, 3), 20000
    found = divergence(
        plane(3),
        lambda t, x: x @ a.mT,
        0.0,
        normal(count, 3),
        trace="hutchinson",
        noise=noise,
        generator=generator(),
    )
    both = (a + a.mT).triu(1).square().sum()
    variance = both + (2 * a.diagonal().square().sum() if noise == "gaussian" else 0)
    assert float((found.mean() - a.trace()).abs()) < 4 * math.sqrt(variance / count)
    assert float(found.var()) == pytest.approx(float(variance), rel=0.05)


def continuity(space, log_p, velocity, t, x):
    """∂ₜp and div(p v), which add up to nothing (thesis (3.5))."""
    time = torch.tensor(t, dtype=torch.float64, requires_grad=True)
    ones = [torch.autograd.grad(log_p(time, row[None]).exp().sum(), time)[0] for row in x]
    flux = divergence(space, lambda t, x: log_p(t, x).exp()[:, None] * velocity(t, x), t, x)
    return torch.stack(ones), flux


def test_the_continuity_equation_of_a_gaussian_path():
    m, s = torch.tensor([2.0, -1.0]).double(), torch.tensor([0.3, 1.5]).double()

    def log_p(t, x):
        variance = (1 - t) ** 2 + t**2 * s**2
        return (-0.5 * (x - t * m) ** 2 / variance - 0.5 * torch.log(2 * math.pi * variance)).sum(1)

    def velocity(t, x):
        return m + (t * s**2 - (1 - t)) / ((1 - t) ** 2 + t**2 * s**2) * (x - t * m)

    by_time, flux = continuity(plane(), log_p, velocity, 0.4, 0.4 * m + normal(6, 2))
    assert float(by_time.abs().max()) > 0.05
    torch.testing.assert_close(by_time, -flux, rtol=0, atol=1e-13)


def test_the_continuity_equation_on_a_sphere():
    axis = climbing(1.0).axis

    def log_p(t, x):
        return von_mises_fisher(x, 0.4 + t * 2.6, axis)

    by_time, flux = continuity(sphere(), log_p, concentrating(axis), 0.3, points(sphere(), 6))
    assert float(by_time.abs().max()) > 0.02
    torch.testing.assert_close(by_time, -flux, rtol=0, atol=1e-13)


class Alone(torch.autograd.Function):
    """sin, with a backward pass that knows one direction at a time."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, slope):
        (x,) = ctx.saved_tensors
        return slope * torch.from_numpy(x.cos().numpy()) * (1.0 if bool(slope.abs().sum() >= 0) else 0.0)


def test_fields_that_cannot_be_batched():
    x = normal(4, 3).requires_grad_()
    with pytest.raises(RuntimeError):
        torch.autograd.grad(Alone.apply(x), x, torch.ones(2, 4, 3, dtype=x.dtype), is_grads_batched=True)
    found = divergence(plane(3), lambda t, x: Alone.apply(x), 0.0, x.detach())
    torch.testing.assert_close(found, x.detach().cos().sum(1), rtol=0, atol=1e-14)


@pytest.mark.parametrize("count", [1, 30, 100])
def test_directions_are_taken_some_at_a_time(count):
    """70 coordinates in passes of 64, of 2, and one by one."""
    x, a = normal(count, 70), normal(70, 70)
    found = divergence(plane(70), lambda t, x: torch.sin(x @ a.mT), 0.0, x)
    torch.testing.assert_close(found, (torch.cos(x @ a.mT) * a.diagonal()).sum(1), rtol=0, atol=1e-12)
