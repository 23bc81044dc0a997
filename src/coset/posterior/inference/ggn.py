"""The generalised Gauss-Newton matrix of a network's log-likelihood (Martens 2020), by rows in bounded memory."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.func import vjp, vmap

from coset.errors import InputError
from coset.posterior.likelihoods import Bernoulli, Categorical, GaussianNoise, LearnedNoise, Likelihood
from coset.posterior.problem import Problem

ROW_BYTES = 64 * 2**20
"""Rows of one chunk take about so much memory; those of one data point are never split."""


def _categorical_root(likelihood: Categorical, outputs: Tensor) -> Tensor:
    """Λ = diag p − ppᵀ = R Rᵀ with R = (I − p1ᵀ) diag √p."""
    p = outputs.softmax(-1)
    identity = torch.eye(outputs.shape[-1], dtype=outputs.dtype, device=outputs.device)
    return (identity - p.unsqueeze(-1)) * p.sqrt().unsqueeze(-2)


def _bernoulli_root(likelihood: Bernoulli, outputs: Tensor) -> Tensor:
    """Λ = p(1 − p)."""
    return (outputs.sigmoid() * (-outputs).sigmoid()).sqrt().unsqueeze(-1)


def _gaussian_root(likelihood: GaussianNoise, outputs: Tensor) -> Tensor:
    """Λ = I/σ²."""
    return torch.full_like(outputs, 1 / likelihood.std).diag_embed()


def _learned_noise_root(likelihood: LearnedNoise, outputs: Tensor) -> Tensor:
    """Λ = diag(1/σ², 2) in (m, ℓ = log σ): the expected one, for the observed need not be positive."""
    mean, log_std = outputs.chunk(2, -1)
    return torch.cat([(-log_std).exp(), torch.full_like(mean, math.sqrt(2))], -1).diag_embed()


ROOTS: dict[type, Callable[..., Tensor]] = {
    Categorical: _categorical_root,
    Bernoulli: _bernoulli_root,
    GaussianNoise: _gaussian_root,
    LearnedNoise: _learned_noise_root,
}
"""A likelihood → R (n, O, O) with R Rᵀ = Λ, the Fisher information of its outputs (n, O)."""


def output_root(likelihood: Likelihood, outputs: Tensor) -> Tensor:
    """R (n, O, O) with R Rᵀ = Λ = E_y[−∂² log p(y | outputs)], for each of the outputs (n, O)."""
    if type(likelihood) not in ROOTS:
        known = ", ".join(kind.__name__ for kind in ROOTS)
        raise InputError(f"the curvature of a {type(likelihood).__name__} is not known; expected one of {known}")
    return ROOTS[type(likelihood)](likelihood, outputs)


def ggn_rows(problem: Problem, flat: Tensor, chunk_bytes: int = ROW_BYTES) -> Iterator[tuple[int, Tensor]]:
    """Rows RᵀJ (n·O, D) of chunks of n data points at ``flat`` (D,); GGN = Σ JᵀΛJ is the sum of their outer squares."""
    flat = flat.detach()
    with torch.no_grad():
        probe = problem.outputs(flat, problem.x[:1])
    per_point = probe.shape[-1] * flat.numel() * flat.element_size()
    size = max(1, chunk_bytes // per_point)

    def pulled(x: Tensor, root: Tensor) -> Tensor:
        pull = vjp(lambda weights: problem.outputs(weights, x.unsqueeze(0)).squeeze(0), flat)[1]
        rows: Tensor = vmap(lambda column: pull(column)[0])(root.mT)
        return rows

    for x in torch.split(problem.x, size):
        with torch.no_grad():
            roots = output_root(problem.likelihood, problem.outputs(flat, x))
            try:
                rows = vmap(pulled)(x, roots).reshape(-1, flat.numel())
            except (RuntimeError, ValueError) as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                raise InputError(
                    f"model: its derivatives cannot be taken for many examples at once (torch.func.vmap: {reason})"
                ) from error
        yield len(x), rows


def dense_ggn(problem: Problem, flat: Tensor, advance: Callable[[int], None], chunk_bytes: int = ROW_BYTES) -> Tensor:
    """GGN (D, D), summed in float64; ``advance`` gets the number of data points of each chunk."""
    total = torch.zeros(flat.numel(), flat.numel(), dtype=torch.float64, device=flat.device)
    for count, rows in ggn_rows(problem, flat, chunk_bytes):
        rows = rows.double()
        total.addmm_(rows.mT, rows)
        advance(count)
    return total


def diagonal_ggn(
    problem: Problem, flat: Tensor, advance: Callable[[int], None], chunk_bytes: int = ROW_BYTES
) -> Tensor:
    """The diagonal of the GGN (D,), summed in float64; ``advance`` gets the number of data points of each chunk."""
    total = torch.zeros(flat.numel(), dtype=torch.float64, device=flat.device)
    for count, rows in ggn_rows(problem, flat, chunk_bytes):
        total += rows.square_().sum(0, dtype=torch.float64)
        advance(count)
    return total
