"""The element of a group that brings one set of channels closest to another: exact, by a nested assignment.

Blocks that rotations mix are worth the nuclear norm of their scores, which the polar factor attains.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coset.alignment.nested_assignment import Assigned, Nest, nested_assignment
from coset.represent.unit_groups import Part, UnitGroup

_Matrix = NDArray[np.float64]
_Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Match:
    """Channel i of x belongs to channel ``order[i]`` of y times ``signs[i]``; ``value`` is the sum of these scores.

    ``turns``: a block of x from channel ``start`` on belongs to the block of y in ``order`` turned by Q (n, n), x = Qy.
    """

    value: float
    order: _Indices
    signs: _Matrix
    turns: tuple[tuple[int, _Matrix], ...] = field(default=())

    def matrix(self) -> _Matrix:
        """The whole map R (C, C) for which x is Ry."""
        whole = np.zeros((len(self.order), len(self.order)))
        whole[np.arange(len(self.order)), self.order] = self.signs
        for start, turn in self.turns:
            rows = slice(start, start + len(turn))
            whole[rows] = turn @ whole[rows]
        return whole


def best_match(group: UnitGroup, scores: Tensor) -> Match:
    """max over g of Σ_i ±scores[i, g(i)], channels in the order of the group's parts; scores (C, C), of both signs."""
    known = scores.detach().cpu().double()
    whole = _Row(Part(1, signs=group.sign, inside=group.parts), (), np.zeros(1, dtype=np.int64), np.eye(1))
    found = nested_assignment(whole.nest(known))
    order, signs = np.arange(group.size), np.ones(group.size)
    turns: list[tuple[int, _Matrix]] = []
    whole.settle(known.numpy(), found, np.ones(1), order, signs, turns)
    return Match(float(found.values[0]), order, signs, tuple(turns))


@dataclass(frozen=True)
class _Row:
    """A part of a group wherever it stands: ``starts`` (B,), the first channel of each; what is around, by number.

    ``meets`` (B, B): which of these blocks of x and of y may come together at all.
    """

    part: Part
    path: tuple[int, ...]
    starts: _Indices
    meets: _Matrix
    flipped: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The path of the part."""
        return ".".join(map(str, self.path))

    @property
    def flips(self) -> tuple[str, ...]:
        """The signs of its pieces, as a family."""
        return (self.name,) if self.part.signs else ()

    @property
    def pieces(self) -> _Indices:
        """The first channel of each piece of each block."""
        return np.asarray(self.starts[:, None] + np.arange(self.part.count) * self.part.width).reshape(-1)

    @property
    def channels(self) -> _Indices:
        """The channels of each block, (B, channels)."""
        return np.asarray(self.starts[:, None] + np.arange(self.part.size))

    def inside(self) -> Iterator["_Row"]:
        """The parts of the pieces, if anything moves there: else their channels are compared one by one."""
        pieces, part = self.pieces, self.part
        if part.mixes is not None or not any(inner.moves for inner in part.inside):
            return
        within = np.ones((part.count, part.count)) if part.permutes else np.eye(part.count)
        meets = np.kron(self.meets, within).astype(np.float64)
        start = 0
        for number, inner in enumerate(part.inside):
            yield _Row(inner, (*self.path, number), pieces + start, meets, self.flipped | set(self.flips))
            start += inner.size

    def nest(self, scores: Tensor) -> Nest:
        """The part as a nest. What is mixed is one unit a block, worth Σ σ, the nuclear norm, whatever its sign."""
        part, one = self.part, np.zeros((1, 1, 1), dtype=np.int64)
        if part.mixes is not None:
            values = torch.zeros(self.meets.shape, dtype=scores.dtype)
            for a, b in np.argwhere(self.meets):
                block = scores[self.channels[a][:, None], self.channels[b]]
                values[a, b] = torch.linalg.matrix_norm(block, "nuc")
            return Nest(self.name, 1, {frozenset(): values[None]}, order=one)
        order = None if part.permutes else np.arange(part.count)[None, None]
        if inside := tuple(row.nest(scores) for row in self.inside()):
            return Nest(self.name, part.count, {}, self.flips, order, inside)
        own = scores
        if part.size < len(scores):
            every = torch.from_numpy(self.channels.reshape(-1))
            own = scores[every][:, every]
        n = len(self.pieces)
        table = own.reshape(n, part.width, n, part.width).diagonal(dim1=1, dim2=3).sum(-1)
        return Nest(self.name, part.count, {self.flipped | set(self.flips): table[None]}, self.flips, order)

    def settle(
        self,
        scores: _Matrix,
        found: Assigned,
        around: _Matrix,
        order: _Indices,
        signs: _Matrix,
        turns: list[tuple[int, _Matrix]],
    ) -> None:
        """Write the channels of y and their signs for those of x; ``around`` (B,): the signs of the blocks of x."""
        came_from, part = found.came_from[self.name][0], self.part
        if part.mixes is not None:
            for block, other in enumerate(came_from):
                mine, theirs = self.channels[block], self.channels[other]
                u, _, vh = np.linalg.svd(around[block] * scores[mine[:, None], theirs])
                order[mine], signs[mine] = theirs, around[block]
                turns.append((int(mine[0]), u @ vh))
            return
        pieces, within = self.pieces, np.arange(part.width)
        chosen = around.repeat(part.count)
        for key in self.flips:
            # A score of 0 says nothing about its sign.
            chosen = chosen * np.where(found.signs[key][0, came_from] < 0, -1.0, 1.0)
        channels = pieces[:, None] + within
        order[channels], signs[channels] = pieces[came_from][:, None] + within, chosen[:, None]
        for row in self.inside():
            row.settle(scores, found, chosen, order, signs, turns)
