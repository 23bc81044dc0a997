"""The Hilbert-Schmidt independence criterion from a few sums over two kernel matrices.

With n examples, K̃ and L̃ without their diagonals (Song et al. 2012):

    unbiased: [tr K̃L̃ + 1ᵀK̃1·1ᵀL̃1/((n−1)(n−2)) − 2·1ᵀK̃L̃1/(n−2)] / (n(n−3))
    biased:   tr(KHLH)/(n−1)² = [ΣK∘L − (2/n)·(K1)·(L1) + 1ᵀK1·1ᵀL1/n²] / (n−1)²
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from coset._checks import check_choice
from coset.errors import InputError

ROUNDING = 1e-13
"""An HSIC of a kernel with itself is 0 if it is smaller than that, relative to the mean square of the kernel."""


@dataclass(frozen=True)
class PairSums:
    """What HSIC needs of two kernel matrices K, L (n, n).

    ``kl``, ``kk``, ``ll``: sums of the products of entries off the diagonal; ``rows_k``, ``rows_l``: row sums without
    the diagonal (n,); ``diagonal_k``, ``diagonal_l`` (n,).
    """

    kl: float
    kk: float
    ll: float
    rows_k: Tensor
    rows_l: Tensor
    diagonal_k: Tensor
    diagonal_l: Tensor


@dataclass(frozen=True)
class HsicTerms:
    """HSIC(K, L), HSIC(K, K) and HSIC(L, L), and the mean squares of K and L that the latter are compared with."""

    kl: float
    kk: float
    ll: float
    size_k: float
    size_l: float

    def ratio(self, x: str = "x", y: str = "y") -> float:
        """CKA = HSIC(K, L)/sqrt(HSIC(K, K)·HSIC(L, L)); raises where one side does not tell the examples apart.

        ``x``, ``y``: what the sides are called then.
        """
        for what, own, size in ((x, self.kk, self.size_k), (y, self.ll, self.size_l)):
            if not math.isfinite(own):
                raise InputError(
                    f"{what} has features so large that its HSIC is no number; expected features of another scale, "
                    f"which changes nothing else"
                )
            if own <= ROUNDING * size:
                raise InputError(
                    f"{what} has features that do not tell the examples apart (its HSIC with itself is 0); expected "
                    f"features that vary, and whose fourth powers are numbers"
                )
        # Not the root of the product, which would underflow sooner. HSIC is an inner product: beyond ±1 is rounding.
        return max(-1.0, min(1.0, self.kl / (math.sqrt(self.kk) * math.sqrt(self.ll))))


def sums_of_matrices(k: Tensor, l: Tensor) -> PairSums:  # noqa: E741
    """The sums over two whole kernel matrices (n, n), which stay as they are."""
    dk, dl = k.diagonal(), l.diagonal()
    return PairSums(
        kl=float((k * l).sum() - dk @ dl),
        kk=float(k.square().sum() - dk @ dk),
        ll=float(l.square().sum() - dl @ dl),
        rows_k=k.sum(1) - dk,
        rows_l=l.sum(1) - dl,
        diagonal_k=dk.clone(),
        diagonal_l=dl.clone(),
    )


Number = TypeVar("Number", float, Tensor)


def _unbiased(inner: Number, crossed: Number, totals: Number, n: int) -> Number:
    return (inner + totals / ((n - 1) * (n - 2)) - 2 * crossed / (n - 2)) / (n * (n - 3))


def _biased(inner: Number, crossed: Number, totals: Number, n: int) -> Number:
    return (inner - 2 / n * crossed + totals / n**2) / (n - 1) ** 2


ESTIMATORS: dict[str, Callable[[Any, Any, Any, int], Any]] = {"unbiased": _unbiased, "biased": _biased}
"""HSIC by name, from Σ K∘L, (K1)·(L1) and 1ᵀK1·1ᵀL1, for one pair of kernels or as tensors for several, and n.

All of these are without the diagonals for the unbiased one, and with them for the biased one.
"""

FEWEST = {"unbiased": 4, "biased": 2}
"""The fewest examples that an estimator needs."""


def check_examples(estimator: str, n: int, what: str = "x and y") -> None:
    """Raise unless there is such an estimator and ``n`` examples are enough for it."""
    check_choice("estimator", estimator, ESTIMATORS, quoted=True)
    if n < FEWEST[estimator]:
        verb = "has" if what.startswith(("batch", "pairs[")) else "have"
        raise InputError(f"{what} {verb} {n} examples; the {estimator} HSIC needs at least {FEWEST[estimator]}")


def hsic_terms(sums: PairSums, estimator: str) -> HsicTerms:
    """The three HSIC of CKA from the sums over two kernel matrices."""
    n = len(sums.rows_k)
    check_examples(estimator, n)
    dk, dl = sums.diagonal_k, sums.diagonal_l
    whole = estimator == "biased"
    rows_k, rows_l = (sums.rows_k + dk, sums.rows_l + dl) if whole else (sums.rows_k, sums.rows_l)

    def hsic(products: float, own: Tensor, other: Tensor, diagonals: float) -> float:
        totals = float(own.sum()) * float(other.sum())
        inner = products + diagonals if whole else products
        return float(ESTIMATORS[estimator](inner, float(own @ other), totals, n))

    return HsicTerms(
        kl=hsic(sums.kl, rows_k, rows_l, float(dk @ dl)),
        kk=hsic(sums.kk, rows_k, rows_k, float(dk @ dk)),
        ll=hsic(sums.ll, rows_l, rows_l, float(dl @ dl)),
        size_k=(sums.kk + float(dk @ dk)) / n**2,
        size_l=(sums.ll + float(dl @ dl)) / n**2,
    )


def hsic(k: Tensor, l: Tensor, *, estimator: str = "unbiased") -> float:  # noqa: E741
    """HSIC of two kernel matrices (n, n), "unbiased" or "biased"; in float64."""
    for what, matrix in (("k", k), ("l", l)):
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape != k.shape:
            raise InputError(
                f"{what} has shape {tuple(matrix.shape)}, k {tuple(k.shape)}; expected two square matrices"
            )
        if not bool(torch.isfinite(matrix).all()):
            raise InputError(f"{what} holds NaN or infinite values; expected a kernel matrix")
    return hsic_terms(sums_of_matrices(k.double(), l.double()), estimator).kl
