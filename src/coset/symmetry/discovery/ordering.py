"""Rules of operations that put entries in order: sorting, the largest ones, medians."""

from collections.abc import Iterator
from typing import Any

from coset.errors import InputError
from coset.symmetry.discovery.calls import Call
from coset.symmetry.discovery.relations import Book, Value
from coset.symmetry.discovery.rules import output, passed, rule, told_apart

# Positions of the input keep their order here, whatever is read.
_RUNNING = frozenset({"cummax", "cummin"})


@rule(
    "topk", "sort", "msort", "argsort", "argmax", "argmin", "kthvalue", "median", "nanmedian", "mode", "cummax",
    "cummin",
)  # fmt: skip
def ranked(book: Book, call: Call) -> list[Value]:
    """Entries of one dimension by their order, which no permutation of them changes and no common positive factor.

    The results' positions along it are ranks, which are told apart. Who reads where the entries stood tells apart the
    positions themselves.
    """
    x = call.args[0]
    only_places = call.name.startswith("arg")
    dim = _dimension(call, only_places)
    if dim is None:
        if only_places or len(call.shapes) > 1 or not x.ndim:
            raise InputError("the order of all entries")
        return _of_all(book, call)
    dim %= max(x.ndim, 1)
    reason = f"positions of {call.name}"
    book.neutral(x, scale=False)
    book.neutral(x, dims=[dim])
    if call.name in _RUNNING:
        book.pin(x, [dim], reason)
    elif only_places or 1 in call.used:
        book.limit(x, [dim], f"where the entries of {call.name} stood is read")
    results = []
    for result, ranks, _ in by_rank(book, call, x, dim):
        told_apart(book, result, ranks, reason)
        results.append(result)
    return results


def by_rank(book: Book, call: Call, x: Value, dim: int) -> Iterator[tuple[Value, list[int], bool]]:
    """The results of putting a dimension in order: each with its dimension of ranks, if it has one, and whether it says
    where the entries stood, which carries nothing.
    """
    for number, shape in enumerate(call.shapes):
        result = book.like(shape, [x])
        places = list(range(x.ndim)) if len(shape) == x.ndim else [i for i in range(x.ndim) if i != dim]
        kept = [None if i == dim else i for i in places]
        where = call.name.startswith("arg") or number == 1
        if where:
            book.meet(result, x, kept)
            book.neutral(result)
        else:
            passed(book, x, result, kept)
        yield result, [j for j, i in enumerate(places) if i == dim], where


def _dimension(call: Call, only_places: bool) -> Any:
    if call.name == "msort":
        return 0
    given = call.argument("dim", None if only_places or len(call.shapes) == 1 else -1)
    return -1 if given is None and call.name in ("sort", "argsort") else given


def _of_all(book: Book, call: Call) -> list[Value]:
    """One entry out of all of them: a common positive scale passes."""
    x = call.args[0]
    book.neutral(x, scale=False)
    book.neutral(x, dims=range(x.ndim))
    return [passed(book, x, output(book, call, x), ())]


@rule("quantile", "nanquantile")
def quantile(book: Book, call: Call) -> Value:
    """Entries at given parts of the order, or between two of them: one dimension for several parts comes first."""
    x, parts = call.args[:2]
    dims, kept = call.reduction(x)
    result = output(book, call, x)
    several = range(result.ndim - len(kept))
    told_apart(book, result, several, "parts of an order")
    if isinstance(parts, Value):
        book.hold(parts, reason="parts of an order")
    book.neutral(x, scale=False)
    book.neutral(x, dims=dims)
    return passed(book, x, result, [*(None for _ in several), *kept])
