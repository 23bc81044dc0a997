"""Solvers of dx/dt = v(t, x) on products of spheres and Euclidean spaces: Runge-Kutta steps that are retracted."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from coset._checks import check_choice, check_count, check_positive, is_number
from coset.errors import InputError
from coset.flow._space import Space
from coset.flow._tableaus import SOLVERS, Tableau

Velocity = Callable[[Tensor, Tensor], Tensor]
"""(t, x) → v: t without axes, rows x (N, D) on the space, rows v (N, D), which need not be tangent."""

State = tuple[Tensor, ...]
"""Rows (N, D), and numbers (N, …) that are integrated along their way."""

Rates = Callable[[Tensor, Tensor], State]
"""(t, rows on the space) → the derivative of every part of a state by t; that of rows is tangent."""

RETRACTIONS = ("projection", "exponential")

_SAFETY, _SHRINK, _GROWTH = 0.9, 0.2, 10.0
"""Of a step that is chosen by its error: (1/error)^(1/5) times the first, between the others."""


@dataclass(frozen=True)
class Solver:
    """How an ODE is solved.

    ``method``: one of ``SOLVERS``. ``steps``: so many of one size, of methods with fixed steps; or ``grid``: the times
    of their ends, increasing, used in either direction. ``tolerance``: of ``dopri5``, absolute and relative at once.
    ``most``: it gives up after so many steps, refused ones among them. ``retraction``: of steps to spheres,
    "projection" r·x/‖x‖, which keeps the order of every method, or "exponential", x ← exp_x(v Δt) (thesis (3.18)),
    of ``euler`` alone: exp_x of the stages of a higher method, made tangent at x, would be a step of order 2.
    """

    method: str = "midpoint"
    steps: int = 32
    tolerance: float = 1e-5
    most: int = 1000
    retraction: str = "projection"
    grid: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check_choice("method", self.method, SOLVERS)
        check_count("steps", self.steps)
        check_positive("tolerance", self.tolerance)
        check_count("most", self.most)
        check_choice("retraction", self.retraction, RETRACTIONS)
        if self.retraction == "exponential" and self.method != "euler":
            raise InputError(
                f"retraction is 'exponential' with the method {self.method}; expected 'projection', or the method "
                f"euler: exp_x of several stages is a step of order 2"
            )
        if self.grid is not None:
            object.__setattr__(self, "grid", check_times("grid", self.grid))
            if self.method == "dopri5":
                raise InputError("grid is given with the method dopri5, which chooses its steps; expected None")
            if self.grid[0] > self.grid[-1]:
                raise InputError(f"grid begins at {self.grid[0]:g} and ends at {self.grid[-1]:g}; expected increasing")


@dataclass(frozen=True, eq=False)
class Trajectory:
    """The way of N points. ``times`` (T,) in float64, ``rows`` (T, N, D); ``energy`` (T, N): ∫‖v‖²|dt| up to each of
    the times, in float64. ``evaluations`` of the velocity, each for all rows; ``steps``, ``refused`` of these.
    """

    times: Tensor
    rows: Tensor
    energy: Tensor
    evaluations: int
    steps: int
    refused: int


def integrate(
    space: Space,
    velocity: Velocity,
    x: Tensor,
    start: float = 0.0,
    end: float = 1.0,
    solver: Solver = Solver(),  # noqa: B008
    *,
    differentiable: bool = True,
) -> Tensor:
    """The rows (N, D) at ``end`` of dx/dt = v(t, x), which are x at ``start``; in either direction of time.

    On spheres it is the ODE of v̄(x) = Π_x̂ v(t, x̂), x̂ = r·x/‖x‖, in the space around them: v̄ is tangent, so the exact
    flow stays on the spheres, and methods keep their orders. The result of every step is retracted. Where gradients
    are enabled the steps can be differentiated, and memory grows with them; not so with ``differentiable=False``.
    """
    with torch.set_grad_enabled(differentiable and torch.is_grad_enabled()):
        state = (checked_rows(space, x),)
        return solve(space, _plain(space, velocity), state, check_times("start, end", (start, end)), solver)[0][-1][0]


def trajectory(
    space: Space,
    velocity: Velocity,
    x: Tensor,
    times: Sequence[float] | Tensor,
    solver: Solver = Solver(),  # noqa: B008
    *,
    differentiable: bool = True,
) -> Trajectory:
    """``integrate`` with what is on the way: the points at ``times``, of which x are at the first.

    Fixed steps are those from the first of the times to the last, cut at the times between. ``energy`` over all of the
    way is E‖x₁ − x₀‖² of straight paths at constant speed, and more of others. It takes no part in the choice of steps.
    """
    found = check_times("times", times)
    direction = 1.0 if found[-1] > found[0] else -1.0
    tangent = tangent_velocity(space, velocity)

    def rates(t: Tensor, rows: Tensor) -> State:
        v = tangent(t, rows)
        return v, direction * v.double().square().sum(-1)

    with torch.set_grad_enabled(differentiable and torch.is_grad_enabled()):
        rows = checked_rows(space, x)
        states, work = solve(space, rates, (rows, rows.new_zeros(len(rows), dtype=torch.float64)), found, solver)
        parts = [torch.stack(part) for part in zip(*states, strict=True)]
    at = torch.tensor(found, dtype=torch.float64)
    return Trajectory(at, parts[0], parts[1], work.evaluations, work.steps, work.refused)


# Parts for all that integrates ----------------------------------------------------------------------------------------


@dataclass
class Work:
    """What a solution has cost so far."""

    evaluations: int = 0
    steps: int = 0
    refused: int = 0


class NotFinite(InputError):
    """A velocity, or what is integrated, that is not finite."""


def check_times(name: str, times: Sequence[float] | Tensor) -> tuple[float, ...]:
    """At least two finite times in order, increasing or decreasing."""
    found = tuple(times.tolist() if isinstance(times, Tensor) and times.ndim == 1 else times)
    if len(found) < 2 or not all(map(is_number, found)):
        raise InputError(f"{name} is {found!r}; expected at least two finite numbers")
    signs = {math.copysign(1, b - a) if a != b else 0 for a, b in pairwise(found)}
    if len(signs) > 1 or 0 in signs:
        raise InputError(f"{name} is {found!r}; expected times in order, none of them twice")
    return tuple(map(float, found))


def checked_rows(space: Space, x: Tensor, what: str = "x") -> Tensor:
    """x, which must be rows (N, D) of finite numbers."""
    if not isinstance(x, Tensor) or x.ndim != 2 or x.shape[1] != space.size or not x.is_floating_point():
        found = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"{what} is {found}; expected rows of floating point numbers, (N, {space.size})")
    if not bool(torch.isfinite(x).all()):
        raise InputError(f"{what} holds numbers that are not finite, first in row {_first_bad(x)}")
    return x


def checked_velocity(v: Tensor, rows: Tensor) -> Tensor:
    """What a velocity gives, which must be of the shape of its rows."""
    if not isinstance(v, Tensor) or v.shape != rows.shape:
        found = f"shape {tuple(v.shape)}" if isinstance(v, Tensor) else f"a {type(v).__name__}"
        raise InputError(f"velocity gives {found} for rows of shape {tuple(rows.shape)}; expected the same shape")
    return v


def tangent_velocity(space: Space, velocity: Velocity) -> Velocity:
    """(t, x) → the tangent part of v, for x on the space."""
    return lambda t, rows: space.tangent(rows, checked_velocity(velocity(t, rows), rows))


def _plain(space: Space, velocity: Velocity) -> Rates:
    tangent = tangent_velocity(space, velocity)
    return lambda t, rows: (tangent(t, rows),)


@dataclass(frozen=True)
class _Steps:
    """What all steps of one solution share."""

    space: Space
    rates: Rates
    solver: Solver
    tableau: Tableau
    work: Work = field(default_factory=Work)

    def slopes(self, t: float, state: State, size: float) -> State:
        """The rates at a state whose rows need not be on the spheres; ``size``: of the step, for refusals."""
        rows = state[0]
        _check_finite(rows, "x", t, size)
        self.work.evaluations += 1
        found = self.rates(torch.tensor(t, dtype=rows.dtype, device=rows.device), self.space.project(rows))
        for part in found:
            _check_finite(part, "velocity", t, size)
        return found

    def stages(self, t: float, state: State, size: float, first: State) -> list[State]:
        """All slopes of a step from t to t + size, of which the first are known."""
        found = [first]
        for node, shares in zip(self.tableau.nodes[1:], self.tableau.stages[1:], strict=True):
            found.append(self.slopes(t + node * size, _moved(state, size, shares, found), size))
        return found

    def ends(self, state: State, size: float, slopes: list[State]) -> State:
        """The state after a step, retracted."""
        after = _moved(state, size, self.tableau.weights, slopes)
        if self.solver.retraction == "exponential":
            after = (self.space.exp(self.space.project(state[0]), size * slopes[0][0]), *after[1:])
        # exp_x leaves the spheres by rounding alone, which would add up.
        return (self.space.project(after[0]), *after[1:])


def solve(
    space: Space, rates: Rates, state: State, times: tuple[float, ...], solver: Solver, controlled: int = 1
) -> tuple[list[State], Work]:
    """The states at ``times``, of which the first is given. ``controlled``: of so many parts of a state, the rows
    first, the error counts where steps are chosen by it.
    """
    steps = _Steps(space, rates, solver, SOLVERS[solver.method])
    run = _fixed_steps if steps.tableau.error is None else _chosen_steps
    found = [(space.project(state[0]), *state[1:])]
    found += run(steps, found[0], times, controlled)
    for part in found[-1]:
        _check_finite(part, "x", times[-1], abs(times[-1] - times[0]) / max(1, steps.work.steps))
    return found, steps.work


def _fixed_steps(steps: _Steps, state: State, times: tuple[float, ...], controlled: int) -> list[State]:
    """The states at all times but the first, by steps on a grid."""
    found, grid = [], fixed_grid(times[0], times[-1], steps.solver)
    for begin, stop in pairwise(times):
        inner = [begin, *_inside(grid, begin, stop, abs(times[-1] - times[0])), stop]
        for t, after in pairwise(inner):
            first = steps.slopes(t, state, after - t)
            state = steps.ends(state, after - t, steps.stages(t, state, after - t, first))
            steps.work.steps += 1
        found.append(state)
    return found


def fixed_grid(start: float, end: float, solver: Solver) -> list[float]:
    """The times of fixed steps from ``start`` to ``end``, both among them."""
    if solver.grid is None:
        whole = [start + (end - start) * (step / solver.steps) for step in range(solver.steps + 1)]
    else:
        whole = list(solver.grid if end > start else solver.grid[::-1])
    return [start, *_inside(whole, start, end, abs(end - start)), end]


def _inside(grid: list[float], a: float, b: float, scale: float) -> list[float]:
    """The times of a grid between two others, but those that differ from one by rounding."""
    return [t for t in grid if min(a, b) + 1e-9 * scale < t < max(a, b) - 1e-9 * scale]


def _chosen_steps(steps: _Steps, state: State, times: tuple[float, ...], controlled: int) -> list[State]:
    """The states at all times but the first, by steps whose errors are within the tolerance.

    Velocities take one t for all rows, so all rows share their steps, and the row with the largest error chooses: each
    meets the tolerance, whatever others are there. The last stage of a step is the first of the next.
    """
    t, work, solver = times[0], steps.work, steps.solver
    direction = 1.0 if times[-1] > t else -1.0
    first = steps.slopes(t, state, times[-1] - t)
    size = _first_size(steps, t, state, first, times[-1] - t, controlled)
    smallest = 4 * torch.finfo(state[0].dtype).eps * max(abs(times[0]), abs(times[-1]))
    found, growth = [], _GROWTH
    for stop in times[1:]:
        while t != stop:
            if work.steps + work.refused >= solver.most:
                raise InputError(
                    f"dopri5 is at t = {t:.6g} of {times[-1]:g} after {solver.most} steps, the next of size "
                    f"{size:.3g}; raise most or tolerance, or take a method with fixed steps"
                )
            last = abs(stop - t) <= size * (1 + 1e-9)
            tried = stop - t if last else direction * size
            try:
                slopes = steps.stages(t, state, tried, first)
                error = _error(steps, state, tried, slopes, controlled)
            except NotFinite:
                if abs(tried) * _SHRINK < smallest:
                    raise
                error = math.inf
            factor = min(growth, max(_SHRINK, _SAFETY * max(error, 1e-10) ** -0.2))
            if error <= 1:
                state, first = steps.ends(state, tried, slopes), slopes[-1]
                t = stop if last else t + tried
                # A step that was cut at one of the times does not shorten those after it.
                size = max(size, abs(tried) * factor) if last else abs(tried) * factor
                work.steps, growth = work.steps + 1, _GROWTH
                continue
            work.refused, growth, size = work.refused + 1, 1.0, abs(tried) * factor
            if size < smallest:
                raise InputError(
                    f"dopri5 needs steps below {smallest:.3g} at t = {t:.6g}, the last of size {abs(tried):.3g}: the "
                    f"velocity is not smooth enough there; raise tolerance, or take a method with fixed steps"
                )
        found.append(state)
    return found


def _error(steps: _Steps, state: State, size: float, slopes: list[State], controlled: int) -> float:
    """max over rows and parts of √mean((e/(τ + τ·max(|x|, |x₊|)))²), e the difference to the embedded method."""
    assert steps.tableau.error is not None
    with torch.no_grad():
        none = tuple(torch.zeros_like(part) for part in state)
        differences = _moved(none, size, steps.tableau.error, slopes)
        after = _moved(state, size, steps.tableau.weights, slopes)
        errors = [
            _size(difference, torch.maximum(before.abs(), part.abs()), steps.solver.tolerance)
            for difference, before, part in zip(differences[:controlled], state, after, strict=False)
        ]
        found = max(errors)
    return found if math.isfinite(found) else math.inf


def _size(part: Tensor, beside: Tensor, tolerance: float) -> float:
    relative = part.double() / (tolerance * (1 + beside.double()))
    rms = relative.reshape(len(relative), -1).square().mean(-1).sqrt()
    return float(rms.max()) if len(rms) else 0.0


def _first_size(steps: _Steps, t: float, state: State, first: State, whole: float, controlled: int) -> float:
    """The size of the first step (Hairer, Nørsett, Wanner, Solving ODEs I, II.4): of a trial by Euler's method."""
    tolerance = steps.solver.tolerance
    with torch.no_grad():
        sizes = [part.abs() for part in state[:controlled]]
        place = max(_size(part, one, tolerance) for part, one in zip(state, sizes, strict=False))
        slope = max(_size(part, one, tolerance) for part, one in zip(first, sizes, strict=False))
        trial = min(1e-6 if min(place, slope) < 1e-5 else 0.01 * place / slope, abs(whole))
        signed = math.copysign(trial, whole)
        second = steps.slopes(t + signed, _moved(state, signed, (1.0,), [first]), signed)
        bend = max(_size(b - a, one, tolerance) for a, b, one in zip(first, second, sizes, strict=False)) / trial
    steepest = max(slope, bend)
    by_order = max(1e-6, trial * 1e-3) if steepest <= 1e-15 else (0.01 / steepest) ** 0.2
    return min(100 * trial, by_order, abs(whole))


def _moved(state: State, size: float, shares: Sequence[float], slopes: list[State]) -> State:
    """x + h Σ aⱼkⱼ for every part of a state."""
    found = []
    for index, part in enumerate(state):
        for share, slope in zip(shares, slopes, strict=False):
            if share:
                part = part + (size * share) * slope[index]
        found.append(part)
    return tuple(found)


def _check_finite(part: Tensor, what: str, t: float, size: float) -> None:
    if not bool(torch.isfinite(part).all()):
        raise NotFinite(
            f"{what} is not finite at t = {t:.6g}, row {_first_bad(part)}, in a step of size {abs(size):.3g}; expected "
            f"finite numbers: look at the velocity there, or take smaller steps"
        )


def _first_bad(part: Tensor) -> int:
    return int((~torch.isfinite(part)).nonzero()[0][0])
