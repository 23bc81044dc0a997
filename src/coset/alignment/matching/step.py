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
from coset.symmetry.stacks import count_of, one_of
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


def best_of_move(
    layout: ClassLayout, move: ClassMove, g: Element, scores: Mapping[str, Scores], solver: Solver = assign
) -> Element:
    """The element that is best for a move, everything else as in ``g``, of m networks at once.

    ``g`` is stacked (m elements as one, see ``symmetry.stacks``), and ``scores`` are (m, N, N).
    """
    root = _nest(layout, move, g, scores, move.root)
    found = nested_assignment(root, count_of(g) or 1, solver)
    permutations, signs = dict(g.permutations), dict(g.signs)
    for nest in _nests(root):
        if nest.order is None:
            before = permutations[nest.name]
            permutations[nest.name] = torch.from_numpy(found.order(nest)).reshape(before.shape).to(before.device)
    for key, values in found.signs.items():
        new, before = torch.from_numpy(values).to(signs[key]).reshape(signs[key].shape), signs[key]
        # Where nothing tells, the sign stays.
        signs[key] = torch.where(new == 0, before, new)
    return Element(permutations, g.scales, signs)


def _nest(layout: ClassLayout, move: ClassMove, g: Element, scores: Mapping[str, Scores], name: str) -> Nest:
    """A class with all that is inside it: what is not active keeps its order and signs."""
    sym, active = layout.sym, name in move.active
    item = sym.classes[name]
    return Nest(
        name,
        item.size,
        _with_signs_kept(layout, move, g, scores.get(name, {}), name),
        layout.flips[name] if active else (),
        None if active and item.permutes else _kept_order(item, g),
        tuple(_nest(layout, move, g, scores, child) for child in layout.children[name]),
    )


def _nests(nest: Nest) -> Iterator[Nest]:
    yield nest
    for inner in nest.inside:
        yield from _nests(inner)


def _kept_order(item: UnitClass, g: Element) -> Indices:
    """The order (m or 1, B or 1, n) in which the units of a class are, or those of the class that they follow."""
    order = g.permutations.get(item.name if item.permutes else item.follows or "")
    if order is None:
        return np.arange(item.size)[None, None]
    return np.asarray(order.reshape(len(order), -1, item.size).numpy(force=True))


def _with_signs_kept(layout: ClassLayout, move: ClassMove, g: Element, scores: Scores, name: str) -> Scores:
    """The scores of a class with the signs of the families that are not assigned multiplied in."""
    tree = layout.tree(move.root)
    kept = {key for inner in tree if inner not in move.active for key in layout.flips[inner]}
    result: dict[frozenset[str], Tensor] = {}
    for parity, matrix in scores.items():
        value = matrix
        for key in parity & kept:
            own = g.signs[key].reshape(len(matrix), -1)
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
        one = Element(
            *(
                {key: part[None] for key, part in kind.items()}
                for kind in (self.g.permutations, self.g.scales, self.g.signs)
            )
        )
        scores = {
            name: {parity: matrix[None] for parity, matrix in parts.items()} for name, parts in self.scores.items()
        }
        return one_of(best_of_move(self.layout, self.move, one, scores, solver), 0)

    def value(self, g: Element) -> tuple[float, float]:
        """The linear form of this step at an element that differs from the current one by the move only.

        Returns Σ and Σ|·|, see ``picked_scores``.
        """
        return picked_scores(self.sym, {name: self.scores[name] for name in self.tree}, g)
