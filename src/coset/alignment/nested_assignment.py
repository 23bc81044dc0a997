"""The best assignment of units in blocks within blocks, with signs: exact, of many problems at once."""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coset.alignment.assignment import assign

Indices = NDArray[np.int64]
Solver = Callable[[NDArray[np.floating]], Indices]
Signs = Mapping[str, int]
Scores = Mapping[frozenset[str], Tensor]
"""Parity → (m, N, N): in each of m problems the value of putting old unit j at new unit i, times the signs of all
families in the parity."""


@dataclass(frozen=True, eq=False)
class Nest:
    """``size`` (n) units in every block of B, numbered over all blocks: N = B·n.

    ``flips``: the families of which every unit has a sign of its own; one sign flips what is inside of the unit, too.
    ``order`` (m or 1, B or 1, n): in each old block the unit that comes to each place; None where it is to be found.
    ``inside``: nests whose blocks are the units of this one.
    """

    name: str
    size: int
    scores: Scores = field(default_factory=dict)
    flips: tuple[str, ...] = ()
    order: Indices | None = None
    inside: tuple["Nest", ...] = ()


@dataclass(frozen=True, eq=False)
class Assigned:
    """Nest → the old unit at every new one, (m, N); family → the signs of the old units, (m, N), 0 where nothing tells.

    ``values`` (m,): Σ ± score of the pairs.
    """

    came_from: Mapping[str, Indices]
    signs: Mapping[str, NDArray[np.int8]]
    values: NDArray[np.float64]

    def order(self, nest: Nest) -> Indices:
        """In each old block of a nest the unit that comes to each place, (m, B, n)."""
        old = self.came_from[nest.name].reshape(len(self.values), -1, nest.size)
        found = np.empty_like(old)
        np.put_along_axis(found, old[:, :, :1] // nest.size, old % nest.size, axis=1)
        return found


def nested_assignment(root: Nest, count: int = 1, solver: Solver = assign) -> Assigned:
    """The best orders and signs of a nest and all that is inside it, in ``count`` problems.

    V[i, j] = max over the signs of the nest of score[i, j] + Σ over nests inside of the value of putting what is in old
    unit j into new unit i; the value of a pair of blocks is that of the best assignment between their units. This is
    the exact maximum, since the insides of different pairs are chosen independently. ``root`` is one block;
    ``solver`` assigns its units.
    """
    return _Nested(root, count, solver).assigned()


@dataclass(frozen=True)
class _Pairs:
    """The P pairs of blocks of a nest that may meet, (P,) each: in which problem, the new block, the old one.

    Within each, n places may get one of k units: all of them, or one where the order is given.
    """

    at: Indices
    new: Indices
    old: Indices


@dataclass(frozen=True)
class _Units:
    """Values (P, n, k) of pairs of units, inside included, and the signs of ``hubs`` they are for, as numbers."""

    values: NDArray[np.floating]
    hubs: tuple[str, ...]
    choice: Indices | None


@dataclass(frozen=True)
class _Blocks:
    """Values (P,) of pairs of blocks with the best inside, and which of the k units each place gets, (P, n)."""

    values: NDArray[np.float64]
    slots: Indices


_Key = tuple[str, tuple[tuple[str, int], ...]]


class _Nested:
    """Tables of all nests, for the signs around them, and what is settled by them from the root on."""

    def __init__(self, root: Nest, count: int, solver: Solver) -> None:
        self.root, self.count, self.solver = root, count, solver
        every, none = np.arange(count), np.zeros(count, dtype=np.int64)
        self._pairs: dict[str, _Pairs] = {}
        self._parts: dict[str, Scores] = {}
        self._noticed: dict[str, frozenset[str]] = {}
        self._prepare(root, _Pairs(every, none, none))
        self._unit_tables: dict[_Key, _Units] = {}
        self._block_tables: dict[_Key, _Blocks] = {}
        self._came_from: dict[str, Indices] = {}
        self._signs: dict[str, NDArray[np.int8]] = {}

    def assigned(self) -> Assigned:
        """Everything settled from the root on."""
        self._settle(self.root, np.arange(self.count), {})
        return Assigned(self._came_from, self._signs, self._blocks(self.root, {}).values)

    def _prepare(self, nest: Nest, pairs: _Pairs) -> None:
        """Note which pairs of blocks may meet, in a nest and inside it; their scores, and the signs these notice."""
        n, name = nest.size, nest.name
        self._pairs[name] = pairs
        self._parts[name] = {parity: self._met(nest, pairs, matrix) for parity, matrix in nest.scores.items()}
        noticed = {key for parity in nest.scores for key in parity}
        if nest.inside:
            units, shape = np.arange(n), self._shape(nest)
            new = pairs.new[:, None, None] * n + units[:, None]
            if nest.order is None:
                old = pairs.old[:, None, None] * n + units
            else:
                old = self._fixed(nest, pairs.at, pairs.old)[..., None]
            whole = (np.broadcast_to(part, shape).flatten() for part in (pairs.at[:, None, None], new, old))
            inner = _Pairs(*whole)
            for child in nest.inside:
                self._prepare(child, inner)
                noticed |= self._noticed[child.name]
        self._noticed[name] = frozenset(noticed)

    def _shape(self, nest: Nest) -> tuple[int, int, int]:
        return len(self._pairs[nest.name].at), nest.size, nest.size if nest.order is None else 1

    @staticmethod
    def _fixed(nest: Nest, at: Indices, old: Indices) -> Indices:
        """The old units that come to each place of pairs of blocks, (P, n), where the order is given."""
        assert nest.order is not None
        rows, blocks = (index * (size > 1) for index, size in zip((at, old), nest.order.shape, strict=False))
        return np.asarray(old[:, None] * nest.size + nest.order[rows, blocks])

    def _met(self, nest: Nest, pairs: _Pairs, matrix: Tensor) -> Tensor:
        """The scores (P, n, k) of pairs of units that may meet."""
        n, device = nest.size, matrix.device
        at, new, old = (torch.from_numpy(part).to(device) for part in (pairs.at, pairs.new, pairs.old))
        if nest.order is not None:
            into = new[:, None] * n + torch.arange(n, device=device)
            fixed = torch.from_numpy(self._fixed(nest, pairs.at, pairs.old)).to(device)
            return matrix[at[:, None], into, fixed][..., None]
        if matrix.shape[1] == n:
            return matrix
        return matrix.reshape(len(matrix), -1, n, matrix.shape[2] // n, n).transpose(2, 3)[at, new, old]

    def _units(self, nest: Nest, around: Signs) -> _Units:
        """The value of every pair of units that may meet, given the signs around the nest."""
        key = self._key(nest, around)
        if key not in self._unit_tables:
            hubs, singles = self._hubs(nest)
            best: NDArray[np.floating] | None = None
            choice: Indices | None = None
            for number, config in enumerate(_configs(hubs)):
                signs = {**around, **dict(zip(hubs, config, strict=True))}
                known = _signed_values(self._parts[nest.name], signs, singles)
                values = np.zeros(self._shape(nest), np.float32) if known is None else known.numpy(force=True)
                for child in nest.inside:
                    values = values + self._blocks(child, signs).values.reshape(values.shape)
                if best is None:
                    best, choice = values, np.zeros(values.shape, dtype=np.int64) if hubs else None
                else:
                    assert choice is not None
                    choice[values > best] = number
                    best = np.maximum(best, values)
            assert best is not None
            self._unit_tables[key] = _Units(best, hubs, choice)
        return self._unit_tables[key]

    def _blocks(self, nest: Nest, around: Signs) -> _Blocks:
        """The best assignment between the units of every pair of blocks that may meet."""
        key = self._key(nest, around)
        if key not in self._block_tables:
            values = self._units(nest, around).values
            p, n, _ = values.shape
            if nest.order is None:
                solver = self.solver if nest is self.root else assign
                slots = np.stack([solver(table) for table in values])
                picked = values[np.arange(p)[:, None], np.arange(n), slots]
            else:
                slots, picked = np.zeros((p, n), dtype=np.int64), values[..., 0]
            self._block_tables[key] = _Blocks(picked.sum(-1, dtype=np.float64), slots)
        return self._block_tables[key]

    def _settle(self, nest: Nest, met: Indices, around: Signs) -> None:
        """Pairs of blocks, by their numbers, that do meet: the places of their units, the signs, and what is inside."""
        table, slots = self._units(nest, around), self._blocks(nest, around).slots[met]
        pairs, (_, n, k) = self._pairs[nest.name], self._shape(nest)
        at, blocks, places = pairs.at[met], pairs.old[met], np.arange(n)
        old = blocks[:, None] * n + slots if nest.order is None else self._fixed(nest, at, blocks)
        if nest.name not in self._came_from:
            self._came_from[nest.name] = self._zeros(nest).astype(np.int64)
        self._came_from[nest.name][at[:, None], pairs.new[met][:, None] * n + places] = old
        if not nest.flips and not nest.inside:
            return
        # One row for each unit: its pair of blocks, its place, which unit it gets; in which problem, and its number.
        units = (met.repeat(n), np.tile(places, len(met)), slots.reshape(-1), at.repeat(n), old.reshape(-1))
        if table.choice is None:
            self._settle_units(nest, units, around, k)
            return
        numbers, configs = table.choice[units[:3]], _configs(table.hubs)
        for number in np.unique(numbers).tolist():
            here = numbers == number
            chosen = {**around, **dict(zip(table.hubs, configs[number], strict=True))}
            self._settle_units(nest, tuple(part[here] for part in units), chosen, k)

    def _settle_units(self, nest: Nest, units: tuple[Indices, ...], chosen: Signs, k: int) -> None:
        """Units that have the signs ``chosen``: those of other families, and what is inside."""
        *which, at, old = units
        for key in nest.flips:
            if key not in self._signs:
                self._signs[key] = self._zeros(nest)
            self._signs[key][at, old] = chosen[key] if key in chosen else self._single(nest, key, chosen, which)
        for child in nest.inside:
            self._settle(child, (which[0] * nest.size + which[1]) * k + which[2], chosen)

    def _single(self, nest: Nest, key: str, chosen: Signs, which: list[Indices]) -> NDArray[np.float64]:
        """The best sign of a family at pairs of units: that of the part of the scores that it flips."""
        odd = np.zeros(len(which[0]))
        for parity, part in self._parts[nest.name].items():
            if key in parity:
                sign = math.prod(chosen[other] for other in parity if other in chosen)
                odd += sign * part.numpy(force=True)[tuple(which)].astype(np.float64)
        return np.asarray(np.sign(odd))

    def _zeros(self, nest: Nest) -> NDArray[np.int8]:
        """A number for each unit of each problem."""
        blocks = 1 + int(self._pairs[nest.name].new.max())
        return np.zeros((self.count, blocks * nest.size), dtype=np.int8)

    def _hubs(self, nest: Nest) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Families to be tried in all combinations, and others. What is inside sees the signs: then all are tried."""
        return (nest.flips, ()) if nest.inside else _sign_hubs(nest.flips, nest.scores)

    def _key(self, nest: Nest, around: Signs) -> _Key:
        """A nest and the signs around it that its scores, or those of what is inside it, notice."""
        noticed = self._noticed[nest.name]
        return nest.name, tuple(sorted((key, sign) for key, sign in around.items() if key in noticed))


def _configs(hubs: tuple[str, ...]) -> list[tuple[int, ...]]:
    return list(itertools.product((1, -1), repeat=len(hubs)))


def _sign_hubs(own: tuple[str, ...], parities: Iterable[frozenset[str]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of a nest's families those to be tried in all combinations, so that no entry is flipped by two others, and these
    others, whose best sign can then be read off one by one.
    """
    hubs: list[str] = []
    waiting = [parity & set(own) for parity in parities]
    while crowded := [rest for parity in waiting if len(rest := parity - set(hubs)) > 1]:
        hubs.append(max(own, key=lambda key: (sum(key in rest for rest in crowded), key)))
    return tuple(hubs), tuple(key for key in own if key not in hubs)


def _signed_values(scores: Scores, signs: Signs, singles: tuple[str, ...]) -> Tensor | None:
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
