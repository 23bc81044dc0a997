"""The table, operation → rule, and what rules are made of."""

from collections.abc import Callable, Sequence
from typing import Any

from coset.symmetry.discovery.calls import Call
from coset.symmetry.discovery.relations import Book, Power, Value

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
