"""Rules of operations that move, join or make entries without computing with them."""

from typing import Any

from coset.errors import InputError
from coset.symmetry.discovery.calls import Call
from coset.symmetry.discovery.picking import computed
from coset.symmetry.discovery.relations import Book, Value, broadcast
from coset.symmetry.discovery.rules import (
    added_to,
    beside,
    lifted,
    output,
    passed,
    rule,
    straight,
    told_apart_in_both,
    without,
)


@rule(
    "view",
    "reshape",
    "flatten",
    "unflatten",
    "_unsafe_view",
    "_reshape_copy",
    "view_copy",
    "ravel",
    "reshape_as",
    "view_as",
    "squeeze",
    "unsqueeze",
)
def regrouped(book: Book, call: Call) -> Value:
    """The same entries in order under another shape."""
    return book.reshaped(call.args[0], call.shapes[0])


@rule("permute", "transpose", "t", "numpy_T", "mT", "mH", "movedim", "moveaxis", "swapaxes", "swapdims",
      "adjoint", "matrix_H")  # fmt: skip
def permuted(book: Book, call: Call) -> Value:
    """Dimensions in another order."""
    x = call.args[0]
    order = order_of(call.name, call.args, x.ndim)
    return passed(book, x, book.like([x.shape[i] for i in order], [x]), order)


def order_of(name: str, args: tuple[Any, ...], ndim: int) -> list[int]:
    """Which old dimension stands at each new place."""
    order = list(range(ndim))
    if name == "permute":
        return [dim % ndim for dim in args[1]]
    if name in ("movedim", "moveaxis"):
        sources, targets = ([d % ndim for d in ([ds] if isinstance(ds, int) else ds)] for ds in args[1:3])
        rest = [d for d in order if d not in sources]
        for target, source in sorted(zip(targets, sources, strict=True)):
            rest.insert(target, source)
        return rest
    if name in ("t", "numpy_T"):
        return order[::-1]
    named = name in ("transpose", "swapaxes", "swapdims")
    a, b = (dim % ndim for dim in args[1:3]) if named else (ndim - 2, ndim - 1)
    order[a], order[b] = b, a
    return order


@rule("expand", "expand_as", "broadcast_to")
def expanded(book: Book, call: Call) -> Value:
    """New dimensions hold copies: their positions are alike."""
    return added_to(book, output(book, call, call.args[0]), call.args[0])


@rule("repeat_interleave")
def repeat_interleave(book: Book, call: Call) -> Value:
    """Each position several times in a row."""
    x, count, dim = (*call.args, None)[:3]
    dim = call.argument("dim", dim)
    if isinstance(count, Value) or dim is None:
        raise InputError("repeat_interleave with a tensor of counts or without a dimension")
    dim %= x.ndim
    return book.reshaped(lifted(book, x, dim + 1, count), call.shapes[0])


@rule("repeat", "tile")
def repeat(book: Book, call: Call) -> Value:
    """Whole dimensions several times over."""
    x, counts = call.args[0], list(call.args[1])
    counts = [1] * (x.ndim - len(counts)) + counts
    sizes = [1] * (len(counts) - x.ndim) + list(x.shape)
    offset = len(counts) - x.ndim
    # Every dimension as (copies, own positions), then both as one.
    spread = book.like([n for pair in zip(counts, sizes, strict=True) for n in pair], [x])
    places = [i - offset if own and i >= offset else None for i in range(len(counts)) for own in (False, True)]
    return book.reshaped(passed(book, x, spread, places), call.shapes[0])


@rule("cat", "concat", "concatenate", "hstack", "vstack", "dstack", "column_stack")
def joined(book: Book, call: Call) -> Value:
    """Tensors one after the other along a dimension."""
    result = output(book, call, *call.args[0])
    if any(part.ndim != result.ndim for part in call.args[0] if part.shape != (0,)):
        raise InputError(f"{call.name} of tensors with fewer dimensions")
    default = {"hstack": min(1, result.ndim - 1), "column_stack": 1, "dstack": 2}.get(call.name, 0)
    dim = call.argument("dim", default) % result.ndim
    parts = [part for part in call.args[0] if part.shape != (0,) and part.shape[dim]]
    if len(parts) == 1:
        return passed(book, parts[0], result, straight(result))
    book.join(result, parts, dim)
    return result


@rule(
    "split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk", "hsplit", "vsplit", "dsplit"
)
def divided(book: Book, call: Call) -> list[Value]:
    """A dimension cut into segments."""
    x = call.args[0]
    default = {"hsplit": min(1, x.ndim - 1), "dsplit": 2}.get(call.name, 0)
    dim = call.argument("dim", default) % x.ndim
    return book.cut(x, [shape[dim] for shape in call.shapes], dim)


