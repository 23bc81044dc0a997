"""``barrier``: how much worse a functional becomes on the way from one network to another."""

import math
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any, overload

import torch

from coset._checks import check_positive, is_count
from coset._show.progress import progress
from coset.errors import InputError
from coset.landscape._functionals import DataFunctional, Functional, data_means
from coset.landscape._path import Path, check_path, check_tau, params_of
from coset.landscape._posteriors import PosteriorFunctional, read_posterior
from coset.landscape._profile import Profile, Profiles
from coset.landscape._reading import Reading, excess_error

POINTS = 25
"""Evenly spaced points from one end to the other, both included, and so the middle."""

FIRST_POINTS = 9
"""Evenly spaced points with which a search for the largest excess begins."""

AnyFunctional = Functional | DataFunctional | PosteriorFunctional

Measured = AnyFunctional | Callable[[Any], Any]
"""A functional, or any function of a point that gives a number; of the latter, lower values are taken to be better."""

At = Callable[[Any, float], Any]
"""(point, τ) → the point that is evaluated in its place."""


def evaluate(functionals: Mapping[str, AnyFunctional], point: Any) -> dict[str, float]:
    """The values of several functionals at a point."""
    return {name: reading.value for name, reading in read(functionals, point).items()}


def read(functionals: Mapping[str, AnyFunctional], point: Any) -> dict[str, Reading]:
    """Values and errors; functionals of one model share forward passes on the same data, those of posteriors draws."""
    of_data: dict[tuple[int, ...], dict[str, DataFunctional]] = {}
    of_posteriors: dict[tuple[object, ...], dict[str, PosteriorFunctional]] = {}
    readings = dict.fromkeys(functionals, Reading(0.0))
    for name, functional in functionals.items():
        if isinstance(functional, DataFunctional):
            of_data.setdefault(functional.forward_pass, {})[name] = functional
        elif isinstance(functional, PosteriorFunctional):
            of_posteriors.setdefault(functional.drawing, {})[name] = functional
        else:
            readings[name] = functional.read(point)
    for group in of_data.values():
        means = data_means(group, params_of(point, "the point"))
        readings |= {name: Reading(value, 0.0) for name, value in means.items()}
    for drawn in of_posteriors.values():
        readings |= read_posterior(drawn, point)
    return readings


@overload
def barrier(
    path: Path[Any],
    functional: Measured,
    *,
    points: int = POINTS,
    taus: Sequence[float] | None = None,
    tolerance: float | None = None,
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
    tolerance: float | None = None,
    at: At | None = None,
    show: bool | None = None,
) -> Profiles: ...
def barrier(
    path: Path[Any],
    functional: Measured | Mapping[str, Measured],
    *,
    points: int = POINTS,
    taus: Sequence[float] | None = None,
    tolerance: float | None = None,
    at: At | None = None,
    show: bool | None = None,
) -> Profile | Profiles:
    """Follow ``path`` and evaluate one functional, or several by name, at each point.

    The barrier of a loss f is max_τ [f(τ) − ((1−τ)f(0) + τf(1))] (Entezari et al. 2022, definition 2.2); of an accuracy
    or a likelihood, where higher is better, it is the drop max_τ [(1−τ)f(0) + τf(1) − f(τ)].

    ``points``: how many evenly spaced τ; ``taus``: others in their place. 0, 1/2 and 1 are evaluated in any case: 1/2
    is added where ``points`` is even.
    ``tolerance``: search for the largest excess instead. After 9 evenly spaced points (or ``taus``) the stretches on
    both sides of each functional's largest are halved, at least once and until this found no more and the parabola
    through the largest and its neighbours promises no more, or ``points`` have been evaluated. A peak narrower than
    the first stretches may be missed.
    ``at``: applied to every point before it is evaluated, the ends too: ``at(params, τ)``, as to compute batch-norm
    statistics anew. ``show``: a progress bar, by default on a terminal.
    """
    several = isinstance(functional, Mapping)
    check_path(path)
    if at is not None and not callable(at):
        raise InputError(f"at is a {type(at).__name__}; expected a function of a point and τ")
    if tolerance is not None:
        check_positive("tolerance", tolerance)
    functionals = _named(functional)
    grid = path_grid(points, taus, FIRST_POINTS if tolerance is not None else None)
    rows: dict[float, dict[str, Reading]] = {}
    profiles: dict[str, Profile] = {}
    with progress("along the path", len(grid) if tolerance is None else max(points, len(grid)), show=show) as bar:
        while grid:
            for tau in grid:
                rows[tau] = _row(path, tau, functionals, at)
                bar.advance(note=f"τ = {tau:.3g}")
            before = profiles
            profiles = {name: _profile(name, item, rows) for name, item in functionals.items()}
            grid = () if tolerance is None else _next(profiles, before, tolerance)[: max(0, points - len(rows))]
    return Profiles(profiles) if several else next(iter(profiles.values()))


