"""Scales and signs as a linear system: physical units are inferred just so.

Every appearance of an atom on a dimension of a tensor has an unknown exponent, and so has every tensor as a whole (a
scale common to all its entries). Adding needs equal exponents, multiplying adds them, contraction cancels them, an
activation multiplies them by its power or holds them at zero. Equations never mix atoms.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

from coset.symmetry._linear import Number, Row
from coset.symmetry.discovery.relations import Book, Joined, Multiplied, Neutral, Regrouped, Value
from coset.symmetry.discovery.terms import Atom, Plus, Woven, atoms, copied, free_atoms, paths, resolve, times


class AtomPlace(NamedTuple):
    """The ``leaf``-th free atom on dimension ``dim`` of the tensor of this identity; dim −1: the tensor as a whole."""

    value: int
    dim: int
    leaf: int


Equations = dict[Atom | None, list[Row[AtomPlace]]]


def whole(value: Value) -> AtomPlace:
    return AtomPlace(id(value), -1, 0)


class Charges:
    """The equations of all relations, by atom (None: tensors as wholes)."""

    def __init__(self, book: Book) -> None:
        self._leaves: dict[tuple[int, int], list[Atom]] = {}
        self.scales: Equations = defaultdict(list)
        self.signs: Equations = defaultdict(list)
        # Inputs and constants carry no scale or sign: their places are left out of all equations.
        self._silent = {id(value) for value in book.values if value.inert}
        # What is zero may be said to carry anything: equations with it say nothing.
        self._zero = {id(value) for value in book.values if value.zero}
        for relation in book.relations:
            if isinstance(relation, Multiplied):
                self._multiplied(relation)
            elif isinstance(relation, Neutral):
                self._neutral(relation)
            elif isinstance(relation, Regrouped):
                self._regrouped(relation)
            else:
                self._joined(relation)

    def leaves(self, value: Value, dim: int) -> list[Atom]:
        """The free atoms along a dimension, left to right."""
        key = (id(value), dim)
        if key not in self._leaves:
            self._leaves[key] = list(free_atoms(value.dims[dim]))
        return self._leaves[key]

    def _balance(
        self,
        atom: Atom | None,
        powers: Iterable[tuple[AtomPlace, Number, int]],
        *,
        scales: bool = True,
        signs: bool = True,
    ) -> None:
        """Σ power·exponent = 0 over these places, with powers of their scales and of their signs."""
        by_scale: Row[AtomPlace] = {}
        by_sign: Row[AtomPlace] = {}
        for place, scale, sign in powers:
            if place.value in self._zero:
                return
            if place.value not in self._silent:
                by_scale[place] = by_scale.get(place, 0) + scale
                by_sign[place] = by_sign.get(place, 0) + sign
        if scales and by_scale:
            self.scales[atom].append(by_scale)
        if signs and by_sign:
            self.signs[atom].append(by_sign)

    def _equal(self, atom: Atom | None, one: AtomPlace, two: AtomPlace) -> None:
        if one != two:
            self._balance(atom, ((one, 1, 1), (two, -1, -1)))

    def _multiplied(self, relation: Multiplied) -> None:
        result, contracted = relation.result, relation.contracted
        # The result against its factors: on each of its dimensions, on each that is summed over, and as wholes.
        sides: list[tuple[Value, tuple[int | None, ...], Number, int]] = [
            (result, (*range(result.ndim), *(None for _ in contracted)), 1, 1)
        ]
        for number, factor in enumerate(relation.factors):
            dims = (*factor.dims, *(group[number] for group in contracted))
            sides.append((factor.value, dims, -factor.scale, -factor.sign))
        for row in range(result.ndim + len(contracted)):
            present = [(side[0], dim, side[2], side[3]) for side in sides if (dim := side[1][row]) is not None]
            guide = next((side for side in present if not side[0].inert), None)
            for leaf, atom in enumerate(self.leaves(guide[0], guide[1]) if guide is not None else ()):
                powers = [(AtomPlace(id(value), dim, leaf), scale, sign) for value, dim, scale, sign in present]
                self._balance(atom, powers, signs=relation.signs)
        self._balance(None, [(whole(value), scale, sign) for value, _, scale, sign in sides], signs=relation.signs)

    def _neutral(self, relation: Neutral) -> None:
        value = relation.value
        for dim in range(value.ndim) if relation.dims is None else relation.dims:
            for leaf, atom in enumerate(self.leaves(value, dim)):
                held = AtomPlace(id(value), dim, leaf)
                self._balance(atom, [(held, 1, 1)], scales=relation.scale, signs=relation.sign)
        if relation.dims is None:
            self._balance(None, [(whole(value), 1, 1)], scales=relation.scale, signs=relation.sign)

    def _regrouped(self, relation: Regrouped) -> None:
        if relation.source.inert:
            return
        self._equal(None, whole(relation.source), whole(relation.target))
        for left, right in relation.groups:
            one, two = self._product(relation.source, left), self._product(relation.target, right)
            assert len(one) == len(two), (relation.source, relation.target)
            for (atom, here), (_, there) in zip(one, two, strict=True):
                self._equal(atom, here, there)

    def _product(self, value: Value, dims: tuple[int, ...]) -> list[tuple[Atom, AtomPlace]]:
        """The free atoms of the product of some dimensions in normal form, each with the place it comes from.

        Multiplying out a leading concatenation repeats the factors behind it: their places are repeated with them.
        """
        if len(dims) == 1:
            return [
                (atom, AtomPlace(id(value), dims[0], leaf)) for leaf, atom in enumerate(self.leaves(value, dims[0]))
            ]
        known: dict[Atom, tuple[Atom, AtomPlace]] = {}
        copies = []
        for dim in dims:
            term = resolve(value.dims[dim])
            copies.append(copied(term))
            pairs = ((twin, atom) for twin, atom in zip(atoms(copies[-1]), atoms(term), strict=True) if not atom.stuck)
            known |= {twin: (atom, AtomPlace(id(value), dim, leaf)) for leaf, (twin, atom) in enumerate(pairs)}
        return [known[twin] for twin in atoms(times(copies)) if twin in known]

    def _joined(self, relation: Joined) -> None:
        joined = relation.whole
        if relation.woven:
            shares = self._turns(relation)
        else:
            shares = self._shares(joined, relation.dim, [part.shape[relation.dim] for part in relation.parts])
        for part, share in zip(relation.parts, shares, strict=True):
            self._equal(None, whole(joined), whole(part))
            for dim in range(joined.ndim):
                own = self.leaves(joined, dim)
                places = share if dim == relation.dim else range(len(own))
                for leaf, at in enumerate(places):
                    self._equal(own[at], AtomPlace(id(joined), dim, at), AtomPlace(id(part), dim, leaf))

    def _turns(self, relation: Joined) -> list[list[int]]:
        """Which leaves of a dimension belong to each of the parts that take turns on it."""
        counts = [len(self.leaves(part, relation.dim)) for part in relation.parts]
        if not isinstance(resolve(relation.whole.dims[relation.dim]), Woven):
            return [list(range(count)) for count in counts]  # they share their units
        return [list(range(end - count, end)) for count, end in zip(counts, accumulate(counts), strict=True)]

    def _shares(self, value: Value, dim: int, sizes: list[int]) -> list[list[int]]:
        """Which leaves of a dimension belong to each of its parts, of these sizes."""
        term = resolve(value.dims[dim])
        shares: list[list[int]] = [[] for _ in sizes]
        ends = list(accumulate(sizes))
        position, leaf = 0, 0
        for segment in term.segments if isinstance(term, Plus) else [term]:
            count = len(list(free_atoms(segment)))
            shares[bisect_right(ends, position)] += range(leaf, leaf + count)
            position, leaf = position + segment.size, leaf + count
        return shares


def path_places(value: Value, dim: int) -> list[list[AtomPlace] | None]:
    """The segments of an axis, each as the places of its factors; None for one that is not read."""
    counter = iter(range(10**9))

    def leaf(atom: Atom) -> tuple[AtomPlace | None, ...]:
        return (None,) if atom.unread else () if atom.stuck else (AtomPlace(id(value), dim, next(counter)),)

    found = paths(resolve(value.dims[dim]), leaf)
    return [None if None in path else [place for place in path if place is not None] for path in found]
