"""The recursion over sets of columns behind permanents: only positive terms, done by products of matrices.

f(S) = Σ_{j∈S} a_{|S|,j} f(S∖{j}) is the permanent of the first |S| rows on the columns S. With the columns in two
halves, the sets with r high and s low columns are a matrix F[r, s], and adding a low (high) column to them is a product
with a matrix from the right (left), of C(m, k−1) × C(m, k) entries for halves of m columns. Most of these are zero, but
dense products take less time than a gather of the 2ⁿ·n/2 terms that count, for all n that are within reach.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, threshold_

NEGLIGIBLE = 1e-150
"""Smaller numbers count as zero: products of what is left are normal numbers, which processors multiply at full speed.

Entries must be ≤ 1 with a permanent ≥ 1 (see ``permanent.scaled``), so that no sum exceeds n! < 1e24 and all that is
left out is less than 1e-100 of the permanent.
"""

Blocks = dict[tuple[int, int], Tensor]
"""(r, s) → f of the sets with r high and s low columns, (B, C(H, r), C(L, s))."""


@dataclass(frozen=True)
class Extension:
    """The pairs of a set of k−1 of m columns and one of k that contains it, sorted by the column that is added.

    ``places`` (m·C(m−1, k−1),): where they stand in a matrix of ``shape`` (sets of k−1, sets of k), row by row;
    ``column``: what is added, each of the m columns as often.
    """

    places: Tensor
    column: Tensor
    shape: tuple[int, int]
    columns: int


@lru_cache
def sets_by_size(columns: int) -> tuple[Tensor, ...]:
    """For each size 0…m the sets of that size as bit masks, in increasing order."""
    masks = torch.arange(1 << columns)
    sizes = sum(((masks >> column) & 1 for column in range(columns)), torch.zeros_like(masks))
    return tuple(masks[sizes == size] for size in range(columns + 1))


@lru_cache
def extension(columns: int, size: int) -> Extension:
    """From sets of size − 1 of so many columns to sets of ``size``."""
    below, above = sets_by_size(columns)[size - 1 : size + 1]
    places, added = [], []
    for column in range(columns):
        larger = ((above >> column) & 1).nonzero().reshape(-1)
        smaller = torch.searchsorted(below, above[larger] ^ (1 << column))
        places.append(smaller * len(above) + larger)
        added.append(torch.full_like(larger, column))
    return Extension(torch.cat(places), torch.cat(added), (len(below), len(above)), columns)


def halves(n: int) -> tuple[int, int]:
    """How many of n columns are high, and how many low; column j < L is bit j of the low half."""
    return n - n // 2, n // 2


def _matrix(row: Tensor, step: Extension) -> Tensor:
    """(B, sets of k−1, sets of k): the entries of a row (B, m) where a column is added, zero elsewhere."""
    flat = row.new_zeros(len(row), math.prod(step.shape))
    flat[:, step.places.to(row.device)] = row[:, step.column.to(row.device)]
    return flat.reshape(len(row), *step.shape)


def _sums(gradient: Tensor, step: Extension) -> Tensor:
    """The adjoint of ``_matrix``: of (B, sets of k−1, sets of k) the sum of the places of each column, (B, m)."""
    terms = gradient.flatten(1)[:, step.places.to(gradient.device)]
    return terms.reshape(len(gradient), step.columns, len(step.places) // step.columns).sum(-1)


def _sizes(n: int, k: int) -> Sequence[tuple[int, int]]:
    """All (r, s) with r + s = k."""
    high, low = halves(n)
    return [(r, k - r) for r in range(max(0, k - low), min(k, high) + 1)]


def subset_sums(a: Tensor, *, keep: bool) -> Blocks:
    """f(S) for all sets of columns if ``keep``, else only for the whole: a (B, n, n) of entries in [0, 1]."""
    n = a.shape[-1]
    a = threshold_(a.clone(), NEGLIGIBLE, 0.0)
    high, low = halves(n)
    blocks: Blocks = {(0, 0): a.new_ones(len(a), 1, 1)}
    for k in range(1, n + 1):
        lows, highs = a[:, k - 1, :low], a[:, k - 1, low:]
        for r, s in _sizes(n, k):
            parts = []
            if s:
                parts.append(blocks[r, s - 1] @ _matrix(lows, extension(low, s)))
            if r:
                parts.append(_matrix(highs, extension(high, r)).mT @ blocks[r - 1, s])
            total = parts[0] if len(parts) == 1 else parts[0].add_(parts[1])
            blocks[r, s] = threshold_(total, NEGLIGIBLE, 0.0)
        if not keep:
            for size in _sizes(n, k - 1):
                del blocks[size]
    return blocks


def permanent_and_gradient(a: Tensor) -> tuple[Tensor, Tensor]:
    """perm(a) (B,) and ∂perm/∂a (B, n, n), by the recursion and its adjoint."""
    n = a.shape[-1]
    a = threshold_(a.clone(), NEGLIGIBLE, 0.0)
    high, low = halves(n)
    blocks = subset_sums(a, keep=True)
    permanent = blocks[high, low].reshape(-1)
    gradient = torch.zeros_like(a)
    adjoint: Blocks = {(high, low): torch.ones_like(blocks[high, low])}
    for k in range(n, 0, -1):
        lows, highs = a[:, k - 1, :low], a[:, k - 1, low:]
        for r, s in _sizes(n, k):
            above = threshold_(adjoint.pop((r, s)), NEGLIGIBLE, 0.0)
            if s:
                step = extension(low, s)
                _accumulate(adjoint, (r, s - 1), above @ _matrix(lows, step).mT)
                gradient[:, k - 1, :low] += _sums(blocks[r, s - 1].mT @ above, step)
            if r:
                step = extension(high, r)
                _accumulate(adjoint, (r - 1, s), _matrix(highs, step) @ above)
                gradient[:, k - 1, low:] += _sums(blocks[r - 1, s] @ above.mT, step)
            del blocks[r, s]
    return permanent, gradient


def _accumulate(blocks: Blocks, size: tuple[int, int], part: Tensor) -> None:
    blocks[size] = blocks[size].add_(part) if size in blocks else part


def by_mask(blocks: Blocks, n: int) -> Tensor:
    """f(S) as (B, 2ⁿ), at the bit mask of S."""
    high, low = halves(n)
    first = blocks[0, 0]
    table = first.new_empty(len(first), 1 << high, 1 << low)
    for (r, s), block in blocks.items():
        table[:, sets_by_size(high)[r][:, None].to(first.device), sets_by_size(low)[s].to(first.device)] = block
    return table.reshape(len(first), -1)


def bytes_needed(n: int, *, keep: bool) -> int:
    """About how much memory one n × n matrix takes at most while its recursion runs, in float64."""
    middle = math.comb(n, n // 2)
    m = n - n // 2
    matrices = 3 * math.comb(m, m // 2) ** 2
    return 8 * (matrices + ((1 << n) + 2 * middle if keep else 2 * middle))


def products(n: int) -> float:
    """How many products of numbers the recursion takes for one n × n matrix, its gradient three times as many."""
    high, low = halves(n)
    steps = [sum(math.comb(m, k) * math.comb(m, k - 1) for k in range(1, m + 1)) for m in (high, low)]
    return float(2**low * steps[0] + 2**high * steps[1])
