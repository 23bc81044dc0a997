"""Where the units of a class stand in the parameters, and which classes must be assigned together."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from coset.symmetry import Symmetry
from coset.symmetry.incidence import rows_along, together
from coset.symmetry.orbits import has_free_sign, mean_by
from coset.symmetry.structure import Appearance, Stretch, ancestors, surroundings


@dataclass(frozen=True, eq=False)
class ClassPlace:
    """Entries of a parameter that a class moves, and no class inside it.

    ``positions`` (N, R): along the stretch, by unit over all blocks; None for "unit i stands at position i".
    ``parity``: the sign families of the class, and of those around it, that flip these entries. ``beside``: members of
    the stretch at the same positions that are neither the class nor around it.
    """

    owner: str
    parameter: str
    stretch: int
    positions: Tensor | None
    parity: frozenset[str]
    beside: tuple[Appearance, ...] = ()


@dataclass(frozen=True)
class ClassMove:
    """Classes assigned in one step: a tree of blocks from its ``root``, with the insides of the ``active`` classes.

    Classes of the tree that are not active keep the order inside their blocks.
    """

    root: str
    active: frozenset[str]


@dataclass(frozen=True, eq=False)
class ClassLayout:
    """Everything about a symmetry that matching needs and that does not depend on weights."""

    sym: Symmetry
    places: Mapping[str, tuple[ClassPlace, ...]]

    @cached_property
    def children(self) -> Mapping[str, tuple[str, ...]]:
        """Class → classes directly inside it."""
        return {
            name: tuple(inner for inner, item in self.sym.classes.items() if item.parent == name)
            for name in self.sym.classes
        }

    @cached_property
    def chains(self) -> Mapping[str, tuple[str, ...]]:
        """Class → the classes around it, outermost first, then itself."""
        return {name: (*ancestors(name, self.sym.classes), name) for name in self.sym.classes}

    @cached_property
    def around(self) -> Mapping[str, frozenset[str]]:
        """Class → itself, the classes around it, and those as which they move."""
        return {
            name: surroundings(name, self.sym.classes)
            | {own for own in (name, self.sym.classes[name].follows) if own is not None}
            for name in self.sym.classes
        }

    @cached_property
    def flips(self) -> Mapping[str, tuple[str, ...]]:
        """Class → its families of free signs."""
        owners = {key: self.sym.families[key].owner for key in self.sym.flipping}
        return {name: tuple(key for key, owner in owners.items() if owner == name) for name in self.sym.classes}

    def tree(self, root: str) -> tuple[str, ...]:
        """A class and all that are inside it, outer ones first."""
        return (root, *(name for child in self.children[root] for name in self.tree(child)))

    @cached_property
    def moves(self) -> tuple[ClassMove, ...]:
        """The steps of a sweep: every class that can do anything is active in one of them.

        Two classes of a tree that stand at the same entries (the inputs and outputs of a group) are not assigned in one
        step: each is, given the other. All else that can be is assigned again in each, blocks above all: a block is
        worth what its best inside is.
        """
        found: list[ClassMove] = []
        for root, item in self.sym.classes.items():
            if item.parent is not None:
                continue
            able = [name for name in self.tree(root) if self.sym.classes[name].permutes or self.flips[name]]
            waiting = able
            while waiting:
                active: list[str] = []
                for name in dict.fromkeys((*waiting, *able)):
                    if self.coupled[name].isdisjoint(active):
                        active.append(name)
                found.append(ClassMove(root, frozenset(active)))
                waiting = [name for name in waiting if name not in active]
        return tuple(found)

    @cached_property
    def counting(self) -> Mapping[str, ClassMove]:
        """Class → the first of the moves in which it, or a class around it, can do most."""
        return {
            name: max(
                (move for move in self.moves if move.root == chain[0]),
                key=lambda move: len(move.active.intersection(chain)),
            )
            for name, chain in self.chains.items()
            if any(move.root == chain[0] for move in self.moves)
        }

    @cached_property
    def coupled(self) -> Mapping[str, frozenset[str]]:
        """Class → the classes that stand at the same entries along a stretch and are neither in it nor around it."""
        found: dict[str, set[str]] = {name: set() for name in self.sym.classes}
        for structure in self.sym.structures.values():
            for stretch in structure.stretches:
                for a, b in itertools.permutations(stretch.appearances, 2):
                    apart = a.name not in self.chains[b.name] and b.name not in self.chains[a.name]
                    if apart and together(a, b):
                        found[a.name].add(b.name)
        return {name: frozenset(others) for name, others in found.items()}

    @cached_property
    def quadratic(self) -> frozenset[str]:
        """Roots whose tree stands twice in one parameter: there the objective is not linear in the step.

        So does a tree in which a class follows one of its own.
        """
        roots = set()
        for root, item in self.sym.classes.items():
            if item.parent is None:
                mine = set(self.tree(root))
                if any(self.sym.classes[name].follows in mine for name in mine):
                    roots.add(root)
                for structure in self.sym.structures.values():
                    own = [[item for item in one.appearances if item.name in mine] for one in structure.stretches]
                    if sum(map(bool, own)) > 1 or any(map(_stand_twice, own)):
                        roots.add(root)
        return frozenset(roots)


def layout_of(sym: Symmetry) -> ClassLayout:
    """Find every place of every class."""
    places: dict[str, list[ClassPlace]] = {name: [] for name in sym.classes}
    for name, structure in sym.structures.items():
        for number, stretch in enumerate(structure.stretches):
            for place in _places(sym, name, number, stretch):
                places[place.owner].append(place)
    return ClassLayout(sym, {name: tuple(found) for name, found in places.items()})


def _places(sym: Symmetry, parameter: str, number: int, stretch: Stretch) -> list[ClassPlace]:
    if stretch.plain:
        (one,) = stretch.appearances
        return [ClassPlace(one.name, parameter, number, None, _flipped(sym, [one]))]
    present = torch.stack([item.present for item in stretch.appearances])
    kinds, which = torch.unique(present, dim=1, return_inverse=True)
    found = []
    for kind in range(kinds.shape[1]):
        members = [item for row, item in enumerate(stretch.appearances) if bool(kinds[row, kind])]
        at = torch.nonzero(which == kind).flatten()
        for member in members:
            if any(member.name in ancestors(other.name, sym.classes) for other in members):
                continue
            around = surroundings(member.name, sym.classes)
            chain = [other for other in members if other is member or other.name in around]
            beside = tuple(other for other in members if not any(other is part for part in chain))
            parity = _flipped(sym, chain)
            units = member.unit[at]
            # Sorted by unit and, within it, in order: the rest of the coordinates come in the same order for each.
            positions = at[units.argsort(stable=True)].reshape(math.prod(sym.shape(member.name)), -1)
            found.append(ClassPlace(member.name, parameter, number, positions, parity, beside))
    return found


def place_rows(sym: Symmetry, place: ClassPlace, tensor: Tensor, lead: int = 0) -> Tensor:
    """Units of a place in rows, everything but the class in columns, (N, R) behind ``lead`` axes of samples."""
    structure = sym.structures[place.parameter]
    rows = rows_along(tensor, structure, structure.stretches[place.stretch], lead)
    return (
        rows
        if place.positions is None
        else rows[(slice(None),) * lead + (place.positions.to(rows.device),)].flatten(lead + 1)
    )


def mean_beside(sym: Symmetry, place: ClassPlace, rows: Tensor, signed: bool) -> Tensor:
    """Rows of a stretch at the positions of a place (N, R, rest), averaged over what stands beside the class."""
    assert place.positions is not None
    positions = place.positions
    labels = positions.clone()
    odd = torch.zeros(positions.shape, dtype=torch.bool)
    for item in place.beside:
        odd |= has_free_sign(sym, item)
        if sym.classes[item.name].permutes:
            labels -= item.stride[positions] * (item.unit[positions] % sym.classes[item.name].size)
    picked = rows[positions.to(rows.device)]
    flat = mean_by(picked.reshape(positions.numel(), -1), labels.reshape(-1)).reshape(picked.shape)
    if signed:
        flat = flat * (~odd).to(flat)[..., None]
    return flat


def _flipped(sym: Symmetry, parts: Sequence[Appearance]) -> frozenset[str]:
    """The free sign families that flip entries at which these classes stand; twice is not at all."""
    odd: set[str] = set()
    for part in parts:
        for key in part.signs:
            odd ^= {key} & set(sym.flipping)
    return frozenset(odd)


def _stand_twice(appearances: Sequence[Appearance]) -> bool:
    """Whether some position is moved by two appearances of one class."""
    return any(a.name == b.name and together(a, b) for a, b in itertools.combinations(appearances, 2))
