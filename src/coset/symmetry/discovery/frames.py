"""Frames of classes on tensors: by which matrix the units are multiplied there, and behind which gains."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coset.symmetry.discovery.relations import Value
from coset.symmetry.discovery.terms import Atom, atoms, resolve
from coset.symmetry.discovery.tracing import Tracing
from coset.symmetry.mixing import KINDS, Mixed, Mixing


@dataclass(eq=False)
class FramePlace:
    """Where a class stands on a parameter: how it turns against another place, and the gains it is read behind."""

    source: "FramePlace | None" = None
    turned: bool = False
    gains: tuple[str, ...] | None = None
    gain: bool = False

    def root(self) -> tuple["FramePlace", bool]:
        """The place that stands for all that turn with this one, and whether this one turns the other way."""
        place, turned = self, False
        while place.source is not None:
            turned ^= place.turned
            place = place.source
        return place, turned


@dataclass(frozen=True, eq=False)
class Frame:
    """A place by whose matrices a class is mixed on some tensor, and the gains it has passed since."""

    place: FramePlace
    gains: tuple[str, ...] = ()


Frames = dict[Atom, list[Frame]]
"""For each class on a tensor, its frames, one for every appearance along the dimensions in order."""


@dataclass
class FrameBook:
    """What is known of the classes on tensors: kinds, frames, and which are lost to matrices."""

    tracing: Tracing
    names: Mapping[Atom, str]
    kinds: dict[Atom, int] = field(default_factory=dict)
    frames: dict[int, Frames] = field(default_factory=dict)
    squares: dict[int, set[Atom]] = field(default_factory=dict)
    flat: dict[int, set[Atom]] = field(default_factory=dict)
    lost: set[Atom] = field(default_factory=set)
    gains: dict[int, str] = field(default_factory=dict)
    anchors: dict[Atom, FramePlace] = field(default_factory=dict)
    both_ways: set[Atom] = field(default_factory=set)
    values: list[Value] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, value in self.tracing.parameters.items():
            self.gains[id(value)] = name
            self.frames[id(value)] = {
                atom: [Frame(FramePlace()) for _ in range(count)] for atom, count in self.counted(value).items()
            }

    # What is known of a tensor ----------------------------------------------------------------------------------------

    def along(self, value: Value, dim: int) -> list[Atom]:
        """The classes on one dimension, in order."""
        return [atom for atom in atoms(resolve(value.dims[dim])) if atom in self.names]

    def counted(self, value: Value) -> dict[Atom, int]:
        found: dict[Atom, int] = {}
        for dim in range(value.ndim):
            for atom in self.along(value, dim):
                found[atom] = found.get(atom, 0) + 1
        return found

    def of(self, value: Value) -> Frames:
        return self.frames.get(id(value), {})

    def at(self, value: Value, dim: int) -> dict[Atom, list[Frame]]:
        """The frames of the classes on one dimension."""
        dim %= max(value.ndim, 1)
        before: dict[Atom, int] = {}
        for earlier in range(dim):
            for atom in self.along(value, earlier):
                before[atom] = before.get(atom, 0) + 1
        found: dict[Atom, list[Frame]] = {}
        for atom in self.along(value, dim):
            known = self.of(value).get(atom, [])
            at = before.get(atom, 0) + len(found.get(atom, []))
            if at >= len(known):
                self.lose(atom)
            else:
                found.setdefault(atom, []).append(known[at])
        return found

    def lose(self, *lost: Atom) -> None:
        self.lost.update(lost)

    def lower(self, atom: Atom, kind: str) -> None:
        self.kinds[atom] = max(self.kinds.get(atom, 0), KINDS.index(kind))

    def give(self, value: Value, frames: Mapping[Atom, list[Frame]]) -> None:
        """Say in which frames the classes of a result stand; those of which nothing is said are lost."""
        self.values.append(value)  # so that no other object gets its number
        given: Frames = {}
        for atom, count in self.counted(value).items():
            if len(frames.get(atom, ())) == count:
                given[atom] = frames[atom]
            elif atom not in self.flat.get(id(value), ()):
                self.lose(atom)
        self.frames[id(value)] = given

    # How frames meet ------------------------------------------------------------------------------------------------

    def settle(self, frame: Frame) -> tuple[str, ...]:
        """The gains of a frame; a place of which nothing was known has none."""
        if frame.place.gains is None:
            frame.place.gains = ()
        return frame.place.gains + frame.gains

    def same(self, atom: Atom, one: Frame, two: Frame, *, turned: bool = False) -> None:
        """Both are mixed alike; ``turned``: the one by A where the other is by A⁻ᵀ."""
        for frame, other in ((one, two), (two, one)):
            if frame.place.gains is None and not frame.gains and frame.place is not other.place:
                frame.place.gains = self.settle(other)
        if self.settle(one) != self.settle(two):
            self.lose(atom)
        (a, way_a), (b, way_b) = one.place.root(), two.place.root()
        if a is not b:
            a.source, a.turned = b, way_a ^ way_b ^ turned
        elif way_a ^ way_b ^ turned:
            self.lower(atom, "orthogonal")
            self.both_ways.add(atom)

    def meet(self, one: Mapping[Atom, list[Frame]], two: Mapping[Atom, list[Frame]], *, turned: bool) -> None:
        for atom in {**one, **two}:
            pairs = one.get(atom, []), two.get(atom, [])
            if len(pairs[0]) != len(pairs[1]):
                self.lose(atom)
                continue
            for a, b in zip(*pairs, strict=True):
                self.same(atom, a, b, turned=turned)

    # What comes out -------------------------------------------------------------------------------------------------

    def mixing(self, atom: Atom) -> Mixing | None:
        """How the parameters of a class are mixed; None if nothing is left but permutations."""
        anchor = self.anchors.get(atom)
        if atom in self.lost or (anchor is not None and atom in self.both_ways):
            return None
        first = (frame.place for value in self.tracing.parameters.values() for frame in self.of(value).get(atom, []))
        # Without gains, either way is right: what writes the units, which stands first, is multiplied by A.
        against = (anchor or next(first, FramePlace())).root()[1]
        places: dict[str, tuple[Mixed, ...]] = {}
        roots: set[int] = set()
        for name, value in self.tracing.parameters.items():
            mixed = []
            for frame in self.of(value).get(atom, []):
                root, turned = frame.place.root()
                roots |= set() if frame.place.gain else {id(root)}
                way = 0 if frame.place.gain else -1 if turned ^ against else 1
                mixed.append(Mixed(way, frame.place.gains or ()))
            if mixed:
                places[name] = tuple(mixed)
        # Places that nothing ties together may be mixed apart: then this is no class of one matrix.
        return Mixing(KINDS[self.kinds.get(atom, 0)], places) if len(roots) == 1 else None
