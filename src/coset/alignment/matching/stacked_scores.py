"""Score matrices of many networks at once: ``scores`` with a leading axis of networks on everything."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from coset.alignment.matching import orbit_means as averages
from coset.alignment.matching.class_places import ClassLayout, ClassPlace
from coset.alignment.matching.products import Term
from coset.alignment.matching.scores import Scores, Scoring
from coset.symmetry import Element, Symmetry
from coset.symmetry.action import Action
from coset.symmetry.group import full_map
from coset.symmetry.incidence import other_stretches, rows_along
from coset.symmetry.structure import Stretch, ancestors

Members = Tensor | None
"""The numbers of the networks that are asked about, (m,); None for all."""


class StackedAction:
    """Stacked elements, ready to act: index and factor of every stretch, (m, n), are computed once."""

    def __init__(self, sym: Symmetry, g: Element) -> None:
        self.sym = sym
        self.g = g
        self._moves: dict[int, tuple[Tensor | None, Tensor | None]] = {}

    def move(self, stretch: Stretch) -> tuple[Tensor | None, Tensor | None]:
        """new[i] = factor[i]·old[index[i]] along a stretch; None stands for nothing to do."""
        if id(stretch) not in self._moves:
            self._moves[id(stretch)] = self._plain(stretch) if stretch.plain else self._joint(stretch)
        return self._moves[id(stretch)]

    def _plain(self, stretch: Stretch) -> tuple[Tensor | None, Tensor | None]:
        (one,) = stretch.appearances
        index, factor = self.g.permutations.get(one.name), None
        for key in one.signs:
            if key in self.g.signs:
                flips = self.g.signs[key]
                flips = flips if index is None else flips.gather(1, index)
                factor = flips if factor is None else factor * flips
        return index, factor

    def _joint(self, stretch: Stretch) -> tuple[Tensor | None, Tensor | None]:
        flips = any(key in self.g.signs for item in stretch.appearances for key in item.signs)
        standing = (item.name for item in stretch.appearances)
        names = {outer for name in standing for outer in (name, *ancestors(name, self.sym.classes))}
        if not flips and self.g.permutations.keys().isdisjoint(names):
            return None, None

        def one(permutations: dict[str, Tensor], signs: dict[str, Tensor]) -> tuple[Tensor, ...]:
            move = Action(self.sym, Element(permutations, {}, signs), whole=False).move(stretch)
            index = torch.arange(stretch.size) if move.index is None else move.index
            return (index,) if move.factor is None else (index, move.factor)

        found = torch.vmap(one)(dict(self.g.permutations), dict(self.g.signs))
        return found[0], found[1] if len(found) > 1 else None


class StackedScoring:
    """Σ ⟨left | g·right⟩ over terms, of N networks at once: terms (N, *shape), scores (m, n, n), objectives (m,).

    ``Scoring`` for each of them, of symmetries for which ``suits`` holds.
    """

    def __init__(self, layout: ClassLayout, terms: Sequence[Term]) -> None:
        self.layout = layout
        self.terms = {term.name: term for term in terms}
        self.structure = Scoring(layout, ())
        self.count = len(terms[0].right) if terms else 0
        self._constant: dict[str, Scores] = {}
        self._base: Tensor | None = None

    @property
    def precision(self) -> float:
        """The rounding of the scores."""
        dtype = next((term.left.dtype for term in self.terms.values()), torch.float32)
        return torch.finfo(dtype).eps

    def scores(self, owner: str, g: Element | None, members: Members = None) -> Scores:
        """The scores of a class at elements ``g`` of the members, or on average over the group."""
        action = None if g is None else StackedAction(self.layout.sym, g)
        total = {parity: _chosen(matrix, members) for parity, matrix in self._unchanging(owner).items()}
        for place in self.layout.places[owner]:
            if place.parameter in self.terms and not self.structure.is_constant(place):
                self._add(total, place, action, members)
        return total

    def objective(self, g: Element | None, members: Members = None, names: Sequence[str] | None = None) -> Tensor:
        """Σ ⟨left | g·right⟩, or its average over the group, (m,) in float64; ``names``: of these parameters only."""
        wanted = list(self.terms) if names is None else list(names)
        if g is None or names is not None:
            return self._direct(g, members, wanted)
        # What one class alone moves is known from its scores, which do not change.
        alone = [name for name in wanted if len(self.layout.sym.structures[name].stretches) == 1]
        if self._base is None:
            none = repeated(self.layout.sym.identity(), self.count)
            self._base = self._direct(none, None, alone) - self._alone(none, None)
        others = [name for name in wanted if name not in alone]
        return _chosen(self._base, members) + self._alone(g, members) + self._direct(g, members, others)

    def _alone(self, g: Element, members: Members) -> Tensor:
        """The part of the objective that constant scores say."""
        total = torch.zeros((), dtype=torch.float64)
        for name in self.layout.sym.classes:
            scores = {parity: _chosen(matrix, members) for parity, matrix in self._unchanging(name).items()}
            for part in picked(self.layout, scores, g, name):
                total = total + part.sum(1)
        return total

    def _direct(self, g: Element | None, members: Members, names: Sequence[str]) -> Tensor:
        action = None if g is None else StackedAction(self.layout.sym, g)
        total = torch.zeros(self.count if members is None else len(members), dtype=torch.float64)
        for name in names:
            term = self.terms[name]
            moved = self._moved(term, action, None, members)
            left = _chosen(term.left, members).reshape(moved.shape)
            # Products in the terms' own type, their sum in float64.
            total += torch.mul(left, moved).reshape(len(moved), -1).sum(1, dtype=torch.float64).cpu()
        return total

    def _unchanging(self, owner: str) -> Scores:
        """The scores of all networks as far as they depend on no other class; computed once."""
        if owner not in self._constant:
            self._constant[owner] = {}
            for place in self.layout.places[owner]:
                if place.parameter in self.terms and self.structure.is_constant(place):
                    self._add(self._constant[owner], place, None, None)
        return self._constant[owner]

    def _add(self, total: Scores, place: ClassPlace, action: StackedAction | None, members: Members) -> None:
        """Add left · rightᵀ of a place."""
        term = self.terms[place.parameter]
        left = self._rows(_chosen(term.left, members), place)
        right = self._rows(self._moved(term, action, place.stretch, members), place)
        product = left @ right.mT
        # Not in place: what is constant is kept.
        total[place.parity] = total[place.parity] + product if place.parity in total else product

    def _rows(self, tensor: Tensor, place: ClassPlace) -> Tensor:
        """Units in rows, everything but the class in columns, (m, N, R)."""
        structure = self.layout.sym.structures[place.parameter]
        stretch = structure.stretches[place.stretch]
        rows = rows_along(tensor, structure, stretch, 1)
        return rows if place.positions is None else rows[:, place.positions.to(rows.device)].flatten(2)

    def _moved(self, term: Term, action: StackedAction | None, without: int | None, members: Members) -> Tensor:
        """The right side of a term, taken apart, with all its stretches moved but one, (m, *sizes)."""
        structure = self.layout.sym.structures[term.name]
        others = other_stretches(structure, without)
        whole = _chosen(term.right, members).reshape(-1, *structure.sizes)
        if action is None:
            # Networks in the last place are columns like any other.
            return averages.over_group(self.layout.sym, whole.movedim(0, -1), others, term.signed).movedim(-1, 0)
        for stretch in others:
            whole = _gathered(whole, stretch.dims, *action.move(stretch))
        return whole


def suits(layout: ClassLayout) -> bool:
    """Whether stacks are matched together: no class stands beside another, follows another, or has several moves."""
    roots = [move.root for move in layout.moves]
    return (
        len(set(roots)) == len(roots)
        and not any(place.beside for places in layout.places.values() for place in places)
        and not any(item.follows for item in layout.sym.classes.values())
    )


def repeated(g: Element, count: int) -> Element:
    """``count`` times the permutations and signs of one element."""
    return Element(
        {name: p.repeat(count, *[1] * p.ndim) for name, p in g.permutations.items()},
        {},
        {key: s.repeat(count, *[1] * s.ndim) for key, s in g.signs.items()},
    )


def full_maps(sym: Symmetry, g: Element, name: str) -> Tensor:
    """Where each unit of a class comes from in every network, over all blocks, (m, ∏shape)."""
    if sym.classes[name].parent is None and name in g.permutations:
        return g.permutations[name]
    if not g.permutations:
        return full_map(sym, Element(), name).expand(len(next(iter(g.signs.values()))), -1)
    found: Tensor = torch.vmap(lambda own: full_map(sym, Element(own), name))(dict(g.permutations))
    return found


def pairs(layout: ClassLayout, g: Element, name: str, parity: frozenset[str]) -> tuple[Tensor, Tensor | None]:
    """The old unit of every new one of a class, and the product of the signs of ``parity`` there; (m, N) each."""
    at, sign = full_maps(layout.sym, g, name), None
    for key in parity:
        own = g.signs[key].flatten(1)
        flips = own.repeat_interleave(at.shape[1] // own.shape[1], dim=1).gather(1, at).double()
        sign = flips if sign is None else sign * flips
    return at, sign


def picked(layout: ClassLayout, scores: Scores, g: Element, name: str) -> Iterator[Tensor]:
    """The scores of the pairs that elements make of a class, signs included, (m, N) in float64, parity by parity."""
    for parity, matrix in scores.items():
        at, sign = pairs(layout, g, name, parity)
        values = matrix.gather(2, at.to(matrix.device)[..., None])[..., 0].double().cpu()
        yield values if sign is None else values * sign


def _chosen(tensor: Tensor, members: Members) -> Tensor:
    return tensor if members is None else tensor.index_select(0, members.to(tensor.device))


def _gathered(tensor: Tensor, dims: tuple[int, ...], index: Tensor | None, factor: Tensor | None) -> Tensor:
    """new[…, i, …] = factor[i]·old[…, index[i], …] along ``dims`` behind the axis of networks, taken as one."""
    if index is None and factor is None:
        return tensor
    first, count = 1 + dims[0], len(dims)
    adjacent, own = tuple(range(first, first + count)), tuple(1 + dim for dim in dims)
    joined = tensor.movedim(own, adjacent)
    sizes = joined.shape
    networks, n = len(tensor), math.prod(sizes[first : first + count])
    outer = math.prod(sizes[1:first])
    rows = joined.reshape(networks, outer, n, -1)
    shape = rows.shape
    if index is not None:
        # Rows of all networks as one matrix: a row is copied as a whole.
        start = torch.arange(networks * outer).reshape(networks, outer, 1) * n
        at = (start + index.cpu()[:, None, :]).reshape(-1).to(tensor.device)
        rows = rows.reshape(networks * outer * n, -1).index_select(0, at).reshape(shape)
    if factor is not None:
        rows = rows * factor.to(rows)[:, None, :, None]
    return rows.reshape(sizes).movedim(adjacent, own)
