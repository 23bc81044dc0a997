"""Which classes lie inside the units of which others."""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from coset.symmetry.discovery.charges import AtomPlace
from coset.symmetry.discovery.relations import Book, View
from coset.symmetry.discovery.terms import Atom, Plus, Term, Woven, atoms, paths, resolve


def views(book: Book) -> Iterator[View]:
    """All tensors, and what operations see of them."""
    for value in book.values:
        yield View(tuple(value.dims), value, tuple(range(value.ndim)), value.data, value.picked)
    yield from book.hidden


def companions(book: Book, wanted: Iterable[Atom]) -> dict[Atom, set[Atom]]:
    """For each atom the others that stand beside every one of its entries, on every tensor on which it stands."""
    common: dict[Atom, set[Atom]] = {}
    interesting = set(wanted)
    known: dict[tuple[tuple[Term, ...], bool, frozenset[Hashable]], None] = {}
    for view in views(book):
        known.setdefault((tuple(resolve(term) for term in view.terms), view.data, view.picked))
    implied = [
        (frozenset(atom for term in dims for atom in atoms(resolve(term))), frozenset(atoms(resolve(units))), index)
        for dims, units, index in book.implied
        if not any(isinstance(resolve(term), Plus | Woven) for term in dims)
    ]
    implied = [(at, units, index) for at, units, index in implied if not any(atom.stuck for atom in (*at, *units))]
    for terms, data, picked in known:
        alternatives = [paths(term, lambda atom: (atom,)) for term in terms]
        everywhere = [frozenset.intersection(*map(frozenset, choices)) for choices in alternatives]
        # An atom on two dimensions stands for two different units of it: neither is around others on a third one.
        count = Counter(atom for choices in alternatives for atom in frozenset[Atom]().union(*choices))
        twice = {atom for atom, number in count.items() if number > 1}
        twice |= {atom for choices in alternatives for path in choices for atom, n in Counter(path).items() if n > 1}
        here = frozenset[Atom]().union(*everywhere)
        # Of every token it is known which expert it goes to: its units are units of that expert. Not where tokens meet
        # each other, nor where what one index picked meets what another one did.
        chosen: frozenset[Atom] = frozenset()
        for at, units, index in implied if data else ():
            others_too = {other for _, same, other in implied if same == units and other in picked} - {index}
            if at and at <= here and not at & twice and (index is None or index in picked) and not others_too:
                chosen |= units
        for number, choices in enumerate(alternatives):
            others = frozenset().union(*everywhere[:number], *everywhere[number + 1 :])
            for path in choices:
                # Nor is an atom that stands twice on one dimension.
                single = frozenset(atom for atom, times in Counter(path).items() if times == 1)
                for atom in interesting.intersection(path):
                    beside = (single | (others - twice) | (chosen - count.keys())) - {atom}
                    common[atom] = common[atom] & beside if atom in common else set(beside)
    return common


def parents(common: Mapping[Atom, set[Atom]]) -> dict[Atom, Atom]:
    """The atom around each atom that has one.

    If every tensor with d also has h, then every operation meets d at one h at a time, and the units d may be permuted
    differently in every h. Of two atoms that are never apart the first is around the second.
    """
    around = {}
    for atom, others in common.items():
        outer = [
            other for other in others if other in common and (atom not in common[other] or other.number < atom.number)
        ]
        if outer:
            # The innermost of them: the one that itself has the most around it.
            around[atom] = max(outer, key=lambda other: (len(common[other]), -other.number))
    return around


Strand = frozenset[AtomPlace]
"""Appearances of an atom that are one index on all tensors on which some other atom stands."""


