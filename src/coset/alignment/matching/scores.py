"""Score matrices: what it is worth to put old unit j in the place of new unit i, given all other classes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.alignment.matching.class_places import ClassLayout, ClassPlace, mean_beside, place_rows
from coset.alignment.matching.products import Term
from coset.symmetry import Element
from coset.symmetry.action import Action
from coset.symmetry.action import Move as Moved
from coset.symmetry.element import unit_map
from coset.symmetry.gather import Pass, apply
from coset.symmetry.incidence import other_stretches, rows_along
from coset.symmetry.orbits import over_group
from coset.symmetry.structure import Stretch, with_followers

Scores = dict[frozenset[str], Tensor]
"""For each set of sign families that flips the entries, the scores (N, N): new units in rows, old units in columns."""

KEPT_BYTES = 2**27
"""Score matrices are kept between steps up to this size, or half the size of the weights if that is more."""


@dataclass
class _Kept:
    """The scores of one place, and how the rest of its parameter stood when they were computed."""

    scores: Tensor
    moves: list[Moved]
    versions: tuple[int, ...]


class Scoring:
    """Σ ⟨left | g·right⟩ over terms as a function of one class, the others held at the current element.

    What depends on no other class is computed once. Where memory allows, the scores of a place are kept and, when few
    units of its neighbour have moved since, only these columns are multiplied again.
    """

    def __init__(self, layout: ClassLayout, terms: Sequence[Term]) -> None:
        self.layout = layout
        self.terms: dict[str, list[Term]] = {}
        for term in terms:
            self.terms.setdefault(term.name, []).append(term)
        self._versions = dict.fromkeys(layout.sym.classes, 0)
        self._constant: dict[str, Scores] = {}
        self._kept: dict[tuple[int, int], _Kept] = {}
        self._neighbours = {
            id(place): self._dependencies(place) for places in layout.places.values() for place in places
        }
        self._keep = self._fits(terms)

    def changed(self, names: Sequence[str]) -> None:
        """Say that the permutations or signs of these classes are others now."""
        for name in names:
            self._versions[name] += 1

    def depends(self, owner: str) -> frozenset[str]:
        """The classes on which the scores of a class depend."""
        followed = self.layout.sym.classes[owner].follows
        others = frozenset(name for place in self.layout.places[owner] for name in self._neighbours[id(place)])
        return others if followed is None else others | {followed}

    def is_constant(self, place: ClassPlace) -> bool:
        """Whether the scores of a place depend on no other class."""
        return not self._neighbours[id(place)]

    def scores(
        self, owner: str, g: Element | None, places: Sequence[ClassPlace] | None = None, *, apart: bool = False
    ) -> Scores:
        """The scores of a class at element ``g``, or on average over the group; ``places``: only of these.

        ``apart``: on average over the classes beside it along a stretch, all others as in ``g``.
        """
        action = None if g is None else Action(self.layout.sym, g, whole=False)
        total: Scores = {}
        own = self.layout.places[owner] if places is None else places
        for parity, matrix in self._unchanging(owner, own, action).items():
            total[parity] = matrix.clone() if owner in self._constant else matrix
        for place in own:
            if self.is_constant(place):
                continue
            for number, term in enumerate(self.terms.get(place.parameter, ())):
                alone = apart and bool(place.beside)
                if alone or action is None or not self._keep:
                    right = self.right(place, term, action, apart=alone)
                    add_product(total, place, term, self.left(place, term), right)
                    continue
                matrix, parity = (
                    self._place_scores(place, number, term, action),
                    place.parity if term.signed else frozenset(),
                )
                total[parity] = total[parity].add_(matrix) if parity in total else matrix.clone()
        return total

    def objective(self, g: Element | None, names: Sequence[str] | None = None) -> float:
        """Σ ⟨left | g·right⟩ by direct evaluation, or its average over the group; ``names``: of these only."""
        action = None if g is None else Action(self.layout.sym, g, whole=False)
        total = 0.0
        for name in self.terms if names is None else names:
            for term in self.terms.get(name, ()):
                moved = self._moved(term, action, None)
                # Products in the terms' own type, their sum in float64: no wider copy of either side is made.
                total += float(torch.mul(term.left.reshape(moved.shape), moved).sum(dtype=torch.float64))
        return total

    def _unchanging(self, owner: str, places: Sequence[ClassPlace], action: Action | None) -> Scores:
        whole = len(places) == len(self.layout.places[owner])
        if whole and owner in self._constant:
            return self._constant[owner]
        total: Scores = {}
        for place in filter(self.is_constant, places):
            for term in self.terms.get(place.parameter, ()):
                add_product(total, place, term, self.left(place, term), self.right(place, term, action))
        if whole and self._keep:
            self._constant[owner] = total
        return total

    def _place_scores(self, place: ClassPlace, number: int, term: Term, action: Action) -> Tensor:
        """The scores of one place as they are kept: not to be written to."""
        key = (id(place), number)
        versions = tuple(self._versions[name] for name in self._neighbours[id(place)])
        kept = self._kept.get(key)
        if kept is not None and kept.versions == versions:
            return kept.scores
        moves = [action.move(stretch) for stretch in self._others(place)]
        few = self._few_changed(place, kept, moves)
        if kept is not None and few is not None:
            kept.scores.add_(self._difference(place, term, kept.moves[0], moves[0], few))
            scores = kept.scores
        else:
            scores = self.left(place, term) @ self.right(place, term, action).T
        self._kept[key] = _Kept(scores, moves, versions)
        return scores

    def _few_changed(self, place: ClassPlace, kept: _Kept | None, moves: list[Moved]) -> Tensor | None:
        """The positions along the only other stretch that come from elsewhere now, if they are less than half."""
        if kept is None or len(moves) != 1 or place.beside:
            return None
        stretch = self._others(place)[0]
        before, now = (_index_and_factor(move, stretch.size) for move in (kept.moves[0], moves[0]))
        changed = torch.nonzero((before[0] != now[0]) | (before[1] != now[1])).flatten()
        return changed if 2 * len(changed) < stretch.size else None

    def _difference(self, place: ClassPlace, term: Term, before: Moved, now: Moved, changed: Tensor) -> Tensor:
        """The change of the scores due to the columns that changed."""
        stretch = self._others(place)[0]
        structure = self.layout.sym.structures[place.parameter]
        own = structure.stretches[place.stretch]
        left = _along(term.left.reshape(structure.sizes), own.dims, stretch.dims)[:, changed]
        right = _along(term.right.reshape(structure.sizes), own.dims, stretch.dims)
        pieces = []
        for move in (now, before):
            index, factor = _index_and_factor(move, stretch.size)
            piece = right[:, index[changed]]
            pieces.append(piece * factor[changed].to(piece)[:, None] if term.signed else piece)
        delta = pieces[0] - pieces[1]
        if place.positions is not None:
            left, delta = left[place.positions], delta[place.positions]
        return left.flatten(1) @ delta.flatten(1).T

    def left(self, place: ClassPlace, term: Term) -> Tensor:
        """The left side of a place (N, R): units in rows, everything but the class in columns."""
        return place_rows(self.layout.sym, place, term.left)

    def right(self, place: ClassPlace, term: Term, action: Action | None, *, apart: bool = False) -> Tensor:
        """The right side of a place (N, R), moved along all that is not the class; it may be a view of the term.

        Without an action it is the average over the group, ``apart``: over the classes beside it along its stretch.
        """
        structure = self.layout.sym.structures[place.parameter]
        rows = rows_along(self._moved(term, action, place.stretch), structure, structure.stretches[place.stretch])
        if place.positions is None:
            return rows
        if action is None or apart:
            return mean_beside(self.layout.sym, place, rows, term.signed).flatten(1)
        source, factor = self._beside(place, action.g)
        picked = rows[source.to(rows.device)]
        if term.signed and factor is not None:
            picked = picked * factor.to(picked)[..., None]
        return picked.flatten(1)

    def _beside(self, place: ClassPlace, g: Element) -> tuple[Tensor, Tensor | None]:
        """Old positions (N, R) with the members beside the class in their new order, and the signs these bring.

        The class and the classes around it stay where they are: its blocks are compared as if each were in place.
        """
        assert place.positions is not None
        if not place.beside:
            return place.positions, None
        sym, chain = self.layout.sym, self.layout.around[place.owner]
        others = {name: p for name, p in g.permutations.items() if name not in chain}
        permutations = with_followers(others, sym.classes)
        every = with_followers(g.permutations, sym.classes)
        source, factor = place.positions.clone(), None
        for member in place.beside:
            unit, stride = member.unit[place.positions], member.stride[place.positions]
            size = sym.classes[member.name].size
            # The class beside itself: linear in one appearance, the other as it stands.
            known = every if member.name == place.owner else permutations
            came = unit_map(known, member.name, self.layout.chains[member.name][:-1], sym.shape(member.name))
            old = came.to(unit.device)[unit]
            source += stride * (old % size - unit % size)
            for key in member.signs:
                if key in g.signs:
                    flips = g.signs[key].reshape(-1)[old].to(torch.float64)
                    factor = flips if factor is None else factor * flips
        return source, factor

    def _moved(self, term: Term, action: Action | None, without: int | None) -> Tensor:
        """The right side of a term, taken apart, with all its stretches moved but one."""
        structure = self.layout.sym.structures[term.name]
        if action is None:
            return over_group(self.layout.sym, term.right.reshape(structure.sizes), structure, without, term.signed)
        passes = []
        for stretch in other_stretches(structure, without):
            move = action.move(stretch)
            factor = move.factor if term.signed else None
            if move.index is not None or factor is not None:
                passes.append(Pass(stretch.dims, move.index, factor))
        whole = term.right.reshape(structure.sizes)
        return apply(whole, passes) if passes else whole

    def _others(self, place: ClassPlace) -> list[Stretch]:
        return other_stretches(self.layout.sym.structures[place.parameter], place.stretch)

    def _dependencies(self, place: ClassPlace) -> tuple[str, ...]:
        """The classes other than its own that move the entries of a place, and those around these."""
        names: set[str] = {member.name for member in place.beside}
        for stretch in self._others(place):
            names |= {item.name for item in stretch.appearances}
        return tuple(sorted({outer for name in names for outer in self.layout.around[name]}))

    def _fits(self, terms: Sequence[Term]) -> bool:
        weights = sum(term.right.numel() * term.right.element_size() for term in terms)
        needed = 0
        for owner, places in self.layout.places.items():
            count = sum(len(self.terms.get(place.parameter, ())) for place in places if self._neighbours[id(place)])
            needed += (count + 1) * math.prod(self.layout.sym.shape(owner)) ** 2 * 4
        return needed <= max(KEPT_BYTES, weights // 2)


def add_product(total: Scores, place: ClassPlace, term: Term, left: Tensor, right: Tensor) -> None:
    """Add left · rightᵀ, the scores of a place, to the total, in place where there is one."""
    parity = place.parity if term.signed else frozenset()
    if parity in total:
        total[parity].addmm_(left, right.T)
    else:
        total[parity] = left @ right.T


def _index_and_factor(move: Moved, size: int) -> tuple[Tensor, Tensor]:
    index = torch.arange(size) if move.index is None else move.index
    return index, torch.ones(size, dtype=torch.float64) if move.factor is None else move.factor


def _along(tensor: Tensor, rows: tuple[int, ...], columns: tuple[int, ...]) -> Tensor:
    """(positions along ``rows``, positions along ``columns``, everything else)."""
    count = len(rows)
    moved = tensor.movedim((*rows, *columns), tuple(range(count + len(columns))))
    moved = moved.flatten(0, count - 1).flatten(1, len(columns))
    return moved.flatten(2) if moved.ndim > 2 else moved[..., None]
