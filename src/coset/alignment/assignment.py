"""Exact linear assignment, warm where a similar problem was solved before."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array
from scipy.sparse.csgraph import min_weight_full_bipartite_matching

Matrix = NDArray[np.floating]
Order = NDArray[np.int64]
Prices = NDArray[np.float64]

WARM_FROM = 384
"""Below so many units a problem is solved sooner than its candidates are found."""

# Candidates: how many to begin with; with how many the whole matrix is quicker; how much worse than these the last
# assignment may be; in how many grains they are told apart; how often they are renewed; rounding of a loss, in ulps.
_PER_ROW, _AT_MOST_PER_ROW, _FAR, _GRAINS, _ROUNDS, _ROUNDING = 12, 32, 16.0, 2.0**20, 6, 8.0

# Blurred prices: not if such a share of the columns is some row's best; the temperature in deviations of the losses;
# the least exponent; the number of iterations.
_UNCONTESTED, _TEMPERATURE, _COLDEST, _BLURRED_ROUNDS = 0.8, 0.1, -60.0, 10


def assign(score: Matrix) -> Order:
    """The permutation p that maximises Σ_i score[i, p[i]]; score (n, n)."""
    if score.shape[0] == 1:
        return np.zeros(1, dtype=np.int64)
    return np.asarray(linear_sum_assignment(score, maximize=True)[1], dtype=np.int64)


class WarmAssignment:
    """Assignments of one class, step after step: each begins with the prices at which the last one cleared.

    A price per column and the best remaining value per row, subtracted, leave losses ≥ 0 and change no assignment's
    rank: an assignment without any loss is optimal, whatever the prices are. With good prices few entries have a small
    loss. So the problem is solved on these candidates, the prices follow from its solution, and if at these prices no
    entry of the whole matrix is better (by more than rounding), that proves it; otherwise there are new candidates.
    """

    def __init__(self) -> None:
        self._last: tuple[Order, Prices] | None = None

    def __call__(self, score: Matrix) -> Order:
        """The permutation p that maximises Σ_i score[i, p[i]]; score (n, n)."""
        n = len(score)
        if n < WARM_FROM:
            return assign(score)
        last = self._last if self._last is not None and len(self._last[0]) == n else None
        # The grain of candidates is coarser than float64, in which they would prove nothing.
        found = None if last is None or score.dtype != np.float32 else _by_candidates(score, *last)
        if found is None:
            found = _at_once(score, np.zeros(n) if last is None else last[1])
        self._last = found[0], found[1] - found[1].mean()
        return found[0]


def _by_candidates(score: Matrix, last: Order, prices: Prices) -> tuple[Order, Prices] | None:
    """The optimum and its prices, by candidates near the last one; None if it is too far, or not proved in time."""
    rows, found = np.arange(len(score)), last
    for _ in range(_ROUNDS):
        loss = prices.astype(score.dtype) - score
        least, spare = _reduce(loss)
        prices = prices - spare
        known = loss[rows, found]
        if bool((known <= _ROUNDING * np.finfo(loss.dtype).eps * (np.abs(least) + np.abs(prices[found]))).all()):
            return found, prices
        candidates = _Candidates.of(loss, known)
        if candidates is None:
            return None
        found = candidates.assign()
        prices = prices - candidates.prices(found)
    return None


def _at_once(score: Matrix, prices: Prices) -> tuple[Order, Prices]:
    """The optimum of the whole matrix, and its prices as far as they are found among few candidates."""
    loss = prices.astype(score.dtype) - score
    _, spare = _reduce(loss)
    if len(np.unique(loss.argmin(1))) < _UNCONTESTED * len(loss):
        soft = _soft_prices(loss)
        loss -= soft.astype(loss.dtype)
        prices = prices - spare - soft
        _, spare = _reduce(loss)
    found = np.asarray(linear_sum_assignment(loss)[1], dtype=np.int64)
    candidates = _Candidates.of(loss, loss[np.arange(len(loss)), found])
    return found, prices - spare if candidates is None else prices - spare - candidates.prices(found)


def _reduce(loss: Matrix) -> tuple[Matrix, Matrix]:
    """Subtract from each row, then from each column, its least entry, in place; returns these."""
    least = loss.min(1)
    loss -= least[:, None]
    spare = loss.min(0)
    loss -= spare
    return least, spare


def _soft_prices(loss: Matrix) -> Prices:
    """Column values of an assignment blurred by a temperature (Sinkhorn's iteration): near those of the sharp one.

    Where many rows want the same few columns, as when little is known of a class, they save the solver most of its way.
    """
    temperature = _TEMPERATURE * float(loss.std())
    if temperature == 0.0:
        return np.zeros(len(loss))
    # Not so small that its products lose their precision, and with it the processor its speed.
    kernel = torch.from_numpy(loss).mul(-1.0 / temperature).clamp_(min=_COLDEST).exp_()
    least = torch.finfo(kernel.dtype).tiny ** 0.5
    columns = torch.ones(len(loss), dtype=kernel.dtype)
    for _ in range(_BLURRED_ROUNDS):
        rows = (kernel @ columns).clamp_(min=least).reciprocal_()
        columns = (rows @ kernel).clamp_(min=least).reciprocal_()
    return np.asarray(temperature * columns.double().log().numpy(), dtype=np.float64)


@dataclass(frozen=True)
class _Candidates:
    """The entries of a loss matrix with a small loss, row by row: row i has ``starts[i]`` to ``starts[i + 1]``.

    They count in grains of about the size of rounding. Rows that want the same columns outbid each other by differences
    of their losses: these are 0 or a grain at least, which bounds the number of bids.
    """

    loss: NDArray[np.float64]
    grain: float
    column: NDArray[np.int32]
    starts: NDArray[np.int32]

    @classmethod
    def of(cls, loss: Matrix, known: Matrix) -> "_Candidates | None":
        """Those of the smallest losses, and all no worse than the ``known`` entry of their row.

        None if these are too many, or the known ones are far from the smallest.
        """
        n = len(loss)
        sample = loss[:: max(1, n // 32)].reshape(-1)
        few = float(np.partition(sample, place := len(sample) * _PER_ROW // n)[place])
        if float(known.max()) > _FAR * few:
            return None
        chosen = loss <= np.maximum(known, few)[:, None]
        at = np.flatnonzero(chosen)
        if len(at) > _AT_MOST_PER_ROW * n:
            return None
        starts = np.zeros(n + 1, dtype=np.int32)
        np.cumsum(np.count_nonzero(chosen, axis=1), out=starts[1:])
        losses = loss.reshape(-1)[at].astype(np.float64)
        return cls(losses, few / _GRAINS or 1.0, (at % n).astype(np.int32), starts)

    def assign(self) -> Order:
        """The assignment with the least loss among the candidates, which must hold one."""
        n = len(self.starts) - 1
        # One grain more for each, as a sparse matrix does not know an entry of 0: n more for every assignment.
        grains = np.rint(self.loss / self.grain) + 1.0
        graph = csr_array((grains, self.column, self.starts), shape=(n, n))
        return np.asarray(min_weight_full_bipartite_matching(graph)[1], dtype=np.int64)

    def prices(self, found: Order) -> Prices:
        """Column values y, with row values x, such that x_i + y_j ≤ loss_ij up to a grain, and equal where ``found``.

        x_i = min_j loss_ij − loss_kj + x_k, k the row that found j: shortest paths, by Bellman and Ford.
        """
        n = len(found)
        row = np.empty(n, dtype=np.int64)
        row[found] = np.arange(n)
        rows = np.repeat(np.arange(n), np.diff(self.starts))
        at = np.zeros(n)
        here = self.column == found[rows]
        at[self.column[here]] = self.loss[here]
        step, source = self.loss - at[self.column], row[self.column]
        x = np.zeros(n)
        for _ in range(n):
            lower = np.minimum.reduceat(x[source] + step, self.starts[:-1])
            done = bool((x - lower <= self.grain).all())
            x = lower
            if done:
                break
        return np.asarray(at - x[row])
