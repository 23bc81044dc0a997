"""Rules of recurrent networks: one step says it all, since every step is the same."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from coset.errors import InputError
from coset.symmetry.discovery.calls import Call
from coset.symmetry.discovery.contractions import einsum
from coset.symmetry.discovery.relations import Book, Value
from coset.symmetry.discovery.rules import beside, passed, rule, straight
from coset.symmetry.discovery.stacks import Stack

Weights = Sequence[Value]
"""Of one layer and direction: input, recurrent, both biases (if any), projection (if any)."""

Step = Callable[[Book, Value, Sequence[Value], Sequence[Value], Weights, bool], None]
"""(book, input, states before, states after, weights, biases): what one step says. LSTMs have two states, h and c."""


def _preactivation(book: Book, x: Value, matrix: Value, bias: Value | None, gates: int) -> list[Value]:
    """matrix·x + bias and its parts, one for each gate."""
    size = matrix.shape[0] // gates
    total = book.like([x.shape[0], gates * size], [x, matrix])
    einsum(book, total, "bo", (x, matrix), ("bi", "oi"))
    if bias is not None:
        passed(book, bias, total, (None, 0))
    return book.cut(total, [size] * gates, 1)


def _summed(book: Book, x: Value, state: Value, weights: Weights, biases: bool, gates: int) -> list[Value]:
    """The gates of W x + b + U h + c."""
    ours = _preactivation(book, x, weights[0], weights[2] if biases else None, gates)
    theirs = _preactivation(book, state, weights[1], weights[3] if biases else None, gates)
    for one, two in zip(ours, theirs, strict=True):
        passed(book, one, two, straight(one))
    return ours


def _lstm(
    book: Book, x: Value, before: Sequence[Value], after: Sequence[Value], weights: Weights, biases: bool
) -> None:
    """c ← σ(f) c + σ(i) tanh(g), h ← σ(o) tanh(c), or a projection of it."""
    state, cell = after
    entry, forget, update, out = _summed(book, x, before[0], weights, biases, 4)
    # Sigmoids: their units are those of what they multiply, and they let nothing through.
    beside(book, cell, entry, forget, out)
    for value in (before[1], update):
        passed(book, value, cell, straight(cell))
    for value in (update, cell):
        book.neutral(value, sign=False)
    if len(weights) > (4 if biases else 2):
        einsum(book, state, "bo", (cell, weights[-1]), ("bi", "oi"))
    else:
        passed(book, cell, state, straight(state))


def _gru(book: Book, x: Value, before: Sequence[Value], after: Sequence[Value], weights: Weights, biases: bool) -> None:
    """h ← (1 − σ(z)) tanh(n_x + σ(r) n_h) + σ(z) h."""
    (state,) = after
    reset, keep, update = _summed(book, x, before[0], weights, biases, 3)
    beside(book, state, reset, keep)
    for value in (before[0], update):
        passed(book, value, state, straight(state))
    book.neutral(update, sign=False)


def _plain(
    book: Book,
    x: Value,
    before: Sequence[Value],
    after: Sequence[Value],
    weights: Weights,
    biases: bool,
    *,
    scale: bool,
) -> None:
    """h ← tanh(W x + U h), which lets no ``scale`` through, or max(W x + U h, 0), which lets no sign through."""
    (update,) = _summed(book, x, before[0], weights, biases, 1)
    passed(book, update, after[0], straight(update))
    book.neutral(update, scale=scale, sign=not scale)


_STEPS: dict[str, Step] = {
    "lstm": _lstm,
    "gru": _gru,
    "rnn_tanh": partial(_plain, scale=True),
    "rnn_relu": partial(_plain, scale=False),
}


@rule(*_STEPS)
def recurrent(book: Book, call: Call) -> list[Any]:
    """Layers and directions one by one; the input is (time, batch, units), or with the first two exchanged."""
    if isinstance(call.args[3], list):
        raise InputError("a packed sequence")
    x, given, weights, biases, layers = call.args[:5]
    ways = 2 if call.argument("bidirectional") else 1
    batch_first = bool(call.argument("batch_first"))
    initial = given if isinstance(given, list) else [given]
    size = len(weights) // (layers * ways)
    finals: list[list[Value]] = [[] for _ in initial]
    for layer in range(layers):
        outputs = []
        step = _at_one_time(book, x, batch_first)
        for way in range(ways):
            number = layer * ways + way
            own = weights[number * size : (number + 1) * size]
            states = [book.like([step.shape[0], start.shape[-1]], [step, *own]) for start in initial]
            for start, state, final in zip(initial, states, finals, strict=True):
                _begin(book, start, state, number, layers * ways)
                final.append(state)
            # Every step is the same, so that the states before it are those behind it.
            _STEPS[call.name](book, step, states, states, own, biases)
            outputs.append(states[0])
        x = _at_all_times(book, x, outputs, batch_first)
    # The final states as a stack: those of different layers have units of their own.
    return [x, *(Stack(final, 0) for final in finals)]


@rule(*(f"{name}_cell" for name in _STEPS))
def cell(book: Book, call: Call) -> list[Value]:
    """One step, written down by itself: the states behind it are new tensors."""
    x, given, *rest = call.args
    if x.ndim == 1:
        raise InputError(f"{call.name} without a batch")
    before = given if isinstance(given, list | tuple) else [given]
    weights = [weight for weight in rest if weight is not None]
    after = [book.like(shape, call.tensors()) for shape in call.shapes]
    _STEPS[call.name.removesuffix("_cell")](book, x, before, after, weights, len(weights) > 2)
    return after


def _at_one_time(book: Book, x: Value, batch_first: bool) -> Value:
    """(batch, units) at any time: times are told apart."""
    batch, time = (0, 1) if batch_first else (1, 0)
    book.hold(x, [time], "steps of a recurrence")
    return passed(book, x, book.like([x.shape[batch], x.shape[2]], [x]), (batch, 2))


def _begin(book: Book, start: Value, state: Value, number: int, count: int) -> None:
    """The initial state of one layer and direction, of (all of them, batch, units); zeros have nothing to say."""
    if start.zero:
        return
    if count == 1:
        passed(book, start, state, (1, 2))
        return
    passed(book, book.cut(start, [1] * count, 0)[number], state, (1, 2))


def _at_all_times(book: Book, x: Value, outputs: Sequence[Value], batch_first: bool) -> Value:
    """The states of all times, both directions one behind the other."""
    parts = []
    for state in outputs:
        part = book.like([*x.shape[:2], state.shape[1]], [state])
        book.pin(part, [1 if batch_first else 0], "steps of a recurrence")
        parts.append(passed(book, state, part, (0, None, 1) if batch_first else (None, 0, 1)))
    return parts[0] if len(parts) == 1 else book.joined(parts, 2)
