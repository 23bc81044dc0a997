"""The gauge without scales: which weights come in to each unit, and their norms (thesis, section 4.4)."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from coset._magnitudes import exponents, scaled_by
from coset._values import kept
from coset.errors import InputError
from coset.symmetry.axes import Concat, Node, Product, Units, units_of
from coset.symmetry.element import Element
from coset.symmetry.incidence import appearances, unit_labels
from coset.symmetry.parameters import Family
from coset.symmetry.stacks import move_stack
from coset.symmetry.symmetry import Symmetry

_SMALL = 2.0**-100
"""Units whose norm is such a part of the largest entry: their squares need not be numbers beside its own."""


Ranks = Sequence[Sequence[str]]
"""The parameters a norm is of, by number of axes, those with most of them first."""


def incoming_weights(sym: Symmetry) -> Sequence[tuple[str, Ranks]]:
    """Each family of scales, from the input on, with the parameters its norm is of."""
    found, waiting = with_norms(sym)
    if waiting:
        raise InputError(
            f"the scales of {', '.join(map(repr, waiting))} cannot be normalised one after the other: each is carried "
            f"with power +1 only beside another of them, or not at all"
        )
    return found


@kept
def with_norms(sym: Symmetry) -> tuple[Sequence[tuple[str, Ranks]], tuple[str, ...]]:
    """``incoming_weights`` as far as there are such families, and those whose scales no norm settles."""
    incoming = {key: _incoming(sym, key) for key in sym.scaling}
    found: dict[str, Ranks] = {}
    while (following := _next_family(sym, incoming, found)) is not None:
        found |= [following]
    return tuple(found.items()), tuple(key for key in sym.scaling if key not in found)


BIASES = ("outside", "inside")
"""Whether a unit's bias counts in the norm of its incoming weights."""


def counted(sym: Symmetry, ranks: Ranks, bias: str) -> list[list[str]]:
    """The parameters that a norm is of, tied ones once; with the bias "inside" all of them together."""
    single = [[name for name in rank if sym.parameters[name].tied is None] for rank in ranks]
    return [[name for rank in single for name in rank]] if bias == "inside" else single


def removed_norms(sym: Symmetry, families: Iterable[tuple[str, Ranks]], stack: dict[str, Tensor]) -> dict[str, Tensor]:
    """‖incoming weights‖ of families one after the other, (N, *shape), each without the scales of those before it.

    ``families``: with the parameters that each norm is of, as ``incoming_weights`` gives them. ``stack``: N networks,
    which are scaled along, in float64.
    """
    norms: dict[str, Tensor] = {}
    for key, ranks in families:
        norms[key] = incoming_norms(sym, key, ranks, stack)
        touched = {name: stack[name].detach().double() for name in scale_carriers(sym)[key] if name in stack}
        stack.update(move_stack(sym, Element(scales={key: 1 / norms[key]}), touched))
    return norms


def _scales_on(sym: Symmetry, unit: Units) -> dict[str, int]:
    """The free scales that an appearance of a class carries: family → power."""
    keys = {charge.key(unit.name): charge.scale for charge in unit.charges}
    return {key: power for key, power in keys.items() if power and key in sym.scaling}


def _appearances(node: Node) -> Iterator[tuple[Units, tuple[Units, ...]]]:
    """Each appearance of a class on an axis, with the others that multiply the same entries."""
    if isinstance(node, Units):
        yield node, ()
    elif isinstance(node, Product):
        for index, factor in enumerate(node.factors):
            others = tuple(u for at, other in enumerate(node.factors) if at != index for u in units_of(other))
            for unit, beside in _appearances(factor):
                yield unit, (*beside, *others)
    elif isinstance(node, Concat):
        for segment in node.segments:
            yield from _appearances(segment)


@kept
def scale_carriers(sym: Symmetry) -> Mapping[str, Sequence[str]]:
    """For every family the parameters its scale moves, with the gains that make up for a variance."""
    names: dict[str, dict[str, None]] = {key: {} for key in sym.scaling}
    for name in sym.structures:
        for unit in (unit for node in sym.parameters[name].axes for unit in units_of(node)):
            for key in _scales_on(sym, unit):
                names[key][name] = None
    gains = {key: [sym.parameters[name].gain for name in found] for key, found in names.items()}
    return {
        key: tuple(dict.fromkeys([*found, *(gain for gain in gains[key] if gain is not None)]))
        for key, found in names.items()
    }


def _incoming(sym: Symmetry, key: str) -> dict[str, set[str]]:
    """The parameters that carry a family with power +1, each with the other scales (or the same again) beside it."""
    found: dict[str, set[str]] = {}
    for name in sym.structures:
        parameter = sym.parameters[name]
        for axis, node in enumerate(parameter.axes):
            elsewhere = [u for at, other in enumerate(parameter.axes) if at != axis for u in units_of(other)]
            for unit, beside in _appearances(node):
                own = _scales_on(sym, unit)
                if own.get(key) == 1 and not parameter.shift:
                    others = {other for u in (*beside, *elsewhere) for other in _scales_on(sym, u)}
                    found.setdefault(name, set()).update(others | (own.keys() - {key}))
    return found


