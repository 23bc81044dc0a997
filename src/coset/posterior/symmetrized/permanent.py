"""Permanents of matrices given by logarithms: sums over all permutations, exact, differentiable, and drawn from.

perm(exp A) = Σ_σ Π_i exp A_{i,σ(i)}. Ryser's and Glynn's formulas cancel; the recursion of ``subsets`` adds only what
is positive. It needs no logarithms inside: the dual potentials of the best assignment scale rows and columns so that no
entry exceeds 1 and the best permutation has weight 1. What then underflows is nothing beside it, however many nats the
entries of A span.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.autograd.function import once_differentiable

from coset._checks import check_count
from coset.distribution.density import check_generator
from coset.errors import InputError
from coset.posterior.symmetrized import subsets

LARGEST = 24
"""The largest matrix: memory and time grow as 2ⁿ and 2.8ⁿ, 0.2 GB and seconds at 24."""

MEMORY = 2**26
"""About so many bytes are used at once for a batch; more only by a single matrix, from n = 22 on with its gradient."""

_HUGE = 1e15
"""Sums of a few entries of this size are still finite."""


def log_permanent(logs: Tensor) -> Tensor:
    """log perm(exp A) = log Σ_σ Π_i exp A_{i,σ(i)} for A (…, n, n), n ≤ 24; (…), in float64.

    Entries may be −∞. The gradient is ``permutation_marginals``. Where no permutation avoids −∞ the value is −∞ and the
    gradient zero. First derivatives only. A batch is taken piece by piece, within ``MEMORY``.
    """
    _check(logs)
    value: Tensor = _LogPermanent.apply(logs.double())  # type: ignore[no-untyped-call]
    return value


def permutation_marginals(logs: Tensor) -> Tensor:
    """P[σ(i) = j] under P(σ) ∝ Π_i exp A_{i,σ(i)}, for A (…, n, n): ∂ log perm/∂A, doubly stochastic, in float64.

    Zero where no permutation has a positive weight. Probabilities below 1e-100 may be given as zero.
    """
    _check(logs)
    return _each(_value_and_marginals, logs.detach().double(), keep=True)[1]


def sample_permutations(logs: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """n draws of σ with P(σ) ∝ Π_i exp A_{i,σ(i)}, exact, for A (…, m, m): σ(i) for every row i, (…, n, m).

    From the last row to the first: given the columns S that are left, row |S| takes j ∈ S in proportion to
    a_{|S|,j} f(S∖{j}).
    """
    _check(logs)
    check_count("n", n)
    check_generator(generator)
    size = logs.shape[-1]

    def drawn(part: Tensor) -> tuple[Tensor]:
        scale = scaled(part)
        if not bool(scale.possible.all()):
            raise InputError("logs has a matrix in which every permutation meets −∞; expected one to draw from")
        table = subsets.by_mask(subsets.subset_sums(scale.entries, keep=True), size)
        return (_draw(scale.entries, table, n, generator),)

    # The table by masks stands beside the blocks it is made of.
    return _each(drawn, logs.detach().double(), keep=True, draws=n)[0]


class Scaled(NamedTuple):
    """``entries`` exp(A − u1ᵀ − 1vᵀ) ≤ 1 (B, n, n), of permanent ≥ 1; ``log_factor`` Σu + Σv (B,).

    ``possible`` (B,): whether any permutation avoids −∞; where none does the entries are zero.
    """

    entries: Tensor
    log_factor: Tensor
    possible: Tensor


def scaled(logs: Tensor) -> Scaled:
    """Rows and columns scaled by the dual potentials u, v of the best assignment σ: u_i + v_j ≥ A_ij, equal on σ.

    v_j ≥ v_{σ(i)} + A_ij − A_{iσ(i)}: longest paths, which n rounds of relaxation find, for all matrices at once.
    """
    count, n = logs.shape[:2]
    finite = logs.isfinite()
    known = torch.where(finite, logs, 0.0)
    lowest, highest = known.amin((1, 2), keepdim=True), known.amax((1, 2), keepdim=True)
    # So low that an assignment with fewer of these always wins.
    barred = torch.where(finite, logs, lowest - (n + 1) * (highest - lowest + 1))
    found = [torch.as_tensor(linear_sum_assignment(one, maximize=True)[1]) for one in barred.cpu().numpy()]
    best = torch.cat(found).reshape(count, n).to(logs.device) if found else torch.zeros_like(barred[..., 0]).long()
    own = logs.gather(2, best[..., None]).squeeze(2)
    possible = own.isfinite().all(-1)
    safe = torch.where(possible[:, None, None], logs, 0.0)
    own = torch.where(possible[:, None], own, 0.0)
    gain = safe - own[..., None]
    v = own.new_zeros(count, n)
    for _ in range(n):
        v = torch.maximum(v, (v.gather(1, best)[..., None] + gain).amax(1))
    u = own - v.gather(1, best)
    entries = torch.exp(safe - u[..., None] - v[:, None, :]) * possible[:, None, None]
    return Scaled(entries, u.sum(-1) + v.sum(-1), possible)


class _LogPermanent(torch.autograd.Function):
    """The gradient is found together with the value, so that no table of 2ⁿ numbers waits for the backward pass."""

    @staticmethod
    def forward(ctx: Any, logs: Tensor) -> Tensor:
        if not ctx.needs_input_grad[0]:
            return _each(_value, logs, keep=False)[0]
        value, marginals = _each(_value_and_marginals, logs, keep=True)
        ctx.save_for_backward(marginals)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> Tensor:
        (marginals,) = ctx.saved_tensors
        gradient: Tensor = outer[..., None, None] * marginals
        return gradient


def _value(logs: Tensor) -> tuple[Tensor]:
    scale = scaled(logs)
    n = logs.shape[-1]
    permanent = subsets.subset_sums(scale.entries, keep=False)[subsets.halves(n)].reshape(-1)
    return (permanent.log() + scale.log_factor,)


def _value_and_marginals(logs: Tensor) -> tuple[Tensor, Tensor]:
    scale = scaled(logs)
    permanent, gradient = subsets.permanent_and_gradient(scale.entries)
    whole = torch.where(scale.possible, permanent, 1.0)
    return permanent.log() + scale.log_factor, scale.entries * gradient / whole[:, None, None]


def _draw(entries: Tensor, table: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """(B, n, m) from f(S) by masks (B, 2ᵐ)."""
    count, size = entries.shape[:2]
    left = torch.full((count, n), (1 << size) - 1, device=entries.device)
    bits = 1 << torch.arange(size, device=entries.device)
    chosen = torch.empty(count, n, size, dtype=torch.long, device=entries.device)
    for row in range(size - 1, -1, -1):
        there = (left[..., None] & bits) != 0
        rest = table.gather(1, (left[..., None] & ~bits).flatten(1)).reshape(there.shape)
        weight = there * entries[:, None, row] * rest
        # The first of exponential clocks of these rates to ring.
        clock = torch.empty(there.shape, dtype=torch.float64, device=generator.device).exponential_(generator=generator)
        pick = (weight / weight.amax(-1, keepdim=True) / clock.to(entries.device)).argmax(-1)
        chosen[..., row] = pick
        left = left ^ bits[pick]
    return chosen


def _each(
    function: Callable[[Tensor], tuple[Tensor, ...]], logs: Tensor, *, keep: bool, draws: int = 0
) -> tuple[Tensor, ...]:
    """``function`` of (B, n, n) on a batch (…, n, n), so many at a time as the memory allows; leading axes restored."""
    lead, n = logs.shape[:-2], logs.shape[-1]
    flat = logs.reshape(-1, n, n)
    needed = subsets.bytes_needed(n, keep=keep) + (8 * (1 << n) + 40 * draws * n if draws else 0)
    # An empty batch is one piece, so that results have their shapes.
    parts = [function(piece) for piece in torch.split(flat, max(1, MEMORY // needed))]
    joined = (torch.cat(outputs) for outputs in zip(*parts, strict=True))
    return tuple(output.reshape((*lead, *output.shape[1:])) for output in joined)


def _check(logs: object) -> None:
    if not isinstance(logs, Tensor) or not logs.is_floating_point():
        found = logs.dtype if isinstance(logs, Tensor) else type(logs).__name__
        raise InputError(f"logs is of type {found}; expected a tensor of real numbers")
    if logs.ndim < 2 or logs.shape[-1] != logs.shape[-2] or not logs.shape[-1]:
        raise InputError(f"logs has shape {tuple(logs.shape)}; expected square matrices (…, n, n), n ≥ 1")
    n = logs.shape[-1]
    if n > LARGEST:
        size = subsets.bytes_needed(n, keep=True) / 2**30
        raise InputError(
            f"logs has {n} rows, whose permanent takes {subsets.products(n):.0e} products and, with its gradient, "
            f"{size:.3g} GB; expected {LARGEST} or fewer"
        )
    values = logs.detach().double()
    if not bool(((values.abs() < _HUGE) | (values == -math.inf)).all()):
        raise InputError(f"logs has entries that are NaN, +∞ or larger than {_HUGE:g}; expected smaller numbers or −∞")
