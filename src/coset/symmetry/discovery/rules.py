"""The table, operation → rule, and what rules are made of."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from coset.symmetry.discovery.calls import Call
from coset.symmetry.discovery.relations import Book, Power, Value, broadcast
from coset.symmetry.discovery.terms import atoms, resolve

R = TypeVar("R", bound=Callable[[Book, Call], Any])

RULES: dict[str, Callable[[Book, Call], Any]] = {}


def rule(*names: str) -> Callable[[R], R]:
    """Enter a rule into the table under the names of its operations."""

    def enter(function: R) -> R:
        RULES.update(dict.fromkeys(names, function))
        return function

    return enter


def passed(book: Book, value: Value, result: Value, dims: Sequence[int | None], **powers: Any) -> Value:
    """``result`` holds entries of ``value`` along ``dims``, scales and signs included."""
    book.multiply(result, [Power(value, tuple(dims), **powers)])
    return result


def added_to(book: Book, result: Value, *values: Value | None) -> Value:
    """``result`` is a sum, with broadcasting, of values of its scale and others; None says nothing."""
    for value in values:
        if value is not None:
            passed(book, value, result, broadcast(result.shape, value))
    return result


def beside(book: Book, result: Value, *values: Value) -> Value:
    """Values meet ``result`` entry by entry, with broadcasting, and let nothing through: masks, gates."""
    for value in values:
        book.meet(result, value, broadcast(result.shape, value))
        book.neutral(value)
    return result


def lifted(book: Book, value: Value, dim: int, count: int = 1) -> Value:
    """A tensor with a new dimension at ``dim``, along which it is repeated."""
    wide = book.like([*value.shape[:dim], count, *value.shape[dim:]], [value])
    return passed(book, value, wide, [*range(dim), None, *range(dim, value.ndim)])


def squeezed(book: Book, value: Value, dim: int) -> Value:
    """A tensor without one of its dimensions, which has a single position."""
    kept = [j for j in range(value.ndim) if j != dim]
    return passed(book, value, book.like([value.shape[j] for j in kept], [value]), kept)


def output(book: Book, call: Call, *inputs: Value | None) -> Value:
    """The (first) result of a call, of unknown structure."""
    return book.like(call.shapes[0], [v for v in inputs if v is not None])


def straight(value: Value) -> tuple[int, ...]:
    return tuple(range(value.ndim))


def told_apart(book: Book, value: Value, dims: Sequence[int], reason: str, *, known: bool = True) -> None:
    """Positions along ``dims`` keep their places and carry no scale or sign of their own.

    ``known``: the function itself tells them apart; otherwise what is known of it ends here, which is reported.
    """
    book.hold(value, dims, reason, known=known)
    # Other units meet several of these positions at once: they do not move by themselves at each.
    book.sees_beside(value, dims)


def without(value: Value, dims: Sequence[int]) -> list[int | None]:
    """The dimensions of a tensor in order, with None in place of some."""
    return [None if j in dims else j for j in range(value.ndim)]


def told_apart_in_both(
    book: Book, x: Value, dims: Sequence[int], result: Value, others: Sequence[int], reason: str, *, known: bool
) -> None:
    """As ``told_apart``, of ``dims`` of x and of ``others`` of the result, which are made of them.

    What is told apart before stays so for the reason it has, which is then the result's, too.
    """
    before = [atom.pinned for dim in dims for atom in atoms(resolve(x.dims[dim]))]
    if before and all(before):
        told_apart(book, x, dims, reason)
        told_apart(book, result, others, before[0] or reason)
    else:
        for value, chosen in ((x, dims), (result, others)):
            told_apart(book, value, chosen, reason, known=known)
