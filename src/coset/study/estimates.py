"""Estimates that claims are made of: a cell with its error, a mean over seeds, and what follows of two of them.

All combinations are of intervals: they hold whatever the errors have to do with each other.
"""

import math
from collections.abc import Mapping, Sequence

from coset.errors import InputError
from coset.study._claims import Estimate, Results
from coset.study._findings import Scalar

ERRORS = 2.0
"""Half the length of an interval in standard errors."""


def number(results: Results, name: str) -> Estimate | None:
    """The number ``name`` as it is, without error; None where it was not measured."""
    value = results.numbers.get(name)
    return None if value is None else _exact(value)


def cell(
    results: Results,
    table: str,
    column: str,
    where: Mapping[str, Scalar],
    *,
    error: str | None = None,
    least: float = -math.inf,
) -> Estimate | None:
    """The cell of ``column`` in the row told by ``where``, ± ``ERRORS`` times the cell under ``error``.

    ``least`` is the least value that the interval may reach. None where the row, the cell or its error is missing.
    """
    if table not in results.tables:
        return None
    value = results.tables[table].cell(column, where)
    if value is None:
        return None
    found = _exact(value)
    if error is None:
        return found
    size = results.tables[table].cell(error, where)
    if size is None:
        return None
    half = ERRORS * _exact(size).value
    return Estimate(found.value, max(least, found.value - half), found.value + half)


def mean_of(values: Sequence[float]) -> Estimate | None:
    """The mean of independent values ± ``ERRORS`` of its standard errors; None of fewer than two."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    half = ERRORS * math.sqrt(variance / len(values))
    return Estimate(mean, mean - half, mean + half)


def spread(values: Sequence[float | None]) -> Estimate | None:
    """The mean of some values and the range in which they lie; None where one is missing, or all are."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    # A mean of equal numbers may be next to them.
    middle = min(max(sum(known) / len(known), min(known)), max(known))
    return Estimate(middle, min(known), max(known))


def ratio(part: Estimate | None, whole: Estimate | None) -> Estimate | None:
    """``part`` as a share of ``whole``, neither of them below 0; None where the whole may be 0."""
    if part is None or whole is None or whole.low <= 0:
        return None
    return Estimate(part.value / whole.value, part.low / whole.high, part.high / whole.low)


def difference(one: Estimate | None, other: Estimate | None) -> Estimate | None:
    """``one`` less ``other``."""
    if one is None or other is None:
        return None
    return Estimate(one.value - other.value, one.low - other.high, one.high - other.low)


def least(estimates: Sequence[Estimate | None]) -> Estimate | None:
    """The least of several, of which each lies in its interval; None where one is missing, or all are."""
    known = _all_of(estimates)
    return None if known is None else Estimate(*(min(getattr(one, part) for one in known) for part in _PARTS))


def greatest(estimates: Sequence[Estimate | None]) -> Estimate | None:
    """The greatest of several, of which each lies in its interval; None where one is missing, or all are."""
    known = _all_of(estimates)
    return None if known is None else Estimate(*(max(getattr(one, part) for one in known) for part in _PARTS))


_PARTS = ("value", "low", "high")


def _all_of(estimates: Sequence[Estimate | None]) -> list[Estimate] | None:
    known = [estimate for estimate in estimates if estimate is not None]
    return known if known and len(known) == len(estimates) else None


def _exact(value: Scalar) -> Estimate:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"an estimate is to be made of {value!r}, expected a number")
    return Estimate(value, value, value)
