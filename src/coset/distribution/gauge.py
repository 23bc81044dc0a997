"""Remove the scales: the representative of an orbit in which incoming weights have unit norm (thesis, section 4.4)."""

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from coset._magnitudes import magnitude, scaled_by
from coset.distribution.contract import Distribution
from coset.distribution.ties import ties
from coset.errors import InputError
from coset.symmetry.action import Action
from coset.symmetry.axes import Charge, Concat, Node, Product, Units, units_of
from coset.symmetry.element import Element
from coset.symmetry.parameters import Family
from coset.symmetry.structure import Stretch
from coset.symmetry.symmetry import Symmetry

_SMALL = 2.0**-100
"""Units whose norm is such a part of the largest entry: their squares need not be numbers beside its own."""

_T = TypeVar("_T", bound=Mapping[str, Tensor] | Distribution)


def normalize_scales(sym: Symmetry, params: _T) -> tuple[_T, Element]:
    """The representative whose units have incoming weights of unit norm, and the element that undoes it.

    Family by family, from the input on: d = ‖incoming weights‖ per unit, θ → d⁻¹·θ. Incoming are the parameters that
    carry the scale with power +1 and have the most axes (weights before biases; the gain and offset of a norm where
    there is nothing else), as far as all other scales they carry are already removed: the first writers of a residual
    stream, not the blocks that read it. So the result does not depend on the scales of the input. Units whose incoming
    weights vanish are measured by the parameters with fewer axes, and units without any of these keep their scale.
    For a distribution the norms are those of its means. Norms are taken in float64, and as numbers: no derivative
    follows them.

    Returns (representative, g) with act(g, representative) = params. Where a batch norm's variance is so small that it
    is kept positive (see ``Symmetry.act``), what comes back has the same function but not the same gain and variance.
    """
    means: Mapping[str, Tensor] = params if isinstance(params, Mapping) else params.mean
    single = set(ties(means).values())
    # Of complex weights the absolute values have the same norms, and the same scales.
    current = {name: tensor.abs() if tensor.is_complex() else tensor for name, tensor in means.items()}
    carriers = {key: _carriers(sym, key) for key in sym.scaling}
    scales: dict[str, Tensor] = {}
    for key, sources in incoming_weights(sym):
        for name in (name for rank in sources for name in rank):
            if name not in current:
                raise InputError(
                    f"'{name}' is needed to normalise the scales of '{key}' and is not among the parameters"
                )
        # Tied weights count once.
        scales[key] = _norms(sym, key, [[name for name in rank if name in single] for rank in sources], current)
        step = Action(sym, Element(scales={key: 1 / scales[key]}), whole=False)
        touched = {name: current[name].detach().double() for name in carriers[key] if name in current}
        current.update(step(touched, partial=True))
    undo = sym.element(scales=scales)
    given: Any = params
    representative = sym.act(sym.inverse(undo), given)
    for name, tensor in (representative if isinstance(representative, Mapping) else representative.mean).items():
        if not tensor.is_floating_point():
            continue
        if not bool(torch.isfinite(tensor).all()):
            raise InputError(f"'{name}' overflows {tensor.dtype} without its scales; pass parameters in float64")
        if _vanishes(means[name], tensor):
            raise InputError(f"'{name}' underflows {tensor.dtype} without its scales; pass parameters in float64")
    return representative, undo


def _vanishes(before: Tensor, after: Tensor) -> bool:
    """Whether a tensor has lost its digits: its largest entry is below the smallest that has all of them."""
    least, was = magnitude(after), magnitude(before)
    smallest = math.frexp(torch.finfo(after.dtype).tiny)[1]
    return was is not None and was >= smallest and (least is None or least < smallest)


def incoming_weights(sym: Symmetry) -> Iterator[tuple[str, list[list[str]]]]:
    """Each family of scales, from the input on, with the parameters its norm is of, those with most axes first."""
    incoming = {key: _incoming(sym, key) for key in sym.scaling}
    removed: set[str] = set()
    while len(removed) < len(sym.scaling):
        key, ranks = _next_family(sym, incoming, removed)
        removed.add(key)
        yield key, ranks


def _scales_on(sym: Symmetry, unit: Units) -> dict[str, int]:
    """The free scales that an appearance of a class carries: family → power."""
    keys = {f"{unit.name}:{charge.family}" if charge.family else unit.name: charge.scale for charge in unit.charges}
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


