"""Kernels between examples that are symmetric functions of the units: one matrix product per unit, tile by tile.

Of unit u, examples m and n have the product s_u(m, n) = Σ_p x_mup·x_nup over its positions. A symmetric function of
s_1 … s_U does not notice permutations or signs of the units. Not all are positive semidefinite: for the examples
(1, 0), (0, 1), (1, 1) the max kernel has the eigenvalue 1 − √2, so that a CKA made of it may be negative.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.represent.channels import DEAD, Normalization
from coset.represent.similarity._hsic import PairSums

Units = tuple[tuple[int, int], ...]
"""The first channel and the one behind the last of every unit."""


@dataclass(frozen=True)
class UnitFeatures:
    """Features x (N, C, P) of any type that are made ready, in float64, one unit of a few examples at a time.

    ``normalized``: what is done to them; None for nothing. So no second copy of all features is ever held.
    """

    x: Tensor
    units: Units
    normalized: Normalization | None = None

    def rows(self, examples: slice, unit: tuple[int, int]) -> Tensor:
        """The channels of one unit for some examples, (n, width·P)."""
        x = self.x[examples]
        if self.normalized is None:
            return x[:, unit[0] : unit[1]].flatten(1).double()
        return self.normalized.of_channels(x, *unit).flatten(1)


_EDGE = 512
"""The edge of a tile: its products stay in the cache of a processor."""

_ROWS, _COLUMNS = 1024, 128
"""So many examples are centred at a time for the linear kernel, and so many columns of a symmetric product begun."""

_HELD = 1 << 26
"""Where all units' products are held at once, a tile is so small that there are at most so many."""


def _folded(
    add: Callable[[Tensor, Tensor], object], begin: Callable[[Tensor], Tensor] = torch.clone
) -> Callable[[Iterator[Tensor]], Tensor]:
    """``begin`` of the first product, to which ``add`` adds the others in place."""

    def combine(products: Iterator[Tensor]) -> Tensor:
        total = begin(next(products))
        for product in products:
            add(total, product)
        return total

    return combine


def _median(products: Iterator[Tensor]) -> Tensor:
    """The mean of the two in the middle where there is an even number."""
    ordered = torch.stack([product.clone() for product in products]).sort(0).values
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


@dataclass(frozen=True)
class Kernel:
    """How products of units become one number, entry by entry.

    ``combine`` is given the products one after the other, all in the same memory; ``holds_all``: it keeps them.
    """

    combine: Callable[[Iterator[Tensor]], Tensor]
    holds_all: bool = False


KERNELS: dict[str, Kernel] = {
    "sum": Kernel(_folded(Tensor.add_)),
    "max": Kernel(_folded(lambda total, product: torch.maximum(total, product, out=total))),
    "median": Kernel(_median, holds_all=True),
    "min": Kernel(_folded(lambda total, product: torch.minimum(total, product, out=total))),
    "squares": Kernel(_folded(lambda total, product: total.addcmul_(product, product), begin=torch.square)),
}
"""Kernels by name: "sum" is the linear kernel Σ_u s_u, "max" that of G_ReLU-CKA, "squares" is Σ_u s_u². Of these "sum"
and "squares" are positive semidefinite.
"""


def spoken(kernel: str) -> str:
    """What people call a kernel."""
    return {"sum": "linear"}.get(kernel, kernel)


def kernel_matrix(features: UnitFeatures, kernel: str) -> Tensor:
    """K_mn of features of N examples in float64: (N, N)."""
    n = len(features.x)
    matrix = features.x.new_empty(n, n, dtype=torch.float64)
    for rows, columns, tile in _tiles([features], kernel):
        matrix[rows, columns] = tile[0]
        matrix[columns, rows] = tile[0].mT
    return matrix


def kernel_sums(x: UnitFeatures, y: UnitFeatures, kernel: str) -> PairSums:
    """The sums that HSIC needs of the kernels of x and y, of the same N examples: tiles alone are held."""
    rows_k, rows_l, diagonal_k, diagonal_l = (x.x.new_zeros(len(x.x), dtype=torch.float64) for _ in range(4))
    products = rows_k.new_zeros(3)
    for rows, columns, (k, l) in _tiles([x, y], kernel):  # noqa: E741
        if rows == columns:
            diagonal_k[rows], diagonal_l[rows] = k.diagonal(), l.diagonal()
            k.fill_diagonal_(0)
            l.fill_diagonal_(0)
        else:
            rows_k[columns] += k.sum(0)
            rows_l[columns] += l.sum(0)
        rows_k[rows] += k.sum(1)
        rows_l[rows] += l.sum(1)
        times = 1 if rows == columns else 2
        flat_k, flat_l = k.reshape(-1), l.reshape(-1)
        products += times * torch.stack([flat_k @ flat_l, flat_k @ flat_k, flat_l @ flat_l])
    kl, kk, ll = products.tolist()
    return PairSums(kl, kk, ll, rows_k, rows_l, diagonal_k, diagonal_l)


