"""Stochastic sampling of straight paths from a Gaussian source: noise on the way, the same distribution at its end."""

import math
from itertools import pairwise

import torch
from torch import Tensor

from coset._checks import check_positive
from coset.errors import InputError
from coset.flow._solvers import Solver, Velocity, checked_rows, checked_velocity, fixed_grid
from coset.flow._space import Space


def integrate_stochastic(
    space: Space,
    velocity: Velocity,
    x: Tensor,
    solver: Solver,
    generator: torch.Generator,
    *,
    noise: float = 1.0,
    mean: float | Tensor = 0.0,
    std: float | Tensor = 1.0,
) -> Tensor:
    """Rows (N, D) at t = 1 of draws x of N(m₀, diag s₀²) at t = 0, by steps of Euler and Maruyama of

        dx = [v − η²(x − t·v − m₀)] dt + √(2η²(1−t)) s₀ dW.

    The drift is v + ½g²∇log p_t for g² = 2η²(1−t)s₀², so that x_t has the density p_t of dx = v dt for every ``noise``
    η ≥ 0. It needs straight paths x_t = (1−t)x₀ + t·x₁ with x₀ and x₁ independent: then E[x₀|x_t] = x_t − t·v and
    ∇log p_t = −(E[x₀|x_t] − m₀)/((1−t)s₀²), and in ½g²∇log p_t no quotient is left. Other couplings, and paths along
    spheres, have no score that v would tell. ``solver``: the method ``euler``, its steps or grid. ``mean``, ``std``: m₀
    and s₀, numbers or (D,).
    """
    if space.curved:
        raise InputError("space has spheres; stochastic sampling is for straight paths: expected space.flat")
    if solver.method != "euler":
        raise InputError(f"solver has the method {solver.method}; expected euler, of stochastic sampling the only one")
    check_positive("noise", noise, zero=True)
    state = checked_rows(space, x)
    m = _of_source(space, "mean", mean, x)
    s = _of_source(space, "std", std, x)
    if not bool((s > 0).all()):
        raise InputError(f"std is {float(s.min()):g} at the least; expected numbers > 0")
    for t, after in pairwise(fixed_grid(0.0, 1.0, solver)):
        v = checked_velocity(velocity(torch.tensor(t, dtype=x.dtype, device=x.device), state), state)
        fresh = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=generator.device).to(x.device)
        drift = v - noise**2 * (state - t * v - m)
        state = state + (after - t) * drift + math.sqrt(2 * noise**2 * (1 - t) * (after - t)) * s * fresh
        if not bool(torch.isfinite(state).all()):
            raise InputError(
                f"x is not finite after the step of size {after - t:.3g} at t = {t:.6g}; expected finite numbers: look "
                f"at the velocity there, or take smaller steps"
            )
    return state


def _of_source(space: Space, name: str, value: float | Tensor, x: Tensor) -> Tensor:
    found = torch.as_tensor(value, dtype=x.dtype, device=x.device)
    if found.shape not in ((), (space.size,)) or not bool(torch.isfinite(found).all()):
        raise InputError(f"{name} is of shape {tuple(found.shape)}; expected a finite number, or {space.size} of them")
    return found