def _next_family(
    sym: Symmetry, incoming: Mapping[str, Mapping[str, set[str]]], removed: Collection[str]
) -> tuple[str, Ranks] | None:
    """The first family whose incoming parameters carry no other scale that is still free, and these by number of axes,
    most first; None if there is none.
    """
    waiting = [key for key in sym.scaling if key not in removed]
    for insist in (True, False):
        for key in waiting:
            ready = [name for name, others in incoming[key].items() if all(other in removed for other in others)]
            ranks = sorted({len(sym.parameters[name].shape) for name in ready}, reverse=True)
            best = max((len(sym.parameters[name].shape) for name in incoming[key]), default=0)
            if ranks and (ranks[0] == best or not insist):
                return key, [[name for name in ready if len(sym.parameters[name].shape) == rank] for rank in ranks]
    return None


def incoming_norms(sym: Symmetry, key: str, ranks: Ranks, params: Mapping[str, Tensor]) -> Tensor:
    """‖incoming‖ per unit, of the class's shape, float64; from the first rank of parameters that is not all zero.

    Parameters with leading axes of networks give norms with the same axes in front.
    """
    family = sym.families[key]
    shape = sym.shape(family.owner)
    lead: tuple[int, ...] = ()
    norms = torch.zeros(1, math.prod(shape), dtype=torch.float64)
    for rank in ranks:
        wide = {name: _taken_apart(sym, name, params[name]) for name in rank}
        for name in rank:
            lead = tuple(params[name].shape[: params[name].ndim - len(sym.parameters[name].shape)])
        # Over the largest entry of each network, so that squares of large numbers stay numbers.
        sizes = [tensor.abs().flatten(1).amax(1) for tensor in wide.values() if tensor.numel()]
        largest = torch.stack(sizes).amax(0)[:, None] if sizes else torch.zeros(1, 1, dtype=torch.float64)
        if not bool(largest.any()):
            continue
        by = torch.where(largest > 0, largest, 1.0)
        whole = {name: tensor / by.reshape(-1, *[1] * (tensor.ndim - 1)) for name, tensor in wide.items()}
        found = by * _unit_norms(sym, family, whole)
        # Of units far smaller than that, over their own.
        small = (norms == 0) & (found < largest * _SMALL)
        if bool(small.any()):
            labels = {name: unit_labels(sym, name, family).reshape(sym.structures[name].sizes) for name in rank}
            for number in small.any(1).nonzero().flatten().tolist():
                own = lengths(labels, {name: tensor[number] for name, tensor in wide.items()}, found.shape[1])
                found[number] = torch.where(small[number], own, found[number])
        norms = torch.where(norms == 0, found, norms)
    return torch.where(norms == 0, torch.ones_like(norms), norms).expand(math.prod(lead), -1).reshape(*lead, *shape)


def _taken_apart(sym: Symmetry, name: str, tensor: Tensor) -> Tensor:
    """A parameter in float64 on the CPU, its dimensions taken apart behind one axis of networks."""
    wide = tensor.detach().to(device="cpu", dtype=torch.float64)
    if not bool(torch.isfinite(wide).all()):
        raise InputError(f"'{name}' has entries that are NaN or infinite")
    return wide.reshape(-1, *sym.structures[name].sizes)


def _unit_norms(sym: Symmetry, family: Family, params: Mapping[str, Tensor]) -> Tensor:
    """The norm of everything that carries each unit's scale with power +1, (N, ∏shape), of N networks."""
    units = math.prod(sym.shape(family.owner))
    total = torch.zeros(1, units, dtype=torch.float64)
    for name, tensor in params.items():
        # A sum for each parameter, and then their sum.
        squares = torch.zeros(len(tensor), units, dtype=torch.float64)
        for stretch, item in appearances(sym, name):
            if item.scales.get(family.key) == 1:
                present = item.unit >= 0
                rest = [1 + dim for dim in range(tensor.ndim - 1) if dim not in stretch.dims]
                rows = (tensor.square().sum(rest) if rest else tensor.square()).reshape(len(tensor), -1)
                squares.index_add_(1, item.unit[present], rows[:, present])
        total = total + squares
    return total.sqrt()


def lengths(units: Mapping[str, Tensor], values: Mapping[str, Tensor], count: int) -> Tensor:
    """The norm of all entries of each of ``count`` units, of any size, (count,) in float64.

    ``units``: name → the unit of each entry of ``values``, as ``unit_labels`` gives them.
    """
    device = next(iter(values.values())).device if values else None
    largest = torch.zeros(count, dtype=torch.float64, device=device)
    entries = [(label[label >= 0], values[name].detach()[label >= 0].double()) for name, label in units.items()]
    for label, part in entries:
        largest.scatter_reduce_(0, label, part.abs(), "amax")
    # Each unit on its own scale, so that squares are numbers.
    by = exponents(largest[:, None], 1)
    squares = torch.zeros_like(largest)
    for label, part in entries:
        squares.index_add_(0, label, scaled_by(part, by[label]).square())
    return scaled_by(squares.sqrt(), -by)
