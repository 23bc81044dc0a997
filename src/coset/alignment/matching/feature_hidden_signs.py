"""Signs that features do not show, chosen on the weights: those that bring a network closest to another.

Of the signs a group has, features show some products; every other combination can be flipped and no feature notices.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coset.alignment._agreement import is_trained
from coset.alignment._result import Params
from coset.distribution.rescaling import common_exponent, rescaled
from coset.symmetry import Element, Symmetry
from coset.symmetry.action import Action
from coset.symmetry.incidence import appearances, rows_along
from coset.symmetry.structure import ancestors

_TOGETHER = 3

Bits = NDArray[np.bool_]

Shown = Mapping[str, Collection[frozenset[str]]]
"""For each class, the products of families of signs that its features carry."""


@dataclass(frozen=True)
class _Flip:
    """A sign of the family ``key`` that may be flipped if, in the units it stands for, others are flipped with it.

    ``beside``: class → families of it that are flipped with ``key`` so that its features keep their signs.
    """

    key: str
    beside: Mapping[str, frozenset[str]]


def settle_signs(sym: Symmetry, reference: Params, other: Params, shown: Shown) -> Element:
    """Signs h, none of which features notice, with ⟨reference, h·other⟩ as large as flips of single signs make it.

    Over trained weights; flips that do not raise it are not made, so the identity stays where nothing is gained. Signs
    of blocks and of what all blocks share may hold each other in place: the sign of one block after the other is turned
    around, all others are settled anew, and what leads higher is kept.
    """
    names = [name for name in sym.structures if name in other and is_trained(sym, name, other)]
    theta, current = (
        rescaled(part, common_exponent(part))
        for part in ({name: network[name].detach().double().cpu() for name in names} for network in (reference, other))
    )
    flips = list(_flips(sym, shown))
    h, current = _settled(sym, flips, theta, current)
    higher = True
    while higher:
        higher = False
        for kick, others, near in _kicks(sym, flips):
            part = {name: current[name] for name in _touched(sym, near) if name in current}
            k, moved = kick, Action(sym, kick)(part, partial=True)
            # First all others: at once, the sign that was turned around would turn back.
            for some in (others, near):
                step, moved = _settled(sym, some, theta, moved)
                k = sym.compose(step, k)
            if _higher(theta, moved, part):
                current |= moved
                h, higher = sym.compose(k, h), True
    return h


def _settled(
    sym: Symmetry, flips: Sequence[_Flip], theta: Params, current: Params
) -> tuple[Element, dict[str, Tensor]]:
    """Flips, one after the other, until none of them raises the product; and the network moved by them."""
    current = dict(current)
    h, improved = sym.identity(), True
    while improved:
        improved = False
        for flip in flips:
            part = {name: current[name] for name in _touched(sym, [flip]) if name in current}
            for step in _steps(sym, flip, theta, part):
                moved = Action(sym, step)(part, partial=True)
                if _higher(theta, moved, part):
                    current |= moved
                    h, improved = sym.compose(step, h), True
                    break
    return h, current


def _kicks(sym: Symmetry, flips: Sequence[_Flip]) -> Iterator[tuple[Element, list[_Flip], list[_Flip]]]:
    """The sign of one block turned around; of the flips that touch what it stands on those of others, and all."""
    blocks = {item.parent for item in sym.classes.values()}
    for flip in flips:
        owner = sym.families[flip.key].owner
        if owner in blocks:
            carriers = set(sym.carriers(owner))
            near = [one for one in flips if not carriers.isdisjoint(_touched(sym, [one]))]
            others = [one for one in near if sym.families[one.key].owner != owner]
            count = math.prod(sym.shape(owner))
            for unit in range(count):
                yield _flipped(sym, flip, torch.arange(count) == unit), others, near


def _touched(sym: Symmetry, flips: Sequence[_Flip]) -> set[str]:
    """The parameters that flips may change."""
    owners = {owner for flip in flips for owner in (sym.families[flip.key].owner, *flip.beside)}
    return {name for owner in owners for name in sym.carriers(owner)}


def _higher(theta: Params, moved: Params, before: Params) -> bool:
    """Whether ⟨reference, moved⟩ is above ⟨reference, before⟩ by more than rounding."""
    least = _product(theta, before)
    return _product(theta, moved) > least + 1e-12 * abs(least)


def _flips(sym: Symmetry, shown: Shown) -> Iterator[_Flip]:
    """Every family with what must be flipped beside it; none where features would notice all the same.

    Where one of several families can be flipped beside it, each has its turn: of the flips of three families in pairs,
    one may raise what two of them, one after the other, would first lower. So families of one class that no feature
    shows are flipped together, too, in all combinations up to ``_TOGETHER`` of them.
    """
    for key in sym.flipping:
        found: list[_Flip] = []
        for preferred in (None, *(other for other in sym.flipping if other != key)):
            flip = _flip(sym, shown, key, preferred)
            if flip is not None and flip not in found:
                found.append(flip)
        yield from found
    seen = {key for products in shown.values() for one in products for key in one}
    for owner in dict.fromkeys(sym.families[key].owner for key in sym.flipping):
        free = [key for key in sym.flipping if sym.families[key].owner == owner and key not in seen]
        for count in range(2, min(len(free), _TOGETHER) + 1):
            for key, *others in combinations(free, count):
                yield _Flip(key, {owner: frozenset(others)})


def _flip(sym: Symmetry, shown: Shown, key: str, preferred: str | None) -> _Flip | None:
    """A family with what must be flipped beside it, the preferred one if it can be; None where nothing can."""
    beside: dict[str, frozenset[str]] = {}
    for name, products in shown.items():
        if not any(key in one for one in products):
            continue
        elsewhere = {k for other, ones in shown.items() if other != name for one in ones for k in one}
        own = [k for k in sym.flipping if sym.families[k].owner == name and k != key and k not in elsewhere]
        own.sort(key=lambda k: k != preferred)
        rows = list(products)
        matrix = np.array([[k in one for k in own] for one in rows], dtype=bool).reshape(len(rows), len(own))
        bits = solve(matrix, np.array([key in one for one in rows], dtype=bool))
        if bits is None:
            return None
        beside[name] = frozenset(k for k, bit in zip(own, bits, strict=True) if bit)
    return _Flip(key, beside)


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


def _steps(sym: Symmetry, flip: _Flip, reference: Params, other: Params) -> Iterator[Element]:
    """Elements worth trying: all units at once that gain, each as if it were alone, and the one that gains most."""
    owner = sym.families[flip.key].owner
    count = math.prod(sym.shape(owner))
    if flip.beside.keys() <= {owner}:
        keys = {flip.key, *flip.beside.get(owner, ())}
        losses = torch.zeros(count, dtype=torch.float64)
        for name in other:
            losses += _odd_sums(sym, name, owner, keys, reference[name] * other[name])
        if bool((losses < 0).any()):
            yield _flipped(sym, flip, losses < 0)
            yield _flipped(sym, flip, losses == losses.min())
        return
    for unit in range(count):
        yield _flipped(sym, flip, torch.arange(count) == unit)


def _flipped(sym: Symmetry, flip: _Flip, units: Tensor) -> Element:
    """The element that flips ``key`` in these units of its class, with what stands beside it."""
    owner = sym.families[flip.key].owner
    signs = {flip.key: _signs(sym, owner, units)}
    for name, keys in flip.beside.items():
        inside = owner == name or owner in ancestors(name, sym.classes)
        count = math.prod(sym.shape(name))
        own = units.repeat_interleave(count // len(units)) if inside else units.any().expand(count)
        signs |= {key: _signs(sym, name, own) for key in keys}
    return sym.element(signs=signs)


def _signs(sym: Symmetry, name: str, units: Tensor) -> Tensor:
    return torch.where(units, -1, 1).to(torch.int8).reshape(sym.shape(name))


def _odd_sums(sym: Symmetry, name: str, owner: str, keys: Collection[str], products: Tensor) -> Tensor:
    """For each unit of a class, Σ of the entries that change sign when it is flipped in the families ``keys``."""
    total = torch.zeros(math.prod(sym.shape(owner)), dtype=torch.float64)
    for stretch, item in appearances(sym, name, owner):
        if sum(key in keys for key in item.signs) % 2 == 1:
            along = rows_along(products, sym.structures[name], stretch).sum(1)
            here = item.unit >= 0
            total.index_add_(0, item.unit[here], along[here])
    return total


def _product(a: Params, b: Params) -> float:
    return sum(float((a[name] * tensor).sum()) for name, tensor in b.items())