# Where positions only change places, units could follow; that is not looked for, and reported of what is computed.
_SHUFFLES = frozenset({"roll", "flip", "fliplr", "flipud", "rot90", "fft_fftshift", "fft_ifftshift"})


@rule(*_SHUFFLES, "cumsum", "diff")
def moved_along(book: Book, call: Call) -> Value:
    """Positions change places with others, or are added to them: they are told apart, other dimensions pass."""
    x = call.args[0]
    if len(call.tensors()) > 1:
        raise InputError(f"{call.name} with more than one tensor")
    default = {"diff": [-1], "fliplr": [1], "flipud": [0], "rot90": [0, 1]}.get(call.name)
    dims = call.argument("dims", call.argument("dim", default))
    chosen = (
        list(range(x.ndim)) if dims in (None, []) else [d % x.ndim for d in ([dims] if isinstance(dims, int) else dims)]
    )
    result = output(book, call, x)
    known = call.name not in _SHUFFLES or not computed(x, chosen)
    told_apart_in_both(book, x, chosen, result, chosen, f"positions of {call.name}", known=known)
    return passed(book, x, result, without(x, chosen))


@rule("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(book: Book, call: Call) -> Value:
    """Channels seen as (groups, rest) and read as (rest, groups)."""
    x, groups = call.args[:2]
    rest = x.shape[1] // groups
    apart = book.reshaped(x, [x.shape[0], groups, rest, *x.shape[2:]])
    turned = book.like([x.shape[0], rest, groups, *x.shape[2:]], [x])
    return book.reshaped(passed(book, apart, turned, [0, 2, 1, *range(3, apart.ndim)]), call.shapes[0])


@rule("meshgrid", "broadcast_tensors")
def spread_out(book: Book, call: Call) -> list[Value]:
    """Every tensor with copies along the dimensions of the others."""
    tensors = call.args[0]
    if call.name == "meshgrid" and call.argument("indexing", "ij") != "ij":
        raise InputError("meshgrid in the order of x and y")
    results = []
    for number, (value, shape) in enumerate(zip(tensors, call.shapes, strict=True)):
        result = book.like(shape, [value])
        own = [0 if j == number and value.ndim else None for j in range(len(shape))]
        results.append(passed(book, value, result, own if call.name == "meshgrid" else broadcast(shape, value)))
    return results


@rule("pixel_shuffle", "pixel_unshuffle")
def pixel_shuffle(book: Book, call: Call) -> Value:
    """Channels in blocks of r² go to positions and back; a block moves as a whole."""
    x, r = call.args[:2]
    lead = x.ndim - 3
    wide, narrow = (x, output(book, call, x)) if call.name == "pixel_shuffle" else (output(book, call, x), x)
    channels = narrow.shape[lead]
    blocks = book.reshaped(wide, [*x.shape[:lead], channels, r * r, *wide.shape[lead + 1 :]])
    for value in (blocks, narrow):
        book.hold(value, range(lead + 1, value.ndim), "positions of pixel_shuffle")
    passed(book, blocks, narrow, [*range(lead + 1), None, None])
    return narrow if call.name == "pixel_shuffle" else wide


@rule(
    "zeros",
    "ones",
    "full",
    "zeros_like",
    "ones_like",
    "full_like",
    "new_zeros",
    "new_ones",
    "new_full",
    "scalar_tensor",
    "empty",
    "empty_like",
    "new_empty",
    "fill",
)
def constant(book: Book, call: Call) -> Value:
    """The same number everywhere: permutations leave it alone, and so do scales if it is 0."""
    made = book.constant(call.shapes[0])
    number = call.argument("fill_value", call.argument("value", call.argument("s")))
    if isinstance(number, Value) and call.name == "scalar_tensor":
        return passed(book, number, output(book, call, number), ())
    if isinstance(number, Value) and not number.inert:
        raise InputError("a tensor filled with a number that depends on parameters")
    made.zero = "zeros" in call.name or (isinstance(number, int | float) and number == 0)
    return made


def nothing(book: Book, call: Call, reason: str) -> Any:
    """An operation without a rule: everything that flows through it is pinned."""
    for value in call.tensors():
        book.hold(value, reason=reason)
    results = []
    for shape in call.shapes:
        made = book.like(shape, call.tensors(), pinned=reason)
        book.neutral(made)
        results.append(made)
    return results


@rule("glu")
def gated(book: Book, call: Call) -> Value:
    """First half times the sigmoid of the second: both share their units, and the gate lets no scale pass."""
    x = call.args[0]
    dim = call.argument("dim", -1) % x.ndim
    halves = book.cut(x, [call.shapes[0][dim]] * 2, dim)
    return added_to(book, beside(book, output(book, call, x), halves[1]), halves[0])
