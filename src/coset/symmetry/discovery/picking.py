"""Rules of operations that pick some entries of a tensor, or replace them."""

from collections.abc import Sequence

from coset.errors import InputError
from coset.symmetry.discovery.calls import Call
from coset.symmetry.discovery.relations import Book, Power, Value
from coset.symmetry.discovery.rules import (
    added_to,
    lifted,
    output,
    passed,
    rule,
    squeezed,
    straight,
    told_apart,
    told_apart_in_both,
    without,
)
from coset.symmetry.discovery.terms import atoms, resolve


@rule("slice", "narrow")
def sliced(book: Book, call: Call) -> Value:
    """A segment of a dimension; with a step, one position of each step, or positions that are told apart."""
    x = call.args[0]
    dim = call.argument("dim", 0) % x.ndim
    size = x.shape[dim]
    if call.name == "narrow":
        start, step = call.args[2], 1
    else:
        start, step = call.argument("start") or 0, call.argument("step", 1)
    start = max(0, start + size if start < 0 else start)
    length = call.shapes[0][dim]
    if length == size and step == 1:
        return passed(book, x, output(book, call, x), straight(x))
    if length == 0:
        # Nothing is picked, and nothing is said.
        return output(book, call, x)
    if step != 1:
        every = size % step == 0 and start < step and length == size // step
        return _every(book, call, dim, start, step) if every else _picked(book, call, dim, known=False)
    return segment(book, x, dim, start, length)