@dataclass
class Nest:
    """``around``: the atom around each atom. ``made_of``: a block that stands for an atom inside another → that atom.
    ``beside``: atoms that would lie in a second one, if both could be around them, with that one.

    Units may lie inside two atoms of which neither lies in the other, groups g before a shuffle of channels and k
    behind it. A block that stands for k is put between, inside g: the units lie in k of g. If the order of k is fixed,
    so is that of the block; if not, the block ``follows`` k. ``strands``: which appearances of an atom (of what a block
    follows) are meant, for an atom inside it, where it stands twice. ``ways``: atoms for which there is a choice, with
    the number of choices left.
    """

    around: dict[Atom, Atom]
    made_of: dict[Atom, Atom] = field(default_factory=dict)
    beside: dict[Atom, Atom] = field(default_factory=dict)
    follows: dict[Atom, Atom] = field(default_factory=dict)
    strands: dict[tuple[Atom, Atom | None], Strand] = field(default_factory=dict)
    ways: dict[Atom, int] = field(default_factory=dict)

    def chain(self, atom: Atom) -> Iterator[Atom]:
        """The atoms around an atom, innermost first."""
        while (outer := self.around.get(atom)) is not None:
            yield outer
            atom = outer

    def put_in_both(self, atom: Atom, outer: Atom, other: Atom) -> Atom:
        """Put an atom into a block that follows ``other`` inside ``outer``."""
        block = Atom(other.size)
        self.made_of[block] = self.follows[block] = other
        self.around[block], self.around[atom] = outer, block
        return block

    def lies_in(self, inner: Atom | None, outer: Atom) -> bool:
        """Whether an atom is nested in another one, at any depth."""
        return inner is not None and any(outer in (atom, self.made_of.get(atom)) for atom in self.chain(inner))

    def blocks_on(self, standing: Iterable[Atom]) -> dict[Atom, set[Atom]]:
        """For the pinned atoms of a parameter on which these atoms stand the blocks that stand for them there."""
        found: dict[Atom, set[Atom]] = {}
        for atom in standing:
            for outer in self.chain(atom):
                if outer in self.made_of and outer not in self.follows:
                    found.setdefault(self.made_of[outer], set()).add(outer)
        return found


def nest(
    common: Mapping[Atom, set[Atom]],
    banned: Collection[Atom] = (),
    doubled: Mapping[Atom, tuple[Atom, list[Strand]]] | None = None,
    way: Mapping[Atom, int] | None = None,
) -> Nest:
    """What lies in what.

    Pinned atoms across others are included but for the atoms ``banned``; so are free ones, and ``doubled`` atoms, with
    their strands, in the ``way`` that is wanted of each: one around the other, the other around the one, or neither.
    """
    found = Nest(parents(common))
    made: dict[tuple[Atom, Atom | None], Atom] = {}
    for atom in sorted(common, key=lambda atom: atom.number):
        number = (way or {}).get(atom, 0)
        if atom in (doubled or {}) and atom not in found.around:
            assert doubled is not None
            _in_doubled(found, atom, *doubled[atom], number)
            continue
        known = set(found.chain(atom))
        across = [
            other
            for other in sorted(common[atom], key=lambda other: other.number)
            if other.pinned and other in common and other not in known and atom not in found.chain(other)
            if atom not in common[other] or not atom.pinned
        ]
        other_free = [
            other
            for other in sorted(common[atom], key=lambda other: other.number)
            if not other.pinned and other in common and other not in known and atom not in common[other]
        ]
        outer = found.around.get(atom)
        if other_free and outer is not None and atom not in found.chain(other_free[0]):
            choices = [(outer, other_free[0]), *([] if outer.pinned else [(other_free[0], outer)])]
            if across or len(other_free) > 1 or any(one in found.around for one in (outer, other_free[0])):
                choices = []
            found.ways[atom] = max(0, len(choices) - number)
            if number < len(choices):
                found.put_in_both(atom, *choices[number])
                continue
            found.beside[atom] = other_free[0]
        if atom in banned:
            continue
        for other in across:
            outer = found.around.get(atom)
            if (other, outer) not in made:
                block = made[other, outer] = Atom(other.size, other.pinned)
                found.made_of[block] = other
                if outer is not None:
                    found.around[block] = outer
            found.around[atom] = made[other, outer]
    return found


def _in_doubled(found: Nest, atom: Atom, outer: Atom, strands: list[Strand], number: int) -> None:
    """Put an atom into one that stands beside it once, or twice, by its strands."""
    choices: list[tuple[int, ...]] = [(0,)] if len(strands) == 1 else [(0, 1), (1, 0)] if len(strands) == 2 else []
    if outer in found.around:
        choices = []
    found.ways[atom] = max(0, len(choices) - number)
    if number >= len(choices):
        found.beside[atom] = outer
        return
    first, *second = choices[number]
    found.around[atom] = outer
    found.strands[atom, outer] = strands[first]
    for other in second:
        found.strands[atom, found.put_in_both(atom, outer, outer)] = strands[other]


def _depth(atom: Atom, around: Mapping[Atom, Atom]) -> int:
    return 1 + _depth(around[atom], around) if atom in around else 0


def inside_out(wanted: Iterable[Atom], around: Mapping[Atom, Atom]) -> list[Atom]:
    """Atoms with those nested in others first."""
    return sorted(wanted, key=lambda atom: -_depth(atom, around))


def outside_in(wanted: Iterable[Atom], around: Mapping[Atom, Atom]) -> list[Atom]:
    """Atoms in their order, each right behind the one around it if that comes later."""
    placed: dict[Atom, None] = {}

    def place(atom: Atom) -> None:
        if atom in around:
            place(around[atom])
        placed.setdefault(atom)

    for atom in wanted:
        place(atom)
    return list(placed)
