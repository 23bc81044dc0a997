"""Null spaces of small sparse systems, exactly: over the rationals for scales, over GF(2) for signs."""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from fractions import Fraction
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
Row = dict[K, Fraction]
Reduce = Callable[[Fraction], Fraction]


def rational(number: Fraction) -> Fraction:
    """The field of rational numbers."""
    return number


def parity(number: Fraction) -> Fraction:
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
        solved[pivot] = {v: field(-c / lead) for v, c in rest.items()}
    expressed = [_substituted({v: Fraction(1)}, solved, field) for v in wanted]
    free = dict.fromkeys(v for row in expressed for v in row)
    vectors = [{v: row[f] for v, row in zip(wanted, expressed, strict=True) if f in row} for f in free]
    return echelon(vectors, wanted, field)


def _substituted(row: Row[K], solved: dict[K, Row[K]], field: Reduce) -> Row[K]:
    """Replace solved variables until none is left; expressions found on the way are shortened for good."""
    result: Row[K] = {}
    for variable, coefficient in row.items():
        if not coefficient:
            continue
        for inner, factor in (
            _expression(variable, solved, field) if variable in solved else {variable: Fraction(1)}
        ).items():
            total = field(result.get(inner, Fraction(0)) + coefficient * factor)
            if total:
                result[inner] = total
            else:
                result.pop(inner, None)
    return result


def _expression(variable: K, solved: dict[K, Row[K]], field: Reduce) -> Row[K]:
    """What a solved variable is in terms of free ones; the chain behind it is walked without recursion."""
    chain = [variable]
    while chain:
        top = chain[-1]
        pending = [v for v in solved[top] if v in solved]
        deeper = [v for v in pending if any(w in solved for w in solved[v])]
        if deeper:
            chain.append(deeper[0])
            continue
        if pending:
            flat: Row[K] = {}
            for v, c in solved[top].items():
                for inner, factor in (solved[v] if v in solved else {v: Fraction(1)}).items():
                    flat[inner] = field(flat.get(inner, Fraction(0)) + c * factor)
            solved[top] = {v: c for v, c in flat.items() if c}
        chain.pop()
    return solved[variable]


def echelon(vectors: Sequence[Row[K]], order: Sequence[K], field: Reduce) -> list[Row[K]]:
    """Reduced row echelon form with columns in ``order``; zero vectors are dropped."""
    rows = [{k: field(c) for k, c in vector.items() if field(c)} for vector in vectors]
    done: list[Row[K]] = []
    for column in order:
        pivot = next((row for row in rows if column in row), None)
        if pivot is None:
            continue
        rows.remove(pivot)
        lead = pivot[column]
        pivot = {k: field(c / lead) for k, c in pivot.items()}
        done = [_minus(row, pivot, column, field) for row in done]
        rows = [reduced for row in rows if (reduced := _minus(row, pivot, column, field))]
        done.append(pivot)
    return done


def _minus(row: Row[K], pivot: Row[K], column: K, field: Reduce) -> Row[K]:
    factor = row.get(column)
    if not factor:
        return row
    result = dict(row)
    for k, c in pivot.items():
        total = field(result.get(k, Fraction(0)) - factor * c)
        if total:
            result[k] = total
        else:
            result.pop(k, None)
    return result


def complement(vectors: Sequence[Row[K]], known: Sequence[Row[K]], field: Reduce) -> list[int]:
    """The numbers of those vectors that are not combinations of ``known`` and of the ones before them."""
    order = list(dict.fromkeys(k for row in (*known, *vectors) for k in row))
    basis = echelon(known, order, field)
    chosen = []
    for number, vector in enumerate(vectors):
        larger = echelon([*basis, vector], order, field)
        if len(larger) > len(basis):
            chosen.append(number)
            basis = larger
    return chosen


def integral(vector: Row[K]) -> dict[K, int]:
    """The smallest whole-numbered multiple of a rational vector."""
    if not vector:
        return {}
    denominator = math.lcm(*(c.denominator for c in vector.values()))
    whole = {k: int(c * denominator) for k, c in vector.items()}
    divisor = math.gcd(*whole.values())
    return {k: c // divisor for k, c in whole.items()}
