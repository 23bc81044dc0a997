"""Affine moves of units that no matrix shows: half-turns of sin and cos, reflections of sigmoids and clipped units.

A function with f(s·z + c) = t·f(z) + e lets a unit turn: its bias takes up c (and its weights s), its readers change
by t, and their biases take up e. sin(z + π) = −sin(z) may be done any number of times; σ(−z) = 1 − σ(z) undoes itself.
With k turns of a unit, in this order: biases of readers get amount·(k mod 2)·W, entries that flip get (−1)^k, and
entries that shift get + k·c.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coset._values import Frozen
from coset.errors import InputError
from coset.symmetry.axes import family_key
from coset.symmetry.incidence import appearances, spread

if TYPE_CHECKING:
    from coset.symmetry.element import Element
    from coset.symmetry.symmetry import Symmetry

ORDERS = (0, 2)
"""How often a turn has to be done to undo itself: never (0), or twice."""


@dataclass(frozen=True)
class Turned:
    """What one turn does to the entries of a unit, at one appearance of its class: x → ±x + shift."""

    flip: bool = False
    shift: float = 0.0


@dataclass(frozen=True)
class Taken:
    """A constant that a reader's ``bias`` takes up: + amount·(the sum of the unit's entries of ``weight``).

    ``axis``: the axis of the weight along which the bias stands; ``number``: the appearance of the class that is read.
    """

    weight: str
    bias: str
    amount: float
    axis: int
    number: int


@dataclass(frozen=True)
class Turn:
    """A way to turn the units of the class ``owner``, one by one.

    ``places``: parameter → what a turn does at each appearance of the class, in order; ``taken``: what the biases of
    readers take up. ``name``: "" for the first turn of a class.
    """

    owner: str
    order: int
    places: Mapping[str, tuple[Turned, ...]]
    taken: tuple[Taken, ...] = ()
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "places", Frozen(self.places))

    @property
    def key(self) -> str:
        """The name under which elements keep it: the class's own name, or class:name."""
        return family_key(self.owner, self.name)

    @property
    def named(self) -> str:
        """What it is, in words."""
        flips = any(item.flip for items in self.places.values() for item in items)
        return "reflections" if self.order else "half-turns" if flips else "full turns"


def random_turns(turn: Turn, shape: tuple[int, ...], generator: torch.Generator, reach: int) -> Tensor:
    """Whole numbers, uniform between −reach and reach; 0 or 1 for reflections."""
    low, high = (0, 2) if turn.order else (-reach, reach + 1)
    return torch.randint(low, high, shape, generator=generator, device=generator.device)


def check_turns(sym: "Symmetry", g: "Element") -> None:
    """Raise unless turns are those of units that turn, whole numbers of the right shapes; absent ones are 0."""
    for key, k in g.turns.items():
        if key not in sym.turns:
            known = ", ".join(sym.turns) or "none"
            raise InputError(f"the turns of '{key}' are not free in this symmetry; units that turn: {known}")
        wanted = sym.shape(sym.turns[key].owner)
        if tuple(k.shape) != wanted:
            raise InputError(f"the turns of '{key}' have shape {tuple(k.shape)}; expected {wanted}")
        if sym.turns[key].order and bool(((k != 0) & (k != 1)).any()):
            raise InputError(f"the turns of '{key}' are reflections; expected each to be 0 or 1")


def carried_turns(sym: "Symmetry", g: "Element", key: str, k: Tensor, source: Tensor) -> Tensor:
    """p·T·p⁻¹ for the permutations and signs p of g: k of old unit source[i], with the sign of what shifts.

    ``source`` (N,): where each new unit comes from.
    """
    turn, flat = sym.turns[key], k.reshape(-1)
    for name in () if turn.order else _first_shift(sym, turn):
        if name in g.signs:
            flat = flat * g.signs[name].reshape(-1).to(flat)
    return flat[source.to(flat.device)].reshape(k.shape)


def _first_shift(sym: "Symmetry", turn: Turn) -> tuple[str, ...]:
    """The families whose signs the entries carry that a turn shifts: their own, and signs that all of them share."""
    for parameter, places in turn.places.items():
        for item, place in zip(list(appearances(sym, parameter, turn.owner)), places, strict=True):
            if place.shift:
                shared = (other for _, other in appearances(sym, parameter) if math.prod(sym.shape(other.name)) == 1)
                return (*item[1].signs, *(key for other in shared if other.name != turn.owner for key in other.signs))
    return ()


def summed_turns(turn: Turn, k: Tensor) -> Tensor:
    """Numbers of turns as elements keep them: 0 or 1 for reflections."""
    return k % turn.order if turn.order else k


def turned(
    sym: "Symmetry", turns: Mapping[str, Tensor], params: Mapping[str, Tensor], *, linear: bool = False
) -> dict[str, Tensor]:
    """Parameters with their units turned; tensors that were one stay one. ``linear``: without shifts."""
    result = dict(params)
    for key, k in turns.items():
        turn = sym.turns[key]
        if not bool(k.any()):
            continue
        flat = k.reshape(-1)
        result |= {} if linear else _taken(sym, turn, flat, result)
        seen: dict[tuple[object, ...], Tensor] = {}
        for parameter, places in turn.places.items():
            if parameter in result:
                tensor = result[parameter]
                memo = (id(tensor), places, id(sym.structures[parameter]))
                if memo not in seen:
                    seen[memo] = _placed(sym, turn, parameter, flat, tensor, linear)
                result[parameter] = seen[memo]
    return result


