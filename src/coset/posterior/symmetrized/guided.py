"""Permutations drawn class by class, each guided by how well the units of ω fit those of q, given the classes before.

A class is compared by the weights that only it and the classes before it move: what is drawn does not depend on which
element of the group moved ω, so that the weights give bounds on both sides.
"""

import math

import torch
from torch import Tensor

from coset.posterior.symmetrized.orbit import Drawn, Moves, Orbit
from coset.posterior.symmetrized.permanent import log_permanent
from coset.posterior.symmetrized.units import compared, normal_log_prob, unit_log_probs

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


def draw_along(guide: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
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


def log_prob_along(guide: Tensor) -> Tensor:
    """The log-probability (…) with which ``draw_along`` gives the identity, guide (…, n, n)."""
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


def class_order(orbit: Orbit, names: tuple[str, ...]) -> tuple[str, ...]:
    """An order of simple classes in which each knows as much as possible: next the one with most weights to go by."""
    chain: list[str] = []
    left = list(names)
    while left:
        known = frozenset(chain)
        best = max(left, key=lambda name: orbit.simple[name].columns(known).shape[1])
        chain.append(best)
        left.remove(best)
    return tuple(chain)


def draw_chain(
    drawn: Drawn, chain: tuple[str, ...], K: int, generator: torch.Generator, without: str = ""
) -> tuple[dict[str, Tensor], Tensor]:
    """K elements (…, K, *shape), and log r (…, K) of the classes in the chain; the others but one are uniform."""
    orbit = drawn.orbit
    rest = [name for name in orbit.classes if name not in chain and name != without]
    moves: dict[str, Tensor] = {}
    log_r = torch.zeros(*drawn.lead, K, dtype=torch.float64, device=generator.device)
    for name in chain:
        moves[name], log_prob = draw_along(_guide(drawn, name, moves), K, generator)
        log_r = log_r.to(log_prob.device) + log_prob
    return (moves | orbit.uniform((*drawn.lead, K), generator, rest) if rest else moves), log_r


def log_prob_of_identity(drawn: Drawn, chain: tuple[str, ...]) -> Tensor:
    """log r (…) of the identity."""
    order = drawn.orbit.identity()
    total = torch.zeros((), dtype=torch.float64)
    for number, name in enumerate(chain):
        before = {other: order[other][None] for other in chain[:number]}
        guide = _guide(drawn, name, before)[..., 0, :, :]
        total = total.to(guide.device) + log_prob_along(guide)
    return total.expand(drawn.lead)


def permanent_ratio(drawn: Drawn, name: str, moves: Moves) -> Tensor:
    """log of the mean of e^Δ over all permutations of a simple class, (…, K), given those of all others."""
    units = drawn.orbit.simple[name]
    own = _given(drawn, name, units.owned, {}).diagonal(dim1=-2, dim2=-1).sum(-1)
    ratio = log_permanent(_given(drawn, name, units.owned, moves)) - math.lgamma(units.units + 1) - own
    elsewhere = drawn.orbit.apart_from(units)
    if not moves or not len(elsewhere):
        return ratio
    places = drawn.orbit.moved_places(moves, elsewhere).to(drawn.x.device)
    here = elsewhere.to(drawn.x.device)
    moved = normal_log_prob(drawn.x[..., None, here], drawn.mean[places], drawn.std[places])
    return ratio + moved - normal_log_prob(drawn.x[..., here], drawn.mean[here], drawn.std[here])[..., None]


def _guide(drawn: Drawn, name: str, moves: Moves) -> Tensor:
    """The scaled matrix (…, K or 1, n, n) by which a class is drawn when the classes in ``moves`` are known."""
    owned = drawn.orbit.simple[name].columns(frozenset(moves))
    return balanced(_given(drawn, name, owned, moves).detach())


def _given(drawn: Drawn, name: str, owned: Tensor, moves: Moves) -> Tensor:
    """A (…, K or 1, n, n) of a class by its weights ``owned`` (n, k), with q moved by ``moves`` of other classes."""
    if owned.shape == drawn.orbit.alone[name].shape:
        # None of them is moved by another class.
        return drawn.units(name)[..., None, :, :]
    here = owned.to(drawn.x.device)
    if not moves:
        return unit_log_probs(here, drawn.x, drawn.mean, drawn.std)[..., None, :, :]
    places = drawn.orbit.moved_places(moves, owned).to(drawn.x.device)
    return compared(drawn.x[..., None, here], drawn.mean[places], drawn.std[places])
