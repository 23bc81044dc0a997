"""The element of a group that brings one set of channels closest to another: exact, by nested assignments.

Blocks that rotations mix are worth the nuclear norm of their scores, which the polar factor attains.
"""

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coset.alignment.assignment import assign
from coset.represent.unit_groups import Part, UnitGroup

_Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Match:
    """Channel i of x belongs to channel ``order[i]`` of y times ``signs[i]``; ``value`` is the sum of these scores.

    ``turns``: a block of x from channel ``start`` on belongs to the block of y in ``order`` turned by Q (n, n), x = Qy.
    """

    value: float
    order: NDArray[np.int64]
    signs: NDArray[np.float64]
    turns: tuple[tuple[int, _Scores], ...] = field(default=())

    def shifted(self, start: int, target: int) -> "Match":
        """The same with the channels of x counted from ``start`` and those of y from ``target``."""
        turns = tuple((at + start, turn) for at, turn in self.turns)
        return replace(self, order=self.order + target, turns=turns)

    def matrix(self) -> _Scores:
        """The whole map R (C, C) for which x is Ry."""
        whole = np.zeros((len(self.order), len(self.order)))
        whole[np.arange(len(self.order)), self.order] = self.signs
        for start, turn in self.turns:
            rows = slice(start, start + len(turn))
            whole[rows] = turn @ whole[rows]
        return whole


def best_match(group: UnitGroup, scores: Tensor) -> Match:
    """max over g of Σ_i ±scores[i, g(i)], channels in the order of the group's parts; scores (C, C), of both signs.

    Pieces that change places are assigned by the values of their insides, which are matched before: for nested groups
    that is the exact maximum, since the insides of different pairs of pieces are chosen independently.
    """
    return _side_by_side(group.parts, scores.detach().cpu().double().numpy(), flips=group.sign)


def _joined(found: list[Match]) -> Match:
    """Matches side by side, which are shifted already."""
    return Match(
        sum(match.value for match in found),
        np.concatenate([match.order for match in found]),
        np.concatenate([match.signs for match in found]),
        tuple(turn for match in found for turn in match.turns),
    )


def _side_by_side(parts: tuple[Part, ...], scores: _Scores, *, flips: bool) -> Match:
    """The parts one by one; ``flips``: or all of them with their signs turned around, if that is better."""
    if flips:
        found, other = (_side_by_side(parts, signed, flips=False) for signed in (scores, -scores))
        return found if found.value >= other.value else replace(other, signs=-other.signs)
    rows, start = [], 0
    for part in parts:
        own = _row(part, scores[start : start + part.size, start : start + part.size])
        rows.append(own.shifted(start, start))
        start += part.size
    return _joined(rows)


def _row(part: Part, scores: _Scores) -> Match:
    """The pieces of one part."""
    if part.mixes is not None:
        u, values, vh = np.linalg.svd(scores)
        return Match(float(values.sum()), np.arange(part.size), np.ones(part.size), ((0, u @ vh),))
    if any(inner.moves for inner in part.inside):
        return _row_of_movable(part, scores)
    n, width = part.count, part.width
    # Nothing moves inside a piece: its channels are compared one by one.
    table = np.ascontiguousarray(np.einsum("aibi->ab", scores.reshape(n, width, n, width)))
    order = assign(np.abs(table) if part.signs else table) if part.permutes else np.arange(n)
    chosen = table[np.arange(n), order]
    signs = np.where(chosen < 0, -1.0, 1.0) if part.signs else np.ones(n)
    channels = (order[:, None] * width + np.arange(width)).reshape(-1)
    return Match(float((signs * chosen).sum()), channels, signs.repeat(width))


def _row_of_movable(part: Part, scores: _Scores) -> Match:
    """The pieces of one part, which have movable pieces inside: every pair that may meet is matched."""
    n, width = part.count, part.width
    pairs: dict[tuple[int, int], Match] = {}
    table = np.zeros((n, n))
    for a in range(n):
        for b in range(n) if part.permutes else (a,):
            block = scores[a * width : (a + 1) * width, b * width : (b + 1) * width]
            pairs[a, b] = _side_by_side(part.inside, block, flips=part.signs)
            table[a, b] = pairs[a, b].value
    order = assign(table) if part.permutes else np.arange(n)
    chosen = [pairs[a, int(b)] for a, b in enumerate(order)]
    return _joined(
        [match.shifted(a * width, int(b) * width) for a, (match, b) in enumerate(zip(chosen, order, strict=True))]
    )
