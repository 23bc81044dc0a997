"""Stochastic sampling: marginals are those of the deterministic flow, for every amount of noise."""

import math

import pytest
import torch
from flow_spaces import generator, normal, plane, points, sphere

from coset.errors import InputError
from coset.flow import Solver, integrate, integrate_stochastic

SOURCE = (torch.tensor([0.5, -1.0]).double(), torch.tensor([0.7, 1.5]).double())
TARGET = (torch.tensor([2.0, 1.0]).double(), torch.tensor([0.4, 2.0]).double())


def slope(t):
    """The velocity of straight paths between independent Gaussians is m' + k(t)(x − m(t)), k = ½(log variance)'."""
    variance = (1 - t) ** 2 * SOURCE[1] ** 2 + t**2 * TARGET[1] ** 2
    return (t * TARGET[1] ** 2 - (1 - t) * SOURCE[1] ** 2) / variance


def velocity(t, x):
    return TARGET[0] - SOURCE[0] + slope(t) * (x - (1 - t) * SOURCE[0] - t * TARGET[0])


def moments(noise, steps):
    """Mean and variance of x after so many steps of Euler and Maruyama, exactly, as the drift is affine:
    v + ½g²∇log p with the score −(x − m(t))/(variance of p_t), and g² = 2η²(1−t)s₀².
    """
    mean, variance = SOURCE[0].clone(), SOURCE[1] ** 2
    for t in (step / steps for step in range(steps)):
        here = (1 - t) * SOURCE[0] + t * TARGET[0]
        squared = 2 * noise**2 * (1 - t) * SOURCE[1] ** 2
        of_score = 0.5 * squared / ((1 - t) ** 2 * SOURCE[1] ** 2 + t**2 * TARGET[1] ** 2)
        drift = TARGET[0] - SOURCE[0] + (slope(t) - of_score) * (mean - here)
        variance = (1 + (slope(t) - of_score) / steps) ** 2 * variance + squared / steps
        mean = mean + drift / steps
    return mean, variance


@pytest.mark.parametrize("noise", [0.0, 0.5, 1.0, 2.0])
def test_marginals_do_not_depend_on_the_noise(noise):
    steps, count = 40, 20000
    x = SOURCE[0] + SOURCE[1] * normal(count, 2)
    found = integrate_stochastic(
        plane(2), velocity, x, Solver("euler", steps), generator(3), noise=noise, mean=SOURCE[0], std=SOURCE[1]
    )
    # The sampler takes the steps whose moments are known; five standard errors.
    mean, variance = moments(noise, steps)
    assert bool(((found.mean(0) - mean).abs() < 5 * (variance / count).sqrt()).all())
    assert bool(((found.var(0) - variance).abs() < 5 * variance * math.sqrt(2 / count)).all())
    # These are first order away from mean and variance of the target, whatever the noise.
    torch.testing.assert_close(mean, TARGET[0], rtol=0, atol=1e-12)
    defects = [(moments(noise, steps)[1] - TARGET[1] ** 2).abs() for steps in (200, 400, 800)]
    assert bool((defects[-1] < 0.02 * TARGET[1] ** 2).all())
    torch.testing.assert_close(torch.log2(defects[1] / defects[2]), torch.ones(2).double(), rtol=0, atol=0.15)


def test_without_noise_it_is_the_deterministic_flow_and_with_noise_it_is_not():
    x = normal(5, 2)
    for noise, same in ((0.0, True), (0.3, False)):
        found = integrate_stochastic(plane(2), velocity, x, Solver("euler", 8), generator(), noise=noise)
        again = integrate_stochastic(plane(2), velocity, x, Solver("euler", 8), generator(), noise=noise)
        assert torch.equal(found, again)
        assert torch.allclose(found, integrate(plane(2), velocity, x, solver=Solver("euler", 8)), atol=1e-12) == same


def test_what_is_refused():
    euler = Solver("euler", 4)
    for space, solver, options, message in [
        (sphere(), euler, {}, "space has spheres; .*expected space.flat"),
        (plane(3), Solver("rk4"), {}, "solver has the method rk4; expected euler"),
        (plane(3), euler, {"noise": -1.0}, "noise is -1.0; expected a number ≥ 0"),
        (plane(3), euler, {"std": 0.0}, "std is 0 at the least; expected numbers > 0"),
        (plane(3), euler, {"mean": torch.zeros(2)}, r"mean is of shape \(2,\); expected a finite number, or 3 of them"),
    ]:
        with pytest.raises(InputError, match=message):
            integrate_stochastic(space, lambda t, x: x, points(space, 2), solver, generator(), **options)
    with pytest.raises(InputError, match=r"x is not finite after the step of size 0.25 at t = 0.5"):
        integrate_stochastic(plane(3), lambda t, x: x / (0.5 - t), normal(2, 3), euler, generator())
