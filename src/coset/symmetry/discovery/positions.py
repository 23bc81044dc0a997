"""Rules of operations on positions of images and sequences."""

from coset.symmetry.discovery.calls import Call
from coset.symmetry.discovery.relations import Book, Value
from coset.symmetry.discovery.rules import output, passed, rule


def _by_positions(book: Book, call: Call, count: int, *, signs: bool) -> Value:
    """An operation on the last ``count`` dimensions that treats all others alike."""
    x = call.args[0]
    result = output(book, call, x)
    kept = x.ndim - count
    for value in (x, result):
        book.pin(value, range(kept, x.ndim), "positions of pooling, padding or resizing")
        book.neutral(value, dims=range(kept, x.ndim))
    passed(book, x, result, (*range(kept), *(None,) * count))
    if not signs:
        book.neutral(x, scale=False)
    return result


# Operations on positions: how many trailing dimensions are positions, and whether signs pass.
_POSITIONS: dict[str, tuple[int, bool]] = {
    **{f"{name}{n}d": (n, True) for name in ("avg_pool", "adaptive_avg_pool") for n in (1, 2, 3)},
    **{f"{name}{n}d": (n, False) for name in ("max_pool", "adaptive_max_pool") for n in (1, 2, 3)},
    **{
        f"{name}{n}d": (n, True)
        for name in ("upsample_nearest", "reflection_pad", "replication_pad")
        for n in (1, 2, 3)
    },
    "upsample_linear1d": (1, True),
    "upsample_bilinear2d": (2, True),
    "upsample_bicubic2d": (2, True),
    "upsample_trilinear3d": (3, True),
    "_upsample_bilinear2d_aa": (2, True),
}


@rule(*_POSITIONS)
def by_positions(book: Book, call: Call) -> Value:
    """Pooling, resizing, padding by copies: positions are told apart, all other dimensions are left alone."""
    count, signs = _POSITIONS[call.name]
    return _by_positions(book, call, count, signs=signs)


@rule("pad", "constant_pad_nd")
def pad(book: Book, call: Call) -> Value:
    """Padded dimensions are told apart; a padding other than 0 lets no scale pass."""
    x, widths = call.args[0], call.args[1]
    number = call.args[-1] if isinstance(call.args[-1], int | float) else 0
    touched = [x.ndim - 1 - i // 2 for i, n in enumerate(widths) if n]
    result = output(book, call, x)
    for value in (x, result):
        book.pin(value, set(touched), "padding")
        book.neutral(value, dims=set(touched))
    passed(book, x, result, [None if j in touched else j for j in range(x.ndim)])
    if number:
        book.neutral(x)
    return result
