"""From what stands on an axis (products and concatenations of classes) to the parts of a group on channels."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from coset.errors import InputError
from coset.represent.unit_groups import Part
from coset.symmetry.axes import Concat, Fixed, Interleaved, Node, Product, factors_of, size_of, units_of
from coset.symmetry.structure import UnitClass, ancestors


def parts_of(
    node: Node, classes: Mapping[str, UnitClass], layer: str, mixing: Mapping[str, str] | None = None
) -> tuple[tuple[Part, ...], tuple[int, ...] | None]:
    """The parts of a channel axis on which ``node`` stands, and the channels in their order (None: as they stand).

    ``mixing``: classes that matrices mix there, and of which kind. Where each of n units stands with P positions,
    A ⊗ 1 acts, which is counted as a matrix of n·P rows.
    Outer blocks come before what is nested in them, and positions that never move last: they belong to the unit beside
    which they stand. Two classes that permute independently on one axis are no row of pieces, and an error.
    """
    parts, order = _parts(node, classes, layer, mixing or {})
    listed = tuple(int(place) for place in order)
    return parts, None if listed == tuple(range(len(listed))) else listed


def _parts(
    node: Node, classes: Mapping[str, UnitClass], layer: str, mixing: Mapping[str, str]
) -> tuple[tuple[Part, ...], Tensor]:
    sizes = {name: item.size for name, item in classes.items()}
    # A class of one unit (the sign of a whole stream) numbers nothing.
    factors = [factor for factor in factors_of(node) if size_of(factor, sizes) > 1] or [Fixed(size_of(node, sizes))]
    lengths = [size_of(factor, sizes) for factor in factors]
    mixed = [any(unit.name in mixing for unit in units_of(factor)) for factor in factors]
    chain = sorted(range(len(factors)), key=lambda number: (_depth(factors[number], classes), mixed[number]))
    for outer, inner in pairwise(chain):
        # One matrix for several blocks (queries on one key) is among those with one for each.
        if not mixed[inner]:
            _check_nested(factors[outer], factors[inner], classes, layer)
    places = torch.arange(size_of(node, sizes)).reshape(lengths).permute(chain).reshape(-1)
    parts, order = _row([factors[number] for number in chain], classes, layer, mixing)
    return parts, places[order]


def _depth(factor: Node, classes: Mapping[str, UnitClass]) -> float:
    """How deep a factor is nested; positions that never move are innermost."""
    depths = [len(ancestors(unit.name, classes)) for unit in units_of(factor)]
    return max(depths) if depths else float("inf")


def _check_nested(outer: Node, inner: Node, classes: Mapping[str, UnitClass], layer: str) -> None:
    around = {unit.name for unit in units_of(outer)}
    for unit in units_of(inner):
        if not around & set(ancestors(unit.name, classes)):
            raise InputError(
                f"the channels of layer '{layer}' are pairs of units of '{next(iter(sorted(around)))}' and "
                f"'{unit.name}', which permute independently; expected one class, or one nested in the other"
            )


def _row(
    factors: Sequence[Node], classes: Mapping[str, UnitClass], layer: str, mixing: Mapping[str, str]
) -> tuple[tuple[Part, ...], Tensor]:
    """Parts and order of a product whose factors stand from the outermost to the innermost."""
    if not factors:
        return (), torch.zeros(1, dtype=torch.long)
    head, rest = factors[0], factors[1:]
    if isinstance(head, Concat):
        found = [_parts(Product((segment, *rest)), classes, layer, mixing) for segment in head.segments]
        count, total = len(found), sum(len(order) for _, order in found)
        if isinstance(head, Interleaved):
            inner = size_of(Product(tuple(rest)), {name: item.size for name, item in classes.items()})
            where = list(torch.arange(total).reshape(-1, count, inner).transpose(0, 1).reshape(count, -1))
        else:
            where = list(torch.split(torch.arange(total), [len(order) for _, order in found]))
        return (
            tuple(part for parts, _ in found for part in parts),
            torch.cat([places[order] for (_, order), places in zip(found, where, strict=True)]),
        )
    if isinstance(head, Fixed):
        # Only such are behind it.
        size = size_of(Product(tuple(factors)), {})
        return (Part(size),), torch.arange(size)
    inside, order = _row(rest, classes, layer, mixing)
    # The pieces of a part whose insides are one channel have none.
    inside = inside if sum(part.size for part in inside) > 1 else ()
    count = size_of(head, {name: item.size for name, item in classes.items()})
    permutes = any(classes[unit.name].permutes for unit in units_of(head))
    kind = next((mixing[unit.name] for unit in units_of(head) if unit.name in mixing), None)
    steps = torch.arange(count) * len(order)
    part = Part(count, permutes=permutes, inside=inside)
    if kind is not None:
        # With positions inside, 1 is no longer the only vector that stays.
        part = Part(part.size, mixes="orthogonal" if inside and kind == "centred" else kind)
    return (part,), (steps[:, None] + order).reshape(-1)
