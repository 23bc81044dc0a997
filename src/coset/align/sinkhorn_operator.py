"""The Sinkhorn operator: from scores to doubly stochastic matrices, differentiable at the fixed point."""

from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.autograd.function import once_differentiable

from coset.errors import InputError

# By how much, per unit, the Laplacian of the backward pass is lifted from its null spaces: more than what rounding may
# take from its eigenvalues, less than what gradients are wanted to.
_RIDGE = 1e-14
# Sweeps between two looks at the row sums.
_BETWEEN = 10


def sinkhorn(scores: Tensor, temperature: float = 1.0, iterations: int = 1000, tolerance: float = 1e-6) -> Tensor:
    """The doubly stochastic matrix P = diag(u)·exp(scores/temperature)·diag(v), by rows and columns in turn.

    ``scores`` (…, n, n); returns the same shape: the point of the Birkhoff polytope that maximises
    ⟨P, scores⟩ + temperature·entropy(P) (Sinkhorn 1964; Cuturi 2013), which tends to the best assignment as the
    temperature falls. The sweeps run on logarithms until every row sums to 1 within ``tolerance`` (columns do after
    each sweep), at most ``iterations`` of them. The gradient is that of the fixed point itself (Eisenberger et al.
    2022; Peña et al. 2023): no sweep is recorded, the memory is that of one matrix. Where the sweeps ended before, it
    is that of a fixed point with the sums reached.
    """
    if scores.ndim < 2 or scores.shape[-1] != scores.shape[-2] or not scores.is_floating_point():
        raise InputError(
            f"scores have shape {tuple(scores.shape)} and type {scores.dtype}; expected square floating-point matrices"
        )
    if not temperature > 0:
        raise InputError(f"temperature is {temperature!r}; expected a number > 0")
    if iterations < 1:
        raise InputError(f"iterations is {iterations!r}; expected a whole number ≥ 1")
    projected: Tensor = _Sinkhorn.apply(scores, float(temperature), iterations, tolerance)  # type: ignore[no-untyped-call]
    return projected


class _Sinkhorn(torch.autograd.Function):
    """The projection, with the implicit function theorem as its backward pass."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, temperature: float, iterations: int, tolerance: float) -> Tensor:
        projected = _project(scores.detach() / temperature, iterations, tolerance)
        ctx.save_for_backward(projected)
        ctx.temperature = temperature
        return projected

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, None, None, None]:
        (projected,) = ctx.saved_tensors
        return _adjoint(projected, upstream) / ctx.temperature, None, None, None


def _project(logits: Tensor, iterations: int, tolerance: float) -> Tensor:
    """exp(logits) with rows and columns scaled in turn to sum to 1, columns last."""
    for sweep in range(1, iterations + 1):
        logits = logits - logits.logsumexp(-1, keepdim=True)
        logits = logits - logits.logsumexp(-2, keepdim=True)
        if sweep % _BETWEEN == 0 and bool((logits.logsumexp(-1).abs() <= tolerance).all()):
            break
    return logits.exp()


def _adjoint(projected: Tensor, upstream: Tensor) -> Tensor:
    """∂L/∂logits from P = exp(logits + α1ᵀ + 1βᵀ) and G = ∂L/∂P, both (…, n, n).

    With the sums of rows r and columns c held, dP = P∘(dlogits + dα1ᵀ + 1dβᵀ) and so ∂L/∂logits = P∘(G − a1ᵀ − 1bᵀ)
    where [diag(r) P; Pᵀ diag(c)](a; b) = ((P∘G)1; (P∘G)ᵀ1). Elimination of a leaves the Laplacian
    Λ = diag(c) − Pᵀdiag(r)⁻¹P of the columns for b. It is written with its off-diagonal sums on the diagonal, so that
    nothing cancels where P is nearly a permutation. Its kernel is the constants, one per block of a P that decomposes:
    the gradient does not see them, and the lifts by 11ᵀ and by a ridge pick one solution.
    """
    # Small systems, solved in float64 whatever the scores are in.
    p, g = projected.double(), upstream.double()
    size = p.shape[-1]
    # At least 1/n² even before convergence: a row had an entry ≥ 1/n when its columns were divided by at most n.
    rows = p.sum(-1, keepdim=True)
    share = p / rows
    g = g - (share * g).sum(-1, keepdim=True)
    joint = p.mT @ share
    joint = joint - torch.diag_embed(joint.diagonal(dim1=-2, dim2=-1))
    laplacian = torch.diag_embed(joint.sum(-1)) - joint
    lifted = laplacian + 1 / size + _RIDGE * size * torch.eye(size, dtype=p.dtype, device=p.device)
    columns = (p * g).sum(-2).unsqueeze(-1)
    b = torch.cholesky_solve(columns, torch.linalg.cholesky(lifted))
    return (p * (g - b.mT + share @ b)).to(projected.dtype)


def permutation_of(matrix: Tensor) -> Tensor:
    """The permutations p that maximise Σ_i matrix[…, i, p[i]]: (…, n, n) → (…, n), by linear assignment."""
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise InputError(f"an assignment needs square matrices, found shape {tuple(matrix.shape)}")
    if not bool(torch.isfinite(matrix).all()):
        raise InputError("an assignment needs finite matrices, found entries that are NaN or infinite")
    blocks = matrix.detach().double().cpu().reshape(-1, *matrix.shape[-2:]).numpy()
    chosen = np.stack([linear_sum_assignment(block, maximize=True)[1] for block in blocks])
    return torch.from_numpy(chosen.astype(np.int64)).reshape(matrix.shape[:-1]).to(matrix.device)


def matrix_of(permutation: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The permutation matrices X with X[…, i, p[i]] = 1: (…, n) → (…, n, n); the default type unless told."""
    eye = torch.eye(permutation.shape[-1], dtype=dtype or torch.get_default_dtype(), device=permutation.device)
    return eye[permutation]
