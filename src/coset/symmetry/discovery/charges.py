"""Scales and signs as a linear system: physical units are inferred just so.

Every appearance of an atom on a dimension of a tensor has an unknown exponent, and so has every tensor as a whole (a
scale common to all its entries). Adding needs equal exponents, multiplying adds them, contraction cancels them, an
activation multiplies them by its power or holds them at zero. Equations never mix atoms.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from coset.symmetry._linear import Row
from coset.symmetry.discovery.relations import Book, Joined, Multiplied, Neutral, Regrouped, Value
from coset.symmetry.discovery.terms import Atom, Plus, Term, Times, Woven, free_atoms, parts_of, resolve


class Place(NamedTuple):
    """The ``leaf``-th free atom on dimension ``dim`` of the tensor of this identity; dim −1: the tensor as a whole."""

    value: int
    dim: int
    leaf: int


Equations = dict[Atom | None, list[Row[Place]]]


def whole(value: Value) -> Place:
    return Place(id(value), -1, 0)


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

    def _say(self, atom: Atom | None, scale: Row[Place] | None, sign: Row[Place] | None) -> None:
        for row, equations in ((scale, self.scales), (sign, self.signs)):
            if self._zero and any(place.value in self._zero for place in row or ()):
                continue
            if heard := {place: power for place, power in (row or {}).items() if place.value not in self._silent}:
                equations[atom].append(heard)

    def _equal(self, one: tuple[Atom | None, Place], two: tuple[Atom | None, Place]) -> None:
        atom = one[0]
        if one[1] != two[1]:
            row: Row[Place] = {one[1]: 1, two[1]: -1}
            self._say(atom, row, row)

    def _multiplied(self, relation: Multiplied) -> None:
        result, factors = relation.result, relation.factors
        rows = [([(result, j)], [f.dims[j] for f in factors]) for j in range(result.ndim)]
        rows += [([], list(group)) for group in relation.contracted]
        for left, dims in rows:
            present = [(f.value, d, f) for f, d in zip(factors, dims, strict=True) if d is not None]
            sides = [*left, *((value, dim) for value, dim, _ in present)]
            guide = next((side for side in sides if not side[0].inert), None)
            if guide is None:
                continue
            for leaf, atom in enumerate(self.leaves(*guide)):
                scale: Row[Place] = defaultdict(int)
                sign: Row[Place] = defaultdict(int)
                for value, dim in left:
                    scale[Place(id(value), dim, leaf)] += 1
                    sign[Place(id(value), dim, leaf)] += 1
                for value, dim, factor in present:
                    scale[Place(id(value), dim, leaf)] -= factor.scale
                    sign[Place(id(value), dim, leaf)] -= factor.sign
                self._say(atom, scale, sign if relation.signs else None)
        scale, sign = (
            defaultdict(int, {whole(result): 1}),
            defaultdict(int, {whole(result): 1}),
        )
        for factor in factors:
            scale[whole(factor.value)] -= factor.scale
            sign[whole(factor.value)] -= factor.sign
        self._say(None, scale, sign if relation.signs else None)

    def _neutral(self, relation: Neutral) -> None:
        value = relation.value
        for dim in range(value.ndim) if relation.dims is None else relation.dims:
            for leaf, atom in enumerate(self.leaves(value, dim)):
                row = {Place(id(value), dim, leaf): 1}
                self._say(atom, dict(row) if relation.scale else None, dict(row) if relation.sign else None)
        if relation.dims is None:
            row = {whole(value): 1}
            self._say(None, dict(row) if relation.scale else None, dict(row) if relation.sign else None)

    def _regrouped(self, relation: Regrouped) -> None:
        if relation.source.inert:
            return
        self._equal((None, whole(relation.source)), (None, whole(relation.target)))
        for left, right in relation.groups:
            one = list(_tagged_product(relation.source, left))
            two = list(_tagged_product(relation.target, right))
            assert len(one) == len(two), (relation.source, relation.target)
            for here, there in zip(one, two, strict=True):
                self._equal(here, there)

    def _joined(self, relation: Joined) -> None:
        joined = relation.whole
        if relation.woven:
            shares = self._turns(relation)
        else:
            shares = self._shares(joined, relation.dim, [part.shape[relation.dim] for part in relation.parts])
        for part, share in zip(relation.parts, shares, strict=True):
            self._equal((None, whole(joined)), (None, whole(part)))
            for dim in range(joined.ndim):
                own = self.leaves(joined, dim)
                places = share if dim == relation.dim else range(len(own))
                for leaf, at in enumerate(places):
                    self._equal((own[at], Place(id(joined), dim, at)), (own[at], Place(id(part), dim, leaf)))

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


def path_places(value: Value, dim: int) -> list[list[Place] | None]:
    """The segments of an axis, each as the places of its factors; None for one that is not read."""
    counter = iter(range(10**9))

    def walk(term: Term) -> list[list[Place] | None]:
        if isinstance(term, Atom):
            return [None if term.unread else [] if term.stuck else [Place(id(value), dim, next(counter))]]
        if isinstance(term, Plus | Woven):
            return [path for segment in parts_of(term) for path in walk(segment)]
        assert isinstance(term, Times)
        paths: list[list[Place] | None] = [[]]
        for factor in term.factors:
            alternatives = walk(factor)
            paths = [
                None if path is None or extra is None else [*path, *extra] for path in paths for extra in alternatives
            ]
        return paths

    return walk(resolve(value.dims[dim]))


_Tagged = tuple[str, list["_Tagged"], tuple[Atom, Place] | None]


def _tagged_product(value: Value, dims: tuple[int, ...]) -> Iterator[tuple[Atom, Place]]:
    """The atoms of the product of some dimensions in normal form, each with the place it comes from.

    Multiplying out a leading concatenation repeats the factors behind it: their places are repeated with them.
    """
    factors = []
    for dim in dims:
        counter = iter(range(10**9))
        factors.append(_tagged(resolve(value.dims[dim]), id(value), dim, counter))
    yield from _traverse(_times(factors))


def _tagged(term: Term, value: int, dim: int, counter: Iterator[int]) -> _Tagged:
    if isinstance(term, Atom):
        return "atom", [], None if term.stuck else (term, Place(value, dim, next(counter)))
    if isinstance(term, Times):
        return "times", [_tagged(factor, value, dim, counter) for factor in term.factors], None
    kind = "plus" if isinstance(term, Plus) else "woven"
    return kind, [_tagged(segment, value, dim, counter) for segment in parts_of(term)], None


def _times(factors: list[_Tagged]) -> _Tagged:
    flat: list[_Tagged] = []
    for factor in factors:
        flat += factor[1] if factor[0] == "times" else [factor]
    for at in reversed(range(len(flat) - 1)):
        if flat[at][0] == "plus":
            flat[at:] = [_plus([_times([segment, *flat[at + 1 :]]) for segment in flat[at][1]])]
    return flat[0] if len(flat) == 1 else ("times", flat, None)


def _plus(segments: list[_Tagged]) -> _Tagged:
    return "plus", [inner for part in segments for inner in (part[1] if part[0] == "plus" else [part])], None


def _traverse(term: _Tagged) -> Iterator[tuple[Atom, Place]]:
    if term[2] is not None:
        yield term[2]
    for part in term[1]:
        yield from _traverse(part)
