"""Which families of signs a feature shows, found by flipping and scaling the units of the network."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coset.alignment.matching.feature_search import TOLERANCE
from coset.symmetry import Element, Symmetry
from coset.symmetry.structure import ancestors

Bits = NDArray[np.bool_]


def common_families(sym: Symmetry) -> tuple[str, ...]:
    """The families of a single sign, which may belong to everything: the sign of a whole stream before its norm."""
    return tuple(key for key in sym.flipping if math.prod(sym.shape(sym.families[key].owner)) == 1)


def families_around(sym: Symmetry, owner: str) -> tuple[str, ...]:
    """The families of signs of a class and of the classes around it, one sign a unit or a block."""
    chain = {owner, *ancestors(owner, sym.classes)}
    common = common_families(sym)
    return tuple(key for key in sym.flipping if sym.families[key].owner in chain and key not in common)


def enough_signs(sym: Symmetry) -> int:
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


def factors_of_units(before: Tensor, after: Tensor) -> Tensor | None:
    """The number d of each unit with after = d·before, (units,); 0 for units that are always 0.

    ``before``, ``after``: (units, samples). None where there is no such number for some unit.
    """
    lengths = before.square().sum(1)
    factor = (before * after).sum(1) / torch.where(lengths > 0, lengths, 1)
    rest = (after - factor[:, None] * before).abs().amax(1)
    return None if bool((rest > TOLERANCE * after.abs().amax(1)).any()) else factor


def shown_families(
    sym: Symmetry, owner: str, factors: Sequence[Tensor], elements: Sequence[Element]
) -> frozenset[str] | None:
    """The families of a class and those around it whose product of signs a feature carries, solved for over GF(2).

    ``factors``: by what each element has multiplied each unit of the feature. None where no product explains them.
    """
    keys = families_around(sym, owner)
    rows, values = [], []
    for factor, g in zip(factors, elements, strict=True):
        alive = factor != 0
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
