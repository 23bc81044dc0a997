"""``barrier``: how much worse a functional becomes on the way from one network to another."""

import math
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any, overload

import torch

from coset.errors import InputError
from coset.landscape.functionals import AnyFunctional, DataFunctional, Functional, evaluate
from coset.landscape.path import Path, check_tau
from coset.landscape.profile import Profile, Profiles
from coset.progress import progress

POINTS = 25
"""Evenly spaced points from one end to the other, both included, and so the middle."""

Measured = AnyFunctional | Callable[[Any], Any]
"""A functional, or any function of a point that gives a number; of the latter, lower values are taken to be better."""

At = Callable[[Any, float], Any]
"""(point, τ) → the point that is evaluated in its place."""


@overload
def barrier(
    path: Path[Any],
    functional: Measured,
    *,
    points: int = POINTS,
    taus: Sequence[float] | None = None,
    at: At | None = None,
    show: bool | None = None,
) -> Profile: ...
@overload
def barrier(
    path: Path[Any],
    functional: Mapping[str, Measured],
    *,
    points: int = POINTS,
    taus: Sequence[float] | None = None,
    at: At | None = None,
    show: bool | None = None,
) -> Profiles: ...
def barrier(
    path: Path[Any],
    functional: Measured | Mapping[str, Measured],
    *,
    points: int = POINTS,
    taus: Sequence[float] | None = None,
    at: At | None = None,
    show: bool | None = None,
) -> Profile | Profiles:
    """Follow ``path`` and evaluate one functional, or several by name, at each point.

    The barrier of a loss f is max_τ [f(τ) − ((1−τ)f(0) + τf(1))] (Entezari et al. 2022, definition 2.2); of an accuracy
    or a likelihood, where higher is better, it is the drop max_τ [(1−τ)f(0) + τf(1) − f(τ)].

    ``points``: how many evenly spaced τ; ``taus``: others in their place. 0, 1/2 and 1 are evaluated in any case: 1/2
    is added where ``points`` is even.
    ``at``: applied to every point before it is evaluated, the ends too: ``at(params, τ)``, as to compute batch-norm
    statistics anew. ``show``: a progress bar, by default on a terminal.
    """
    several = isinstance(functional, Mapping)
    if not callable(path):
        raise InputError(f"path is a {type(path).__name__}; expected a function of τ, as linear(a, b)")
    if at is not None and not callable(at):
        raise InputError(f"at is a {type(at).__name__}; expected a function of a point and τ")
    functionals = _named(functional)
    grid = _grid(points, taus)
    rows: list[dict[str, float]] = []
    with progress("along the path", len(grid), show=show) as bar:
        for tau in grid:
            # Neither the path nor the hook needs derivatives; what a user's functional does is its own matter.
            with torch.no_grad():
                point = path(tau)
                point = point if at is None else at(point, tau)
            rows.append(evaluate(functionals, point))
            # Before the next point is made: one point at a time is enough to hold.
            del point
            _check_finite(rows[-1], tau)
            bar.advance(note=f"τ = {tau:.3g}")
    profiles = {
        name: Profile(name, grid, tuple(row[name] for row in rows), item.better, item.unit)
        for name, item in functionals.items()
    }
    return Profiles(profiles) if several else next(iter(profiles.values()))


def _named(functional: Measured | Mapping[str, Measured]) -> dict[str, AnyFunctional]:
    if not isinstance(functional, Mapping):
        name = getattr(functional, "name", None) or getattr(functional, "__name__", type(functional).__name__)
        functional = {str(name): functional}
    if not functional:
        raise InputError("functional is an empty mapping; expected at least one functional")
    named: dict[str, AnyFunctional] = {}
    for name, item in functional.items():
        if isinstance(item, Functional | DataFunctional):
            named[name] = item
        elif callable(item):
            named[name] = Functional(name, item)
        else:
            raise InputError(f"functional '{name}' is a {type(item).__name__}; expected a function of a point")
    return named


def _grid(points: int, taus: Sequence[float] | None) -> tuple[float, ...]:
    """The τ of all points, in order: those asked for, and 0, 1/2 and 1."""
    if taus is None:
        if type(points) is not int or points < 2:
            raise InputError(f"points is {points!r}; expected a whole number of at least 2, for both ends")
        chosen = [index / (points - 1) for index in range(points)]
    elif not isinstance(taus, Sized):
        raise InputError(f"taus is {taus!r}; expected numbers from 0 to 1")
    elif len(taus) == 0:
        raise InputError("taus is empty; expected at least one number from 0 to 1")
    else:
        chosen = [check_tau(tau) for tau in taus]
    return tuple(sorted({*chosen, 0.0, 0.5, 1.0}))


def _check_finite(values: Mapping[str, float], tau: float) -> None:
    for name, value in values.items():
        if not math.isfinite(value):
            raise InputError(f"'{name}' is {value} at τ = {tau:.4g}; expected a finite number")
