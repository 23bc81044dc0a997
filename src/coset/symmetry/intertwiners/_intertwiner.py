"""Intertwiner groups: which linear maps pass through a non-linearity (Godfrey et al. 2022, section 3)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from coset.errors import InputError

Diagonal = Literal["one", "sign", "positive", "nonzero", "general"]
"""Which diagonal matrices D occur in a group of matrices P·D; "general" is all of GL_n (linear activations)."""

DIAGONALS: tuple[Diagonal, ...] = get_args(Diagonal)


@dataclass(frozen=True)
class Intertwiner:
    """The group G_σ = {A ∈ GL_n : σ∘A = B∘σ for some B ∈ GL_n} and its map φ_σ(A) = B.

    For a non-affine σ every A ∈ G_σ is monomial, A = P·D (theorem E.14), and φ_σ(P·D) = P·|D|^p·sign(D)^s with
    p = ``scale_power`` and s = ``sign_power``. The two are kept apart: |x| has scale power 1 and sign power 0.

    ``remark`` names affine relations such as σ(−x) = 1 − σ(x), which no matrix shows; discovery acts on some as turns.
    """

    name: str
    diagonal: Diagonal
    scale_power: float = 1.0
    sign_power: int = 1
    remark: str = ""

    @property
    def scales(self) -> bool:
        """Whether positive scales pass."""
        return self.diagonal in ("positive", "nonzero", "general")

    @property
    def signs(self) -> bool:
        """Whether sign flips pass."""
        return self.diagonal in ("sign", "nonzero", "general")

    def allows(self, d: Tensor) -> Tensor:
        """Which entries of ``d`` may stand on the diagonal of D: a boolean tensor of the shape of ``d``."""
        if self.diagonal == "one":
            return d == 1
        if self.diagonal == "sign":
            return d.abs() == 1
        if self.diagonal == "positive":
            return (d > 0) & torch.isfinite(d)
        return (d != 0) & torch.isfinite(d)

    def phi_diagonal(self, d: Tensor) -> Tensor:
        """φ_σ on diagonal entries: |d|^scale_power · sign(d)^sign_power. Same shape as ``d``."""
        value = d.abs() ** self.scale_power if self.scales else torch.ones_like(d)
        return value * torch.sign(d) if self.sign_power % 2 else value

    def contains(self, matrix: Tensor) -> bool:
        """Whether a square matrix (n, n) belongs to the group; entries are taken as they are, without tolerance."""
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
            raise InputError(f"expected a square matrix, found shape {tuple(matrix.shape)}")
        if not bool(torch.isfinite(matrix).all()):
            return False
        if self.diagonal == "general":
            return bool(torch.linalg.matrix_rank(matrix.to(torch.float64)) == matrix.shape[0])
        nonzero = matrix != 0
        monomial = bool((nonzero.sum(0) == 1).all() and (nonzero.sum(1) == 1).all())
        return monomial and bool(self.allows(matrix[nonzero]).all())

    def phi(self, matrix: Tensor) -> Tensor:
        """φ_σ(A) for a member A of shape (n, n): the matrix B with σ(Ax) = Bσ(x)."""
        if not self.contains(matrix):
            raise InputError(
                f"the matrix of shape {tuple(matrix.shape)} is not in the intertwiner group of {self.name}: expected "
                f"{_DESCRIPTION[self.diagonal]}"
            )
        if self.diagonal == "general":
            return matrix.clone()
        return torch.where(matrix != 0, self.phi_diagonal(matrix), torch.zeros_like(matrix))

    def sample(self, n: int, generator: torch.Generator, *, dtype: torch.dtype = torch.float64) -> Tensor:
        """A random member of shape (n, n): uniform permutation and signs, log-normal scales (Gaussian for GL_n)."""
        if n < 1:
            raise InputError(f"n is {n}; a matrix needs n ≥ 1")
        if self.diagonal == "general":
            return torch.randn(n, n, generator=generator, dtype=dtype)
        d = torch.ones(n, dtype=dtype)
        if self.scales:
            d = torch.exp(torch.randn(n, generator=generator, dtype=dtype))
        if self.signs:
            d = d * (2 * torch.randint(0, 2, (n,), generator=generator) - 1).to(dtype)
        return torch.diag(d)[torch.randperm(n, generator=generator)]

    def __str__(self) -> str:
        law = f"P·D, D {_DESCRIPTION[self.diagonal].rpartition(' D ')[2]}" if self.diagonal != "general" else "GL_n"
        return f"{self.name}: {law}; φ = {self._law()}"

    def _law(self) -> str:
        if self.diagonal == "general":
            return "A"
        scale = f"|d|^{self.scale_power:g}" if self.scales else ""
        sign = "sign(d)" if self.signs and self.sign_power % 2 else ""
        return "P·diag(" + ("·".join(part for part in (scale, sign) if part) or "1") + ")"


_DESCRIPTION: dict[Diagonal, str] = {
    "one": "a permutation matrix P·D with D = 1",
    "sign": "a monomial matrix P·D with D = ±1",
    "positive": "a monomial matrix P·D with D > 0",
    "nonzero": "a monomial matrix P·D with D ≠ 0",
    "general": "an invertible matrix",
}


Elementwise = Callable[[Tensor], Tensor]
