"""One exact step: the best assignment of a class, or of a tree of blocks within blocks, with its signs."""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coset.alignment.assignment import assign
from coset.alignment.matching.class_places import ClassLayout, ClassMove, ClassPlace
from coset.alignment.matching.scores import Scores, Scoring
from coset.symmetry import Element, Symmetry
from coset.symmetry.group import full_map

Signs = Mapping[str, int]
Solver = Callable[[NDArray[np.floating]], NDArray[np.int64]]


@dataclass(frozen=True)
class _Units:
    """Values (N, N) of putting old unit j at new unit i, inside included, and the signs of ``hubs`` they are for."""

    values: NDArray[np.floating]
    hubs: tuple[str, ...]
    choice: NDArray[np.int64] | None


@dataclass(frozen=True)
class _Blocks:
    """For every new block b and old block b': the value (B, B) of its best inside, and that inside (B, B, n)."""

    values: NDArray[np.floating]
    inside: NDArray[np.int64]


def move_scores(scoring: Scoring, move: ClassMove, g: Element | None) -> dict[str, Scores]:
    """The scores of every class of a move's tree at element ``g``, or on average over the group."""
    layout = scoring.layout
    return {name: scoring.scores(name, g, counted_places(layout, move, name)) for name in layout.tree(move.root)}


def counted_places(layout: ClassLayout, move: ClassMove, name: str) -> tuple[ClassPlace, ...]:
    """The places of a class that count for it: entries shared with another class of the tree count once.

    They count where something is assigned; of two classes at the same entries only one is, or is in blocks that are.
    """
    tree = layout.tree(move.root)
    rank = {other: (-len(move.active.intersection(layout.chains[other])), index) for index, other in enumerate(tree)}
    return tuple(
        place
        for place in layout.places[name]
        if all(rank[name] < rank[m.name] for m in place.beside if m.name in rank and m.name != name)
    )


