"""Numbers and intervals that claims and figures read off the tables of a run."""

import math
from collections.abc import Sequence
from typing import Any

from coset.study import Estimate, Results

Record = dict[str, Any]
"""One row of a table by its columns."""


def records(results: Results, table: str, **where: object) -> list[Record]:
    """The rows of a table in which the columns named in ``where`` have these values."""
    read = results.tables[table]
    rows = [dict(zip(read.columns, row, strict=True)) for row in read.rows]
    return [row for row in rows if all(row[name] == value for name, value in where.items())]


def record(results: Results, table: str, where: Record) -> Record | None:
    """The one row in which the columns of ``where`` have these values; None where there is none."""
    rows = [row for row in records(results, table) if all(row[name] == value for name, value in where.items())]
    return rows[0] if len(rows) == 1 else None


def near(value: float, error: float) -> Estimate:
    """value ± error."""
    return Estimate(value, value - error, value + error)


def over_seeds(mean: float, deviation: float, count: int) -> Estimate:
    """mean ± t·deviation/√count, t the 97.5 % quantile of Student's distribution: of independent runs."""
    return near(mean, student(count) * deviation / math.sqrt(count))


def of_values(values: Sequence[float]) -> Estimate:
    """``over_seeds`` of values that are given one by one."""
    mean = math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return over_seeds(mean, deviation, len(values))


def student(count: int) -> float:
    """The 97.5 % quantile of Student's t for ``count`` values."""
    from scipy.special import stdtrit

    return float(stdtrit(count - 1, 0.975))


def exponential(estimate: Estimate) -> Estimate:
    """exp of an estimate: of a mean of logarithms it is the geometric mean."""
    return Estimate(math.exp(estimate.value), math.exp(estimate.low), math.exp(estimate.high))


def slope(x: Sequence[float], y: Sequence[float]) -> Estimate:
    """The slope of the least-squares line, ± Student's t for n − 2 degrees of freedom times its standard error."""
    n, at, level = len(x), math.fsum(x) / len(x), math.fsum(y) / len(y)
    squares = math.fsum((one - at) ** 2 for one in x)
    found = math.fsum((one - at) * (other - level) for one, other in zip(x, y, strict=True)) / squares
    rest = math.fsum((other - level - found * (one - at)) ** 2 for one, other in zip(x, y, strict=True))
    return near(found, student(n - 1) * math.sqrt(rest / (n - 2) / squares))


def share(successes: float, count: int) -> Estimate:
    """A share of independent trials with its 95 % interval by Wilson."""
    z, p = 1.959964, successes
    centre = (p + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z * math.sqrt(p * (1 - p) / count + z**2 / (4 * count**2)) / (1 + z**2 / count)
    return Estimate(p, min(p, max(0.0, centre - half)), max(p, min(1.0, centre + half)))


def deviation_factor(count: int, quantile: float) -> float:
    """√((n − 1)/χ²), χ² exceeded with probability ``quantile``: an interval's end over the standard deviation."""
    from scipy.special import chdtri

    return math.sqrt((count - 1) / float(chdtri(count - 1, quantile)))
