"""Score matrices of many networks at once: ``scores`` with a leading axis of networks on everything."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from coset.alignment.matching.class_places import ClassLayout, ClassPlace, place_rows
from coset.alignment.matching.products import Term
from coset.alignment.matching.scores import Scores, Scoring
from coset.symmetry import Element, Symmetry
from coset.symmetry.group import full_map
from coset.symmetry.incidence import other_stretches
from coset.symmetry.orbits import over_group
from coset.symmetry.stacks import StackedAction

Members = Tensor | None
"""The numbers of the networks that are asked about, (m,); None for all."""


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
        alone = [name for name in wanted if len(other_stretches(self.layout.sym.structures[name], None)) == 1]
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
        left = place_rows(self.layout.sym, place, _chosen(term.left, members), 1)
        right = place_rows(self.layout.sym, place, self._moved(term, action, place.stretch, members), 1)
        product = left @ right.mT
        # Not in place: what is constant is kept.
        total[place.parity] = total[place.parity] + product if place.parity in total else product

    def _moved(self, term: Term, action: StackedAction | None, without: int | None, members: Members) -> Tensor:
        """The right side of a term, taken apart, with all its stretches moved but one, (m, *sizes)."""
        structure = self.layout.sym.structures[term.name]
        whole = _chosen(term.right, members).reshape(-1, *structure.sizes)
        if action is not None:
            return action.moved(whole, structure, without)
        # Networks in the last place are columns like any other.
        means = over_group(self.layout.sym, whole.movedim(0, -1), structure, without, term.signed)
        return means.movedim(-1, 0)


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
