"""Which classes lie inside the units of which others."""

from collections.abc import Iterable, Mapping

from coset.symmetry.discovery.relations import Book
from coset.symmetry.discovery.terms import Atom, Term, atoms, resolve


def companions(book: Book, wanted: Iterable[Atom]) -> dict[Atom, set[Atom]]:
    """For each atom the others that stand on every tensor on which it stands."""
    common: dict[Atom, set[Atom]] = {}
    interesting = set(wanted)
    tensors: list[Iterable[Term]] = [value.dims for value in book.values]
    for dims in (*tensors, *book.hidden):
        present = {atom for dim in dims for atom in atoms(resolve(dim))}
        for atom in present & interesting:
            common[atom] = (common[atom] & present if atom in common else set(present)) - {atom}
    return common


def parents(common: Mapping[Atom, set[Atom]]) -> dict[Atom, Atom]:
    """The atom around each atom that has one.

    If every tensor with d also has h, then every operation meets d at one h at a time, and the units d may be permuted
    differently in every h. Two atoms that are never apart are no help to each other.
    """
    around = {}
    for atom, others in common.items():
        outer = [other for other in others if other in common and atom not in common[other]]
        if outer:
            # The innermost of them: the one that itself has the most around it.
            around[atom] = max(outer, key=lambda other: (len(common[other]), -other.number))
    return around


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
