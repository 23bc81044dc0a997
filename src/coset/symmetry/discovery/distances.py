"""Rules of distances and angles between vectors."""

from coset.symmetry.discovery.calls import Call
from coset.symmetry.discovery.contractions import einsum
from coset.symmetry.discovery.norms import normalized_over
from coset.symmetry.discovery.relations import Book, Value, broadcast
from coset.symmetry.discovery.rules import output, passed, rule, straight, told_apart

_LETTERS = "abcdefgh"


@rule("cosine_similarity")
def cosine_similarity(book: Book, call: Call) -> Value:
    """x·y/(max(|x|, ε) max(|y|, ε)): features permute and flip in x and y alike; an ε > 0 holds all scales."""
    x, y = call.args[:2]
    ndim = max(x.ndim, y.ndim)
    dim = call.argument("dim", 1) % ndim
    normal = []
    held = call.argument("eps", 1e-8) != 0
    for value in (x, y):
        kept = book.like(value.shape, [value])
        normal.append(passed(book, value, kept, straight(value), scale=1 if held else 0))
        book.neutral(value, sign=False, dims=None if held else [dim - ndim + value.ndim])
        normalized_over(book, value, dim - ndim + value.ndim)
    letters = _LETTERS[:ndim]
    words = [letters[ndim - value.ndim :] for value in normal]
    return einsum(book, output(book, call, x, y), letters[:dim] + letters[dim + 1 :], normal, words)


def _length(book: Book, difference: Value, result: Value, p: float) -> Value:
    """‖d‖_p over the last dimension: signs are not seen, a scale common to all features passes (none into a count)."""
    book.neutral(difference, sign=False, dims=[difference.ndim - 1])
    normalized_over(book, difference, difference.ndim - 1)
    return passed(book, difference, result, range(difference.ndim - 1), scale=0 if p == 0 else 1, sign=0)


@rule("cdist", "_cdist_forward", "_euclidean_dist")
def cdist(book: Book, call: Call) -> Value:
    """‖x_i − y_j‖_p for all pairs."""
    x, y = call.args[:2]
    result = output(book, call, x, y)
    difference = book.like([*result.shape, x.shape[-1]], [x, y])
    for value, own in ((x, (x.ndim - 2, None)), (y, (None, y.ndim - 2))):
        batch = broadcast((*result.shape[:-2], *value.shape[-2:]), value)[:-2]
        passed(book, value, difference, [*batch, *own, value.ndim - 1])
    return _length(book, difference, result, _power(call))


def _power(call: Call) -> float:
    return float(call.argument("p", 2.0))


@rule("pdist")
def pdist(book: Book, call: Call) -> Value:
    """‖x_i − x_j‖_p for i < j: rows are told apart by their pairs."""
    x = call.args[0]
    result = output(book, call, x)
    told_apart(book, x, [0], "pairs of rows")
    book.pin(result, reason="pairs of rows")
    difference = book.like([*result.shape, x.shape[1]], [x])
    passed(book, x, difference, [None, 1])
    return _length(book, difference, result, _power(call))


@rule("pairwise_distance")
def pairwise_distance(book: Book, call: Call) -> Value:
    """‖x − y + ε‖_p over the last dimension: features permute; ε holds scales and signs."""
    x, y = call.args[:2]
    count = max(x.ndim, y.ndim)
    shape = [max(sizes) for sizes in zip(*([1] * (count - v.ndim) + list(v.shape) for v in (x, y)), strict=True)]
    difference = book.like(shape, [x, y])
    for value in (x, y):
        passed(book, value, difference, broadcast(shape, value))
    if call.argument("eps", 1e-6) != 0:
        book.neutral(difference)
    short = _length(book, difference, book.like(shape[:-1], [x, y]), _power(call))
    result = output(book, call, x, y)
    book.regroup(short, result)
    return result