def linear_sums(x: Tensor, y: Tensor) -> PairSums:
    """The same for the linear kernel of centred features, without any N×N matrix: Σ K∘L = ‖XᵀY‖².

    x (N, D) and y (N, D') of any type; means over the examples are subtracted, so that whole rows of K and L sum to 0.
    Only a few examples at a time are converted to float64.
    """
    means = _mean(x), _mean(y)
    d, e = (len(mean) for mean in means)
    cross, own_x, own_y = (means[0].new_zeros(shape) for shape in ((d, e), (d, d), (e, e)))
    diagonals: tuple[list[Tensor], list[Tensor]] = [], []
    # Memory that is used again and again stays in the cache.
    scratch = [mean.new_empty(min(_ROWS, len(x)), len(mean)) for mean in means]
    for parts in zip(torch.split(x, _ROWS), torch.split(y, _ROWS), strict=True):
        a, b = (
            memory[: len(part)].copy_(part).sub_(mean) for memory, part, mean in zip(scratch, parts, means, strict=True)
        )
        cross.addmm_(a.mT, b)
        _add_upper(own_x, a)
        _add_upper(own_y, b)
        for part, entries in zip((a, b), diagonals, strict=True):
            entries.append(torch.linalg.vector_norm(part, dim=1).square())
    dk, dl = (torch.cat(entries) for entries in diagonals)
    alive_x, alive_y = (float(varies(part, mean)) for part, mean in zip((dk, dl), means, strict=True))
    dk, dl = dk * alive_x, dl * alive_y
    return PairSums(
        kl=float(cross.square().sum()) * alive_x * alive_y - float(dk @ dl),
        kk=_squares_of_upper(own_x) * alive_x - float(dk @ dk),
        ll=_squares_of_upper(own_y) * alive_y - float(dl @ dl),
        rows_k=-dk,
        rows_l=-dl,
        diagonal_k=dk,
        diagonal_l=dl,
    )


def _add_upper(total: Tensor, a: Tensor) -> None:
    """Add the blocks of aᵀa (D, D) on and right of the diagonal to ``total``; the others are these transposed."""
    for start in range(0, len(total), _COLUMNS):
        total[start : start + _COLUMNS, start:].addmm_(a[:, start : start + _COLUMNS].mT, a[:, start:])


def _squares_of_upper(total: Tensor) -> float:
    """The sum of squares of all entries, from the blocks that ``_add_upper`` filled."""
    blocks = 0.0
    for start in range(0, len(total), _COLUMNS):
        rows, stop = total[start : start + _COLUMNS], start + _COLUMNS
        blocks += float(rows[:, start:stop].square().sum()) + 2 * float(rows[:, stop:].square().sum())
    return blocks


def centred(x: Tensor) -> Tensor:
    """x (N, D) in float64 without its means over the examples; 0 where rounding alone is left."""
    mean = _mean(x)
    rest = x - mean
    return rest if varies(torch.linalg.vector_norm(rest, dim=1).square(), mean) else torch.zeros_like(rest)


def _mean(x: Tensor) -> Tensor:
    """The mean over examples in float64; part by part is quicker than a reduction that converts."""
    return torch.stack([part.double().sum(0) for part in torch.split(x, _ROWS)]).sum(0) / len(x)


def varies(squares: Tensor, mean: Tensor) -> bool:
    """Whether more than rounding is left of features behind their means; ``squares`` (N,), of each example's rest."""
    return bool(squares.sum() > DEAD**2 * len(squares) * mean.square().sum())


def _tiles(sides: list[UnitFeatures], kernel: str) -> Iterator[tuple[slice, slice, list[Tensor]]]:
    """Tiles on and above the diagonal, of the kernels of all sides: rows, columns, (rows, columns) each."""
    combine = KERNELS[kernel]
    n, edge = len(sides[0].x), _EDGE
    if combine.holds_all:
        edge = max(1, min(edge, int((_HELD / max(len(side.units) for side in sides)) ** 0.5)))
    scratch = sides[0].x.new_empty(min(edge, n) ** 2, dtype=torch.float64)
    cuts = [slice(start, min(start + edge, n)) for start in range(0, n, edge)]
    for number, rows in enumerate(cuts):
        for columns in cuts[number:]:
            yield rows, columns, [combine.combine(_products(side, rows, columns, scratch)) for side in sides]


def _products(side: UnitFeatures, rows: slice, columns: slice, scratch: Tensor) -> Iterator[Tensor]:
    """s_u(m, n) for the examples in ``rows`` and ``columns``, unit after unit, in the memory of ``scratch``."""
    shape = rows.stop - rows.start, columns.stop - columns.start
    product = scratch[: shape[0] * shape[1]].view(shape)
    for unit in side.units:
        left = side.rows(rows, unit)
        right = left if rows == columns else side.rows(columns, unit)
        torch.mm(left, right.mT, out=product)
        yield product
