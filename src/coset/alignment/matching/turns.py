"""Matching on the weights where units turn: half-turns of sin by a gauge, reflections as signs.

Half-turns move a bias by multiples of c, so both networks are brought to biases between −c/2 and c/2, matched, and the
gauge of the reference is restored. A reflection y → e − y, z → c − z is a sign of y − e/2 and z − c/2: with biases that
have these constants in them, b + Σ_j W_j·e/2 − c/2, it flips entries and nothing else, and is matched like any sign.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coset.alignment._agreement import is_trained
from coset.symmetry import Element, Family, Parameter, Symmetry
from coset.symmetry.axes import Charge, Concat, Node, Product, Units
from coset.symmetry.group import full_map
from coset.symmetry.incidence import appearances, rows_along
from coset.symmetry.turning import Turn, Turned, centred

Params = Mapping[str, Tensor]

_SWEEPS = 10


@dataclass(frozen=True)
class Unturned:
    """Networks in which all that turns is a sign: ``symmetry`` has these signs, ``flips`` says which they are, by turn.

    ``gauged``: the networks in the gauge, which compute what they did; ``networks``: the same with constants in their
    biases, which the signs flip. ``restored(found, i)``: the element of the whole group that brings network i to the
    first, from one that was found for these.
    """

    symmetry: Symmetry
    flips: Mapping[str, str]
    gauged: tuple[dict[str, Tensor], ...]
    networks: tuple[dict[str, Tensor], ...]
    restored: Callable[[Element, int], Element]


def unturned(sym: Symmetry, networks: Sequence[Params]) -> Unturned:
    """Networks in the gauge in which they are matched."""
    gauges = [half_turn_gauge(sym, params) for params in networks]
    flips, keys = reflections_as_signs(sym)
    gauged = tuple(dict(sym.act(g, params)) for g, params in zip(gauges, networks, strict=True))

    def restored(found: Element, number: int) -> Element:
        turns = {}
        for key, family in keys.items():
            odd = (found.signs[family].reshape(-1) < 0).long()
            owner = sym.turns[key].owner
            turns[key] = odd[full_map(sym, found, owner).to(odd.device)].reshape(sym.shape(owner))
        signs = {key: value for key, value in found.signs.items() if key in sym.families}
        element = Element(found.permutations, found.scales, signs, found.matrices, turns)
        element = sym.compose(sym.inverse(gauges[0]), sym.compose(element, gauges[number]))
        return nearest_turns(sym, networks[0], networks[number], element)

    return Unturned(flips, keys, gauged, tuple(centred(sym, params) for params in gauged), restored)


def half_turn_gauge(sym: Symmetry, params: Params) -> Element:
    """The half-turns that bring biases between −c/2 and c/2."""
    turns = {}
    for key, turn in sym.turns.items():
        if not turn.order:
            total, count, shift = _shifted(sym, turn, params)
            turns[key] = -(total / count / shift).round().long().reshape(sym.shape(turn.owner))
    return sym.element(turns=turns)


def _entries(sym: Symmetry, turn: Turn, params: Params) -> Iterator[tuple[str, Tensor, Tensor, Turned]]:
    """Everything that a turn moves: parameter, entries (n, rest), the unit of each row (n,), and what happens."""
    for name, places in turn.places.items():
        if name in params and sym.parameters[name].tied is None:
            found = list(appearances(sym, name, turn.owner))
            for (stretch, item), place in zip(found, places, strict=True):
                rows = rows_along(params[name].detach().double().cpu(), sym.structures[name], stretch)
                here = item.unit >= 0
                yield name, rows[here], item.unit[here], place


def _shifted(sym: Symmetry, turn: Turn, params: Params) -> tuple[Tensor, Tensor, float]:
    """For every unit the sum of the entries of the first parameter that shifts, their number, and its shift."""
    for _, rows, unit, place in _entries(sym, turn, params):
        if place.shift:
            total = torch.zeros(math.prod(sym.shape(turn.owner)), dtype=torch.float64)
            count = total.index_add(0, unit, torch.full_like(rows[:, 0], rows.shape[1]))
            return total.index_add(0, unit, rows.sum(1)), count.clamp(min=1), place.shift
    raise AssertionError(f"the half-turns of '{turn.key}' shift nothing")


def reflections_as_signs(sym: Symmetry) -> tuple[Symmetry, dict[str, str]]:
    """The symmetry with a sign in place of every reflection, and the family of each."""
    families, parameters = dict(sym.families), dict(sym.parameters)
    keys = {}
    for key, turn in sym.turns.items():
        if turn.order:
            family = Family(turn.owner, "reflected", signs=True)
            while family.key in families:
                family = replace(family, name=family.name + "_")
            families[family.key], keys[key] = family, family.key
            for name, places in turn.places.items():
                parameters[name] = _charged(parameters[name], turn.owner, family.name, iter(places))
    return replace(sym, families=families, parameters=parameters, turns={}), keys


def _charged(parameter: Parameter, owner: str, family: str, places: Iterator[Turned]) -> Parameter:
    """A parameter that carries one more sign where a turn flips it."""

    def walk(node: Node) -> Node:
        if isinstance(node, Units) and node.name == owner:
            more = (Charge(family, 0, 1),) if next(places).flip else ()
            return replace(node, charges=tuple(sorted((*node.charges, *more), key=lambda charge: charge.family)))
        if isinstance(node, Product):
            return replace(node, factors=tuple(walk(factor) for factor in node.factors))
        if isinstance(node, Concat):
            return replace(node, segments=tuple(walk(segment) for segment in node.segments))
        return node

    return replace(parameter, axes=tuple(walk(axis) for axis in parameter.axes))


def nearest_turns(sym: Symmetry, reference: Params, other: Params, element: Element) -> Element:
    """The element with half-turns back or on where that brings a unit nearer to the reference: min ‖θ₀ − T·g·θ₁‖²."""
    for _ in range(_SWEEPS):
        moved, turns = sym.act(element, other), {}
        for key, turn in sym.turns.items():
            if not turn.order:
                turns[key] = _better(sym, turn, reference, moved).reshape(sym.shape(turn.owner))
        if not any(bool(k.any()) for k in turns.values()):
            break
        element = sym.compose(sym.element(turns=turns), element)
    return element


def _better(sym: Symmetry, turn: Turn, reference: Params, moved: Params) -> Tensor:
    """For every unit the one of −1, 0, 1 turns that lowers the squared distance most."""
    size = torch.tensor(sym.shape(turn.owner)).prod()
    cost = torch.zeros(3, int(size), dtype=torch.float64)
    pairs = zip(_entries(sym, turn, reference), _entries(sym, turn, moved), strict=True)
    for (name, left, unit, place), (_, right, _, _) in pairs:
        if is_trained(sym, name, reference):
            for number, k in enumerate((0, -1, 1)):
                sign = -1 if place.flip and k else 1
                change = (left - sign * right - k * place.shift).square() - (left - right).square()
                cost[number] = cost[number].index_add(0, unit, change.sum(1))
    return torch.tensor([0, -1, 1])[cost.argmin(0)]