def _at_units(unit: Tensor, values: Tensor, default: float, like: Tensor) -> Tensor:
    """Values of units along a stretch; ``default`` where the class does not stand."""
    picked = values.to(unit.device)[unit.clamp(min=0)].to(torch.float64)
    return torch.where(unit >= 0, picked, default).to(like.device, like.dtype)


def _placed(sym: "Symmetry", turn: Turn, parameter: str, k: Tensor, tensor: Tensor, linear: bool) -> Tensor:
    """±x + shift at the entries of each appearance."""
    structure, shape = sym.structures[parameter], tensor.shape
    whole = tensor.reshape(*shape[: tensor.ndim - len(sym.parameters[parameter].shape)], *structure.sizes)
    found = list(appearances(sym, parameter, turn.owner))
    for (stretch, item), place in zip(found, turn.places[parameter], strict=True):
        if place.flip:
            whole = whole * spread(_at_units(item.unit, 1 - 2 * (k % 2), 1, tensor), structure, stretch)
        if place.shift and not linear:
            whole = whole + spread(_at_units(item.unit, k.double() * place.shift, 0, tensor), structure, stretch)
    return whole.reshape(shape)


def centred(sym: "Symmetry", params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of which every reflection flips entries and does no more: biases b + Σ_j W_j·e/2 − c/2.

    A reflection y → e − y, z → c − z of a unit is a sign of y − e/2 and z − c/2.
    """
    result = dict(params)
    for turn in sym.turns.values():
        if turn.order:
            halves = torch.full((math.prod(sym.shape(turn.owner)),), 0.5, dtype=torch.float64)
            for item in turn.taken:
                own = constants(sym, turn, item, halves, params[item.weight])
                result[item.bias] = result[item.bias] + own.reshape(result[item.bias].shape)
            unflipped = Turn(
                turn.owner,
                0,
                {name: tuple(Turned(shift=place.shift) for place in places) for name, places in turn.places.items()},
            )
            for name in turn.places:
                result[name] = _placed(sym, unflipped, name, -halves, result[name], linear=False)
    return result


def _taken(sym: "Symmetry", turn: Turn, k: Tensor, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The biases of readers with what they take up of the units that turn an odd number of times."""
    found: dict[str, Tensor] = {}
    for item in turn.taken:
        if item.bias not in params:
            continue
        if item.weight not in params:
            raise InputError(
                f"'{item.weight}' is not among the parameters given; by it '{item.bias}' takes up what is added"
            )
        bias = found.get(item.bias, params[item.bias])
        own = constants(sym, turn, item, k % 2, params[item.weight])
        found[item.bias] = bias + own.reshape(*own.shape[:-1], *sym.parameters[item.bias].shape)
    # One tensor under several names stays one.
    first = {id(params[name]): tensor for name, tensor in reversed(found.items())}
    return {name: first[id(params[name])] for name in found}


def constants(sym: "Symmetry", turn: Turn, item: Taken, values: Tensor, weight: Tensor) -> Tensor:
    """amount·Σ_j values_j·W_ij over the entries of the units j of a reader: (samples…, rows of the reader)."""
    structure, shape = sym.structures[item.weight], sym.parameters[item.weight].shape
    stretch, found = list(appearances(sym, item.weight, turn.owner))[item.number]
    lead = weight.ndim - len(shape)
    whole = weight.reshape(*weight.shape[:lead], *structure.sizes)
    picked = whole * spread(_at_units(found.unit, values, 0, weight), structure, stretch)
    picked = picked.reshape(weight.shape).movedim(lead + item.axis, lead)
    return item.amount * picked.reshape(*weight.shape[:lead], shape[item.axis], -1).sum(-1)


def is_translation(sym: "Symmetry", g: "Element") -> bool:
    """Whether the turns of an element flip and shift entries alone, so that no entry depends on another one."""
    return not any(sym.turns[key].taken and bool(k.any()) for key, k in g.turns.items())


def validate_turn(sym: "Symmetry", key: str, turn: Turn) -> None:
    """Raise unless a turn is that of a class, and its places are places of the class on parameters."""
    if key != turn.key or turn.owner not in sym.classes or turn.order not in ORDERS:
        raise InputError(f"the turn '{key}' has no known class (owner '{turn.owner}') or order {turn.order}")
    for parameter, places in turn.places.items():
        if parameter not in sym.parameters:
            raise InputError(f"the turn '{key}' names '{parameter}', which is no parameter")
        if (carried := len(list(appearances(sym, parameter, turn.owner)))) != len(places):
            raise InputError(f"'{parameter}' carries '{turn.owner}' {carried} times; it turns in {len(places)} places")
        if not all(math.isfinite(place.shift) for place in places):
            raise InputError(f"the turn '{key}' shifts '{parameter}' by a number that is not finite")
    for item in turn.taken:
        if item.weight not in sym.parameters or item.bias not in sym.parameters:
            raise InputError(f"the turn '{key}' names '{item.weight}' and '{item.bias}'; one is no parameter")
        shape, rows = sym.parameters[item.weight].shape, sym.parameters[item.bias].shape
        number = len(list(appearances(sym, item.weight, turn.owner)))
        if not (0 <= item.axis < len(shape) and math.prod(rows) == shape[item.axis] and 0 <= item.number < number):
            raise InputError(f"'{item.bias}' of shape {rows} cannot take up what '{item.weight}' of {shape} reads")
