"""Which numbers may be added to parameters without a change of the outputs.

Every parameter that is added somewhere begins as unknown shifts of its entries, which are followed through the graph
(``shifting``) and have to be 0 where something other than sums and linear maps reads them. What remains free are the
translations, with those of tensors along whose dimensions nothing sees constants (``blindness``).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import torch
from torch import Tensor
from torch.fx import Node

from coset.symmetry.discovery.blindness import Blind
from coset.symmetry.discovery.shift_book import Source
from coset.symmetry.discovery.shifting import Shifting
from coset.symmetry.incidence import appearances, spread
from coset.symmetry.symmetry import Symmetry
from coset.symmetry.translations import Move, Take, Translation, in_order


def translations(
    program: torch.export.ExportedProgram, movable: Mapping[str, Tensor], fixed: Collection[str] = ()
) -> tuple[Translation, ...]:
    """The translations of an exported model, in the order in which they are removed.

    A parameter of which the example reads only a part (positions of longer inputs) neither begins a shift nor takes one
    up: the rest of it would have to follow.
    """
    partly: set[str] = set()
    while True:
        walk = _Translations(program, movable, fixed, partly)
        found = walk.found()
        more = {name for name in walk.sources if not bool(walk.seen.get(name, torch.tensor(False)).all())}
        if more <= partly:
            return found
        partly |= more


def in_signed_blocks(sym: Symmetry, found: Sequence[Translation]) -> list[Translation]:
    """Constants along an axis on which blocks have signs become constants of each block.

    A flip takes the multiples of 1 to others that nothing sees either: together these are the constants of all blocks,
    as behind a group norm.
    """
    pivots = [item.pivot for item in found]
    result = []
    for item in found:
        blocks = 1
        if item.kind == "constant" and pivots.count(item.pivot) == 1 and item.moves[0].over:
            blocks = _signed_blocks(sym, item.pivot, item.moves[0].over[0])
        if blocks > 1:
            move = replace(item.moves[0], blocks=blocks)
            item = replace(item, shape=move.free_shape(sym.parameters[item.pivot].shape), moves=(move,))
        result.append(item)
    return result


def _signed_blocks(sym: Symmetry, parameter: str, axis: int) -> int:
    """Into how many equal parts, one after the other, the signs on a parameter divide one of its axes; 1 if none."""
    if parameter not in sym.structures:
        return 1
    structure, length = sym.structures[parameter], sym.parameters[parameter].shape[axis]
    signs = torch.zeros(structure.sizes, dtype=torch.long)
    for stretch, item in appearances(sym, parameter):
        if item.signs:
            signs = signs * (int(item.unit.max()) + 2) + spread(item.unit + 1, structure, stretch)
    rows = signs.reshape(sym.parameters[parameter].shape).movedim(axis, 0).reshape(length, -1)
    if not bool((rows == rows[:, :1]).all()):
        return 1
    parts = [kind for kind, _ in groupby(rows[:, 0].tolist())]
    equal = all(rows[:, 0].tolist().count(kind) * len(parts) == length for kind in parts)
    return len(parts) if equal and len(set(parts)) == len(parts) else 1


class _Translations(Shifting):
    """One walk through a graph, and what comes out of it."""

    def found(self) -> tuple[Translation, ...]:
        for node in self.program.graph.nodes:
            self.read(node)
        moves = self.followers()
        order = sorted(self.sources, key=self.unknowns.turn.__getitem__)
        shifts = [item for name in order if (item := self.shift(name, moves[name])) is not None]
        constants = [item for node in self.names for item in self.constants(node)]
        return in_order([*self.readers, *constants, *shifts])

    def constants(self, node: Node) -> list[Translation]:
        """What may be added to a parameter along the dimensions along which it is blind."""
        name = self.names[node]
        shape = tuple(self.movable[name].shape)
        result = []
        before: list[tuple[int, ...]] = []
        for item in sorted(self.blind[node], key=sorted):
            over = tuple(sorted(item))
            own = tuple(1 if axis in over else n for axis, n in enumerate(shape))
            centred = tuple(axes for axes in before if not set(axes) & set(over))
            result.append(Translation("constant", own, (Move(self.aliases(name), over=over),), centred=centred))
            before.append(over)
        return result

    def followers(self) -> dict[str, list[Move]]:
        """For every source, how parameters follow its free unknowns: what depends on them, and what takes them up."""
        found: dict[str, list[Move]] = {name: [] for name in self.sources}
        for name in dict.fromkeys((*self.sources, *self.taken)):
            source = self.sources.get(name)
            own = [] if source is None else [self._begin_bias(name)]
            if source is not None and frozenset() in self._blind_along(source.parameter):
                continue  # it may be anything, and stays
            for term in self.unknowns.resolved([*own, *self.taken.get(name, [])]):
                links = () if term.name == name and not term.links else term.picked()
                names = self.aliases(name)
                plain = Move(names, term.factor, links)
                found[term.name].append(plain if source is None else source.move(names, term.factor, links))
        return found

    def shift(self, name: str, moves: Sequence[Move]) -> Translation | None:
        """The free unknowns of one source, and all that follow them."""
        free, source = self.unknowns.free[name], self.sources[name]
        centred = self._centred(source)
        if not bool(free.any()) or centred is None:
            return None
        entries = None if bool(free.all()) else Take.of(torch.where(free, torch.arange(len(free)), -1))
        own = source.move(self.aliases(name), 1.0, ())
        # Readers by 1/γ divide by what is new of offsets.
        others = sorted((move for move in moves if move != own), key=lambda move: move.gain is not None)
        made = Translation("shift", source.shape, (own, *others), entries, centred, self._target(source))
        return made if made.dimension else None

    def _blind_along(self, parameter: str) -> Blind:
        return next(self.blind[node] for node, name in self.names.items() if name == parameter)

    def _centred(self, source: Source) -> tuple[tuple[int, ...], ...] | None:
        """Axes along which constants are no shifts of this source, but translations of their own; None: all are."""
        found = []
        for item in sorted(self._blind_along(source.parameter), key=sorted):
            axes = tuple(sorted(axis for axis in item if axis not in source.over and source.shape[axis] > 1))
            if not axes:
                return None
            found.append(axes)
        return tuple(found)

    def _target(self, source: Source) -> tuple[str, ...] | None:
        """Offsets that readers without a bias take up cannot be 0: they become the gain."""
        for item in self.sources.values():
            if item.norm is not None and item.norm.offset == source.parameter:
                return () if item.norm.gain is None else (item.norm.gain,)
        return None
