"""Means, variances and cross-products of two networks' features, gathered piece by piece in float64."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from coset._magnitudes import squares_hold

_ENTRIES = 1 << 18
"""Features are widened to float64 so many entries at a time: they stay in the cache between the passes."""


@dataclass(frozen=True)
class Moments:
    """Of ``count`` samples of N units x in one network and y in another, all float64.

    ``mean``: both means, (2, N); ``squares``: Σ(x − x̄)² and Σ(y − ȳ)², (2, N), NaN where they underflow; ``cross``:
    Σ(x − x̄)(y − ȳ)ᵀ, (N, N). ``rounding``: the relative precision of the samples.
    """

    count: int
    mean: Tensor
    squares: Tensor
    cross: Tensor
    rounding: float


def moments(x: Tensor, y: Tensor) -> Moments:
    """The moments of features x and y, (units, samples) each, of the same inputs."""
    rounding = max(torch.finfo(x.dtype).eps, torch.finfo(y.dtype).eps)
    units, samples = x.shape
    piece = max(1, _ENTRIES // units)
    total: Moments | None = None
    for start in range(0, samples, piece):
        part = x.new_empty((2, units, min(piece, samples - start)), dtype=torch.float64)
        part[0] = x[:, start : start + piece]
        part[1] = y[:, start : start + piece]
        mean = part.mean(2)
        part -= mean[:, :, None]
        squares = _squares(part, mean, rounding)
        found = Moments(part.shape[2], mean, squares, part[0] @ part[1].T, rounding)
        total = found if total is None else merged(total, found)
    assert total is not None, "a feature has samples"
    return total


def _squares(part: Tensor, mean: Tensor, rounding: float) -> Tensor:
    """Σ over samples of centred features (2, N, samples) squared; NaN for units that vary and whose squares are 0."""
    squares = part.square().sum(2)
    small = ~squares_hold(squares) & torch.isfinite(squares)
    if bool(small.any()):
        largest = part[small].abs().amax(1)
        squares[small] = squares[small].where(largest <= rounding * mean[small].abs(), torch.nan)
    return squares


def merged(a: Moments, b: Moments) -> Moments:
    """The moments of both samples together: M = M_a + M_b + n_a·n_b/n·δδᵀ with δ = m_b − m_a (Chan et al. 1983).

    No large mean is ever squared, so nothing cancels.
    """
    count = a.count + b.count
    step = b.mean - a.mean
    weight = a.count * b.count / count
    return Moments(
        count,
        a.mean + step * (b.count / count),
        a.squares + b.squares + weight * step.square(),
        a.cross + b.cross + weight * torch.outer(step[0], step[1]),
        max(a.rounding, b.rounding),
    )


def covariance(of: Moments) -> Tensor:
    """Cov(x_i, y_j), (N, N)."""
    return of.cross / of.count


def correlation(of: Moments) -> Tensor:
    """Cov(x_i, y_j)/(σ_i σ_j), (N, N); 0 for dead units, which do not vary by more than rounding."""
    deviation = (of.squares / of.count).sqrt()
    alive = deviation > of.rounding * of.mean.abs()
    inverse = torch.where(alive, 1 / torch.where(alive, deviation, 1), 0)
    return inverse[0][:, None] * (of.cross / of.count) * inverse[1]


STATISTICS: dict[str, Callable[[Moments], Tensor]] = {"correlation": correlation, "covariance": covariance}
"""How alike unit i of one network and unit j of another are, from their moments."""
