"""Whether two sets of points are of one distribution: energy distance and maximum mean discrepancy, with their levels.

Both are D² = E k(X, X') + E k(Y, Y') − 2 E k(X, Y) ≥ 0, with k(x, y) = −‖x − y‖ (Székely & Rizzo 2013) and with
k(x, y) = exp(−‖x − y‖²/2h²) (Gretton et al. 2012), and 0 only where the distributions are the same.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from coset._checks import check_positive, check_seed, is_count
from coset.errors import InputError

_LABELS = 2**22
"""Labels of all points, in so many permutations, are held at once."""


@dataclass(frozen=True)
class TwoSamples:
    """The estimate ``value`` of D² from ``count`` points against ``reference`` others, below 0 by chance alone.

    ``p_value``: the part of random divisions of all points whose value is as large, the given one among them; None
    where no ``permutations`` were asked for. ``bandwidth``: h of a Gaussian kernel, None of the energy distance.
    """

    value: float
    p_value: float | None
    count: int
    reference: int
    permutations: int = 0
    bandwidth: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers by name."""
        return asdict(self)


def energy_distance(x: Tensor, y: Tensor, *, unbiased: bool = True, permutations: int = 0, seed: int = 0) -> TwoSamples:
    """2 E‖X − Y‖ − E‖X − X'‖ − E‖Y − Y'‖ of rows ``x`` (N, D) and ``y`` (M, D).

    ``unbiased``: pairs of a point with itself do not count; else they do, and the value is ≥ 0: for D = 1 the square of
    ``scipy.stats.energy_distance``.
    """
    xx, xy, yy = (distances_of_rows(*pair) for pair in _pairs(x, y))
    return energy_of_distances(xx, xy, yy, unbiased=unbiased, permutations=permutations, seed=seed)


def energy_of_distances(
    xx: Tensor, xy: Tensor, yy: Tensor, *, unbiased: bool = True, permutations: int = 0, seed: int = 0
) -> TwoSamples:
    """The energy distance by distances (N, N), (N, M) and (M, M) of any metric, as those of networks modulo a group."""
    value, p_value = _compared(_joined(-xx, -xy, -yy), len(xx), unbiased, permutations, seed)
    return TwoSamples(value, p_value, len(xx), len(yy), permutations)


def mean_discrepancy(
    x: Tensor,
    y: Tensor,
    *,
    bandwidth: float | None = None,
    unbiased: bool = True,
    permutations: int = 0,
    seed: int = 0,
) -> TwoSamples:
    """The squared maximum mean discrepancy of rows ``x`` (N, D) and ``y`` (M, D) with a Gaussian kernel.

    ``bandwidth``: h, by default the median distance of two different rows of ``y``, the set of reference.
    """
    xx, xy, yy = (distances_of_rows(*pair) for pair in _pairs(x, y))
    return discrepancy_of_distances(
        xx, xy, yy, bandwidth=bandwidth, unbiased=unbiased, permutations=permutations, seed=seed
    )


def discrepancy_of_distances(
    xx: Tensor,
    xy: Tensor,
    yy: Tensor,
    *,
    bandwidth: float | None = None,
    unbiased: bool = True,
    permutations: int = 0,
    seed: int = 0,
) -> TwoSamples:
    """The mean discrepancy by distances (N, N), (N, M) and (M, M) of points in a Euclidean space."""
    width = median_distance(yy) if bandwidth is None else check_positive("bandwidth", bandwidth)
    joined = torch.exp(-0.5 * (_joined(xx, xy, yy) / width).square())
    value, p_value = _compared(joined, len(xx), unbiased, permutations, seed)
    return TwoSamples(value, p_value, len(xx), len(yy), permutations, width)


def distances_of_rows(x: Tensor, y: Tensor) -> Tensor:
    """‖x_i − y_j‖ in float64, (N, M), by differences: exact for rows that are nearly the same."""
    return torch.cdist(x.double(), y.double(), compute_mode="donot_use_mm_for_euclid_dist")


def median_distance(distances: Tensor) -> float:
    """The median over pairs of two different points; ``distances`` (M, M), M ≥ 2."""
    first, second = torch.triu_indices(len(distances), len(distances), offset=1)
    if len(first) == 0:
        raise InputError("y is one point; expected two or more, or a bandwidth")
    apart = distances[first, second].sort().values
    median = float(apart[(len(apart) - 1) // 2] + apart[len(apart) // 2]) / 2
    if not median > 0:
        raise InputError("half of all pairs of y are equal; expected different points, or a bandwidth > 0")
    return median


def _pairs(x: Tensor, y: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
    for what, rows in (("x", x), ("y", y)):
        if not isinstance(rows, Tensor) or rows.ndim != 2 or 0 in rows.shape:
            found = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
            raise InputError(f"{what} is {found}; expected rows (points, numbers), at least one of one")
        if not bool(rows.isfinite().all()):
            raise InputError(f"{what} has rows with entries that are NaN or infinite; expected finite numbers")
    if x.shape[1] != y.shape[1]:
        raise InputError(f"rows of x have {x.shape[1]} numbers and those of y {y.shape[1]}; expected as many")
    return (x, x), (x, y), (y, y)


def _joined(xx: Tensor, xy: Tensor, yy: Tensor) -> Tensor:
    """k of all points with all, (N + M, N + M)."""
    n, m = len(xx), len(yy)
    if tuple(xx.shape) != (n, n) or tuple(xy.shape) != (n, m) or tuple(yy.shape) != (m, m):
        shapes = " and ".join(str(tuple(part.shape)) for part in (xx, xy, yy))
        raise InputError(f"xx, xy and yy have shapes {shapes}; expected (N, N), (N, M) and (M, M)")
    return torch.cat([torch.cat([xx, xy], 1), torch.cat([xy.mT, yy], 1)]).double()


def _compared(kernel: Tensor, n: int, unbiased: bool, permutations: int, seed: int) -> tuple[float, float | None]:
    """D² of the first n points and the others, and its p-value among so many random divisions."""
    total = len(kernel)
    m = total - n
    if not is_count(permutations, 0):
        raise InputError(f"permutations is {permutations!r}; expected a whole number ≥ 0")
    check_seed(seed)
    if unbiased and min(n, m) < 2:
        raise InputError(f"there are {n} points and {m} others; expected at least two of both, or unbiased=False")
    if unbiased:
        kernel = kernel - kernel.diagonal().diag()
    own = [n * (n - 1), m * (m - 1)] if unbiased else [n * n, m * m]

    def value(labels: Tensor) -> Tensor:
        """Of divisions (B, N + M) into ones and zeros."""
        towards = labels @ kernel
        here, across = (towards * labels).sum(1), (towards * (1 - labels)).sum(1)
        there = kernel.sum() - here - 2 * across
        return here / own[0] + there / own[1] - 2 * across / (n * m)

    given = torch.zeros(1, total, dtype=torch.float64)
    given[0, :n] = 1
    observed = float(value(given))
    if permutations == 0:
        return observed, None
    generator, larger = torch.Generator().manual_seed(seed), 0
    at_once = max(1, _LABELS // total)
    for start in range(0, permutations, at_once):
        count = min(at_once, permutations - start)
        order = torch.rand(count, total, generator=generator, dtype=torch.float64).argsort(1)
        values = value(torch.zeros(count, total, dtype=torch.float64).scatter_(1, order[:, :n], 1.0))
        # A division that is the given one is as large, whatever the order of its sums.
        larger += int((values >= observed - 1e-12 * float(kernel.abs().max())).sum())
    return observed, (1 + larger) / (1 + permutations)