def _every(book: Book, call: Call, dim: int, start: int, step: int) -> Value:
    """x[start::step] along a dimension seen as (steps, positions within a step): one of the latter."""
    x = call.args[0]
    apart = book.reshaped(x, [*x.shape[:dim], x.shape[dim] // step, step, *x.shape[dim + 1 :]])
    return squeezed(book, segment(book, apart, dim + 1, start, 1), dim + 1)


def segment(book: Book, x: Value, dim: int, start: int, length: int) -> Value:
    """``length`` positions of a dimension, from ``start`` on."""
    return _cut(book, x, dim, start, length)[1 if start else 0]


def _cut(book: Book, x: Value, dim: int, start: int, length: int) -> list[Value]:
    """What is before, in and behind a segment, without what is empty."""
    parts = book.cut(x, [n for n in (start, length, x.shape[dim] - start - length) if n], dim)
    for part in parts:
        part.zero = x.zero
    return parts


def _picked(book: Book, call: Call, dim: int, *, known: bool) -> Value:
    """Entries picked along a dimension by their position."""
    x = call.args[0]
    result = output(book, call, *call.tensors())
    told_apart_in_both(book, x, [dim], result, [dim], f"positions picked by {call.name}", known=known)
    return passed(book, x, result, without(x, [dim]))


def computed(x: Value, dims: Sequence[int]) -> bool:
    """Whether a tensor has positions of inputs beside ``dims``, as what is computed has and a table has not."""
    others = (x.dims[j] for j in range(x.ndim) if j not in dims)
    return any(atom.pinned for dim in others for atom in atoms(resolve(dim)))


def given_index(book: Book, *indices: Value, dims: Sequence[int] | None = None) -> bool:
    """Indices tell positions apart; whether no parameter moves any of them. Of others too little is known."""
    for index in indices:
        if index.inert:
            book.pin(index, dims, "an index")
        else:
            book.limit(index, dims, "an index that depends on parameters")
        book.neutral(index)
    return all(index.inert for index in indices)


@rule("select")
def selected(book: Book, call: Call) -> Value:
    """One position of a dimension: a segment of length 1, without its dimension."""
    x, dim, index = call.args[:3]
    dim %= x.ndim
    thin = segment(book, x, dim, index % x.shape[dim], 1) if x.shape[dim] > 1 else x
    return squeezed(book, thin, dim)


@rule("copy")
def copied(book: Book, call: Call) -> Value:
    """copy(x, y): y in the shape of x."""
    return added_to(book, output(book, call, call.args[1]), call.args[1])


@rule("slice_scatter", "select_scatter")
def scattered(book: Book, call: Call) -> Value:
    """A tensor of which one segment is replaced by another tensor."""
    x, piece = call.args[:2]
    dim = call.argument("dim", 0) % x.ndim
    size = x.shape[dim]
    if call.name == "select_scatter":
        start, length = call.argument("index") % size, 1
        piece = lifted(book, piece, dim)
    else:
        start, length = call.argument("start") or 0, piece.shape[dim]
        if call.argument("step", 1) != 1:
            raise InputError("a slice with steps is replaced")
    start = max(0, start + size if start < 0 else start)
    if length == size:
        return passed(book, piece, output(book, call, piece), straight(piece))
    parts = _cut(book, x, dim, start, length)
    parts[1 if start else 0] = piece
    return book.joined(parts, dim)


@rule("unbind")
def unbound(book: Book, call: Call) -> list[Value]:
    """All positions of a dimension, one by one."""
    x = call.args[0]
    dim = call.argument("dim", 0) % x.ndim
    return [squeezed(book, part, dim) for part in book.cut(x, [1] * x.shape[dim], dim)]


@rule("embedding")
def embedding(book: Book, call: Call) -> Value:
    """Rows of a table picked by the input: rows are told apart, columns pass."""
    table, index = call.args[:2]
    result = output(book, call, table, index)
    known = index.inert
    told_apart(book, table, [0], "rows of an embedding", known=known)
    book.neutral(index)
    for j in range(index.ndim):
        book.same(result, j, index, j)
    return passed(book, table, result, [*(None,) * index.ndim, 1])


@rule("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(book: Book, call: Call) -> list[Value]:
    """Sums, means or maxima of rows of a table: rows and bags are told apart; the largest keeps no sign."""
    table, index = call.args[:2]
    result = output(book, call, *call.tensors())
    weights = call.argument("per_sample_weights")
    known = given_index(book, index)
    told_apart(book, table, [0], "rows of an embedding", known=known)
    told_apart(book, result, [0], "bags of an embedding", known=known)
    factors = [Power(table, (None, 1))]
    if weights is not None:
        # Weights of single entries are told apart by their bags; a scale of all of them passes.
        told_apart(book, weights, range(weights.ndim), "bags of an embedding")
        factors.append(Power(weights, (None, None)))
    book.multiply(result, factors)
    if call.argument("mode", 0) == 2:
        book.neutral(result, scale=False)
    return [result, *(book.like(shape, [index]) for shape in call.shapes[1:])]


@rule("index_select", "gather", "take_along_dim")
def picked(book: Book, call: Call) -> Value:
    """Entries picked along one dimension; a gather has an index of its own for every position of the others."""
    x, dim, index = call.args[0], call.argument("dim"), call.argument("index", call.argument("indices"))
    if dim is None:
        raise InputError(f"{call.name} from a squeezed tensor")
    dim %= x.ndim
    if call.name == "index_select":
        return _picked(book, call, dim, known=given_index(book, index) and not computed(x, [dim]))
    if any(x.shape[j] != index.shape[j] for j in range(x.ndim) if j != dim):
        raise InputError(f"{call.name} from a part of another dimension")
    # An index for every position, as of relative positions: it tells apart what it picks.
    result = _picked(book, call, dim, known=given_index(book, index, dims=[dim]))
    book.meet(result, index, without(index, [dim]))
    return result


@rule("index", "_unsafe_index")
def indexed(book: Book, call: Call) -> Value:
    """Advanced indexing: what is indexed is told apart; the indices' dimensions stand where the first index stood."""
    x, indices = call.args[:2]
    used = [i for i, index in enumerate(indices) if index is not None]
    known = given_index(book, *(indices[i] for i in used))
    kept = [i for i in range(x.ndim) if i not in used]
    result = output(book, call, *call.tensors())
    extra = result.ndim - len(kept)
    adjacent = used[-1] - used[0] == len(used) - 1
    first = used[0] if adjacent else 0
    known = known and not computed(x, used)
    new = range(first, first + extra)
    told_apart_in_both(book, x, used, result, new, "positions picked by an index", known=known)
    return passed(book, x, result, [*kept[:first], *(None,) * extra, *kept[first:]])
