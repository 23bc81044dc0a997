"""How many maps a stitching family holds on a grid of numbers: its capacity (Godfrey et al. 2022, E.7).

Every entry of a matrix takes one of ⌊2M/ε⌋ values −M, −M + ε, …: ε stands for the precision of numbers, M for their
largest magnitude. Counts are natural logarithms.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass

from coset._checks import check_choice, check_count
from coset.errors import InputError


@dataclass(frozen=True)
class Grid:
    """Numbers from −``magnitude`` on in steps of ``step``; those of single precision in [−1, 1] unless told."""

    magnitude: float = 1.0
    step: float = 2.0**-23

    def __post_init__(self) -> None:
        if not (math.isfinite(self.magnitude) and math.isfinite(self.step) and 0 < self.step <= self.magnitude):
            raise InputError(
                f"the grid has magnitude {self.magnitude!r} and step {self.step!r}; expected 0 < step ≤ magnitude"
            )

    @property
    def log_numbers(self) -> float:
        """log(2M/ε): of all numbers."""
        return math.log(2.0) + self.log_positive

    @property
    def log_positive(self) -> float:
        """log(M/ε): of the positive ones."""
        return math.log(self.magnitude) - math.log(self.step)


def full_capacity(channels: int, grid: Grid) -> float:
    """All n × n matrices: n² log(2M/ε)."""
    return channels**2 * grid.log_numbers


def rank_capacity(channels: int, grid: Grid, *, rank: int) -> float:
    """Matrices of rank r: (2nr − r²) log(2M/ε) (E.32), the dimension of their variety times that of a number."""
    if not isinstance(rank, int) or not 1 <= rank <= channels:
        raise InputError(f"rank is {rank!r}; expected a whole number from 1 to the {channels} channels")
    return (2 * channels * rank - rank**2) * grid.log_numbers


def monomial_capacity(channels: int, grid: Grid) -> float:
    """G_ReLU: log n! + n log(M/ε) (E.29), a permutation and n positive numbers."""
    return permutation_capacity(channels, grid) + channels * grid.log_positive


def signed_monomial_capacity(channels: int, grid: Grid) -> float:
    """Permutations with non-zero scales: log n! + n log(2M/ε)."""
    return permutation_capacity(channels, grid) + channels * grid.log_numbers


def permutation_capacity(channels: int, grid: Grid) -> float:
    """Permutations alone: log n!, on any grid."""
    return math.lgamma(channels + 1)


def orthogonal_capacity(channels: int, grid: Grid) -> float:
    """O(n), by its dimension as for matrices of rank r: n(n−1)/2 log(2M/ε)."""
    return channels * (channels - 1) / 2 * grid.log_numbers


CAPACITIES: dict[str, Callable[..., float]] = {
    "full": full_capacity,
    "rank": rank_capacity,
    "g-relu": monomial_capacity,
    "softsort": monomial_capacity,
    "signed": signed_monomial_capacity,
    "permutation": permutation_capacity,
    "orthogonal": orthogonal_capacity,
}
"""The logarithm of the number of maps on n channels by name of the family; "rank" takes ``rank``."""


def log_capacity(family: str, channels: int, *, grid: Grid | None = None, **options: int) -> float:
    """log |family ∩ grid| for maps from ``channels`` channels to as many; leading order in the size of the grid."""
    check_choice("family", family, CAPACITIES)
    check_count("channels", channels)
    takes = inspect.signature(CAPACITIES[family]).parameters.keys() - {"channels", "grid"}
    if options.keys() != takes:
        found = ", ".join(options) or "none"
        raise InputError(f"family '{family}' takes {', '.join(sorted(takes)) or 'no options'}; found {found}")
    return CAPACITIES[family](channels, Grid() if grid is None else grid, **options)


def excess_over_rank(channels: int, rank: int, *, grid: Grid | None = None) -> float:
    """log |G_ReLU ∩ grid| − log |rank r ∩ grid| = log n! + n log(M/ε) − (2nr − r²)(log(M/ε) + log 2).

    (E.34), whose last logarithm is printed as log(M/ε + log 2). Negative unless n! outgrows the grid: G_ReLU is then
    the smaller family, already than rank 1.
    """
    return log_capacity("g-relu", channels, grid=grid) - log_capacity("rank", channels, grid=grid, rank=rank)
