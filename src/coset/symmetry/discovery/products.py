"""Rules of less common products: of several matrices, of vectors, with inverses."""

from collections.abc import Sequence

from coset.errors import InputError
from coset.symmetry.discovery.calls import Call
from coset.symmetry.discovery.contractions import einsum
from coset.symmetry.discovery.relations import Book, Power, Value, broadcast
from coset.symmetry.discovery.rules import output, passed, rule, told_apart

_LETTERS = "abcdefghijklmnop"


@rule("vdot", "linalg_vecdot")
def vecdot(book: Book, call: Call) -> Value:
    """Σ conj(x_k) y_k along one dimension, with broadcasting: a real scale or sign passes conjugation."""
    x, y = call.args[:2]
    ndim = max(x.ndim, y.ndim)
    at = call.argument("dim", -1) % ndim
    letters = _LETTERS[:ndim]
    words = [letters[ndim - v.ndim :] for v in (x, y)]
    return einsum(book, output(book, call, x, y), letters[:at] + letters[at + 1 :], (x, y), words)


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


@rule("addbmm", "addr")
def added_product(book: Book, call: Call) -> Value:
    """b + Σ_a x_a·y_a, or b + x yᵀ."""
    bias, x, y = call.args[:3]
    result = output(book, call, bias, x, y)
    einsum(book, result, "ij", (x, y), ("aik", "akj") if call.name == "addbmm" else ("i", "j"))
    return passed(book, bias, result, broadcast(result.shape, bias))


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
    result = output(book, call, x, y)
    book.regroup(apart, result)
    return result


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
        book.sees(matrix, (j for j in range(matrix.ndim) if j != dim))
    if call.name != "linalg_solve":
        return passed(book, inverted, output(book, call, matrix), range(matrix.ndim))
    right = call.args[1]
    # A vector for each matrix, or matrices; batches are broadcast.
    column = "" if right.ndim == 1 or right.shape == matrix.shape[:-1] else "z"
    batch = _LETTERS[: max(matrix.ndim - 2, right.ndim - (2 if column else 1))]
    ours, theirs = batch[len(batch) - matrix.ndim + 2 :], batch[len(batch) - right.ndim + (2 if column else 1) :]
    words = (f"{ours}xy", f"{theirs}y{column}")
    return einsum(book, output(book, call, matrix, right), f"{batch}x{column}", (inverted, right), words)
