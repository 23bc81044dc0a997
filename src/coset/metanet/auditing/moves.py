"""Places on the orbit of a network: random ones of one kind of symmetry, and the neighbours of a place."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import torch
from torch import Tensor

from coset._values import Frozen
from coset.errors import InputError
from coset.metanet.auditing.networks import Stack
from coset.symmetry import Element, Symmetry
from coset.symmetry.mixing import centred_basis
from coset.symmetry.pairs import rotations
from coset.symmetry.stacks import act_stack, network_of, stacked_elements

KINDS = ("permutations", "scales", "signs", "turns", "matrices", "translations")
"""What a network can be moved by: the parts of an element, and translations."""

ALL = "all"
"""Everything that is audited, at once."""

REACH = 3.0
"""Neighbours stay within so many standard deviations of random scales and translations."""

TURNS = 2
"""Neighbours and random places have at most so many half-turns."""


@dataclass(frozen=True, eq=False)
class OrbitPlace:
    """Where on its orbit a network is: θ ↦ ``translation`` of g·θ, with g = ``element`` (thesis, ch. 4)."""

    element: Element
    translation: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "translation", Frozen(self.translation))


def kinds_of(sym: Symmetry) -> tuple[str, ...]:
    """The kinds of moves that a symmetry has."""
    has = {
        "permutations": any(sym.shape(name)[-1] > 1 for name in sym.permuting),
        "scales": bool(sym.scaling),
        "signs": bool(sym.flipping),
        "turns": bool(sym.turns),
        "matrices": bool(sym.continuous),
        "translations": bool(sym.translations),
    }
    return tuple(kind for kind in KINDS if has[kind])


def chosen_kinds(sym: Symmetry, kinds: Collection[str] | None) -> dict[str, tuple[str, ...]]:
    """The kinds to audit, each with the parts that it moves; "all" is every one of them, where there are several."""
    known = kinds_of(sym)
    if not known:
        raise InputError("nothing moves under this symmetry: there is no orbit along which a reader could change")
    if isinstance(kinds, str):
        raise InputError(f"kinds is the string '{kinds}'; expected a list of kinds, as ['{kinds}']")
    wanted = known if kinds is None else tuple(dict.fromkeys(kinds))
    if not wanted:
        raise InputError(f"kinds is empty; expected some of {', '.join(known)}")
    for kind in wanted:
        if kind not in (*known, ALL):
            raise InputError(f"kinds has {kind!r}; this symmetry has {', '.join(known)}")
    several = kinds is None and len(known) > 1
    chosen = {kind: (kind,) for kind in known if kind in wanted}
    return chosen | ({ALL: known} if several or ALL in wanted else {})


class Moves:
    """Moves of one kind: random places, and networks brought there.

    ``parts``: what it moves. Permutations and signs are uniform, scales exp(spread·N(0, 1)), matrices as
    ``Symmetry.random`` draws them, half-turns uniform in −2…2, translations normal and as large as what they move.
    """

    def __init__(self, sym: Symmetry, kind: str, parts: tuple[str, ...], spread: float) -> None:
        self.sym, self.kind, self.parts, self.spread = sym, kind, parts, spread
        self._source, self._neutral = sym, sym.identity()
        # Matrices and turns can only be drawn with all else that is there.
        if not {"matrices", "turns"} & {*parts}:
            self._source = sym.restrict(
                permutations="permutations" in parts, scales="scales" in parts, signs="signs" in parts, continuous=False
            )

    def random(self, network: Mapping[str, Tensor], generator: torch.Generator) -> OrbitPlace:
        """A random place on the orbit of a network."""
        drawn = self._source.random(generator, spread=self.spread, turns=TURNS)
        own = {part: getattr(drawn, part) for part in KINDS[:5] if part in self.parts}
        g = replace(self._neutral, **own)
        if "translations" not in self.parts:
            return OrbitPlace(g)
        moved = self.sym.act(g, network) if own else network
        return OrbitPlace(g, self.sym.random_translation(moved, generator))

    def tensors(self, places: Sequence[OrbitPlace], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """N networks (N, …), each at its place."""
        moved = dict(tensors)
        if self.parts != ("translations",):
            elements = [place.element for place in places]
            if len(places) == 1:  # several times faster than a stack of one
                one = self.sym.act(elements[0], network_of(moved, 0))
                moved = {name: tensor[None] for name, tensor in one.items()}
            else:
                moved = act_stack(self.sym, stacked_elements(elements), moved)
        if "translations" not in self.parts:
            return moved
        ones = [self.sym.translate(place.translation, network_of(moved, number)) for number, place in enumerate(places)]
        return {name: torch.stack([one[name] for one in ones]) for name in moved}

    def __call__(self, places: Sequence[OrbitPlace], stack: Stack) -> Stack:
        """Networks at their places, checked for overflow."""
        return stack.moved(self.tensors(places, stack.tensors), "everything at once" if self.kind == ALL else self.kind)

    def neighbours(self, start: OrbitPlace, generator: torch.Generator) -> Iterator[Callable[[OrbitPlace], OrbitPlace]]:
        """One small change after the other, of every unit once, in random order; without end.

        Units are exchanged with another one, flipped, turned by one half-turn or mixed with another one in a plane;
        a scale or a number of a translation becomes the least, the largest, and any between them.
        """
        changes = list(self._changes(start, generator))
        while changes:
            for number in torch.randperm(len(changes), generator=generator).tolist():
                yield changes[number]

    def count(self, start: OrbitPlace) -> int:
        """How many neighbours make one round."""
        return sum(len(_ways(part)) * tensor.numel() for part, _, tensor in self._free(start))

    def _free(self, place: OrbitPlace) -> Iterator[tuple[str, str, Tensor]]:
        """Part, key and units of everything that moves; of matrices one number for every unit."""
        for part in self.parts:
            if part == "translations":
                yield from ((part, key, z) for key, z in place.translation.items())
            elif part == "permutations":
                yield from ((part, key, p) for key, p in place.element.permutations.items() if p.shape[-1] > 1)
            elif part == "matrices":
                rotary = {key for key, mixing in self.sym.continuous.items() if mixing.kind == "rotary"}
                for key, m in place.element.matrices.items():
                    yield part, key, m[..., 0, 0] if key in rotary else m[..., 0]
            else:
                yield from ((part, key, values) for key, values in getattr(place.element, part).items())

    def _changes(self, start: OrbitPlace, generator: torch.Generator) -> Iterable[Callable[[OrbitPlace], OrbitPlace]]:
        for part, key, units in self._free(start):
            reach = REACH * self.spread
            if part == "translations":
                reach = REACH * float(units.double().square().mean().sqrt())
            for index, way in product(range(units.numel()), _ways(part)):
                yield _Change(self.sym, part, key, index, reach, way, generator)


def _ways(part: str) -> tuple[float, ...]:
    """How often a unit is changed in one round: a number goes to both ends, and somewhere between them (0)."""
    return (-1.0, 1.0, 0.0) if part in ("scales", "translations") else (0.0,)


@dataclass(frozen=True, eq=False)
class _Change:
    """A small random change of one unit of one part of a place."""

    sym: Symmetry
    part: str
    key: str
    index: int
    reach: float
    way: float
    generator: torch.Generator

    def __call__(self, place: OrbitPlace) -> OrbitPlace:
        if self.part == "translations":
            z = place.translation[self.key].clone()
            z.reshape(-1)[self.index] = self._within()
            return replace(place, translation={**place.translation, self.key: z})
        values: Mapping[str, Tensor] = getattr(place.element, self.part)
        new = values[self.key].clone(memory_format=torch.contiguous_format)
        getattr(self, f"_{self.part}")(new)
        return replace(place, element=replace(place.element, **{self.part: {**values, self.key: new}}))

    def _permutations(self, p: Tensor) -> None:
        block, unit = divmod(self.index, p.shape[-1])
        rows = p.view(-1, p.shape[-1])
        other = self._other(unit, p.shape[-1])
        rows[block, [unit, other]] = rows[block, [other, unit]]

    def _scales(self, d: Tensor) -> None:
        d.view(-1)[self.index] = math.exp(self._within())

    def _signs(self, s: Tensor) -> None:
        s.view(-1)[self.index] *= -1

    def _turns(self, k: Tensor) -> None:
        now = int(k.view(-1)[self.index])
        if self.sym.turns[self.key].order:
            k.view(-1)[self.index] = 1 - now
        else:
            step = 1 if self._uniform() < 0.5 else -1
            k.view(-1)[self.index] = now - step if abs(now + step) > TURNS else now + step

    def _matrices(self, m: Tensor) -> None:
        kind = self.sym.continuous[self.key].kind
        angle = torch.tensor(2 * math.pi * self._uniform(), dtype=m.dtype)
        if kind == "rotary":
            m.view(-1, 2, 2)[self.index] = rotations(angle)
            return
        n = m.shape[-1]
        block, unit = divmod(self.index, n)
        basis = centred_basis(n).to(m) if kind == "centred" else torch.eye(n).to(m)
        turn = self._plane(unit % basis.shape[1], basis.shape[1], angle)
        # What the basis leaves out, the mean of the units, stays.
        whole = basis @ turn @ basis.mT + torch.eye(n).to(m) - basis @ basis.mT
        rows = m.view(-1, n, n)
        # From the right as well: singular values alone stay what they were.
        from_right = kind == "general" and self._uniform() < 0.5
        rows[block] = rows[block] @ whole if from_right else whole @ rows[block]

    def _plane(self, unit: int, n: int, angle: Tensor) -> Tensor:
        """A rotation in the plane of a unit and another one; of a single one, its reflection."""
        turn = torch.eye(n, dtype=angle.dtype)
        if n == 1:
            return -turn
        pair = torch.tensor([unit, self._other(unit, n)])
        turn[pair[:, None], pair] = rotations(angle)
        return turn

    def _uniform(self) -> float:
        return float(torch.rand((), generator=self.generator, dtype=torch.float64))

    def _other(self, unit: int, n: int) -> int:
        return (unit + 1 + int(torch.randint(n - 1, (), generator=self.generator))) % n

    def _within(self) -> float:
        """The least, the largest, or any number between them."""
        return self.reach * (self.way or 2 * self._uniform() - 1)
