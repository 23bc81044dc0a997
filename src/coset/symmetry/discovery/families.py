"""Free scales and signs of every atom, and of tensors as wholes: null spaces, less what finer ones give already."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from coset.symmetry._linear import Number, Reduce, Row, complement, integral, null_space, parity, rational
from coset.symmetry.discovery.charges import Charges, Place, path_places, whole
from coset.symmetry.discovery.nesting import Nest
from coset.symmetry.discovery.relations import Value
from coset.symmetry.discovery.terms import Atom

Cell = tuple[int, tuple[int, ...]]
"""A part of a parameter whose entries are scaled alike: the parameter and a segment on each axis."""


@dataclass(frozen=True)
class Gauge:
    """One free vector over the units of ``atom`` (None: one number for the network): powers by place."""

    atom: Atom | None
    pivot: Place
    scale: Mapping[Place, int]
    sign: Mapping[Place, int]


def gauges(charges: Charges, parameters: Mapping[str, Value], order: Sequence[Atom], nest: Nest) -> list[Gauge]:
    """All gauges; ``order`` has nested atoms before the ones around them.

    A scale for every block is no new gauge if the units inside have one of their own, nor is one for the whole network
    if it is a common scale of units.
    """
    places: dict[Atom, list[Place]] = {}
    for value in parameters.values():
        for dim in range(value.ndim):
            for leaf, atom in enumerate(charges.leaves(value, dim)):
                places.setdefault(atom, []).append(Place(id(value), dim, leaf))
    cells = _Cells(parameters.values())
    found: list[Gauge] = []
    for atom in order:
        inner = [gauge for gauge in found if nest.lies_in(gauge.atom, atom)]
        found += _free(atom, charges.scales[atom], charges.signs[atom], places[atom], inner, cells)
    # Single numbers first: each begins a gauge of its own, by which it can be measured.
    wholes = [whole(value) for value in sorted(parameters.values(), key=lambda value: value.ndim > 0)]
    return found + _free(None, charges.scales[None], charges.signs[None], wholes, found, cells)


def _free(
    atom: Atom | None,
    scales: Iterable[Row[Place]],
    signs: Iterable[Row[Place]],
    places: list[Place],
    known: list[Gauge],
    cells: "_Cells",
) -> list[Gauge]:
    """Null vectors of both systems that are not made of known gauges; those that begin at one place are one gauge."""

    def new(equations: Iterable[Row[Place]], kind: str, field: Reduce) -> dict[Place, Row[Place]]:
        vectors = null_space(equations, places, field)
        if vectors and known:
            old = [cells.of(getattr(gauge, kind)) for gauge in known]
            chosen = complement([cells.of(vector) for vector in vectors], old, field)
            vectors = [vectors[index] for index in chosen]
        return {next(place for place in places if place in row): row for row in vectors}

    scale_rows, sign_rows = new(scales, "scale", rational), new(signs, "sign", parity)
    return [
        Gauge(atom, place, integral(scale_rows.get(place, {})), dict.fromkeys(sign_rows.get(place, {}), 1))
        for place in places
        if place in scale_rows or place in sign_rows
    ]


class _Cells:
    """Which cells of the parameters each place belongs to."""

    def __init__(self, parameters: Iterable[Value]) -> None:
        self._where: dict[Place, list[Cell]] = {}
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

    def of(self, row: Mapping[Place, Number]) -> Row[Cell]:
        """Powers by place as powers by cell."""
        result: Row[Cell] = {}
        for place, power in row.items():
            for cell in self._where.get(place, ()):
                result[cell] = result.get(cell, 0) + power
        return {cell: power for cell, power in result.items() if power}
