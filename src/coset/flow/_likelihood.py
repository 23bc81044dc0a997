"""Densities of what a flow brings forth: the continuity equation along the way of every point."""

from collections.abc import Callable

import torch
from torch import Tensor

from coset.errors import InputError
from coset.flow._divergence import draw_probes, velocity_and_divergence
from coset.flow._solvers import Rates, Solver, State, Velocity, check_times, checked_rows, solve
from coset.flow._space import Space


def log_density(
    space: Space,
    velocity: Velocity,
    log_source: Callable[[Tensor], Tensor],
    x: Tensor,
    solver: Solver,
    *,
    trace: str = "exact",
    probes: int = 1,
    noise: str = "rademacher",
    generator: torch.Generator | None = None,
    times: tuple[float, float] = (0.0, 1.0),
    differentiable: bool = False,
) -> Tensor:
    """log p₁(x) = log p₀(x₀) − ∫₀¹ div v(t, x_t) dt of rows x (N, D), (N,) in float64 (thesis (3.22), (3.24)).

    The ODE is solved from t = 1 at x to t = 0 at x₀, the integral with it, by the same steps; of ``dopri5`` the error
    of either counts. Densities are by the volume of the space: of spheres their area. ``log_source``: rows → log p₀,
    (N,). ``trace``: "exact", D backward passes of the velocity at each stage, or "hutchinson", ``probes`` of them, an
    unbiased estimate of the integral along the same way: one ε per trajectory and probe, Π(x_t)ε at every t, its
    ``noise`` "rademacher" or "gaussian", drawn from ``generator``. ``times``: those of source and data; for velocities
    that divide by 1 − t let them end before 1. Memory does not depend on the number of steps, unless gradients are
    enabled and ``differentiable`` is set.
    """
    begin, end = check_times("times", times)
    with torch.set_grad_enabled(differentiable and torch.is_grad_enabled()):
        rates = _with_divergence(space, velocity, _on_space(space, x), trace, probes, noise, generator)
        state = (x, torch.zeros(len(x), dtype=torch.float64, device=x.device))
        (_, (source, integral)), _ = solve(space, rates, state, (end, begin), solver, controlled=2)
        # From t = 1 to t = 0 the integral of div comes with a minus.
        return _one_per_row("log_source", log_source(source), x) + integral


def push(
    space: Space,
    velocity: Velocity,
    x: Tensor,
    log_p: Tensor,
    solver: Solver,
    *,
    trace: str = "exact",
    probes: int = 1,
    noise: str = "rademacher",
    generator: torch.Generator | None = None,
    times: tuple[float, float] = (0.0, 1.0),
    differentiable: bool = False,
) -> tuple[Tensor, Tensor]:
    """Draws x (N, D) of the source and their log densities (N,) → x₁ and log p₁(x₁), in float64; see ``log_density``.

    With ``differentiable`` both can be differentiated by x, ``log_p`` and what the velocity is made of, for bounds on
    the evidence.
    """
    begin, end = check_times("times", times)
    with torch.set_grad_enabled(differentiable and torch.is_grad_enabled()):
        rates = _with_divergence(space, velocity, _on_space(space, x), trace, probes, noise, generator)
        state = (x, torch.zeros(len(x), dtype=torch.float64, device=x.device))
        (_, (rows, integral)), _ = solve(space, rates, state, (begin, end), solver, controlled=2)
        return rows, _one_per_row("log_p", log_p, x) - integral


def _with_divergence(
    space: Space,
    velocity: Velocity,
    rows: Tensor,
    trace: str,
    probes: int,
    noise: str,
    generator: torch.Generator | None,
) -> Rates:
    """The rates of a state (x, ∫div dt); probes are drawn once."""
    drawn = draw_probes(rows, trace, probes, noise, generator)

    def rates(t: Tensor, x: Tensor) -> State:
        return velocity_and_divergence(space, velocity, t, x, drawn)

    return rates


def _on_space(space: Space, x: Tensor) -> Tensor:
    rows = checked_rows(space, x)
    if space.curved and not space.manifold.check(space.coordinates(rows.detach())):
        raise InputError("x has points that are not on the spheres of the space; expected some of space.project")
    return rows


def _one_per_row(name: str, value: Tensor, x: Tensor) -> Tensor:
    """A log density, which must be (N,), in float64."""
    if not isinstance(value, Tensor) or value.shape != x.shape[:1]:
        found = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise InputError(f"{name} is {found}; expected one log density a row, ({len(x)},)")
    return value.double()
