"""Estimates read off the tables of representations: differences with their intervals, and similarities pair by pair."""

from collections.abc import Callable, Mapping, Sequence

from coset.study import Estimate, Results, Scalar
from coset.study.estimates import spread

SIGN = "A matter of sign; the paper shows figures and prints no size."
SIZED = "A matter of sign; networks and images are smaller than there."
STUDENT = """
Intervals are of 95 %, Student's over pairs of networks, with resamples of test images at once. Pairs that share a
network count as independent, so that for other networks these intervals are too narrow.
"""
OVER_PAIRS = "The value is the mean of the pairs of networks, its interval from the least to the greatest of them."


def interval(value: Scalar, low: Scalar, high: Scalar) -> Estimate | None:
    """A value with its interval; None where a part is missing."""
    parts = [part for part in (value, low, high) if isinstance(part, int | float)]
    # A percentile interval need not hold its value.
    return Estimate(parts[0], min(parts), max(parts)) if len(parts) == 3 else None


def of_number(results: Results, name: str) -> Estimate | None:
    """The number ``name`` with ``name_low`` and ``name_high``."""
    return interval(*(results.numbers.get(f"{name}{end}") for end in ("", "_low", "_high")))


def of_row(results: Results, table: str, column: str, where: Mapping[str, Scalar]) -> Estimate | None:
    """The cell under ``column`` of the row told by ``where``, with those under "low" and "high"."""
    if table not in results.tables:
        return None
    return interval(*(results.tables[table].cell(name, where) for name in (column, "low", "high")))


def by_layer(results: Results, table: str, column: str, where: Mapping[str, Scalar]) -> dict[str, Estimate | None]:
    """``of_row`` for every layer of a table, in the table's order."""
    if table not in results.tables:
        return {}
    place = results.tables[table].columns.index("layer")
    layers = dict.fromkeys(str(row[place]) for row in results.tables[table].rows)
    return {layer: of_row(results, table, column, {"layer": layer, **where}) for layer in layers}


def sizes(estimates: Sequence[Estimate | None]) -> list[Estimate | None]:
    """|t| for each t of its interval."""
    return [found and _size(found) for found in estimates]


def _size(found: Estimate) -> Estimate:
    ends = abs(found.low), abs(found.high)
    return Estimate(abs(found.value), 0.0 if found.low <= 0 <= found.high else min(ends), max(ends))


def differences_of_pairs(results: Results, one: str, other: str) -> list[Estimate | None]:
    """The penalty of a family less that of another for every layer of a table of pairs: mean and range of the pairs."""
    table = results.tables["pairs"]
    at, first, second = (table.columns.index(name) for name in ("layer", one, other))
    found: dict[Scalar, list[float]] = {}
    for row in table.rows:
        found.setdefault(row[at], []).append(number_in(row[first]) - number_in(row[second]))
    return [spread(values) for values in found.values()]


def over_pairs(results: Results, statistic: Callable[[Mapping[str, Sequence[float]]], float]) -> Estimate | None:
    """A statistic of the similarities of a pair, by measure of all layers in order: mean over pairs, and range."""
    table = results.tables["pairs"]
    pair = table.columns.index("pair")
    names = [name for name in table.columns if name not in ("pair", "layer")]
    found: dict[Scalar, dict[str, list[float]]] = {}
    for row in table.rows:
        measured = found.setdefault(row[pair], {name: [] for name in names})
        for name in names:
            measured[name].append(number_in(row[table.columns.index(name)]))
    return spread([statistic(measured) for measured in found.values()])


def number_in(cell: Scalar) -> float:
    """A cell that is to hold a number."""
    assert isinstance(cell, int | float)
    return cell


def fall(values: Sequence[float]) -> float:
    """From the first layer to the last."""
    return values[0] - values[-1]


def excess_fall(kind: str) -> Callable[[Mapping[str, Sequence[float]]], float]:
    """How much more a kind of similarity falls from the first layer to the last modulo G_ReLU than modulo rotations."""
    return lambda measured: fall(measured[f"G_ReLU {kind}"]) - fall(measured[f"orthogonal {kind}"])
