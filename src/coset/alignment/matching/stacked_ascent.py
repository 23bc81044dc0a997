"""Coordinate ascent and its relaxation in many networks at once; each goes its own way and leaves when it is done."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from coset.alignment.matching.ascent import ROUNDING, carrying, followers
from coset.alignment.matching.class_places import ClassLayout
from coset.alignment.matching.relaxation import ITERATIONS, TOLERANCE
from coset.alignment.matching.scores import Scores
from coset.alignment.matching.stacked_scores import StackedScoring, pairs, picked, repeated
from coset.alignment.matching.step import best_of_move
from coset.symmetry import Element
from coset.symmetry.orbits import unit_orbits


class Orders:
    """The orders in which sweeps take the moves: those that one generator gives, the k-th kept under its number.

    A network that ascends alone takes them one after the other; here each has a place of its own in the row.
    """

    def __init__(self, moves: int, seed: int) -> None:
        self._moves = moves
        self._generator = torch.Generator().manual_seed(seed)
        self._known: list[Tensor] = []

    def at(self, numbers: Tensor) -> Tensor:
        """The orders of these numbers, (m, moves)."""
        while len(self._known) <= int(numbers.max()):
            self._known.append(torch.randperm(self._moves, generator=self._generator))
        return torch.stack(self._known)[numbers]


def ascend_stack(scoring: StackedScoring, start: Element, orders: Orders, sweeps: Tensor) -> Element:
    """The end of every network's ascent from ``start``, step for step as ``ascend`` goes.

    ``sweeps`` (N,): how many orders each network has used up; counted on in place.
    """
    moves = scoring.layout.moves
    after = followers(scoring.structure, moves)
    follows = torch.tensor([[m in after[n] for m in range(len(moves))] for n in range(len(moves))])
    g = Element(
        {name: p.clone() for name, p in start.permutations.items()},
        {},
        {key: s.clone() for key, s in start.signs.items()},
    )
    waiting = torch.ones(len(sweeps), len(moves), dtype=torch.bool)
    while bool((going := waiting.any(1)).any()):
        here = going.nonzero().flatten()
        order = orders.at(sweeps[here])
        sweeps[here] += 1
        for column in order.T:
            for number in column.unique().tolist():
                members = here[(column == number) & waiting[here, number]]
                if len(members) == 0:
                    continue
                waiting[members, number] = False
                helped = _step(scoring, number, g, members)
                waiting[helped] |= follows[number]
    return g


def _step(scoring: StackedScoring, number: int, g: Element, members: Tensor) -> Tensor:
    """Take a move in some networks, in place; returns those in which it helped by more than rounding."""
    layout, move = scoring.layout, scoring.layout.moves[number]
    chosen = None if len(members) == _count(g) else members
    at = taken(g, members)
    tree = layout.tree(move.root)
    scores = {name: scoring.scores(name, at, chosen) for name in tree}
    candidate = best_of_move(layout, move, at, scores)
    before, size = _picked_scores(layout, scores, at)
    after, _ = _picked_scores(layout, scores, candidate)
    noise = ROUNDING * scoring.precision * size
    good = after - before > noise
    if move.root in layout.quadratic and bool(good.any()):
        some = good.nonzero().flatten()
        names = carrying(layout, scoring.terms, tree)
        now, then = (scoring.objective(taken(h, some), members[some], names) for h in (at, candidate))
        good[some] = then - now > noise[some]
    put(g, members[good], taken(candidate, good.nonzero().flatten()))
    return members[good]


def relax_stack(scoring: StackedScoring, count: int) -> Element:
    """The vertex at which each network's relaxation ends, as ``relax`` finds it."""
    layout = scoring.layout
    vertex = repeated(layout.sym.identity(), count)
    value = scoring.objective(None)
    alive = torch.arange(count)
    means = {name: scoring.scores(name, None) for name in _moving(layout)}
    weights = {name: _barycentre(layout, name, parts) for name, parts in means.items()}
    for _ in range(ITERATIONS):
        everybody = len(alive) == count
        here, slope = taken(vertex, alive), torch.zeros(len(alive), dtype=torch.float64)
        for move in layout.moves:
            tree = layout.tree(move.root)
            scores = {name: means[name] for name in tree}
            here = best_of_move(layout, move, here, scores)
            slope += _picked_scores(layout, scores, here)[0]
            for name in tree:
                for parity, matrix in means[name].items():
                    slope -= (matrix.cpu() * weights[name][parity]).sum((1, 2))
        put(vertex, alive, here)
        reached = scoring.objective(here, None if everybody else alive)
        curvature = reached - value - slope
        whole = (curvature >= 0) | (-slope <= 2 * curvature)
        length = torch.where(whole, 1.0, -slope / torch.where(whole, -1.0, 2 * curvature))
        going = (slope > TOLERANCE * value.abs()).nonzero().flatten()
        if len(going) == 0:
            break
        if len(going) < len(alive):
            alive, value, slope, curvature, length = (part[going] for part in (alive, value, slope, curvature, length))
            here = taken(here, going)
            means, weights = (
                {name: {parity: m[going] for parity, m in parts.items()} for name, parts in table.items()}
                for table in (means, weights)
            )
        value = value + length * slope + length * length * curvature
        chosen = None if len(alive) == count else alive
        for name in means:
            _mix(means[name], scoring.scores(name, here, chosen), length)
            for parity, average in weights[name].items():
                _toward(average, pairs(layout, here, name, parity), length)
    return vertex


