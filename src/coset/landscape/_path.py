"""Paths through weight space: a point for every τ between 0 and 1, the ends exactly the networks they join."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from coset._checks import is_number
from coset._values import Frozen, memory_of, transformed_by_functorch
from coset.distribution import Delta
from coset.distribution.contract import require
from coset.errors import InputError

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
        for part in ("start", "end"):
            object.__setattr__(self, part, Frozen(getattr(self, part)))
        check_alike((self.start, self.end), ("the start", "the end"))

    def __call__(self, tau: float, /) -> dict[str, Tensor]:
        """The point at τ; at 0 and 1 the tensors of the ends themselves."""
        return between(self.start, self.end, check_tau(tau))


def linear(a: Point, b: Point) -> Linear:
    """The straight line from ``a`` (τ = 0) to ``b`` (τ = 1), two networks with the same names, shapes and types."""
    return Linear(params_of(a, "a"), params_of(b, "b"))


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


def check_tau(tau: object) -> float:
    """τ as a float, from 0 to 1."""
    if not is_number(tau) or not 0 <= float(tau) <= 1:
        raise InputError(f"tau is {tau!r}; expected a number from 0 to 1")
    return float(tau)


def check_alike(points: Sequence[Mapping[str, Tensor]], labels: Sequence[str]) -> None:
    """Raise unless all points have the same names, each name one shape, type and device, and all values are finite."""
    first = points[0]
    for other, label in zip(points[1:], labels[1:], strict=True):
        if odd := [name for name in (*first, *other) if name not in first or name not in other]:
            has, lacks = (labels[0], label) if odd[0] in first else (label, labels[0])
            raise InputError(f"{has} has '{odd[0]}' and {lacks} has not; expected networks of one architecture")
        for name, tensor in first.items():
            for what in ("shape", "dtype", "device"):
                mine, theirs = getattr(tensor, what), getattr(other[name], what)
                if mine != theirs:
                    raise InputError(
                        f"'{name}' has {what} {_shown(mine)} in {labels[0]} and {_shown(theirs)} in {label}; expected "
                        f"the same in both"
                    )
    for point, label in zip(points, labels, strict=True):
        for name, tensor in point.items():
            # Inside vmap and grad values cannot be looked at.
            if not transformed_by_functorch(tensor) and not bool(tensor.isfinite().all()):
                bad = int(tensor.isfinite().logical_not().sum())
                raise InputError(f"'{name}' of {label} has entries that are NaN or infinite ({bad}); expected none")


def _shown(value: object) -> str:
    return str(tuple(value) if isinstance(value, torch.Size) else value)
