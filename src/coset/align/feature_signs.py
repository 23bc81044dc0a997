"""Which families of signs a feature shows, found by flipping and scaling the units of the network."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coset.align.feature_search import TOLERANCE
from coset.symmetry import Element, Symmetry
from coset.symmetry.structure import ancestors

Bits = NDArray[np.bool_]


def families_around(sym: Symmetry, owner: str) -> tuple[str, ...]:
    """The families of signs of a class and of the classes around it."""
    chain = {owner, *ancestors(owner, sym.classes)}
    return tuple(key for key in sym.flipping if sym.families[key].owner in chain)


def enough_elements(sym: Symmetry) -> int:
    """How many random signs tell the families of every class apart, but for one chance in a thousand."""
    counts = [
        (len(families_around(sym, name)) + 10) / math.prod(sym.shape(name))
        for name in sym.permuting
        if math.prod(sym.shape(name)) > 1
    ]
    return max(1, math.ceil(max(counts, default=1.0)))


def signs_at(sym: Symmetry, g: Element, key: str, owner: str) -> Tensor:
    """The signs of a family at every unit of a class that it belongs to or stands around, (units of the class,)."""
    units, own = math.prod(sym.shape(owner)), g.signs[key].reshape(-1)
    return own.repeat_interleave(units // len(own))


def shown_families(
    sym: Symmetry, owner: str, before: Tensor, after: Sequence[Tensor], elements: Sequence[Element]
) -> frozenset[str] | None:
    """The families whose product of signs a feature carries; None where elements do more than multiply its units.

    ``before``, ``after``: the feature, (units, samples), of the network and of the network that each element, without
    permutations, has moved. Per unit after = factor·before; the signs of the factors are solved for over GF(2).
    """
    keys = families_around(sym, owner)
    lengths = before.square().sum(1)
    alive = lengths > 0
    rows, values = [], []
    for part, g in zip(after, elements, strict=True):
        factor = torch.where(alive, (before * part).sum(1) / torch.where(alive, lengths, 1), 1.0)
        rest = (part - factor[:, None] * before).abs().amax(1)
        if bool((rest > TOLERANCE * part.abs().amax(1)).any()):
            return None
        signs = torch.stack([signs_at(sym, g, key, owner) for key in keys]) if keys else torch.ones(0, len(factor))
        rows.append((signs < 0).T[alive].numpy())
        values.append((factor < 0)[alive].numpy())
    solution = solve(np.concatenate(rows), np.concatenate(values))
    return None if solution is None else frozenset(key for key, bit in zip(keys, solution, strict=True) if bit)


def solve(matrix: Bits, values: Bits) -> Bits | None:
    """A solution of matrix·x = values over GF(2), free unknowns 0; None if there is none. (m, n) and (m,) → (n,)."""
    whole = np.concatenate([matrix, values[:, None]], axis=1)
    pivots: list[int] = []
    for column in range(matrix.shape[1]):
        lead = len(pivots)
        below = np.flatnonzero(whole[lead:, column])
        if not len(below):
            continue
        whole[[lead, lead + below[0]]] = whole[[lead + below[0], lead]]
        others = whole[:, column].copy()
        others[lead] = False
        whole[others] ^= whole[lead]
        pivots.append(column)
    if whole[len(pivots) :, -1].any():
        return None
    solution = np.zeros(matrix.shape[1], dtype=bool)
    solution[pivots] = whole[: len(pivots), -1]
    return solution