def taken(g: Element, members: Tensor) -> Element:
    """Some of stacked elements, in this order."""
    return Element(
        {name: p.index_select(0, members) for name, p in g.permutations.items()},
        {},
        {key: s.index_select(0, members) for key, s in g.signs.items()},
    )


def put(g: Element, members: Tensor, new: Element) -> None:
    """Write elements in the place of some of those in ``g``, whose tensors are nobody else's."""
    for name, p in g.permutations.items():
        p[members] = new.permutations[name]
    for key, s in g.signs.items():
        s[members] = new.signs[key]


def _count(g: Element) -> int:
    return len(next(iter((*g.permutations.values(), *g.signs.values()))))


def _moving(layout: ClassLayout) -> Sequence[str]:
    return [name for move in layout.moves for name in layout.tree(move.root)]


def _picked_scores(layout: ClassLayout, scores: Mapping[str, Scores], g: Element) -> tuple[Tensor, Tensor]:
    """``step.picked_scores`` of m networks, (m,) each, in float64."""
    total = size = torch.zeros((), dtype=torch.float64)
    for name, parts in scores.items():
        for part in picked(layout, parts, g, name):
            total, size = total + part.sum(1), size + part.abs().sum(1)
    return total, size


def _barycentre(layout: ClassLayout, name: str, parts: Scores) -> Scores:
    """How often old unit j comes to new unit i, with its sign, on average over the group; in float64, (m, N, N)."""
    labels = unit_orbits(layout.sym, name)
    same = (labels[:, None] == labels[None, :]).double() / torch.bincount(labels).double()[labels][:, None]
    return {
        parity: (torch.zeros_like(same) if parity else same).repeat(len(matrix), 1, 1)
        for parity, matrix in parts.items()
    }


def _mix(scores: Scores, new: Scores, length: Tensor) -> None:
    """scores ← (1 − γ)·scores + γ·new, with a γ for each network."""
    for parity, matrix in new.items():
        scores[parity] = torch.lerp(scores[parity], matrix, length.to(matrix)[:, None, None])


def _toward(average: Tensor, vertex: tuple[Tensor, Tensor | None], length: Tensor) -> None:
    """average ← (1 − γ)·average + γ·(the pairs of a vertex, with their signs), in place."""
    at, sign = vertex
    gain = length[:, None].expand(at.shape) if sign is None else length[:, None] * sign
    average.mul_((1 - length)[:, None, None]).scatter_add_(2, at[..., None], gain[..., None])
