"""Rules of operations that put entries at places given by an index: sums of messages, replaced rows."""

from collections.abc import Sequence
from typing import Any

from coset.errors import InputError
from coset.symmetry.discovery.calls import Call
from coset.symmetry.discovery.picking import computed, given_index
from coset.symmetry.discovery.relations import Book, Value, broadcast
from coset.symmetry.discovery.rules import output, passed, rule, told_apart, without
from coset.symmetry.discovery.terms import Atom, resolve

_PLACES = "positions given by an index"


@rule("index_add", "index_copy", "index_fill", "index_reduce", "scatter", "scatter_add", "scatter_reduce")
def put_along(book: Book, call: Call) -> Value:
    """x_{index(i)} ← x_{index(i)} + y_i, or y_i, or a number, along one dimension; all others pass.

    ``scatter`` has an index of its own for every position of the others, which meets them.
    """
    x, dim, index, given = call.args[:4]
    dim %= max(x.ndim, 1)
    sources = [x, given] if isinstance(given, Value) and given.ndim == x.ndim else [x]
    everywhere = call.name.startswith("scatter")
    if everywhere and any(v.shape[j] != index.shape[j] for v in sources for j in range(x.ndim) if j != dim):
        raise InputError(f"{call.name} into a part of another dimension")
    known = given_index(book, index, dims=[dim] if everywhere and index.ndim else [] if everywhere else None)
    result = output(book, call, *call.tensors())
    _told_apart(book, sources, result, [dim] if x.ndim else [], known)
    for value in sources:
        passed(book, value, result, without(value, [dim]))
    if everywhere:
        book.meet(result, index, without(index, [dim]))
    if len(sources) == 1:
        _number(book, result, given)
    way = call.argument("reduce", "sum")
    # Sums and means need equal scales, extremes positive ones; a product of entries unknown in number lets none by.
    if way in ("amax", "amin", "prod", "multiply"):
        book.neutral(result, scale=way in ("prod", "multiply"))
    return result


def _told_apart(book: Book, sources: Sequence[Value], result: Value, dims: Sequence[int], known: bool) -> None:
    """Positions of the result are given by the index; units that are computed and were free before are reported."""
    for value in sources:
        told_apart(book, value, dims, _PLACES, known=known and not computed(value, dims))
    told_apart(book, result, dims, _PLACES, known=known)


def _number(book: Book, result: Value, number: Any) -> None:
    """Entries replaced by a number: 0 keeps all scales, infinities the positive ones, any other none."""
    if isinstance(number, Value):
        book.neutral(number)
        if not number.zero:
            book.neutral(result)
    elif number != 0:
        book.neutral(result, scale=abs(number) != float("inf"))


@rule("index_put", "_unsafe_index_put")
def put(book: Book, call: Call) -> Value:
    """x[indices] ← y, or x + y there: indexed dimensions are told apart, all others pass.

    An index of the shape of several dimensions may be a mask over all of them.
    """
    x, indices, given = call.args[:3]
    known = given_index(book, *(index for index in indices if index is not None))
    used: set[int] = set()
    for i, index in enumerate(indices):
        if index is not None:
            covered = index.ndim if index.shape == x.shape[i : i + index.ndim] else 1
            used |= set(range(i, i + max(covered, 1)))
    result = output(book, call, *call.tensors())
    _told_apart(book, [x], result, sorted(used), known)
    passed(book, x, result, without(x, sorted(used)))
    # From the right, dimensions of y stand beside those of x as long as these are not indexed.
    behind = x.ndim - 1 - max(used)
    alone = [j for j in range(given.ndim) if j < given.ndim - behind]
    told_apart(book, given, alone, _PLACES, known=known and not computed(given, alone))
    places = [None if j <= max(used) else place for j, place in enumerate(broadcast(result.shape, given))]
    if given.zero:
        book.meet(result, given, places)
        return result
    return passed(book, given, result, places)


@rule("masked_scatter")
def masked_scatter(book: Book, call: Call) -> Value:
    """Entries under a mask replaced by those of y in order: only dimensions along which the mask is constant pass."""
    x, mask, given = call.args[:3]
    result = output(book, call, *call.tensors())
    rows = mask.ndim
    while rows and given.ndim > mask.ndim - rows and _constant(mask, rows - 1) and _aligned(x, mask, given, rows - 1):
        rows -= 1
    kept = mask.ndim - rows
    if not mask.inert:
        book.limit(mask, reason="a mask that depends on parameters")
    book.neutral(mask)
    for value in (x, given, result):
        rows_of = range(value.ndim - kept)
        free = value is not result and computed(value, rows_of)
        told_apart(book, value, rows_of, "positions under a mask", known=mask.inert and not free)
    for value in (x, given):
        offset = result.ndim - value.ndim
        passed(book, value, result, [j - offset if j >= result.ndim - kept else None for j in range(result.ndim)])
    return result


def _constant(mask: Value, dim: int) -> bool:
    """Whether a mask is made of copies along a dimension."""
    term = resolve(mask.dims[dim])
    return mask.shape[dim] == 1 or (isinstance(term, Atom) and term.inert and term.pinned is None)


def _aligned(x: Value, mask: Value, given: Value, dim: int) -> bool:
    """Whether a dimension of the mask is that of x and, counted from the right, that of y."""
    behind = mask.ndim - dim
    return len({value.shape[-behind] for value in (x, mask, given) if value.ndim >= behind}) == 1