def _row(path: Path[Any], tau: float, functionals: Mapping[str, AnyFunctional], at: At | None) -> dict[str, Reading]:
    """What all functionals say of one point of the path, which is let go again."""
    # Neither the path nor the hook needs derivatives; what a user's functional does is its own matter.
    with torch.no_grad():
        point = path(tau)
        point = point if at is None else at(point, tau)
    row = read(functionals, point)
    for name, reading in row.items():
        if not math.isfinite(reading.value):
            raise InputError(f"'{name}' is {reading.value} at τ = {tau:.4g}; expected a finite number")
    return row


def _profile(name: str, functional: AnyFunctional, rows: Mapping[float, Mapping[str, Reading]]) -> Profile:
    taus = tuple(sorted(rows))
    readings = [rows[tau][name] for tau in taus]
    ends = readings[0], readings[-1]
    errors = [reading.error for reading in readings]
    excess = [excess_error(tau, reading, *ends) for tau, reading in zip(taus, readings, strict=True)]
    values = tuple(reading.value for reading in readings)
    return Profile(name, taus, values, functional.better, functional.unit, _known(errors), _known(excess))


def _known(numbers: Sequence[float | None]) -> tuple[float, ...] | None:
    known = tuple(number for number in numbers if number is not None)
    return known if len(known) == len(numbers) else None


def _next(profiles: Mapping[str, Profile], before: Mapping[str, Profile], tolerance: float) -> tuple[float, ...]:
    """The τ halfway from each largest excess to its neighbours, where there may be more than ``tolerance`` to find."""
    found: set[float] = set()
    for name, profile in profiles.items():
        taus, excess = profile.taus, profile.excess
        peak = excess.index(max(excess))
        inside = min(max(peak, 1), len(taus) - 2)
        promised = _rise(taus[inside - 1 : inside + 2], excess[inside - 1 : inside + 2]) - profile.barrier
        gained = profile.barrier - before[name].barrier if name in before else math.inf
        if max(promised, gained) > tolerance:
            beside = [at for at in (peak - 1, peak + 1) if 0 <= at < len(taus)]
            found |= {(taus[peak] + taus[at]) / 2 for at in beside}
    return tuple(sorted(found))


def _rise(taus: Sequence[float], values: Sequence[float]) -> float:
    """How high the parabola through three points goes between the outer two; the largest value if it has no top."""
    (a, b, c), (u, v, w) = taus, values
    left, right = (v - u) / (b - a), (w - v) / (c - b)
    curvature = (right - left) / (c - a)
    if curvature >= 0:
        return max(values)
    slope = left + curvature * (b - a)
    vertex = min(max(b - slope / (2 * curvature), a), c)
    return v + slope * (vertex - b) + curvature * (vertex - b) ** 2


def _named(functional: Measured | Mapping[str, Measured]) -> dict[str, AnyFunctional]:
    if not isinstance(functional, Mapping):
        name = getattr(functional, "name", None) or getattr(functional, "__name__", type(functional).__name__)
        functional = {str(name): functional}
    if not functional:
        raise InputError("functional is an empty mapping; expected at least one functional")
    named: dict[str, AnyFunctional] = {}
    for name, item in functional.items():
        if isinstance(item, Functional | DataFunctional | PosteriorFunctional):
            named[name] = item
        elif callable(item):
            named[name] = Functional(name, item)
        else:
            raise InputError(f"functional '{name}' is a {type(item).__name__}; expected a function of a point")
    return named


def path_grid(points: int, taus: Sequence[float] | None, first: int | None) -> tuple[float, ...]:
    """The τ of all points, in order: those asked for, and 0, 1/2 and 1; ``first``: how many to begin a search with."""
    if not is_count(points, 2):
        raise InputError(f"points is {points!r}; expected a whole number of at least 2, for both ends")
    if taus is None:
        count = points if first is None else min(first, points)
        chosen = [index / (count - 1) for index in range(count)]
    elif not isinstance(taus, Sized):
        raise InputError(f"taus is {taus!r}; expected numbers from 0 to 1")
    elif len(taus) == 0:
        raise InputError("taus is empty; expected at least one number from 0 to 1")
    else:
        chosen = [check_tau(tau) for tau in taus]
    return tuple(sorted({*chosen, 0.0, 0.5, 1.0}))
