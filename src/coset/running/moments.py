"""Means and squares of activations, gathered piece by piece: the moments of two samples merge into those of both."""

from dataclasses import dataclass

import torch
from torch import Tensor

from coset._magnitudes import squares_hold

_ENTRIES = 1 << 18
"""Features are widened to float64 so many entries at a time: they stay in the cache between the passes."""


@dataclass(frozen=True)
class Moments:
    """Of ``count`` values x of each of U units, in float64: ``mean`` x̄, ``squares`` Σ(x − x̄)², ``largest`` |x|; (U,).

    ``largest`` tells squares that are 0 from squares that have underflowed.
    """

    count: int
    mean: Tensor
    squares: Tensor
    largest: Tensor

    @property
    def deviation(self) -> Tensor:
        """The standard deviation of the values as a whole, (U,)."""
        return (self.squares / self.count).sqrt()


def moments_of(values: Tensor, axis: int = 1) -> Moments:
    """The moments of each unit on ``axis``, over all other axes; at least one value of each."""
    wide = values.detach().double().movedim(axis, -1)
    others = tuple(range(wide.ndim - 1))
    mean = wide.mean(others)
    squares = torch.linalg.vector_norm(wide - mean, dim=others).square()
    return Moments(wide[..., 0].numel(), mean, squares, wide.abs().amax(others))


def merged(a: Moments, b: Moments) -> Moments:
    """The moments of both samples together: S = S_a + S_b + n_a·n_b/n·δ² with δ = x̄_b − x̄_a (Chan et al. 1983).

    No large mean is ever squared, so nothing cancels.
    """
    count, gap = a.count + b.count, b.mean - a.mean
    return Moments(
        count,
        a.mean + gap * (b.count / count),
        a.squares + b.squares + gap.square() * (a.count * b.count / count),
        torch.maximum(a.largest, b.largest),
    )


@dataclass(frozen=True)
class PairMoments:
    """Of ``count`` samples of N units x in one network and y in another, all float64.

    ``mean``: both means, (2, N); ``squares``: Σ(x − x̄)² and Σ(y − ȳ)², (2, N), NaN where they underflow; ``cross``:
    Σ(x − x̄)(y − ȳ)ᵀ, (N, N). ``rounding``: the relative precision of the samples.
    """

    count: int
    mean: Tensor
    squares: Tensor
    cross: Tensor
    rounding: float


def pair_moments_of(x: Tensor, y: Tensor) -> PairMoments:
    """The moments of features x and y, (units, samples) each, of the same inputs."""
    rounding = max(torch.finfo(x.dtype).eps, torch.finfo(y.dtype).eps)
    units, samples = x.shape
    piece = max(1, _ENTRIES // units)
    total: PairMoments | None = None
    for start in range(0, samples, piece):
        part = x.new_empty((2, units, min(piece, samples - start)), dtype=torch.float64)
        part[0] = x[:, start : start + piece]
        part[1] = y[:, start : start + piece]
        mean = part.mean(2)
        part -= mean[:, :, None]
        squares = _squares(part, mean, rounding)
        found = PairMoments(part.shape[2], mean, squares, part[0] @ part[1].T, rounding)
        total = found if total is None else merged_pairs(total, found)
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


def merged_pairs(a: PairMoments, b: PairMoments) -> PairMoments:
    """The moments of both samples together: M = M_a + M_b + n_a·n_b/n·δδᵀ with δ = m_b − m_a (Chan et al. 1983).

    No large mean is ever squared, so nothing cancels.
    """
    count = a.count + b.count
    step = b.mean - a.mean
    weight = a.count * b.count / count
    return PairMoments(
        count,
        a.mean + step * (b.count / count),
        a.squares + b.squares + weight * step.square(),
        a.cross + b.cross + weight * torch.outer(step[0], step[1]),
        max(a.rounding, b.rounding),
    )
