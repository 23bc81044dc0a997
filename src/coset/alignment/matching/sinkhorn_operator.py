"""The Sinkhorn operator: from scores to doubly stochastic matrices, differentiable at the fixed point."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from coset._checks import check_count, check_positive
from coset.alignment.assignment import assign
from coset.errors import InputError

# By how much, per unit, the Laplacian of the columns is lifted from its null spaces: more than what rounding may
# take from its eigenvalues, less than what gradients are wanted to.
_RIDGE = 1e-14
# Sweeps before each look at the row sums and each step of Newton's method; the parts of it that are tried, and how far
# it may reach on the scale of the logits.
_BETWEEN = 5
_PARTS = (0.0, 1.0, 0.25, 0.0625)
_REACH = 20.0


def sinkhorn(scores: Tensor, temperature: float = 1.0, iterations: int = 200, tolerance: float = 1e-6) -> Tensor:
    """The doubly stochastic matrix P = diag(u)·exp(scores/temperature)·diag(v), by rows and columns in turn.

    ``scores`` (…, n, n); returns the same shape: the point of the Birkhoff polytope that maximises
    ⟨P, scores⟩ + temperature·entropy(P) (Sinkhorn 1964; Cuturi 2013), which tends to the best assignment as the
    temperature falls. Sweeps on logarithms, helped by Newton's method, run until every row sums to 1 within
    ``tolerance`` (columns do after each sweep), at most ``iterations`` of them. The gradient is that of the fixed point
    itself (Eisenberger et al. 2022; Peña et al. 2023): no sweep is recorded, the memory is that of a few matrices.
    Where the sweeps ended before, it is that of a fixed point with the sums reached.
    """
    _check_scores(scores)
    check_positive("temperature", temperature)
    if tolerance != math.inf:
        check_positive("tolerance", tolerance, zero=True)
    check_count("iterations", iterations)
    projected: Tensor = _Sinkhorn.apply(scores, float(temperature), iterations, tolerance)  # type: ignore[no-untyped-call]
    return projected


def _check_scores(scores: object) -> None:
    """Raise unless ``scores`` are square matrices of finite floating numbers."""
    if not isinstance(scores, Tensor):
        raise InputError(f"scores is a {type(scores).__name__}; expected a tensor of square matrices")
    if scores.ndim < 2 or scores.shape[-1] != scores.shape[-2] or not scores.is_floating_point():
        raise InputError(
            f"scores have shape {tuple(scores.shape)} and type {scores.dtype}; expected square floating-point matrices"
        )
    if not bool(torch.isfinite(scores).all()):
        raise InputError("scores have entries that are NaN or infinite; expected finite numbers")


class _Sinkhorn(torch.autograd.Function):
    """The projection, with the implicit function theorem as its backward pass."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, temperature: float, iterations: int, tolerance: float) -> Tensor:
        # Small systems, solved in float64 whatever the scores are in.
        projected = _project(scores.double() / temperature, iterations, tolerance).to(scores.dtype)
        ctx.save_for_backward(projected)
        ctx.temperature = temperature
        return projected

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, None, None, None]:
        (projected,) = ctx.saved_tensors
        return _adjoint(projected, upstream) / ctx.temperature, None, None, None


def _project(logits: Tensor, iterations: int, tolerance: float) -> Tensor:
    """exp(logits) with rows and columns scaled in turn to sum to 1, columns last; (…, n, n), in float64.

    Sweeps converge slowly at low temperatures, so every few of them are followed by a step of Newton's method.
    """
    for sweep in range(1, iterations + 1):
        logits = logits - logits.logsumexp(-1, keepdim=True)
        logits = logits - logits.logsumexp(-2, keepdim=True)
        if sweep % _BETWEEN == 0 and sweep < iterations:
            if bool((logits.logsumexp(-1).abs() <= tolerance).all()):
                break
            logits = logits + _newton(logits).unsqueeze(-2)
    return logits.exp()


