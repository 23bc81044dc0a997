"""Free scales and signs of every atom, and of tensors as wholes: null spaces, less what finer ones give already."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from coset.symmetry._linear import Number, Reduce, Row, complement, integral, null_space, parity, rational
from coset.symmetry.discovery.charges import AtomPlace, Charges, path_places, whole
from coset.symmetry.discovery.nesting import Nest
from coset.symmetry.discovery.relations import Value
from coset.symmetry.discovery.terms import Atom

Cell = tuple[int, tuple[int, ...]]
"""A part of a parameter whose entries are scaled alike: the parameter and a segment on each axis."""


@dataclass(frozen=True)
class Gauge:
    """One free vector over the units of ``atom`` (None: one number for the network): powers by place.

    ``uneven``: places of activations whose powers are no whole numbers.
    """

    atom: Atom | None
    pivot: AtomPlace
    scale: Mapping[AtomPlace, int]
    sign: Mapping[AtomPlace, int]
    uneven: frozenset[AtomPlace] = frozenset()


def gauges(
    charges: Charges,
    parameters: Mapping[str, Value],
    activations: Iterable[Value],
    order: Sequence[Atom],
    nest: Nest,
) -> list[Gauge]:
    """All gauges; ``order`` has nested atoms before the ones around them. ``activations``: told as well.

    A scale for every block is no new gauge if the units inside have one of their own, nor is one for the whole network
    if it is a common scale of units.
    """
    # A module and the last one in it give one tensor.
    activations = dict.fromkeys(activations)
    places, seen = _places(charges, parameters.values()), _places(charges, activations)
    cells = _Cells(parameters.values())
    found: list[Gauge] = []
    for atom in order:
        inner = [gauge for gauge in found if nest.lies_in(gauge.atom, atom)]
        found += _free(atom, charges.scales[atom], charges.signs[atom], places[atom], seen.get(atom, []), inner, cells)
    # Single numbers first: each begins a gauge of its own, by which it can be measured.
    wholes = [whole(value) for value in sorted(parameters.values(), key=lambda value: value.ndim > 0)]
    everywhere = [whole(value) for value in activations]
    return found + _free(None, charges.scales[None], charges.signs[None], wholes, everywhere, found, cells)


def _places(charges: Charges, values: Iterable[Value]) -> dict[Atom, list[AtomPlace]]:
    places: dict[Atom, list[AtomPlace]] = {}
    for value in values:
        for dim in range(value.ndim):
            for leaf, atom in enumerate(charges.leaves(value, dim)):
                places.setdefault(atom, []).append(AtomPlace(id(value), dim, leaf))
    return places


def _free(
    atom: Atom | None,
    scales: Iterable[Row[AtomPlace]],
    signs: Iterable[Row[AtomPlace]],
    places: list[AtomPlace],
    seen: list[AtomPlace],
    known: list[Gauge],
    cells: "_Cells",
) -> list[Gauge]:
    """Null vectors of both systems that are not made of known gauges; those that begin at one place are one gauge.

    ``places``: of parameters; ``seen``: of activations, which begin no gauge.
    """
    own = set(places)

    def new(equations: Iterable[Row[AtomPlace]], kind: str, field: Reduce) -> dict[AtomPlace, Row[AtomPlace]]:
        vectors = [row for row in null_space(equations, [*places, *seen], field) if not own.isdisjoint(row)]
        if vectors and known:
            old = [cells.of(getattr(gauge, kind)) for gauge in known]
            chosen = complement([cells.of(vector) for vector in vectors], old, field)
            vectors = [vectors[index] for index in chosen]
        return {next(place for place in places if place in row): row for row in vectors}

    scale_rows, sign_rows = new(scales, "scale", rational), new(signs, "sign", parity)
    found = []
    for place in places:
        if place in scale_rows or place in sign_rows:
            scale = scale_rows.get(place, {})
            powers = integral({at: power for at, power in scale.items() if at in own})
            # The first power is 1 before it is made whole.
            told = {at: power * powers[place] for at, power in scale.items() if at not in own}
            uneven = frozenset(at for at, power in told.items() if power.denominator != 1)
            powers |= {at: int(power) for at, power in told.items() if at not in uneven}
            found.append(Gauge(atom, place, powers, dict.fromkeys(sign_rows.get(place, {}), 1), uneven))
    return found


class _Cells:
    """Which cells of the parameters each place belongs to."""

    def __init__(self, parameters: Iterable[Value]) -> None:
        self._where: dict[AtomPlace, list[Cell]] = {}
        for value in parameters:
            paths = [path_places(value, dim) for dim in range(value.ndim)]
            for choice in product(*(range(len(alternatives)) for alternatives in paths)):
                if any(alternatives[number] is None for alternatives, number in zip(paths, choice, strict=True)):
                    continue  # no output depends on it
                cell = (id(value), choice)
                self._where.setdefault(whole(value), []).append(cell)
                for alternatives, number in zip(paths, choice, strict=True):
                    for place in alternatives[number] or ():
                        self._where.setdefault(place, []).append(cell)

    def of(self, row: Mapping[AtomPlace, Number]) -> Row[Cell]:
        """Powers by place as powers by cell."""
        result: Row[Cell] = {}
        for place, power in row.items():
            for cell in self._where.get(place, ()):
                result[cell] = result.get(cell, 0) + power
        return {cell: power for cell, power in result.items() if power}
