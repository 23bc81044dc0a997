"""Rules of diagonals, and of the parts of a matrix above and below them."""

from coset.errors import InputError
from coset.symmetry.discovery.calls import Call
from coset.symmetry.discovery.contractions import einsum, identity
from coset.symmetry.discovery.relations import Book, Value
from coset.symmetry.discovery.rules import output, passed, rule, straight

_LETTERS = "abcdefgh"


@rule("diagonal", "diag", "linalg_diagonal", "trace")
def diagonal(book: Book, call: Call) -> Value:
    """Σ_j x_ij δ_ij: rows and columns are the same units, whose charges add; ``trace`` sums over them.

    ``diag`` of a vector is a matrix with that diagonal.
    """
    x = call.args[0]
    if call.name == "diag" and x.ndim == 1:
        return _embedded(book, call)
    if call.argument("offset", call.argument("diagonal", 0)):
        raise InputError("a diagonal beside the main one")
    default = (-2, -1) if call.name == "linalg_diagonal" else (0, 1)
    i, j = (call.argument(f"dim{n + 1}", default[n]) % x.ndim for n in (0, 1))
    if x.shape[i] != x.shape[j]:
        raise InputError("the diagonal of a matrix that is not square")
    result = output(book, call, x)
    word = _LETTERS[: x.ndim]
    kept = "".join(c for c in word if c not in (word[i], word[j]))
    letters = kept if call.name == "trace" else kept + word[i]
    return einsum(book, result, letters, (x, identity(book, x.shape[i])), (word, word[i] + word[j]))


@rule("diag_embed")
def embedded(book: Book, call: Call) -> Value:
    """x_i δ_ij on two new dimensions."""
    return _embedded(book, call)


def _embedded(book: Book, call: Call) -> Value:
    x = call.args[0]
    if call.argument("offset", call.argument("diagonal", 0)):
        raise InputError("a diagonal beside the main one")
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
