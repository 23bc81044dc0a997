"""Signs of families at the units of a class, and systems of them."""

import math

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coset.symmetry import Element, Symmetry

Bits = NDArray[np.bool_]


def common_families(sym: Symmetry) -> tuple[str, ...]:
    """The families of a single sign, which may belong to everything: the sign of a whole stream before its norm."""
    return tuple(key for key in sym.flipping if math.prod(sym.shape(sym.families[key].owner)) == 1)


def signs_at(sym: Symmetry, g: Element, key: str, owner: str) -> Tensor:
    """The signs of a family at every unit of a class that it belongs to or stands around, (units of the class,)."""
    units, own = math.prod(sym.shape(owner)), g.signs[key].reshape(-1)
    return own.repeat_interleave(units // len(own))


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
