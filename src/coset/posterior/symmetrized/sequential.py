"""Permutations drawn row by row along a matrix whose rows and columns sum to one, with their probabilities."""

import math

import torch
from torch import Tensor

ROUNDS = 20
"""Of Sinkhorn's scaling: any number gives a proposal whose probabilities are known, more a better one."""


def balanced(logs: Tensor, rounds: int = ROUNDS) -> Tensor:
    """Sinkhorn's scaling in log space, (…, n, n): in the limit the exponentials of all rows and columns sum to one."""
    for _ in range(rounds):
        logs = logs - torch.logsumexp(logs, -1, keepdim=True)
        logs = logs - torch.logsumexp(logs, -2, keepdim=True)
    return logs


def surest_first(guide: Tensor) -> Tensor:
    """An order of the rows, (…, n): those whose largest entry is farthest above the next first.

    It depends on a row by what the row holds, not by where it stands: when units of ω change places, the order does.
    """
    first, second = guide.topk(2, -1).values.unbind(-1)
    return (first - second).argsort(dim=-1, descending=True, stable=True)


def draw(guide: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """``count`` permutations p (…, count, n) and their log-probabilities (…, count), guide (…, count or 1, n, n).

    Rows in the order of ``surest_first`` take a column each, of those left in proportion to e^guide.
    """
    guide = guide.detach()
    n = guide.shape[-1]
    lead = (*guide.shape[:-3], count)
    guide = guide.expand(*lead, n, n)
    rows = surest_first(guide)
    noise = _gumbel(lead, n, generator).to(guide)
    taken = torch.zeros(*lead, n, dtype=torch.bool, device=guide.device)
    order = torch.zeros(*lead, n, dtype=torch.long, device=guide.device)
    total = guide.new_zeros(lead)
    for step in range(n):
        row = rows[..., step, None]
        logs = guide.gather(-2, row[..., None].expand(*lead, 1, n))[..., 0, :].masked_fill(taken, -math.inf)
        column = (logs + noise[..., step, :]).argmax(-1, keepdim=True)
        total = total + (logs.gather(-1, column) - torch.logsumexp(logs, -1, keepdim=True))[..., 0]
        taken = taken.scatter(-1, column, True)
        order = order.scatter(-1, row, column)
    return order, total


def log_prob_of_identity(guide: Tensor) -> Tensor:
    """The log-probability (…) with which ``draw`` gives the identity, guide (…, n, n)."""
    guide = guide.detach()
    rows = surest_first(guide)
    n = guide.shape[-1]
    sorted_rows = guide.gather(-2, rows[..., None].expand_as(guide))
    inside = sorted_rows.gather(-1, rows[..., None, :].expand_as(guide))
    left = torch.ones(n, n, dtype=torch.bool, device=guide.device).triu()
    remaining = inside.masked_fill(~left, -math.inf)
    return (inside.diagonal(dim1=-2, dim2=-1) - torch.logsumexp(remaining, -1)).sum(-1)


def _gumbel(lead: tuple[int, ...], n: int, generator: torch.Generator) -> Tensor:
    uniform = torch.rand(*lead, n, n, generator=generator, device=generator.device, dtype=torch.float64)
    return -torch.log(-torch.log(uniform.clamp_min(1e-300)))
