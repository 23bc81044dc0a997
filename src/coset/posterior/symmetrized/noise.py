"""Units of μ + e^ρ·ε against those of N(μ, e^{2ρ}), and the gradient in (μ, ρ), by hand and in memory of their own.

Inference does this once a step, beside a network that is not much larger.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from coset.posterior.symmetrized.units import LOG_2PI

MOST_BLOCKS = 16
"""With more blocks than this one index for all takes less time."""

MOST_VIEWS = 8
"""So many pairs of tensors are remembered."""


class Block(NamedTuple):
    """Columns ``first`` to ``first + width`` of some places (n, k): those at start + row·i + column·j."""

    first: int
    width: int
    start: int
    row: int
    column: int


class Places:
    """Places ``owned`` (n, k) in vectors (D,), none of them twice, as blocks that can be copied as they lie."""

    def __init__(self, owned: Tensor, device: torch.device) -> None:
        self.shape = tuple(owned.shape)
        self._flat = owned.reshape(-1).to(device)
        blocks = blocks_of(owned)
        self._blocks = blocks if blocks is not None and len(blocks) <= MOST_BLOCKS else None
        self._views: dict[tuple[object, ...], list[tuple[Tensor, Tensor]]] = {}

    def take(self, source: Tensor, out: Tensor) -> None:
        """out (r, n, k) from vectors (r, D), the entries of each one after the other in memory."""
        if self._blocks is None:
            torch.index_select(source, 1, self._flat, out=out.view(len(source), -1))
            return
        for view, part in self._viewed(source, out, self._blocks):
            part.copy_(view)

    def put(self, values: Tensor, into: Tensor) -> None:
        """values (r, n, k) to their places in vectors (r, D), the entries of each one after the other in memory."""
        if self._blocks is None:
            into.index_copy_(1, self._flat, values.reshape(len(values), -1))
            return
        for view, part in self._viewed(into, values, self._blocks):
            view.copy_(part)

    def _viewed(self, vectors: Tensor, gathered: Tensor, blocks: list[Block]) -> list[tuple[Tensor, Tensor]]:
        """Each block in ``vectors`` and in ``gathered``: views, kept for the next call with the same memory.

        They hold that memory, so that no other tensor can come to lie there while they are kept.
        """
        key = tuple((t.data_ptr(), t.dtype, t.shape, t.stride()) for t in (vectors, gathered))
        if key not in self._views:
            if len(self._views) >= MOST_VIEWS:
                self._views.clear()
            self._views[key] = [
                (self._view(vectors, block), gathered[:, :, block.first : block.first + block.width])
                for block in blocks
            ]
        return self._views[key]

    def _view(self, vectors: Tensor, block: Block) -> Tensor:
        shape, stride = (len(vectors), self.shape[0], block.width), (vectors.stride(0), block.row, block.column)
        return vectors.as_strided(shape, stride, vectors.storage_offset() + block.start)


def blocks_of(owned: Tensor) -> list[Block] | None:
    """Consecutive columns that lie in strides ≥ 0, as no others can be viewed; None where a column itself does not."""
    rows = owned.diff(dim=0)
    if owned.shape[0] > 1 and not bool(((rows == rows[:1]) & (rows >= 0)).all()):
        return None
    steps = rows[0].tolist() if owned.shape[0] > 1 else [0] * owned.shape[1]
    places = owned[0].tolist()
    blocks: list[Block] = []
    for number, (place, row) in enumerate(zip(places, steps, strict=True)):
        last = blocks[-1] if blocks else None
        if last is not None and last.row == row:
            column = place - places[number - 1]
            if column == last.column or (last.width == 1 and column > 0):
                blocks[-1] = last._replace(width=last.width + 1, column=column)
                continue
        blocks.append(Block(number, 1, place, row, 1))
    return blocks


APART = 50.0
"""So many nats below the identity in each of its units a permutation weighs nothing, in any precision."""
HARMLESS = 1e-3
"""Nats by which A may be off."""
_ROUNDING = 1e-6
"""Of the sums of squares that A is made of, what single precision may be off by."""


class NoiseComparison:
    """A (n, n) of the units whose weights are at the places ``owned`` (n, k) in vectors (D,) of the type of ``like``.

    With c the centre of the means, of an earlier step (any would do, but for rounding), m = μ − c, ν = m + e^ρ·ε and
    W = e^{−2ρ}, A = [ν, ν²]·[mW, −½W]ᵀ − ½Σ(m²W + 2ρ + log 2π).

    A function of the log-ratios Σ_i A[i, p[i]] − Σ_i A[i, i] takes each column once and once away, so that the columns
    of M = ∂/∂A sum to 0: ∂ν = M·mW − ν⊙(M·W), ∂μ = ∂ν + W⊙Mᵀν, ∂ρ = ∂ν⊙e^ρ·ε + W⊙(Mᵀν² − 2m⊙Mᵀν).

    The square that is taken apart loses digits where units are far from their centre, in deviations, and yet near each
    other. So what single precision gives is kept if that is ``HARMLESS`` or all units are ``APART``, and else made
    again in double precision.
    """

    def __init__(self, owned: Tensor, like: Tensor) -> None:
        self._places = Places(owned, like.device)
        self._own = _Workspace(owned.shape, like)
        self._exact = self._own if like.dtype == torch.float64 else _Workspace(owned.shape, like.double())
        self._last = self._exact

    def begin(self) -> None:
        """The centre is found anew at the next comparison."""
        for space in (self._own, self._exact):
            space.centre = None

    def matrix(self, values: Tensor, noise: Tensor, sign: int) -> Tensor:
        """A (n, n) at μ ± e^ρ·ε, for ``values`` = (μ, ρ), (2, D), and ``noise`` ε (D,); in float64."""
        own, exact = self._own, self._exact
        self._take(values, noise)
        if exact is not own:
            found, largest = own.compare(sign)
            rounding = _ROUNDING * (largest + self._places.shape[1])
            if rounding < HARMLESS or _nearest(found) < -APART - rounding:
                self._last = own
                return found.double()
            self._take(values, noise)
            exact.gathered.copy_(own.gathered)
            exact.away.copy_(own.away)
        self._last = exact
        return exact.compare(sign)[0]

    def _take(self, values: Tensor, noise: Tensor) -> None:
        self._places.take(values, self._own.gathered)
        self._places.take(noise[None], self._own.away[None])

    def pull_back(self, along: Tensor, gradient: Tensor, *, in_densities: bool = True) -> None:
        """The gradient in (μ, ρ) for ∂/∂A = ``along`` (n, n), at the last ``matrix``, to its places in (2, D).

        The columns of ``along`` sum to 0. Without ``in_densities`` along ν alone: ∂μ = ∂ν and ∂ρ = ∂ν⊙e^ρ·ε.
        """
        self._places.put(self._last.pulled(along, in_densities).to(gradient), gradient)


def _nearest(matrix: Tensor) -> float:
    """The largest A_ij − A_ii, j ≠ i."""
    return float((matrix - matrix.diagonal()[:, None]).fill_diagonal_(-torch.inf).max())


class _Workspace:
    """Memory for n units of k weights each, in one precision."""

    def __init__(self, shape: torch.Size, like: Tensor) -> None:
        n, k = shape
        self.gathered = like.new_empty(2, n, k)
        self.away = like.new_empty(n, k)
        self.centre: Tensor | None = None
        self._precision = like.new_empty(n, k)
        # Side by side, [ν, ν²] and [mW, −½W], each in one piece.
        self._units, self._weights = like.new_empty(2, n, k), like.new_empty(2, n, k)
        self._result = like.new_empty(2, n, k)

    def compare(self, sign: int) -> tuple[Tensor, float]:
        """A (n, n) of ``gathered`` (μ, ρ) and ``away`` ε, which become m, ρ and ±e^ρ·ε; and its largest constant."""
        away, precision = self.away, self._precision
        mean, log_std = self.gathered
        torch.exp(log_std, out=precision)
        away.mul_(precision)
        if sign < 0:
            away.neg_()
        if self.centre is None:
            self.centre = mean.mean(0)
        mean -= self.centre
        near = torch.add(mean, away, out=self._units[0])
        torch.mul(near, near, out=self._units[1])
        precision.square_().reciprocal_()
        torch.mul(mean, precision, out=self._weights[0])
        torch.mul(precision, -0.5, out=self._weights[1])
        squares = torch.linalg.vecdot(mean, self._weights[0])
        constant = squares + 2 * log_std.sum(-1) + LOG_2PI * mean.shape[1]
        found = torch.bmm(self._units, self._weights.mT).sum(0)
        return found.sub_(constant, alpha=0.5), float(squares.max())

    def pulled(self, along: Tensor, in_densities: bool) -> Tensor:
        """∂μ and ∂ρ, (2, n, k), at the last comparison."""
        precision, mean = self._precision, self.gathered[0]
        both = along.to(precision).expand(2, -1, -1)
        by_weights = torch.bmm(both, self._weights)
        to_near = torch.addcmul(by_weights[0], self._units[0], by_weights[1], value=2, out=self._result[0])
        torch.mul(to_near, self.away, out=self._result[1])
        if in_densities:
            first, second = torch.bmm(both.mT, self._units)
            self._result[0].addcmul_(precision, first)
            self._result[1].addcmul_(precision, second.addcmul_(mean, first, value=-2))
        return self._result
