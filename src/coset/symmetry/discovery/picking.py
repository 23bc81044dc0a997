"""Rules of operations that pick some entries of a tensor, or replace them."""

from coset.errors import InputError
from coset.symmetry.discovery.calls import Call
from coset.symmetry.discovery.relations import Book, Value, broadcast
from coset.symmetry.discovery.rules import output, passed, rule, straight


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
        return _every(book, call, dim, start, step) if every else _picked(book, call, dim)
    return _segment(book, x, dim, start, length)


def _every(book: Book, call: Call, dim: int, start: int, step: int) -> Value:
    """x[start::step] along a dimension seen as (steps, positions within a step): one of the latter."""
    x = call.args[0]
    apart = book.like([*x.shape[:dim], x.shape[dim] // step, step, *x.shape[dim + 1 :]], [x])
    book.regroup(x, apart)
    thin = _segment(book, apart, dim + 1, start, 1)
    return passed(book, thin, output(book, call, x), [j if j <= dim else j + 1 for j in range(x.ndim)])


def _segment(book: Book, x: Value, dim: int, start: int, length: int) -> Value:
    return _cut(book, x, dim, start, length)[1 if start else 0]


def _cut(book: Book, x: Value, dim: int, start: int, length: int) -> list[Value]:
    """What is before, in and behind a segment, without what is empty."""
    sizes = [n for n in (start, length, x.shape[dim] - start - length) if n]
    parts = [book.like([*x.shape[:dim], n, *x.shape[dim + 1 :]], [x]) for n in sizes]
    for part in parts:
        part.zero = x.zero
    book.join(x, parts, dim)
    return parts


def _picked(book: Book, call: Call, dim: int) -> Value:
    """Entries picked along a dimension by their position."""
    x = call.args[0]
    result = output(book, call, x)
    for value in (x, result):
        book.pin(value, [dim], f"positions picked by {call.name}")
        book.neutral(value, dims=[dim])
    return passed(book, x, result, [None if j == dim else j for j in range(x.ndim)])


@rule("select")
def selected(book: Book, call: Call) -> Value:
    """One position of a dimension: a segment of length 1, without its dimension."""
    x, dim, index = call.args[:3]
    dim %= x.ndim
    thin = _segment(book, x, dim, index % x.shape[dim], 1) if x.shape[dim] > 1 else x
    return passed(book, thin, output(book, call, x), [j if j < dim else j + 1 for j in range(x.ndim - 1)])


@rule("copy")
def copied(book: Book, call: Call) -> Value:
    """copy(x, y): y in the shape of x."""
    y = call.args[1]
    result = output(book, call, y)
    return passed(book, y, result, broadcast(result.shape, y))


@rule("slice_scatter", "select_scatter")
def scattered(book: Book, call: Call) -> Value:
    """A tensor of which one segment is replaced by another tensor."""
    x, piece = call.args[:2]
    dim = call.argument("dim", 0) % x.ndim
    size = x.shape[dim]
    if call.name == "select_scatter":
        start, length = call.argument("index") % size, 1
        thin = book.like([*x.shape[:dim], 1, *x.shape[dim + 1 :]], [piece])
        piece = passed(book, piece, thin, [*range(dim), None, *range(dim, piece.ndim)])
    else:
        start, length = call.argument("start") or 0, piece.shape[dim]
        if call.argument("step", 1) != 1:
            raise InputError("a slice with steps is replaced")
    start = max(0, start + size if start < 0 else start)
    if length == size:
        return passed(book, piece, output(book, call, piece), straight(piece))
    parts = _cut(book, x, dim, start, length)
    parts[1 if start else 0] = piece
    result = output(book, call, x, piece)
    book.join(result, parts, dim)
    return result


@rule("unbind")
def unbound(book: Book, call: Call) -> list[Value]:
    """All positions of a dimension, one by one."""
    x = call.args[0]
    dim = call.argument("dim", 0) % x.ndim
    thin = [book.like([*x.shape[:dim], 1, *x.shape[dim + 1 :]], [x]) for _ in range(x.shape[dim])]
    book.join(x, thin, dim)
    kept = [j if j < dim else j + 1 for j in range(x.ndim - 1)]
    return [passed(book, part, book.like(call.shapes[0], [x]), kept) for part in thin]


@rule("embedding")
def embedding(book: Book, call: Call) -> Value:
    """Rows of a table picked by the input: rows are told apart, columns pass."""
    table, index = call.args[:2]
    result = output(book, call, table, index)
    book.pin(table, [0], "rows of an embedding")
    book.neutral(table, dims=[0])
    for j in range(index.ndim):
        book.same(result, j, index, j)
    return passed(book, table, result, [*(None,) * index.ndim, 1])


@rule("index_select", "gather", "take_along_dim")
def picked(book: Book, call: Call) -> Value:
    """Entries picked along one dimension; a gather has an index of its own for every position of the others."""
    x, dim, index = call.args[0], call.argument("dim"), call.argument("index", call.argument("indices"))
    if dim is None:
        raise InputError(f"{call.name} from a flattened tensor")
    dim %= x.ndim
    result = _picked(book, call, dim)
    book.neutral(index)
    if call.name == "index_select":
        book.pin(index, reason="an index")
        return result
    for j in range(x.ndim):
        if j != dim:
            if x.shape[j] != index.shape[j]:
                raise InputError(f"{call.name} from a part of another dimension")
            book.same(result, j, index, j)
    return result


@rule("index")
def indexed(book: Book, call: Call) -> Value:
    """Advanced indexing: what is indexed is told apart; the indices' dimensions stand where the first index stood."""
    x, indices = call.args[:2]
    used = [i for i, index in enumerate(indices) if index is not None]
    for i in used:
        book.pin(indices[i], reason="an index")
        book.neutral(indices[i])
    kept = [i for i in range(x.ndim) if i not in used]
    result = output(book, call, x)
    extra = result.ndim - len(kept)
    adjacent = used[-1] - used[0] == len(used) - 1
    first = used[0] if adjacent else 0
    book.pin(x, used, "positions picked by an index")
    book.neutral(x, dims=used)
    book.pin(result, range(first, first + extra), "positions picked by an index")
    return passed(book, x, result, [*kept[:first], *(None,) * extra, *kept[first:]])


@rule("topk", "sort", "argsort", "argmax", "argmin", "kthvalue", "mode", "cummax", "cummin")
def ranked(book: Book, call: Call) -> list[Value]:
    """Positions of a dimension by the order of their entries: they are told apart, and no scale or sign passes."""
    x = call.args[0]
    dim = call.argument("dim", None if call.name.startswith("arg") else -1)
    if dim is None:
        raise InputError("the order of all entries")
    dim %= max(x.ndim, 1)
    book.pin(x, [dim], f"positions of {call.name}")
    book.neutral(x)
    results = []
    for shape in call.shapes:
        result = book.like(shape, [x])
        places = list(range(x.ndim)) if len(shape) == x.ndim else [i for i in range(x.ndim) if i != dim]
        book.meet(result, x, [None if i == dim else i for i in places])
        book.pin(result, [j for j, i in enumerate(places) if i == dim], f"positions of {call.name}")
        book.neutral(result)
        results.append(result)
    return results
