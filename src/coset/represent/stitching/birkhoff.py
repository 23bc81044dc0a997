"""The Birkhoff polytope: doubly stochastic matrices, whose vertices are the permutation matrices."""

import torch
from torch import Tensor

from coset._checks import check_count
from coset.alignment.assignment import assign
from coset.errors import InputError

SWEEPS = 16


def to_birkhoff(matrix: Tensor, sweeps: int = SWEEPS) -> Tensor:
    """Bring a square matrix (n, n) to the Birkhoff polytope: ReLU, then Sinkhorn sweeps.

    A sweep divides each column by its sum, then each row (Godfrey et al. 2022, D.2.1, with 16 of them): rows sum to
    one up to rounding, columns in the limit. Rows and columns without a positive entry become uniform. What is in half
    precision is computed in single precision and rounded at the end.
    """
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) == 0:
        raise InputError(f"matrix has shape {tuple(matrix.shape)}; expected a square one")
    check_count("sweeps", sweeps)
    wide = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
    # Far below rounding, but above 0: it matters only where there is nothing else. Of float16 the root is 0.008.
    positive: Tensor = wide.relu() + torch.finfo(wide.dtype).tiny ** 0.5
    for _ in range(sweeps):
        positive = positive / positive.sum(0, keepdim=True)
        positive = positive / positive.sum(1, keepdim=True)
    return positive.to(matrix.dtype)


def nearest_permutation(matrix: Tensor) -> Tensor:
    """The permutation matrix Q (n, n) with the largest tr(matrix · Qᵀ), by exact assignment."""
    if not bool(matrix.isfinite().all()):
        raise InputError("the matrix to be assigned has entries that are NaN or infinite; expected none")
    order = torch.from_numpy(assign(matrix.detach().cpu().double().numpy())).to(matrix.device)
    return permutation_matrix(order, matrix.dtype)


def permutation_matrix(order: Tensor, dtype: torch.dtype) -> Tensor:
    """The matrix P (n, n) with (P x)_i = x[order_i]."""
    return torch.eye(len(order), dtype=dtype, device=order.device)[order]
