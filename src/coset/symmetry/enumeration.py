"""All elements of a small finite group: every order of every block's units, every choice of signs."""

import math
from collections.abc import Iterator
from itertools import permutations, product

import torch
from torch import Tensor

from coset.errors import InputError
from coset.symmetry.element import Element
from coset.symmetry.symmetry import Symmetry


def finite_order(sym: Symmetry) -> int:
    """|G| of permutations and signs."""
    order = 1
    for name in _moving(sym):
        *outer, n = sym.shape(name)
        order *= math.factorial(n) ** math.prod(outer)
    return order << sum(math.prod(sym.shape(sym.families[key].owner)) for key in sym.flipping)


def finite_elements(sym: Symmetry, at_once: int = 4096) -> Iterator[Element]:
    """All permutations and signs of a symmetry, stacked in parts of ``at_once``; the neutral element is the first.

    Numbers count through them: the digits of an element's number, in a base for each block of a class and each sign,
    are which order it has there and which sign.
    """
    total = finite_order(sym)
    if total > 2**31:
        raise InputError(f"the finite part of the group has {total:.3g} elements; expected few enough to list")
    orders = {n: torch.tensor(list(permutations(range(n)))) for n in {sym.shape(name)[-1] for name in _moving(sym)}}
    for start in range(0, total, at_once):
        rest = torch.arange(start, min(start + at_once, total))
        moves: dict[str, Tensor] = {}
        for name in _moving(sym):
            *outer, n = sym.shape(name)
            blocks = []
            for _ in product(*map(range, outer)):
                blocks.append(orders[n][rest % math.factorial(n)])
                rest = rest // math.factorial(n)
            moves[name] = torch.stack(blocks, 1).reshape(-1, *outer, n)
        signs: dict[str, Tensor] = {}
        for key in sym.flipping:
            shape = sym.shape(sym.families[key].owner)
            flips = []
            for _ in range(math.prod(shape)):
                flips.append(1 - 2 * (rest % 2))
                rest = rest // 2
            signs[key] = torch.stack(flips, 1).reshape(-1, *shape).to(torch.int8)
        yield Element(moves, {}, signs)


def _moving(sym: Symmetry) -> list[str]:
    return [name for name in sym.permuting if sym.classes[name].follows is None]
