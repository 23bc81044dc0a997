"""Parametrised curves between two networks (Garipov et al. 2018, equations 3 and 4)."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from coset._values import Frozen
from coset.errors import InputError
from coset.landscape._path import Point, between, check_joinable, check_tau, params_of, pointwise


@dataclass(frozen=True, eq=False)
class _Curve:
    control: tuple[Mapping[str, Tensor], ...]

    def __init__(self, control: Sequence[Point]) -> None:
        if len(control) < 2:
            raise InputError(f"control has {len(control)} points; expected at least the two ends")
        labels = [f"control point {number}" for number in range(len(control))]
        points = tuple(Frozen(params_of(point, label)) for point, label in zip(control, labels, strict=True))
        check_joinable(points, labels)
        object.__setattr__(self, "control", points)


class Bezier(_Curve):
    """The Bézier curve θ(τ) = Σ_k C(n, k) (1−τ)^(n−k) τ^k P_k of control points P_0 … P_n.

    It passes through the first and the last; one point between them makes it quadratic.
    """

    def weights(self, tau: float) -> tuple[float, ...]:
        """What each control point contributes to θ(τ): the Bernstein polynomials; they sum to 1."""
        tau, last = check_tau(tau), len(self.control) - 1
        return tuple(math.comb(last, k) * (1 - tau) ** (last - k) * tau**k for k in range(last + 1))

    def __call__(self, tau: float, /) -> dict[str, Tensor]:
        """The point at τ, by de Casteljau's repeated lines; at 0 and 1 the tensors of the ends themselves."""
        tau = check_tau(tau)
        if tau in (0, 1):
            return dict(self.control[-1 if tau else 0])
        return pointwise(self.control, lambda tensors: _casteljau(tensors, tau))


class PolygonalChain(_Curve):
    """Straight lines from control point to control point, each over an equal stretch of τ."""

    def weights(self, tau: float) -> tuple[float, ...]:
        """What each control point contributes to θ(τ): hat functions, at most two of them not 0; they sum to 1."""
        at, share = self._place(tau)
        contributions = [0.0] * len(self.control)
        contributions[at : at + 2] = [1 - share, share]
        return tuple(contributions)

    def __call__(self, tau: float, /) -> dict[str, Tensor]:
        """The point at τ; at a control point its tensors themselves."""
        at, share = self._place(tau)
        return between(self.control[at], self.control[at + 1], share)

    def _place(self, tau: float) -> tuple[int, float]:
        """The number of the line on which τ lies, and how much of that line lies behind it."""
        tau, lines = check_tau(tau), len(self.control) - 1
        at = min(int(tau * lines), lines - 1)
        return at, tau * lines - at


KINDS: dict[str, Callable[[Sequence[Point]], Bezier | PolygonalChain]] = {"bezier": Bezier, "chain": PolygonalChain}


def _casteljau(tensors: Sequence[Tensor], tau: float) -> Tensor:
    while len(tensors) > 1:
        tensors = [torch.lerp(a, b, tau) for a, b in pairwise(tensors)]
    return tensors[0]
