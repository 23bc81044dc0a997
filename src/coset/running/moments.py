"""Means and squares of activations, gathered piece by piece: the moments of two samples merge into those of both."""

from dataclasses import dataclass

import torch
from torch import Tensor


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


@dataclass(frozen=True)
class PairMoments:
    """Of values x of U units and y of V units that belong together: the moments of each, and ``cross`` (U, V).

    ``cross`` is Σ(x − x̄)(y − ȳ)ᵀ.
    """

    x: Moments
    y: Moments
    cross: Tensor


def moments_of(values: Tensor, axis: int = 1) -> Moments:
    """The moments of each unit on ``axis``, over all other axes; at least one value of each."""
    wide = values.detach().double().movedim(axis, -1)
    others = tuple(range(wide.ndim - 1))
    mean = wide.mean(others)
    squares = torch.linalg.vector_norm(wide - mean, dim=others).square()
    return Moments(wide[..., 0].numel(), mean, squares, wide.abs().amax(others))


def pair_moments_of(x: Tensor, y: Tensor) -> PairMoments:
    """The moments of x (n, U) and y (n, V), row by row of the same examples."""
    one, two = moments_of(x), moments_of(y)
    return PairMoments(one, two, (x.detach() - one.mean).mT @ (y.detach() - two.mean))


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


def merged_pairs(a: PairMoments, b: PairMoments) -> PairMoments:
    """The moments of both samples together; the cross products gain n_a·n_b/n·δ_x δ_yᵀ, as the squares do."""
    weight = a.x.count * b.x.count / (a.x.count + b.x.count)
    step = torch.outer(b.x.mean - a.x.mean, b.y.mean - a.y.mean)
    return PairMoments(merged(a.x, b.x), merged(a.y, b.y), a.cross + b.cross + weight * step)
