"""One exact step: the best assignment of a class, or of a tree of blocks within blocks, with its signs."""

import math
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from coset.alignment.assignment import assign
from coset.alignment.matching.class_places import ClassLayout, ClassMove, ClassPlace
from coset.alignment.matching.scores import Scores, Scoring
from coset.alignment.nested_assignment import Indices, Nest, Solver, nested_assignment
from coset.symmetry import Element, Symmetry
from coset.symmetry.group import full_map
from coset.symmetry.stacks import count_of
from coset.symmetry.structure import UnitClass


def move_scores(scoring: Scoring, move: ClassMove, g: Element | None) -> dict[str, Scores]:
    """The scores of every class of a move's tree at element ``g``, or on average over the group."""
    layout = scoring.layout
    return {name: scoring.scores(name, g, counted_places(layout, move, name)) for name in layout.tree(move.root)}


def counted_places(layout: ClassLayout, move: ClassMove, name: str) -> tuple[ClassPlace, ...]:
    """The places of a class that count for it: entries shared with another class of the tree count once.

    They count where something is assigned; of two classes at the same entries only one is, or is in blocks that are.
    """
    tree = layout.tree(move.root)
    rank = {other: (-len(move.active.intersection(layout.chains[other])), index) for index, other in enumerate(tree)}
    return tuple(
        place
        for place in layout.places[name]
        if all(rank[name] < rank[m.name] for m in place.beside if m.name in rank and m.name != name)
    )


