"""Null spaces of small sparse systems, exactly: over the rationals for scales, over GF(2) for signs."""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from fractions import Fraction
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
Number = int | Fraction
"""Whole numbers stay int, which is many times faster than Fraction."""
Row = dict[K, Number]
Reduce = Callable[[Number], Number]


def quotient(a: Number, b: Number) -> Number:
    """a/b, as an int where it is one."""
    if type(a) is int and (b == 1 or b == -1):
        return a * int(b)
    result = Fraction(a) / b
    return result.numerator if result.denominator == 1 else result


def rational(number: Number) -> Number:
    """The field of rational numbers."""
    return number


def parity(number: Number) -> Number:
    """The field with two elements; only whole numbers occur."""
    return number % 2


def null_space(rows: Iterable[Row[K]], wanted: Sequence[K], field: Reduce) -> list[Row[K]]:
    """A basis of the solutions of rows·v = 0, seen on the variables ``wanted``, in reduced echelon form.

    Pivots come in the order of ``wanted``; each basis vector has 1 at its pivot, where all others have 0.
    """
    keep = set(wanted)
    solved: dict[K, Row[K]] = {}
    for row in rows:
        rest = _substituted(row, solved, field)
        if not rest:
            continue
        # Variables that nobody asks for are eliminated first.
        pivot = next((v for v in rest if v not in keep), None)
        pivot = next(iter(rest)) if pivot is None else pivot
        lead = rest.pop(pivot)
        solved[pivot] = {v: field(-quotient(c, lead)) for v, c in rest.items()}
    vectors: dict[K, Row[K]] = {}
    for v in wanted:
        for free, c in _substituted({v: 1}, solved, field).items():
            vectors.setdefault(free, {})[v] = c
    return echelon(list(vectors.values()), wanted, field)


def _substituted(row: Row[K], solved: dict[K, Row[K]], field: Reduce) -> Row[K]:
    """Replace solved variables until none is left; expressions found on the way are shortened for good."""
    result: Row[K] = {}
    for variable, coefficient in row.items():
        if not coefficient:
            continue
        if variable in solved:
            _add(result, coefficient, _expression(variable, solved, field), field)
        elif total := field(result.get(variable, 0) + coefficient):
            result[variable] = total
        else:
            result.pop(variable, None)
    return result


def _add(row: Row[K], coefficient: Number, other: Row[K], field: Reduce) -> None:
    """row ← row + coefficient·other, without zeros."""
    exact = field is rational  # it changes no number, and calling it for each takes as long as adding them
    for k, c in other.items():
        total = row.get(k, 0) + coefficient * c
        if not exact:
            total = field(total)
        if total:
            row[k] = total
        else:
            row.pop(k, None)


def _expression(variable: K, solved: dict[K, Row[K]], field: Reduce) -> Row[K]:
    """What a solved variable is in terms of free ones; the chain behind it is walked without recursion."""
    if solved.keys().isdisjoint(solved[variable]):
        return solved[variable]
    chain = [variable]
    while chain:
        top = chain[-1]
        pending = [v for v in solved[top] if v in solved]
        deeper = [v for v in pending if not solved.keys().isdisjoint(solved[v])]
        if deeper:
            chain.append(deeper[0])
            continue
        if pending:
            flat: Row[K] = {}
            for v, c in solved[top].items():
                _add(flat, c, solved.get(v, {v: 1}), field)
            solved[top] = flat
        chain.pop()
    return solved[variable]


def echelon(vectors: Sequence[Row[K]], order: Sequence[K], field: Reduce) -> list[Row[K]]:
    """Reduced row echelon form with columns in ``order``; zero vectors are dropped."""
    steps = _Steps(order, field)
    for vector in vectors:
        steps.add(vector)
    done: list[Row[K]] = []
    # From the last pivot to the first, so that each row is cleared of finished pivots only.
    for column in sorted(steps.rows, key=steps.rank.__getitem__, reverse=True):
        row = steps.rows[column]
        for pivot, other in steps.finished.items():
            row = _minus(row, other, pivot, field)
        steps.finished[column] = row
        done.append(row)
    return done[::-1]


class _Steps(Generic[K]):
    """Rows of different first columns, each with 1 there."""

    def __init__(self, order: Iterable[K], field: Reduce) -> None:
        self.rank = {k: number for number, k in enumerate(order)}
        self.field = field
        self.rows: dict[K, Row[K]] = {}
        self.finished: dict[K, Row[K]] = {}

    def add(self, vector: Row[K]) -> bool:
        """Take up what a vector has beyond the rows so far; whether there is anything."""
        row = {k: reduced for k, c in vector.items() if (reduced := self.field(c))}
        while row:
            first = min(row, key=self.rank.__getitem__)
            if first not in self.rows:
                lead = row[first]
                self.rows[first] = {k: self.field(quotient(c, lead)) for k, c in row.items()}
                return True
            row = _minus(row, self.rows[first], first, self.field)
        return False


def _minus(row: Row[K], pivot: Row[K], column: K, field: Reduce) -> Row[K]:
    factor = row.get(column)
    if not factor:
        return row
    result = dict(row)
    _add(result, -factor, pivot, field)
    return result


def rank(vectors: Iterable[Row[K]], field: Reduce) -> int:
    """How many of the vectors are no combinations of the others."""
    rows = list(vectors)
    steps = _Steps(dict.fromkeys(k for row in rows for k in row), field)
    return sum(steps.add(row) for row in rows)


def complement(vectors: Sequence[Row[K]], known: Sequence[Row[K]], field: Reduce) -> list[int]:
    """The numbers of those vectors that are not combinations of ``known`` and of the ones before them."""
    steps = _Steps(dict.fromkeys(k for row in (*known, *vectors) for k in row), field)
    for row in known:
        steps.add(row)
    return [number for number, vector in enumerate(vectors) if steps.add(vector)]


def integral(vector: Row[K]) -> dict[K, int]:
    """The smallest whole-numbered multiple of a rational vector."""
    if not vector:
        return {}
    denominator = math.lcm(*(c.denominator for c in vector.values()))
    whole = {k: int(c * denominator) for k, c in vector.items()}
    divisor = math.gcd(*whole.values())
    return {k: c // divisor for k, c in whole.items()}