def signs_at(sym: Symmetry, g: Element, key: str, owner: str) -> Tensor:
    """The signs of a family at every unit of a class that it belongs to or stands around, (units of the class,)."""
    units, own = math.prod(sym.shape(owner)), g.signs[key].reshape(-1)
    return own.repeat_interleave(units // len(own))


def picked_scores(
    sym: Symmetry, scores: Mapping[str, Mapping[frozenset[str], Tensor]], g: Element
) -> tuple[float, float]:
    """Σ and Σ|·| over classes and units of the scores of the pairs that ``g`` makes, signs included.

    The second says how much of the first may be rounding.
    """
    total = size = 0.0
    for name, parts in scores.items():
        at = full_map(sym, g, name)
        for parity, matrix in parts.items():
            picked = matrix[torch.arange(len(at)), at.to(matrix.device)].double().cpu()
            for key in parity:
                picked = picked * signs_at(sym, g, key, name).cpu()[at]
            total += float(picked.sum())
            size += float(picked.abs().sum())
    return total, size


def sign_hubs(own: tuple[str, ...], parities: Iterable[frozenset[str]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of a class's sign families those to be tried in all combinations, so that no entry is flipped by two others, and
    these others, whose best sign can then be read off one by one.
    """
    hubs: list[str] = []
    waiting = [parity & set(own) for parity in parities]
    while crowded := [rest for parity in waiting if len(rest := parity - set(hubs)) > 1]:
        hubs.append(max(own, key=lambda key: (sum(key in rest for rest in crowded), key)))
    return tuple(hubs), tuple(key for key in own if key not in hubs)


def signed_values(scores: Scores, signs: Signs, singles: tuple[str, ...]) -> Tensor | None:
    """Σ ± score with the signs given, each single family at its best: Σ_f |the part that f flips|; None of nothing."""
    parts: dict[str | None, Tensor] = {}
    for parity, matrix in scores.items():
        flipped = [key for key in parity if key in singles]
        sign = math.prod(signs[key] for key in parity if key in signs)
        value = matrix if sign == 1 else -matrix
        group = flipped[0] if flipped else None
        parts[group] = parts[group] + value if group in parts else value
    best = [part if key is None else part.abs() for key, part in parts.items()]
    return functools.reduce(torch.add, best) if best else None


class TreeStep:
    """The assignment of a move: blocks get the value of their best inside, then the insides follow their blocks.

    V_C[i, j] = max over the signs of C's families of score_C[i, j] + Σ over classes inside of the value of putting what
    is in old unit j into new unit i; the value of a pair of blocks is that of the best assignment between their units.
    """

    def __init__(self, layout: ClassLayout, move: ClassMove, g: Element, scores: Mapping[str, Scores]) -> None:
        """``scores``: of every class of the tree, see ``move_scores``; ``g``: what is not assigned stays as in it."""
        self.layout = layout
        self.sym = layout.sym
        self.move = move
        self.g = g
        self.tree = layout.tree(move.root)
        self.scores = scores
        self._unit_tables: dict[tuple[str, tuple[tuple[str, int], ...]], _Units] = {}
        self._block_tables: dict[tuple[str, tuple[tuple[str, int], ...]], _Blocks] = {}

    def best(self, solver: Solver = assign) -> Element:
        """The element that is best for this move, everything else as it is."""
        permutations = {name: p.clone() for name, p in self.g.permutations.items()}
        signs = {key: s.clone() for key, s in self.g.signs.items()}
        root = self.move.root
        table = self._units(root, {})
        n = len(table.values)
        order = np.arange(n)
        if root in self.move.active and self.sym.classes[root].permutes:
            order = solver(table.values)
            permutations[root] = torch.from_numpy(order).to(permutations[root].device)
        elif root in permutations:
            order = permutations[root].cpu().numpy()
        self._settle(root, np.arange(n), order, {}, permutations, signs)
        return Element(permutations, self.g.scales, signs)

    def value(self, g: Element) -> tuple[float, float]:
        """The linear form of this step at an element that differs from the current one by the move only.

        Returns Σ and Σ|·|, see ``picked_scores``.
        """
        return picked_scores(self.sym, {name: self.scores[name] for name in self.tree}, g)

    @cached_property
    def _free(self) -> dict[str, Scores]:
        """The scores with the signs of the families that are not assigned multiplied in."""
        kept = {key for name in self.tree if name not in self.move.active for key in self.layout.flips[name]}
        result: dict[str, Scores] = {}
        for name in self.tree:
            total = result.setdefault(name, {})
            for parity, matrix in self.scores[name].items():
                value = matrix
                for key in parity & kept:
                    value = value * signs_at(self.sym, self.g, key, name).to(matrix)
                free = parity - kept
                total[free] = total[free] + value if free in total else value
        return result

    def _units(self, name: str, around: Signs) -> _Units:
        """The value of every pair of units of a class, over all blocks, given the signs of the classes around it."""
        key = (name, self._relevant(name, around))
        if key not in self._unit_tables:
            hubs, singles = self._hubs(name) if name in self.move.active else ((), ())
            best: NDArray[np.floating] | None = None
            choice: NDArray[np.int64] | None = None
            for number, config in enumerate(itertools.product((1, -1), repeat=len(hubs))):
                signs = {**around, **dict(zip(hubs, config, strict=True))}
                values = self._signed(name, signs, singles).numpy(force=True)
                for child in self.layout.children[name]:
                    values = values + self._blocks(child, signs).values
                if best is None:
                    best = values
                    choice = np.zeros(values.shape, dtype=np.int64) if hubs else None
                else:
                    assert choice is not None
                    choice[values > best] = number
                    best = np.maximum(best, values)
            assert best is not None
            self._unit_tables[key] = _Units(best, hubs, choice)
        return self._unit_tables[key]

    def _blocks(self, name: str, around: Signs) -> _Blocks:
        """The best assignment between the units of every new and every old block."""
        key = (name, self._relevant(name, around))
        if key not in self._block_tables:
            n = self.sym.classes[name].size
            blocks = math.prod(self.sym.shape(name)[:-1])
            pairs = self._units(name, around).values.reshape(blocks, n, blocks, n).transpose(0, 2, 1, 3)
            inside = np.broadcast_to(np.arange(n), (blocks, blocks, n)).copy()
            if (followed := self.sym.classes[name].follows) in self.g.permutations:
                inside[:] = self.g.permutations[str(followed)].cpu().numpy()
            if self.sym.classes[name].permutes:
                if name in self.move.active:
                    for b, c in itertools.product(range(blocks), repeat=2):
                        inside[b, c] = assign(pairs[b, c])
                else:
                    inside[:] = self.g.permutations[name].cpu().numpy().reshape(1, blocks, n)
            picked = np.take_along_axis(pairs, inside[..., None], axis=3)[..., 0]
            self._block_tables[key] = _Blocks(picked.sum(-1, dtype=np.float64), inside)
        return self._block_tables[key]

    def _settle(
        self,
        name: str,
        new: NDArray[np.int64],
        old: NDArray[np.int64],
        around: Signs,
        permutations: dict[str, Tensor],
        signs: dict[str, Tensor],
    ) -> None:
        """Old units ``old`` of a class come to ``new``: their signs, and the insides of the blocks in them."""
        table = self._units(name, around)
        configs = list(itertools.product((1, -1), repeat=len(table.hubs)))
        numbers = np.zeros(len(new), dtype=np.int64) if table.choice is None else table.choice[new, old]
        for number in np.unique(numbers).tolist():
            here = numbers == number
            chosen = {**around, **dict(zip(table.hubs, configs[number], strict=True))}
            if name in self.move.active:
                self._settle_signs(name, new[here], old[here], chosen, table.hubs, signs)
            for child in self.layout.children[name]:
                inside = self._blocks(child, chosen).inside
                n = inside.shape[-1]
                for b, c in zip(new[here].tolist(), old[here].tolist(), strict=True):
                    order = inside[b, c]
                    if child in self.move.active and child in permutations:
                        own = permutations[child].reshape(-1, n)
                        own[c] = torch.from_numpy(order).to(own.device)
                    self._settle(child, b * n + np.arange(n), c * n + order, chosen, permutations, signs)

    def _settle_signs(
        self,
        name: str,
        new: NDArray[np.int64],
        old: NDArray[np.int64],
        chosen: Signs,
        hubs: tuple[str, ...],
        signs: dict[str, Tensor],
    ) -> None:
        """The signs of the units: of the hubs as chosen, of each other family that of the part it flips."""
        for key in self.layout.flips[name]:
            target = signs[key].reshape(-1)
            at = torch.from_numpy(old).to(target.device)
            if key in hubs:
                target[at] = chosen[key]
                continue
            odd = torch.zeros(len(new), dtype=torch.float64)
            for parity, matrix in self._free[name].items():
                if key in parity:
                    sign = math.prod(chosen[other] for other in parity if other != key)
                    odd += sign * matrix[torch.from_numpy(new), torch.from_numpy(old)].double().cpu()
            # Where nothing tells, the sign stays.
            target[at] = torch.where(odd == 0, target[at].cpu(), odd.sign().to(target.dtype)).to(target.device)

    def _hubs(self, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Sign families to be tried in all combinations, and those whose best sign can then be read off one by one.

        Classes inside see the signs of this one: then all are tried.
        """
        own = self.layout.flips[name]
        if self.layout.children[name]:
            return own, ()
        return sign_hubs(own, self._free[name])

    def _signed(self, name: str, signs: Signs, singles: tuple[str, ...]) -> Tensor:
        """Σ ± score with the signs given, each single family at its best."""
        found = signed_values(self._free[name], signs, singles)
        units = math.prod(self.sym.shape(name))
        return torch.zeros(units, units) if found is None else found

    def _relevant(self, name: str, around: Signs) -> tuple[tuple[str, int], ...]:
        """The signs around a class that its scores, or those of what is inside it, notice."""
        noticed = {key for inner in self.layout.tree(name) for parity in self._free[inner] for key in parity}
        return tuple(sorted((key, sign) for key, sign in around.items() if key in noticed))
