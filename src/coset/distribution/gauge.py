"""Remove the scales: the representative of an orbit in which incoming weights have unit norm (thesis, section 4.4)."""

import math
from collections.abc import Collection, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from coset.distribution.delta import Delta
from coset.distribution.mean_field import MeanField
from coset.errors import InputError
from coset.symmetry.axes import Charge, units_of
from coset.symmetry.element import Element
from coset.symmetry.structure import Stretch
from coset.symmetry.symmetry import Family, Symmetry

_T = TypeVar("_T", Mapping[str, Tensor], Delta, MeanField)


def normalize_scales(sym: Symmetry, params: _T) -> tuple[_T, Element]:
    """The representative whose units have incoming weights of unit norm, and the element that undoes it.

    Family by family, from the input on: d = ‖incoming weights‖ per unit, θ → d⁻¹·θ. Incoming are the parameters that
    carry the scale with power +1 and have the most axes (weights before biases; the gain and offset of a norm where
    there is nothing else), as far as all other scales they carry are already removed: the first writers of a residual
    stream, not the blocks that read it. So the result does not depend on the scales of the input. Units whose incoming
    weights vanish are measured by the parameters with fewer axes, and units without any of these keep their scale.
    For a distribution the norms are those of its means.

    Returns (representative, g) with act(g, representative) = params.
    """
    current = dict(params if isinstance(params, Mapping) else params.mean)
    scales: dict[str, Tensor] = {}
    while len(scales) < len(sym.scaling):
        key, sources = _next_family(sym, scales.keys())
        missing = [name for rank in sources for name in rank if name not in current]
        if missing:
            raise InputError(
                f"'{missing[0]}' is needed to normalise the scales of '{key}' and is not among the parameters"
            )
        scales[key] = _norms(sym, key, sources, current)
        step = sym.element(scales={key: 1 / scales[key]})
        touched = {name: current[name] for name in _carriers(sym, key) if name in current}
        current.update(sym.act(step, touched, partial=True))
    undo = sym.element(scales=scales)
    return sym.act(sym.inverse(undo), params), undo


def _charges(sym: Symmetry, name: str) -> dict[str, list[Charge]]:
    """The free scales a parameter carries: family → charges with a non-zero power."""
    found: dict[str, list[Charge]] = {}
    for node in sym.parameters[name].axes:
        for unit in units_of(node):
            for charge in unit.charges:
                key = f"{unit.name}:{charge.family}" if charge.family else unit.name
                if charge.scale and key in sym.scaling:
                    found.setdefault(key, []).append(charge)
    return found


def _carriers(sym: Symmetry, key: str) -> list[str]:
    """The parameters a family's scale moves, with the gains that make up for a variance."""
    names = [name for name in sym.structures if key in _charges(sym, name)]
    gains = [sym.parameters[name].gain for name in names]
    return list(dict.fromkeys([*names, *(gain for gain in gains if gain is not None)]))


def _next_family(sym: Symmetry, removed: Collection[str]) -> tuple[str, list[list[str]]]:
    """The first family whose incoming parameters carry no other scale that is still free.

    Returns its key and its incoming parameters by number of axes, most first.
    """
    waiting = [key for key in sym.scaling if key not in removed]
    for insist in (True, False):
        for key in waiting:
            incoming = [
                name
                for name in sym.structures
                if any(charge.scale == 1 for charge in _charges(sym, name).get(key, ()))
                and not sym.parameters[name].shift
            ]
            ready = [name for name in incoming if _settled(_charges(sym, name), key, removed)]
            ranks = sorted({len(sym.parameters[name].shape) for name in ready}, reverse=True)
            best = max((len(sym.parameters[name].shape) for name in incoming), default=0)
            if ranks and (ranks[0] == best or not insist):
                return key, [[name for name in ready if len(sym.parameters[name].shape) == rank] for rank in ranks]
    raise InputError(
        f"the scales of {', '.join(repr(key) for key in waiting)} cannot be normalised one after the other: each is "
        f"carried with power +1 only beside another of them, or not at all"
    )


def _settled(charges: dict[str, list[Charge]], key: str, removed: Collection[str]) -> bool:
    """Whether a parameter carries this family once, and otherwise only families whose scale is removed."""
    return len(charges[key]) == 1 and all(other == key or other in removed for other in charges)


def _norms(sym: Symmetry, key: str, sources: list[list[str]], params: Mapping[str, Tensor]) -> Tensor:
    """‖incoming‖ per unit, of the class's shape, float64; from the first rank of parameters that is not all zero."""
    family = sym.families[key]
    shape = sym.shape(family.owner)
    norms = torch.zeros(shape, dtype=torch.float64).reshape(-1)
    for rank in sources:
        squares = sum((_unit_squares(sym, name, family, params[name]) for name in rank), torch.zeros_like(norms))
        norms = torch.where(norms == 0, squares.sqrt(), norms)
    return torch.where(norms == 0, torch.ones_like(norms), norms).reshape(shape)


def _unit_squares(sym: Symmetry, name: str, family: Family, tensor: Tensor) -> Tensor:
    """Sum of squares over everything that carries each unit's scale with power +1, (∏shape,)."""
    structure = sym.structures[name]
    squares = tensor.detach().to(device="cpu", dtype=torch.float64) ** 2
    if squares.ndim != len(sym.parameters[name].shape):
        raise InputError(f"'{name}' has leading sample axes; normalise one network at a time")
    squares = squares.reshape(structure.sizes)
    total = torch.zeros(math.prod(sym.shape(family.owner)), dtype=torch.float64)
    for stretch in structure.stretches:
        along = _sum_along(squares, stretch)
        if stretch.plain is not None and _incoming(family, stretch.plain.name, stretch.plain.charges):
            total += along
        for member in stretch.members:
            if _incoming(family, member.name, member.charges):
                present = member.unit >= 0
                total.index_add_(0, member.unit[present], along[present])
    return total


def _incoming(family: Family, name: str, charges: tuple[Charge, ...]) -> bool:
    return name == family.owner and any(charge.family == family.name and charge.scale == 1 for charge in charges)


def _sum_along(squares: Tensor, stretch: Stretch) -> Tensor:
    """Sum over all dimensions but the stretch's own, flattened in order."""
    moved = squares.movedim(stretch.dims, tuple(range(len(stretch.dims))))
    return moved.reshape(stretch.size, -1).sum(1)
