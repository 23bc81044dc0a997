"""The element of a monomial group that brings one set of channels closest to another: exact, by nested assignments."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coset.alignment.assignment import assign
from coset.represent.unit_groups import Part, UnitGroup

_Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Match:
    """Channel i of x belongs to channel ``order[i]`` of y times ``signs[i]``; ``value`` is the sum of these scores."""

    value: float
    order: NDArray[np.int64]
    signs: NDArray[np.float64]


def best_match(group: UnitGroup, scores: Tensor) -> Match:
    """max over g of Σ_i ±scores[i, g(i)], channels in the order of the group's parts; scores (C, C), of both signs.

    Pieces that change places are assigned by the values of their insides, which are matched before: for nested groups
    that is the exact maximum, since the insides of different pairs of pieces are chosen independently.
    """
    return _side_by_side(group.parts, scores.detach().cpu().double().numpy(), flips=group.sign)


def _side_by_side(parts: tuple[Part, ...], scores: _Scores, *, flips: bool) -> Match:
    """The parts one by one; ``flips``: or all of them with their signs turned around, if that is better."""
    if flips:
        found, other = (_side_by_side(parts, signed, flips=False) for signed in (scores, -scores))
        return found if found.value >= other.value else Match(other.value, other.order, -other.signs)
    starts = np.cumsum([0, *(part.size for part in parts)]).tolist()
    rows = [
        _row(part, scores[start : start + part.size, start : start + part.size])
        for part, start in zip(parts, starts, strict=False)
    ]
    return Match(
        sum(match.value for match in rows),
        np.concatenate([match.order + start for match, start in zip(rows, starts, strict=False)]),
        np.concatenate([match.signs for match in rows]),
    )


def _row(part: Part, scores: _Scores) -> Match:
    """The pieces of one part."""
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
    return Match(
        sum(match.value for match in chosen),
        np.concatenate([match.order + b * width for match, b in zip(chosen, order, strict=True)]),
        np.concatenate([match.signs for match in chosen]),
    )
