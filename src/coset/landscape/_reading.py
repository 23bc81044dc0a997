"""What a functional says of one point: a value, and how far off it may be where it comes from random draws."""

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Reading:
    """A ``value`` and its standard ``error``: 0 of exact ones, None where it is not known.

    ``influence`` (M,): ψ_j with error = std_j(ψ_j)/√M, what the j-th of M draws contributes. Under common random
    numbers draw j is the same at every point, so that what it contributes to differences can be told.
    """

    value: float
    error: float | None = None
    influence: Tensor | None = None


def standard_error(influence: Tensor) -> float | None:
    """std_j(ψ_j)/√M; None of a single draw."""
    return None if len(influence) < 2 else float(influence.std()) / math.sqrt(len(influence))


def excess_error(tau: float, at: Reading, first: Reading, last: Reading) -> float | None:
    """The standard error of f(τ) − ((1−τ)f(0) + τf(1)): of each draw's share in it, or of three independent values."""
    if tau in (0.0, 1.0):
        return 0.0
    if at.influence is not None and first.influence is not None and last.influence is not None:
        influences = (at.influence, first.influence, last.influence)
        if len({len(influence) for influence in influences}) == 1:
            return standard_error(influences[0] - (1 - tau) * influences[1] - tau * influences[2])
    if at.error is None or first.error is None or last.error is None:
        return None
    return math.hypot(at.error, (1 - tau) * first.error, tau * last.error)