def _carriers(sym: Symmetry, key: str) -> list[str]:
    """The parameters a family's scale moves, with the gains that make up for a variance."""
    names = [
        name
        for name in sym.structures
        if any(key in _scales_on(sym, unit) for node in sym.parameters[name].axes for unit in units_of(node))
    ]
    gains = [sym.parameters[name].gain for name in names]
    return list(dict.fromkeys([*names, *(gain for gain in gains if gain is not None)]))


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
) -> tuple[str, list[list[str]]]:
    """The first family whose incoming parameters carry no other scale that is still free.

    Returns its key and its incoming parameters by number of axes, most first.
    """
    waiting = [key for key in sym.scaling if key not in removed]
    for insist in (True, False):
        for key in waiting:
            ready = [name for name, others in incoming[key].items() if all(other in removed for other in others)]
            ranks = sorted({len(sym.parameters[name].shape) for name in ready}, reverse=True)
            best = max((len(sym.parameters[name].shape) for name in incoming[key]), default=0)
            if ranks and (ranks[0] == best or not insist):
                return key, [[name for name in ready if len(sym.parameters[name].shape) == rank] for rank in ranks]
    raise InputError(
        f"the scales of {', '.join(repr(key) for key in waiting)} cannot be normalised one after the other: each is "
        f"carried with power +1 only beside another of them, or not at all"
    )


def _norms(sym: Symmetry, key: str, sources: list[list[str]], params: Mapping[str, Tensor]) -> Tensor:
    """‖incoming‖ per unit, of the class's shape, float64; from the first rank of parameters that is not all zero."""
    family = sym.families[key]
    shape = sym.shape(family.owner)
    norms = torch.zeros(shape, dtype=torch.float64).reshape(-1)
    for rank in sources:
        wide = {name: _checked(sym, name, params[name]) for name in rank}
        # Over the largest entry, so that squares of large numbers stay numbers.
        largest = max((float(tensor.abs().max()) for tensor in wide.values() if tensor.numel()), default=0.0)
        if largest == 0.0:
            continue
        whole = {name: _wide(params[name] / largest).reshape(wide[name].shape) for name in rank}
        found = largest * _unit_norms(sym, family, whole)
        # Of units far smaller than that, over their own.
        small = (norms == 0) & (found < largest * _SMALL)
        if bool(small.any()):
            found = torch.where(small, _small_norms(sym, family, wide), found)
        norms = torch.where(norms == 0, found, norms)
    return torch.where(norms == 0, torch.ones_like(norms), norms).reshape(shape)


def _checked(sym: Symmetry, name: str, tensor: Tensor) -> Tensor:
    """A parameter of a single network in float64 on the CPU, its dimensions taken apart."""
    wide = _wide(tensor)
    if wide.ndim != len(sym.parameters[name].shape):
        raise InputError(f"'{name}' has leading sample axes; normalise one network at a time")
    if not bool(torch.isfinite(wide).all()):
        raise InputError(f"'{name}' has entries that are NaN or infinite")
    return wide.reshape(sym.structures[name].sizes)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.detach().to(device="cpu", dtype=torch.float64)


def _unit_norms(sym: Symmetry, family: Family, params: Mapping[str, Tensor]) -> Tensor:
    """The norm of everything that carries each unit's scale with power +1, (∏shape,)."""
    total = torch.zeros(math.prod(sym.shape(family.owner)), dtype=torch.float64)
    for name, tensor in params.items():
        # A sum for each parameter, and then their sum.
        squares = torch.zeros_like(total)
        for units, rows in _unit_rows(sym, family, name, tensor**2):
            squares.index_add_(0, units, rows.sum(1))
        total += squares
    return total.sqrt()


def _small_norms(sym: Symmetry, family: Family, params: Mapping[str, Tensor]) -> Tensor:
    """The same for units of any size, each multiplied by its own power of two."""
    largest = torch.zeros(math.prod(sym.shape(family.owner)), dtype=torch.float64)
    for name, tensor in params.items():
        for units, rows in _unit_rows(sym, family, name, tensor):
            largest.scatter_reduce_(0, units, rows.abs().amax(1), "amax")
    by = torch.frexp(largest).exponent
    squares = torch.zeros_like(largest)
    for name, tensor in params.items():
        for units, rows in _unit_rows(sym, family, name, tensor):
            squares.index_add_(0, units, scaled_by(rows, by[units][:, None]).square().sum(1))
    return scaled_by(squares.sqrt(), -by)


def _unit_rows(sym: Symmetry, family: Family, name: str, tensor: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Every appearance of a family with power +1: the numbers of its units (n,), and their entries (n, …)."""
    for stretch in sym.structures[name].stretches:
        rows = _rows_along(tensor, stretch)
        if stretch.plain is not None and _counts(family, stretch.plain.name, stretch.plain.charges):
            yield torch.arange(len(rows)), rows
        for member in stretch.members:
            if _counts(family, member.name, member.charges):
                present = member.unit >= 0
                yield member.unit[present], rows[present]


def _counts(family: Family, name: str, charges: tuple[Charge, ...]) -> bool:
    return name == family.owner and any(charge.family == family.name and charge.scale == 1 for charge in charges)


def _rows_along(tensor: Tensor, stretch: Stretch) -> Tensor:
    """Positions along the stretch in rows, all other dimensions in columns, flattened in order."""
    moved = tensor.movedim(stretch.dims, tuple(range(len(stretch.dims))))
    return moved.reshape(stretch.size, -1)
