"""Units that lie in blocks of two classes at once, as channels between two grouped convolutions do.

If the blocks are of one class, as in a unit of ShuffleNet with its shortcut, its atom stands twice beside the units.
Which of its appearances on two tensors are one index is then read off what operations say of the tensors between.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import product
from typing import NamedTuple

from coset.symmetry.discovery.charges import AtomPlace, Charges, path_places
from coset.symmetry.discovery.families import Gauge
from coset.symmetry.discovery.nesting import Nest, Strand, views
from coset.symmetry.discovery.relations import Book, Value, View
from coset.symmetry.discovery.terms import Atom, atoms, resolve


def doubled(book: Book, charges: Charges, common: Mapping[Atom, set[Atom]]) -> dict[Atom, tuple[Atom, list[Strand]]]:
    """For each free atom another one that stands beside all its entries, on some tensors twice, and its strands."""
    seen: dict[Atom, list[View]] = {}
    beside: dict[Atom, set[Atom]] = {}
    for view in views(book):
        here = {atom for term in view.terms for atom in atoms(resolve(term)) if atom in common}
        for atom in here:
            seen.setdefault(atom, []).append(view)
            beside[atom] = beside[atom] & here if atom in beside else here
    found = {}
    for atom, where in seen.items():
        if atom.pinned:
            continue
        wanted = [other for other in beside[atom] if not other.pinned and other is not atom]
        known = [(other, strands(charges, where, atom, other)) for other in wanted if other not in common[atom]]
        known = [(other, kept) for other, kept in known if kept]
        if len(known) == 1:
            found[atom] = known[0]
    return found


def strands(charges: Charges, where: Iterable[View], inner: Atom, outer: Atom) -> list[Strand]:
    """The appearances of ``outer`` on the tensors with ``inner`` by index; only those beside every entry of it."""
    where = list(where)
    values = {id(view.value): view.value for view in where if view.value is not None}
    if any(view.value is None for view in where):
        return []
    home = {
        place: place
        for value in values.values()
        for dim in range(value.ndim)
        for leaf, atom in enumerate(charges.leaves(value, dim))
        if atom is outer
        for place in (AtomPlace(id(value), dim, leaf),)
    }

    def root(place: AtomPlace) -> AtomPlace:
        while home[place] != place:
            place = home[place]
        return place

    for row in (*charges.scales[outer], *charges.signs[outer]):
        linked = [place for place in row if place in home]
        for place in linked[1:]:
            home[root(place)] = root(linked[0])
    groups: dict[AtomPlace, set[AtomPlace]] = {}
    for place in home:
        groups.setdefault(root(place), set()).add(place)
    # In the order of the graph: dictionaries keep it.
    return [frozenset(group) for group in groups.values() if all(_once(charges, v, inner, group) for v in where)]


def _once(charges: Charges, view: View, inner: Atom, strand: Collection[AtomPlace]) -> bool:
    """Whether exactly one appearance of a strand stands beside every entry of an atom."""
    value = view.value
    assert value is not None
    alternatives = [[path for path in path_places(value, dim) if path is not None] for dim in view.dims]
    for number, paths in enumerate(alternatives):
        for path in paths:
            own = sum(_atom(charges, value, place) is inner for place in path)
            if not own:
                continue
            others = alternatives[:number] + alternatives[number + 1 :]
            elsewhere = [{_count(path, strand) for path in other} for other in others]
            counts = [_count(path, strand), *(count for counts in elsewhere for count in counts)]
            if own > 1 or any(len(counts) > 1 for counts in elsewhere) or sum(counts) != 1:
                return False
    return True


def _count(path: Iterable[AtomPlace], strand: Collection[AtomPlace]) -> int:
    return sum(place in strand for place in path)


def _atom(charges: Charges, value: Value, place: AtomPlace) -> Atom:
    return charges.leaves(value, place.dim)[place.leaf]


def followed_places(charges: Charges, value: Value, nested: Nest) -> dict[AtomPlace, Atom]:
    """The places of a parameter at which a block that follows an atom stands: on the axis of the units in it."""
    found: dict[AtomPlace, Atom] = {}
    for dim in range(value.ndim) if nested.follows else ():
        for path in path_places(value, dim):
            here = [(place, _atom(charges, value, place)) for place in path or ()]
            for _, inner in here:
                block = nested.around.get(inner)
                if block in nested.follows:
                    strand = nested.strands.get((inner, block))
                    found |= {
                        place: block
                        for place, atom in here
                        if atom is nested.follows[block] and (strand is None or place in strand)
                    }
    return found


class _Entry(NamedTuple):
    place: AtomPlace
    atom: Atom
    label: Atom


def misplaced(
    charges: Charges, parameters: Iterable[Value], nested: Nest, kept: Collection[Atom], free: Iterable[Gauge]
) -> set[Atom]:
    """Atoms whose blocks cannot be told from the axes of some parameter, and are to be nested in another way."""
    wrong: set[Atom] = set()
    scaled: dict[Atom, set[AtomPlace]] = {}
    for gauge in free:
        if gauge.atom is not None:
            scaled.setdefault(gauge.atom, set()).update((*gauge.scale, *gauge.sign))
    for value in parameters:
        named = followed_places(charges, value, nested)
        lost = {block for place, block in named.items() if place in scaled.get(nested.follows[block], ())}
        wrong |= {atom for atom, block in nested.around.items() if block in lost}
        for cell in _cells(charges, value, named):
            standing = [entry.atom for entry in cell]
            for entry in cell:
                if entry.atom in kept and not all(
                    _found(cell, entry, outer, nested) for outer in nested.chain(entry.atom)
                ):
                    # Those that lie in two blocks can be nested the other way round; others cannot.
                    two = {atom for atom in standing if nested.around.get(atom) in nested.follows}
                    wrong |= {atom for atom in two if nested.ways[atom] > 1} or two or {entry.atom}
    return {atom for atom in wrong if nested.ways.get(atom, 0) > 0}


def _cells(charges: Charges, value: Value, named: Mapping[AtomPlace, Atom]) -> Iterator[list[_Entry]]:
    """The parts of a parameter with one path through every axis."""
    alternatives = [[path for path in path_places(value, dim) if path is not None] for dim in range(value.ndim)]
    for choice in product(*alternatives):
        places = [place for path in choice for place in path]
        yield [
            _Entry(place, atom, named.get(place, atom)) for place in places for atom in (_atom(charges, value, place),)
        ]


def _found(cell: list[_Entry], entry: _Entry, outer: Atom, nested: Nest) -> bool:
    """Whether the axes lead from an entry to the appearance of the block around it that is meant."""
    block = outer in nested.follows
    if outer in nested.made_of and not block:
        return True  # a block for a pinned atom, named where it stands
    meant = [other for other in cell if other.atom is (nested.follows[outer] if block else outer)]
    strand = nested.strands.get((entry.atom, outer))
    if strand is not None:
        meant = [other for other in meant if other.place in strand]
    elif len(meant) > 1:
        return True  # the nearest one, as of any atom that stands twice
    near = [other for other in cell if other.label is outer]
    near = [other for other in near if other.place.dim == entry.place.dim] or near
    if not near and block:
        near = [other for other in cell if other.label is nested.follows[outer] and other.place.dim != entry.place.dim]
    return len(near) == 1 and near == meant
