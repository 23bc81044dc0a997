"""The largest change of a reader along orbits: ascent by small moves from the best random places."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from coset.metanet.auditing.moves import Moves, OrbitPlace

Score = Callable[[int, OrbitPlace], float]
"""How far the reader changes if a network, given by its number, is brought to a place."""


@dataclass(frozen=True, eq=False)
class Found:
    """A place on the orbit of a network, and how far the reader changes there."""

    change: float
    network: int
    place: OrbitPlace


def ascend(
    moves: Moves,
    starts: Sequence[Found],
    score: Score,
    fresh: Callable[[int], OrbitPlace],
    budget: int,
    generator: torch.Generator,
) -> Found:
    """The best place that is found with ``budget`` readings; the best of ``starts`` if none is better.

    From each start in turn, and then from ``fresh`` places of the best network, units are changed one after the other,
    and what changes the reader more is kept, until a round through all units has changed nothing.
    """
    waiting = sorted(starts, key=lambda found: -found.change)
    best, left = waiting[0], budget
    while left > 0:
        if waiting:
            current = waiting.pop(0)
        else:
            place = fresh(best.network)
            current, left = Found(score(best.network, place), best.network, place), left - 1
        round_, idle = moves.count(current.place), 0
        for change in moves.neighbours(current.place, generator):
            if left == 0 or idle >= round_:
                break
            place = change(current.place)
            value, left, idle = score(current.network, place), left - 1, idle + 1
            if value > current.change:
                current, idle = Found(value, current.network, place), 0
        best = current if current.change > best.change else best
    return best


def flip_others(
    flipped: Sequence[bool], score: Score, fresh: Callable[[int], OrbitPlace], budget: int
) -> tuple[dict[int, Found], int]:
    """Places at which labels flip, for networks of which none is known; random ones, each network in turn.

    Labels have no direction in which they grow. Returns what was found and how many readings it took.
    """
    found: dict[int, Found] = {}
    waiting = [number for number, known in enumerate(flipped) if not known]
    used = 0
    while waiting and used < budget:
        number = waiting.pop(0)
        place = fresh(number)
        used += 1
        if score(number, place) > 0:
            found[number] = Found(1.0, number, place)
        else:
            waiting.append(number)
    return found, used
