"""Rules of less common products: of several matrices, of vectors, with inverses; diagonals, distances and angles."""

from collections.abc import Sequence

import numpy as np

from coset.errors import InputError
from coset.symmetry.discovery.calls import Call
from coset.symmetry.discovery.contractions import einsum, identity
from coset.symmetry.discovery.relations import Book, Power, Value, broadcast
from coset.symmetry.discovery.rules import added_to, output, passed, rule, straight, told_apart

_LETTERS = "abcdefghijklmnop"


@rule("vdot", "linalg_vecdot")
def vecdot(book: Book, call: Call) -> Value:
    """Σ conj(x_k) y_k along one dimension, with broadcasting: a real scale or sign passes conjugation."""
    return _summed_along(book, call, call.args[:2], call.argument("dim", -1))


def _summed_along(book: Book, call: Call, factors: Sequence[Value], dim: int) -> Value:
    """The product of tensors entry by entry, with broadcasting, summed over one dimension of the longest."""
    letters = _LETTERS[: max(value.ndim for value in factors)]
    words = [letters[len(letters) - value.ndim :] for value in factors]
    summed = letters[dim % len(letters)]
    return einsum(book, output(book, call, *factors), letters.replace(summed, ""), factors, words)


@rule("inner", "tensordot")
def tensordot(book: Book, call: Call) -> Value:
    """Some dimensions of x against some of y; ``inner``: the last ones."""
    x, y = call.args[:2]
    result = output(book, call, x, y)
    if call.name == "inner" and not (x.ndim and y.ndim):
        book.multiply(result, [Power(v, broadcast(result.shape, v)) for v in (x, y)])
        return result
    ours, theirs = ([-1], [-1]) if call.name == "inner" else call.args[2:4]
    left = _LETTERS[: x.ndim]
    right = [_LETTERS[x.ndim + j] for j in range(y.ndim)]
    for i, j in zip(ours, theirs, strict=True):
        right[j % y.ndim] = left[i % x.ndim]
    letters = [c for c in left if c not in right] + [c for c in right if c not in left]
    return einsum(book, result, "".join(letters), (x, y), (left, "".join(right)))


@rule("linalg_multi_dot", "chain_matmul")
def multi_dot(book: Book, call: Call) -> Value:
    """A chain of matrix products; the first and the last may be vectors."""
    matrices: Sequence[Value] = call.args[0]
    letters = _LETTERS[: len(matrices) + 1]
    words = [letters[i : i + 2] for i in range(len(matrices))]
    if matrices[0].ndim == 1:
        words[0] = words[0][1]
    if matrices[-1].ndim == 1:
        words[-1] = words[-1][0]
    outside = [c for c in letters if sum(c in word for word in words) == 1]
    return einsum(book, output(book, call, *matrices), "".join(outside), matrices, words)


@rule("kron")
def kron(book: Book, call: Call) -> Value:
    """(x ⊗ y): every dimension is one of x times one of y."""
    x, y = call.args[:2]
    ndim = max(x.ndim, y.ndim)
    sizes = [[*(1,) * (ndim - v.ndim), *v.shape] for v in (x, y)]
    apart = book.like([n for pair in zip(*sizes, strict=True) for n in pair], [x, y])
    factors = []
    for turn, value in enumerate((x, y)):
        places = [j - (ndim - value.ndim) if own == turn else None for j in range(ndim) for own in (0, 1)]
        factors.append(Power(value, tuple(place if place is None or place >= 0 else None for place in places)))
    book.multiply(apart, factors)
    return book.reshaped(apart, call.shapes[0])


@rule("cross", "linalg_cross")
def cross(book: Book, call: Call) -> Value:
    """x × y along a dimension of three; what its coordinates could do beside one common scale is not looked for."""
    x, y = call.args[:2]
    result = output(book, call, x, y)
    dim = call.argument("dim", None if call.name == "cross" else -1)
    if dim is None:
        dim = result.shape.index(3)
    dim %= result.ndim
    factors = []
    for value in (x, y, result):
        told_apart(book, value, [dim - result.ndim + value.ndim], "coordinates of a cross product", known=False)
    for value in (x, y):
        places = broadcast(result.shape, value)
        factors.append(Power(value, tuple(None if j == dim else place for j, place in enumerate(places))))
    book.multiply(result, factors)
    return result


@rule("linalg_inv", "inverse", "linalg_solve")
def inverse(book: Book, call: Call) -> Value:
    """A⁻¹ or A⁻¹ B: (D A E)⁻¹ = E⁻¹ A⁻¹ D⁻¹, so that rows and columns change places."""
    matrix = call.args[0]
    if matrix.shape[-1] != matrix.shape[-2] or call.argument("left", True) is not True:
        raise InputError(f"{call.name} from the right")
    last = matrix.ndim - 1
    inverted = book.like(matrix.shape, [matrix])
    book.multiply(inverted, [Power(matrix, (*range(last - 1), last, last - 1), scale=-1)])
    # An inverse reads whole rows and whole columns: neither moves by itself beside the other.
    for dim in (last - 1, last):
        book.sees_beside(matrix, [dim])
    if call.name != "linalg_solve":
        return passed(book, inverted, output(book, call, matrix), range(matrix.ndim))
    right = call.args[1]
    # A vector for each matrix, or matrices; batches are broadcast.
    column = "" if right.ndim == 1 or right.shape == matrix.shape[:-1] else "z"
    batch = _LETTERS[: max(matrix.ndim - 2, right.ndim - (2 if column else 1))]
    ours, theirs = batch[len(batch) - matrix.ndim + 2 :], batch[len(batch) - right.ndim + (2 if column else 1) :]
    words = (f"{ours}xy", f"{theirs}y{column}")
    return einsum(book, output(book, call, matrix, right), f"{batch}x{column}", (inverted, right), words)


