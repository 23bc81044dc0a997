"""The table, operation → rule, and what rules are made of."""

from collections.abc import Callable, Sequence
from typing import Any

from coset.symmetry.discovery.calls import Call
from coset.symmetry.discovery.relations import Book, Power, Value
from coset.symmetry.discovery.terms import atoms, resolve

RULES: dict[str, Callable[[Book, Call], Any]] = {}


def rule(*names: str) -> Callable[[Callable[[Book, Call], Any]], Callable[[Book, Call], Any]]:
    """Enter a rule into the table under the names of its operations."""

    def enter(function: Callable[[Book, Call], Any]) -> Callable[[Book, Call], Any]:
        for name in names:
            RULES[name] = function
        return function

    return enter


def passed(book: Book, value: Value, result: Value, dims: Sequence[int | None], **powers: Any) -> Value:
    """``result`` holds entries of ``value`` along ``dims``, scales and signs included."""
    book.multiply(result, [Power(value, tuple(dims), **powers)])
    return result


def output(book: Book, call: Call, *inputs: Value | None) -> Value:
    """The (first) result of a call, of unknown structure."""
    return book.like(call.shapes[0], [v for v in inputs if v is not None])


def straight(value: Value) -> tuple[int, ...]:
    return tuple(range(value.ndim))


def told_apart(book: Book, value: Value, dims: Sequence[int], reason: str, *, known: bool = True) -> None:
    """Positions along ``dims`` keep their places and carry no scale or sign of their own.

    ``known``: the function itself tells them apart; otherwise what is known of it ends here, which is reported.
    """
    (book.pin if known else book.limit)(value, dims, reason)
    book.neutral(value, dims=dims)
    # Other units meet several of these positions at once: they do not move by themselves at each.
    book.sees(value, (j for j in range(value.ndim) if j not in dims))


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
