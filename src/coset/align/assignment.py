"""Exact linear assignment, warm where a similar problem was solved before."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Matrix = NDArray[np.floating]
_REFINEMENTS = 4


def assign(score: Matrix) -> NDArray[np.int64]:
    """The permutation p that maximises Σ_i score[i, p[i]]; score (n, n)."""
    if score.shape[0] == 1:
        return np.zeros(1, dtype=np.int64)
    return np.asarray(linear_sum_assignment(score, maximize=True)[1], dtype=np.int64)


class WarmAssignment:
    """Assignments of one class, step after step: each begins with the prices at which the last one cleared.

    Subtracting a price per column and the best remaining value per row changes no assignment's rank, so the result is
    exact whatever the prices are; with good ones most rows find their column at once.
    """

    def __init__(self) -> None:
        self._prices: Matrix | None = None

    def __call__(self, score: Matrix) -> NDArray[np.int64]:
        """The permutation p that maximises Σ_i score[i, p[i]]."""
        loss = -score if self._prices is None else self._prices - score
        loss -= loss.min(1, keepdims=True)
        found = assign(-loss) if len(loss) == 1 else np.asarray(linear_sum_assignment(loss)[1], dtype=np.int64)
        self._prices = _prices(score, found, self._prices)
        return found


def _prices(score: Matrix, found: NDArray[np.int64], before: Matrix | None) -> Matrix:
    """Prices v with v_j ≥ v_p(i) + score_ij − score_ip(i): a few rounds of Bellman and Ford, not always to the end."""
    regret = score - score[np.arange(len(found)), found][:, None]
    prices = np.zeros(len(found), dtype=score.dtype) if before is None else before.astype(score.dtype)
    room = np.empty_like(regret)
    for _ in range(_REFINEMENTS):
        np.add(regret, prices[found][:, None], out=room)
        raised = np.maximum(prices, room.max(0))
        if np.array_equal(raised, prices):
            break
        prices = raised
    return np.asarray(prices - prices.mean(), dtype=score.dtype)