@rule("diagonal", "diag", "linalg_diagonal", "trace")
def diagonal(book: Book, call: Call) -> Value:
    """Σ_j x_ij δ_ij: rows and columns are the same units, whose charges add; ``trace`` sums over them.

    ``diag`` of a vector is a matrix with that diagonal.
    """
    x = call.args[0]
    if call.name == "diag" and x.ndim == 1:
        return embedded(book, call)
    _check_main(call)
    default = (-2, -1) if call.name == "linalg_diagonal" else (0, 1)
    i, j = (call.argument(f"dim{n + 1}", default[n]) % x.ndim for n in (0, 1))
    if x.shape[i] != x.shape[j]:
        raise InputError("the diagonal of a matrix that is not square")
    result = output(book, call, x)
    word = _LETTERS[: x.ndim]
    kept = "".join(c for c in word if c not in (word[i], word[j]))
    letters = kept if call.name == "trace" else kept + word[i]
    return einsum(book, result, letters, (x, identity(book, x.shape[i])), (word, word[i] + word[j]))


def _check_main(call: Call) -> None:
    if call.argument("offset", call.argument("diagonal", 0)):
        raise InputError("a diagonal beside the main one")


@rule("diag_embed")
def embedded(book: Book, call: Call) -> Value:
    """x_i δ_ij on two new dimensions."""
    x = call.args[0]
    _check_main(call)
    result = output(book, call, x)
    i, j = (call.argument(f"dim{n}", -3 + n) % result.ndim for n in (1, 2))
    word = iter(_LETTERS[: x.ndim - 1])
    letters = "".join("x" if k == i else "y" if k == j else next(word) for k in range(result.ndim))
    ours = _LETTERS[: x.ndim - 1] + "x"
    return einsum(book, result, letters, (x, identity(book, x.shape[-1])), (ours, "xy"))


@rule("tril", "triu")
def triangle(book: Book, call: Call) -> Value:
    """Rows and columns keep their order, and pass their scales and signs."""
    x = call.args[0]
    result = passed(book, x, output(book, call, x), straight(x))
    book.pin(result, [x.ndim - 2, x.ndim - 1], f"rows and columns of {call.name}")
    return result


@rule("cosine_similarity")
def cosine_similarity(book: Book, call: Call) -> Value:
    """x·y/(max(|x|, ε) max(|y|, ε)): features permute and flip in x and y alike; an ε > 0 holds all scales."""
    ndim = max(value.ndim for value in call.args[:2])
    dim = call.argument("dim", 1) % ndim
    normal = []
    held = call.argument("eps", 1e-8) != 0
    for value in call.args[:2]:
        own = dim - ndim + value.ndim
        kept = book.like(value.shape, [value])
        normal.append(passed(book, value, kept, straight(value), scale=1 if held else 0))
        book.neutral(value, sign=False, dims=None if held else [own])
        book.sees_beside(value, [own])
    return _summed_along(book, call, normal, dim)


def _length(book: Book, call: Call, difference: Value, result: Value) -> Value:
    """‖d‖_p over the last dimension: signs are not seen, a scale common to all features passes (none into a count)."""
    last = difference.ndim - 1
    book.neutral(difference, sign=False, dims=[last])
    book.sees_beside(difference, [last])
    return passed(book, difference, result, range(last), scale=0 if call.argument("p", 2.0) == 0 else 1, sign=0)


@rule("cdist", "_cdist_forward", "_euclidean_dist")
def cdist(book: Book, call: Call) -> Value:
    """‖x_i − y_j‖_p for all pairs."""
    x, y = call.args[:2]
    result = output(book, call, x, y)
    difference = book.like([*result.shape, x.shape[-1]], [x, y])
    for value, own in ((x, (x.ndim - 2, None)), (y, (None, y.ndim - 2))):
        batch = broadcast((*result.shape[:-2], *value.shape[-2:]), value)[:-2]
        passed(book, value, difference, [*batch, *own, value.ndim - 1])
    return _length(book, call, difference, result)


@rule("pdist")
def pdist(book: Book, call: Call) -> Value:
    """‖x_i − x_j‖_p for i < j: rows are told apart by their pairs."""
    x = call.args[0]
    result = output(book, call, x)
    told_apart(book, x, [0], "pairs of rows")
    book.pin(result, reason="pairs of rows")
    difference = book.like([*result.shape, x.shape[1]], [x])
    passed(book, x, difference, [None, 1])
    return _length(book, call, difference, result)


@rule("pairwise_distance")
def pairwise_distance(book: Book, call: Call) -> Value:
    """‖x − y + ε‖_p over the last dimension: features permute; ε holds scales and signs."""
    x, y = call.args[:2]
    shape = np.broadcast_shapes(x.shape, y.shape)
    difference = added_to(book, book.like(shape, [x, y]), x, y)
    if call.argument("eps", 1e-6) != 0:
        book.neutral(difference)
    return book.reshaped(_length(book, call, difference, book.like(shape[:-1], [x, y])), call.shapes[0])
