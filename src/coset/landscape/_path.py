"""Paths through weight space: a point for every τ between 0 and 1, the ends exactly the networks they join."""

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from coset._checks import is_number
from coset._values import freeze, memory_of, transformed_by_functorch
from coset.distribution import Delta, Samples
from coset.distribution.contract import require
from coset.distribution.ties import check_alike
from coset.errors import InputError
from coset.posterior.prediction.draws import draws_of

Point = Mapping[str, Tensor] | Delta
"""One network: its parameters and buffers, names as in ``state_dict()``, bare or as a ``Delta``."""

T_co = TypeVar("T_co", covariant=True)


class Path(Protocol[T_co]):
    """What ``barrier`` follows: ``path(τ)`` for τ from 0 to 1, with ``path(0)`` and ``path(1)`` exactly the ends.

    On paths between points, ``path(τ)`` is a dict of parameters.
    """

    def __call__(self, tau: float, /) -> T_co:
        """The point at τ."""
        ...


@dataclass(frozen=True, eq=False)
class Linear:
    """The straight line θ(τ) = (1−τ)·start + τ·end; where both ends agree, so does every point between them.

    Tensors that are not floating (counters) come from the start. Tied tensors stay tied.
    """

    start: Mapping[str, Tensor]
    end: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        freeze(self, "start", "end")
        check_joinable((self.start, self.end), ("the start", "the end"))

    def __call__(self, tau: float, /) -> dict[str, Tensor]:
        """The point at τ; at 0 and 1 the tensors of the ends themselves."""
        return between(self.start, self.end, check_tau(tau))


def linear(a: Point, b: Point) -> Linear:
    """The straight line from ``a`` (τ = 0) to ``b`` (τ = 1), two networks with the same names, shapes and types."""
    return Linear(params_of(a, "a"), params_of(b, "b"))


@torch.no_grad()
def along(path: Path[Any], taus: Sequence[float], *, samples: int = 1, seed: int = 0) -> Samples:
    """Networks all along a path, tensors (T, M, *shape): T chains for the τ, of M draws each.

    A point is one draw. Of posteriors there are ``samples``, under common random numbers: draw j of every τ depends on
    ``seed`` and j alone, as in ``barrier``; of ``Samples`` so many evenly spaced ones. So one network of ``torch.func``
    evaluates them all: ``vmap(vmap(f))(dict(along(path, taus).params))``.
    """
    check_path(path)
    if not isinstance(taus, Sized) or len(taus) == 0:
        raise InputError(f"taus is {taus!r}; expected at least one number from 0 to 1")
    rows = []
    for tau in taus:
        draws = draws_of(path(check_tau(tau)), samples, seed)
        rows.append([draws.draw(number) for number in range(draws.count)])
    if len({len(row) for row in rows}) > 1:
        counts = ", ".join(str(len(row)) for row in rows)
        raise InputError(f"the path has {counts} draws at the τ asked for; expected as many at each")
    names = rows[0][0]
    return Samples({name: torch.stack([torch.stack([one[name] for one in row]) for row in rows]) for name in names})


def between(a: Mapping[str, Tensor], b: Mapping[str, Tensor], tau: float) -> dict[str, Tensor]:
    """(1−τ)a + τb, tensor by tensor; a and b themselves at the ends."""
    if tau in (0, 1):
        return dict(b if tau == 1 else a)
    # Unlike (1−τ)a + τb as it is written, lerp gives back x between x and x.
    return pointwise((a, b), lambda tensors: torch.lerp(tensors[0], tensors[1], tau))


def pointwise(points: Sequence[Mapping[str, Tensor]], rule: Callable[[Sequence[Tensor]], Tensor]) -> dict[str, Tensor]:
    """New parameters by ``rule`` from the tensors that one name has in all points; what is not floating from the first.

    Names that share memory in every point get one tensor.
    """
    result: dict[str, Tensor] = {}
    seen: dict[tuple[object, ...], Tensor] = {}
    for name, first in points[0].items():
        if not (first.is_floating_point() or first.is_complex()):
            result[name] = first
            continue
        tensors = [point[name] for point in points]
        tie = tuple(memory_of(tensor) for tensor in tensors)
        if tie not in seen:
            seen[tie] = rule(tensors)
        result[name] = seen[tie]
    return result


def params_of(point: object, what: str) -> Mapping[str, Tensor]:
    """The parameters of a point given bare or as a ``Delta``."""
    params = point
    if not isinstance(params, Mapping):
        params = require(point, Delta, what, "a dict of parameters or a Delta").params
    if not params:
        raise InputError(f"{what} has no parameters; expected at least one")
    for name, tensor in params.items():
        if not isinstance(tensor, Tensor):
            raise InputError(f"'{name}' of {what} is a {type(tensor).__name__}; expected a tensor")
    return params


def check_path(path: object) -> None:
    """Raise unless this may be a path."""
    if not callable(path):
        raise InputError(f"path is a {type(path).__name__}; expected a function of τ, as linear(a, b)")


def check_tau(tau: object) -> float:
    """τ as a float, from 0 to 1."""
    if not is_number(tau) or not 0 <= float(tau) <= 1:
        raise InputError(f"tau is {tau!r}; expected a number from 0 to 1")
    return float(tau)


def check_joinable(points: Sequence[Mapping[str, Tensor]], labels: Sequence[str]) -> None:
    """Raise unless all points have the same names, each name one shape, type and device, and all values are finite."""
    check_alike(labels, points, ("shape", "dtype", "device"))
    for point, label in zip(points, labels, strict=True):
        for name, tensor in point.items():
            # Inside vmap and grad values cannot be looked at.
            if not transformed_by_functorch(tensor) and not bool(tensor.isfinite().all()):
                bad = int(tensor.isfinite().logical_not().sum())
                raise InputError(f"'{name}' of {label} has entries that are NaN or infinite ({bad}); expected none")