def _newton(logits: Tensor) -> Tensor:
    """A shift b of the columns that lowers F(b) = Σ_i logsumexp_j(logits_ij + b_j) − Σ_j b_j, or 0 where none does.

    F is convex and least where exp(logits + b), its rows divided by their sums, has columns that sum to 1; a sweep
    lowers it, too. Its gradient is these sums minus 1, its Hessian the Laplacian of ``_solve``. Newton's step is tried
    whole and in parts, for each matrix on its own; (…, n, n) → (…, n).
    """
    share = logits.softmax(-1)
    step = _solve(share, share, 1 - share.sum(-2))
    step = step * (_REACH / step.abs().amax(-1, keepdim=True).clamp_min(_REACH))
    tried = torch.stack([part * step for part in _PARTS])
    values = (logits + tried.unsqueeze(-2)).logsumexp(-1).sum(-1) - tried.sum(-1)
    best = values.argmin(0)
    return torch.gather(tried, 0, best[None, ..., None].expand(1, *step.shape))[0]


def _adjoint(projected: Tensor, upstream: Tensor) -> Tensor:
    """∂L/∂logits from P = exp(logits + α1ᵀ + 1βᵀ) and G = ∂L/∂P, both (…, n, n).

    With the sums of rows r and columns c held, dP = P∘(dlogits + dα1ᵀ + 1dβᵀ) and so ∂L/∂logits = P∘(G − a1ᵀ − 1bᵀ)
    where [diag(r) P; Pᵀ diag(c)](a; b) = ((P∘G)1; (P∘G)ᵀ1). Elimination of a leaves the Laplacian
    Λ = diag(c) − Pᵀdiag(r)⁻¹P of the columns for b; the gradient does not see the constants that Λ leaves free.
    """
    p, g = projected.double(), upstream.double()
    # At least 1/n² even before convergence: a row had an entry ≥ 1/n when its columns were divided by at most n.
    share = p / p.sum(-1, keepdim=True)
    g = g - (share * g).sum(-1, keepdim=True)
    b = _solve(p, share, (p * g).sum(-2)).unsqueeze(-1)
    return (p * (g - b.mT + share @ b)).to(upstream.dtype)


def _solve(p: Tensor, share: Tensor, right: Tensor) -> Tensor:
    """b with Λb = ``right``, Λ = diag(c) − pᵀ·share the Laplacian of the columns; (…, n, n) twice, (…, n) → (…, n).

    Λ is written with its off-diagonal sums on the diagonal, so that nothing cancels where p is nearly a permutation.
    Its kernel is the constants, one per block of a p that decomposes; lifted by 11ᵀ and by a ridge it has an inverse.
    """
    size = p.shape[-1]
    joint = p.mT @ share
    joint = joint - torch.diag_embed(joint.diagonal(dim1=-2, dim2=-1))
    ridge = _RIDGE * size * torch.eye(size, dtype=p.dtype, device=p.device)
    lifted = torch.diag_embed(joint.sum(-1)) - joint + 1 / size + ridge
    return torch.cholesky_solve(right.unsqueeze(-1), torch.linalg.cholesky(lifted)).squeeze(-1)


def permutation_of(matrix: Tensor) -> Tensor:
    """The permutations p that maximise Σ_i matrix[…, i, p[i]]: (…, n, n) → (…, n), by linear assignment."""
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise InputError(f"an assignment needs square matrices, found shape {tuple(matrix.shape)}")
    if not bool(torch.isfinite(matrix).all()):
        raise InputError("an assignment needs finite matrices, found entries that are NaN or infinite")
    blocks = matrix.detach().double().cpu().reshape(-1, *matrix.shape[-2:]).numpy()
    chosen = torch.from_numpy(np.stack([assign(block) for block in blocks]))
    return chosen.reshape(matrix.shape[:-1]).to(matrix.device)


def matrix_of(permutation: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The permutation matrices X with X[…, i, p[i]] = 1: (…, n) → (…, n, n); the default type unless told."""
    eye = torch.eye(permutation.shape[-1], dtype=dtype or torch.get_default_dtype(), device=permutation.device)
    return eye[permutation]
