"""The order of a group as it is written down by hand, and as it is found."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from coset.symmetry import Symmetry


@dataclass(frozen=True)
class Group:
    """Sizes of permuting classes, as (blocks, size) with their number; how many scales and signs are free."""

    classes: tuple[tuple[tuple[int, int], int], ...]
    scales: int
    signs: int


Case = tuple[Callable[[], nn.Module], list[tuple[int, ...]], Group]
"""A model, the shapes of its inputs (without the batch), its group."""


def group(classes: str, *, scales: int, signs: int) -> Group:
    """``classes``: sizes, "3x2" for two units inside each of three blocks, "4*5" for four classes of size 5."""
    found: Counter[tuple[int, int]] = Counter()
    for word in classes.split():
        number, _, size = word.rpartition("*")
        blocks, _, inner = size.rpartition("x")
        found[int(blocks or 1), int(inner)] += int(number or 1)
    return Group(tuple(sorted(found.items())), scales, signs)


def found_group(sym: Symmetry) -> Group:
    """What ``group`` writes down, of a symmetry."""
    shapes = [sym.shape(name) for name in sym.permuting if sym.classes[name].size > 1]
    classes = Counter((math.prod(shape[:-1]), shape[-1]) for shape in shapes)
    signs = sum(math.prod(sym.shape(sym.families[key].owner)) for key in sym.flipping)
    return Group(tuple(sorted(classes.items())), sym.scale_dimension, signs)