def signs_at(sym: Symmetry, g: Element, key: str, owner: str) -> Tensor:
    """The signs of a family at every unit of a class that it belongs to or stands around, (units of the class,)."""
    units, own = math.prod(sym.shape(owner)), g.signs[key].reshape(-1)
    return own.repeat_interleave(units // len(own))


def picked_scores(
    sym: Symmetry, scores: Mapping[str, Mapping[frozenset[str], Tensor]], g: Element
) -> tuple[float, float]:
    """Σ and Σ|·| over classes and units of the scores of the pairs that ``g`` makes, signs included.

    The second says how much of the first may be rounding.
    """
    total = size = 0.0
    for name, parts in scores.items():
        at = full_map(sym, g, name)
        for parity, matrix in parts.items():
            picked = matrix[torch.arange(len(at)), at.to(matrix.device)].double().cpu()
            for key in parity:
                picked = picked * signs_at(sym, g, key, name).cpu()[at]
            total += float(picked.sum())
            size += float(picked.abs().sum())
    return total, size


Parts = Mapping[str, Tensor]


def best_of_move(
    layout: ClassLayout, move: ClassMove, g: Element, scores: Mapping[str, Scores], solver: Solver = assign
) -> Element:
    """The element that is best for a move, everything else as in ``g``, of m networks at once.

    ``g`` is stacked (m elements as one, see ``symmetry.stacks``), and ``scores`` are (m, N, N).
    """
    permutations, signs = _settled(layout, move, (g.permutations, g.signs), scores, count_of(g) or 1, solver)
    return Element({**g.permutations, **permutations}, g.scales, {**g.signs, **signs})


def _settled(
    layout: ClassLayout,
    move: ClassMove,
    before: tuple[Parts, Parts],
    scores: Mapping[str, Scores],
    count: int,
    solver: Solver,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The permutations and signs that a move finds, given those of its tree before, (m, *shape)."""
    root = _nest(layout, move, before, scores, move.root)
    found = nested_assignment(root, count, solver)
    permutations, signs = dict[str, Tensor](), dict[str, Tensor]()
    for nest in _nests(root):
        if nest.order is None:
            old = before[0][nest.name]
            permutations[nest.name] = torch.from_numpy(found.order(nest)).reshape(old.shape).to(old.device)
    for key, values in found.signs.items():
        new, kept = torch.from_numpy(values), before[1][key]
        new = new.reshape(kept.shape).to(kept)
        # Where nothing tells, the sign stays.
        signs[key] = new if values.all() else torch.where(new == 0, kept, new)
    return permutations, signs


def _nest(
    layout: ClassLayout, move: ClassMove, before: tuple[Parts, Parts], scores: Mapping[str, Scores], name: str
) -> Nest:
    """A class with all that is inside it: what is not active keeps its order and signs."""
    sym, active = layout.sym, name in move.active
    item = sym.classes[name]
    return Nest(
        name,
        item.size,
        _with_signs_kept(layout, move, before[1], scores.get(name, {})),
        layout.flips[name] if active else (),
        None if active and item.permutes else _kept_order(item, before[0]),
        tuple(_nest(layout, move, before, scores, child) for child in layout.children[name]),
    )


def _nests(nest: Nest) -> Iterator[Nest]:
    yield nest
    for inner in nest.inside:
        yield from _nests(inner)


def _kept_order(item: UnitClass, permutations: Parts) -> Indices:
    """The order (m or 1, B or 1, n) in which the units of a class are, or those of the class that they follow."""
    order = permutations.get(item.name if item.permutes else item.follows or "")
    if order is None:
        return np.arange(item.size)[None, None]
    return np.asarray(order.reshape(len(order), -1, item.size).numpy(force=True))


def _with_signs_kept(layout: ClassLayout, move: ClassMove, signs: Parts, scores: Scores) -> Scores:
    """The scores of a class with the signs of the families that are not assigned multiplied in."""
    tree = layout.tree(move.root)
    kept = {key for inner in tree if inner not in move.active for key in layout.flips[inner]}
    if not kept:
        return scores
    result: Scores = {}
    for parity, matrix in scores.items():
        value = matrix
        for key in parity & kept:
            own = signs[key].reshape(len(matrix), -1)
            value = value * own.repeat_interleave(matrix.shape[2] // own.shape[1], 1).to(matrix)[:, None]
        free = parity - kept
        result[free] = result[free] + value if free in result else value
    return result


class TreeStep:
    """The assignment of a move: blocks get the value of their best inside, then the insides follow their blocks.

    V_C[i, j] = max over the signs of C's families of score_C[i, j] + Σ over classes inside of the value of putting what
    is in old unit j into new unit i; the value of a pair of blocks is that of the best assignment between their units.
    """

    def __init__(self, layout: ClassLayout, move: ClassMove, g: Element, scores: Mapping[str, Scores]) -> None:
        """``scores``: of every class of the tree, see ``move_scores``; ``g``: what is not assigned stays as in it."""
        self.layout = layout
        self.sym = layout.sym
        self.move = move
        self.g = g
        self.tree = layout.tree(move.root)
        self.scores = scores

    def best(self, solver: Solver = assign) -> Element:
        """The element that is best for this move, everything else as it is."""
        tree = {name: self.sym.classes[name] for name in self.tree}
        orders = {own for name, item in tree.items() for own in (name, item.follows)}
        flips = {key for name in tree for key in self.layout.flips[name]}
        before = (
            {name: p[None] for name, p in self.g.permutations.items() if name in orders},
            {key: s[None] for key, s in self.g.signs.items() if key in flips},
        )
        scores = {
            name: {parity: matrix[None] for parity, matrix in self.scores[name].items()}
            for name in tree
            if name in self.scores
        }
        # What stays is allocated before the tables: behind them it would keep their memory from being used again.
        permutations = {name: p.clone() for name, p in self.g.permutations.items()}
        signs = {key: s.clone() for key, s in self.g.signs.items()}
        orders_found, signs_found = _settled(self.layout, self.move, before, scores, 1, solver)
        for name, p in orders_found.items():
            permutations[name].copy_(p[0])
        for key, s in signs_found.items():
            signs[key].copy_(s[0])
        return Element(permutations, self.g.scales, signs)

    def value(self, g: Element) -> tuple[float, float]:
        """The linear form of this step at an element that differs from the current one by the move only.

        Returns Σ and Σ|·|, see ``picked_scores``.
        """
        return picked_scores(self.sym, {name: self.scores[name] for name in self.tree}, g)
