"""The ascent over the whole group: streams, units, heads in turn, each by the exact step of its kind.

One moved copy of the other network is held; the reference is brought into its gauge parameter by parameter.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from coset.alignment._agreement import is_trained
from coset.alignment.matching.rotations import Params, Rotations, inner_product, matching_gauge, polar
from coset.alignment.matching.weightings import Weighting, weighed
from coset.symmetry import Element, Symmetry
from coset.symmetry.action import Acted, move
from coset.symmetry.incidence import appearances

_ROUNDS, _SIGNS = 50, 3
_RISE, _NOISE = 1e-12, 2**-5
"""Rounds end where one of them raises the objective by less, relative to its size: 1e-12, or this part of the unit of
rounding of the weights, of which sums over many entries keep so much.
"""


@dataclass(frozen=True)
class Rotated:
    """An ``element`` of the whole group and the ``history`` of ⟨θ₀ | g·θ₁⟩, every time it rose."""

    element: Element
    history: list[float]


Units = Callable[[Params, Params, Collection[str], Collection[str], bool], Element]
"""Matches some classes of a reference and another network on some parameters, all others left; True the first time."""


def rotated(
    sym: Symmetry,
    reference: Params,
    other: Callable[[], Params],
    units: Units,
    *,
    normalized: bool = False,
    weighting: str = "plain",
    begun: bool = False,
    restarts: int = 0,
    seed: int = 0,
    report: Callable[[float, str], bool],
) -> Rotated:
    """An element of the whole group that brings ``other`` near the reference.

    Streams come first, by what no other class has to be known for (embeddings and read-outs), then all classes in
    turn, until a round no longer helps; from every choice of signs that are common to many units, and the best is
    taken. ``begun``: from where ``other`` is, instead; ``restarts``: also from so many random elements. ``normalized``:
    match without the scales of either network; ``weighting``: what counts how much, see ``weighed``. ``other`` is asked
    for whenever it is needed, so that it is not held beside its moved copy.
    """
    gauges = [matching_gauge(sym, params, scales=normalized) for params in (reference, other())]

    # No name for the other network: it is not held beside its moved copy.
    left, counting = weighed(sym, weighting, _streams(sym), gauges[0], reference, Acted(sym, gauges[1], other()))

    def moved(start: Element) -> dict[str, Tensor]:
        params = dict(other())
        if counting is None:
            move(sym, sym.compose(start, gauges[1]), params)
            return params
        move(sym, gauges[1], params)
        counting.count(params)
        move(sym, start, params)
        counting.place(params)
        return params

    starts = [(as_it_is(sym, *gauges), True)] if begun else [(start, False) for start in _common_signs(sym)]
    generator = torch.Generator().manual_seed(seed)
    # Without scales and with rotations alone, so that networks stay in the gauge.
    starts += [(sym.random(generator, spread=0.0, turns=0), True) for _ in range(restarts)]
    best = _best_of(sym, left, moved, starts, units, report, counting)
    return Rotated(sym.compose(sym.inverse(gauges[0]), sym.compose(best.element, gauges[1])), best.history)


def _streams(sym: Symmetry) -> list[str]:
    """The classes that mix and lie in no blocks that permute."""
    return [name for name in sym.continuous if sym.classes[name].parent not in _blocks(sym)]


def _blocks(sym: Symmetry) -> list[str]:
    """The classes of blocks that permute with what is mixed in them."""
    inside = dict.fromkeys(sym.classes[name].parent for name in sym.continuous)
    return [name for name in inside if name and sym.classes[name].permutes and sym.classes[name].parent is None]


def as_it_is(sym: Symmetry, reference: Element, other: Element) -> Element:
    """What leaves a network where it is, up to its gauge: between two gauges, the nearest rotations."""
    between = sym.compose(reference, sym.inverse(other))
    matrices = {name: polar(matrix, sym.continuous[name].kind)[0] for name, matrix in between.matrices.items()}
    return sym.element(matrices=matrices)


def rotated_in_gauge(
    sym: Symmetry, left: Params, right: Params, units: Units, report: Callable[[float, str], bool]
) -> Rotated:
    """The same for networks that are in the gauge, in which they stay."""
    starts = [(start, False) for start in _common_signs(sym)]
    return _best_of(sym, left, lambda start: sym.act(start, right), starts, units, report)


def _common_signs(sym: Symmetry) -> Iterator[Element]:
    """Every choice of the signs that many units share."""
    common = [key for key in sym.flipping if math.prod(sym.shape(sym.families[key].owner)) == 1][:_SIGNS]
    shapes = {key: sym.shape(sym.families[key].owner) for key in common}
    for choice in product((1, -1), repeat=len(common)):
        signs = {key: torch.full(shapes[key], sign, dtype=torch.int8) for key, sign in zip(common, choice, strict=True)}
        yield sym.element(signs=signs)


def _best_of(
    sym: Symmetry,
    left: Params,
    right: Callable[[Element], dict[str, Tensor]],
    starts: Iterable[tuple[Element, bool]],
    units: Units,
    report: Callable[[float, str], bool],
    counting: Weighting | None = None,
) -> Rotated:
    """The best ascent; ``right``: the other network in the gauge, moved by the element it is to begin with.

    ``starts``: elements, each with whether it says where all classes are, or signs alone.
    """
    best: Rotated | None = None
    stopped = False

    def told(value: float, what: str) -> bool:
        nonlocal stopped
        stopped = report(value, what)
        return stopped

    for start, placed in starts:
        found = _Ascent(sym, left, right(start), units, told, counting).run(start, placed)
        best = found if best is None or found.history[-1] > best.history[-1] else best
        if stopped:
            break
    assert best is not None
    return best


class _Ascent:
    """Rounds of exact steps from one start; both networks in the gauge in which they are matched."""

    def __init__(
        self,
        sym: Symmetry,
        left: Params,
        right: dict[str, Tensor],
        units: Units,
        report: Callable[[float, str], bool],
        counting: Weighting | None,
    ) -> None:
        """``right`` is moved in place, so that there is one copy of it; ``counting``: how it was made to count."""
        self.sym, self.left, self.right, self.match, self.report = sym, left, right, units, report
        self.counting = counting
        self.steps = Rotations(sym, left, None if counting is None else counting.scores)
        classes = sym.classes
        self.parents, self.free = _blocks(sym), _streams(sym)
        owners = {sym.families[key].owner for key in sym.flipping}
        others = [name for name in classes if name not in sym.continuous and name not in self.parents]
        self.units = [name for name in others if classes[name].permutes or name in owners]
        self.signed_parents = [name for name in self.parents if name in owners]
        # Gains are ones in this gauge: beside them small weights would be lost in rounding.
        gains = {gain for mixing in sym.continuous.values() for gain in mixing.gains}
        self.names = [name for name in left if is_trained(sym, name, left) and name not in gains]

        widest = max((torch.finfo(left[name].dtype).eps for name in self.names), default=0.0)
        self.rise = max(_RISE, _NOISE * widest)
        self._products: dict[str, float] = {}
        self._renew(self.names)

    def product(self) -> float:
        """⟨θ₀ | θ₁⟩ over trained weights but gains."""
        return sum(self._products.values())

    def _renew(self, names: Iterable[str]) -> None:
        """Take the products of some parameters again."""
        self._products |= {name: inner_product(self.left, self.right, [name]) for name in names}

    def run(self, g: Element, placed: bool) -> Rotated:
        """The element reached from ``g``, which has brought the other network where it is; ``placed``: all of it."""
        best, history = g, [self.product()]
        for h, what in self._course(placed):
            g = self.sym.compose(h, g)
            moved = move(self.sym, h, self.right) if self.counting is None else self.counting.move(h, self.right)
            self._renew(name for name in self.names if name in moved)
            value = self.product()
            if value > history[-1]:
                best, history = g, [*history, value]
            if self.report(value, what):
                break
        return Rotated(best, history)

    def _apart(self, unknown: Collection[str]) -> list[str]:
        """The parameters on which no class stands that is not matched yet: the others say nothing of units."""
        blocks = {*self.parents, *unknown, *(name for name in self.sym.continuous if name not in self.free)}
        return [name for name in self.names if blocks.isdisjoint(item.name for _, item in appearances(self.sym, name))]

    def _course(self, placed: bool) -> Iterator[tuple[Element, str]]:
        """Rounds of steps, and again where signs of blocks that are turned around lead higher.

        Unless all classes are ``placed`` streams come first, by what is known alone.
        """
        unknown = self.steps.unknown(self.free, self.right)
        if not placed:
            yield self.steps.turn(self.free, self.right, settled=()), "streams"
            # Then what stands beside these alone, before units are matched that stand beside both.
            before: list[str] = []
            while unknown and unknown != before:
                settled, before = [name for name in self.free if name not in unknown], unknown
                yield self.steps.turn(unknown, self.right, settled), "streams"
                unknown = self.steps.unknown(unknown, self.right, settled)
        first, better = not placed, True
        while better:
            yield from self._rounds(unknown, first)
            first, better = False, False
            for kick in self._kicks():
                low, undo = self.product(), self.sym.identity()
                for names, h in ((None, kick), (self.units, None), ([*self.units, *self.signed_parents], None)):
                    if names is not None:
                        found = self.match(self.left, self.right, names, self.names, False)
                        h = self.sym.element(found.permutations, signs=found.signs)
                    assert h is not None
                    undo = self.sym.compose(undo, self.sym.inverse(h))
                    yield h, "signs of blocks"
                if self.product() > low + self.rise * abs(low):
                    better = True
                else:
                    yield undo, "signs of blocks"

    def _kicks(self) -> Iterator[Element]:
        """The sign of one block turned around, of all that have one beside signs of what is in them.

        Signs of heads and of the coordinates of all heads are matched in turn, and may hold each other in place.
        """
        for key in self.sym.flipping:
            owner = self.sym.families[key].owner
            if owner in self.signed_parents:
                for unit in range(math.prod(self.sym.shape(owner))):
                    signs = torch.ones(self.sym.shape(owner), dtype=torch.int8)
                    signs.view(-1)[unit] = -1
                    yield self.sym.element(signs={key: signs})

    def _rounds(self, unknown: Collection[str], first: bool) -> Iterator[tuple[Element, str]]:
        """Steps in turn, until a round of them no longer helps; the very first on what is known alone."""
        reached = -math.inf
        for number in range(_ROUNDS):
            early = first and not number
            if self.units:
                names = self.units if early else [*self.units, *self.signed_parents]
                known = self._apart(unknown) if early else self.names
                found = self.match(self.left, self.right, names, known, early)
                yield self.sym.element(found.permutations, signs=found.signs), "units"
            for parent in self.parents:
                yield self.steps.exchange(parent, self.right), f"blocks {parent}"
            if self.free:
                yield self.steps.turn(self.free, self.right), "streams"
            before, reached = reached, self.product()
            if reached <= before + self.rise * abs(reached):
                return
