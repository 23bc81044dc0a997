"""Units that are picked by their own numbers: experts chosen by a router.

``topk`` of the router's scores gives numbers of experts. If these only pick from tensors that have the experts on an
axis (``w[index]``, ``gather``, ``one_hot``), the experts may be permuted together with the rows of the router. Tokens
that are sorted by their expert, multiplied group by group and put back into their order are the same in another form:
the order of the groups changes with the numbers, and nobody reads it.

Wherever numbers of units are used in any other way the units are told apart, and that is reported.
"""

from typing import Any

import torch
from torch import Tensor

from coset.symmetry.discovery.calls import Call
from coset.symmetry.discovery.ordering import by_rank
from coset.symmetry.discovery.relations import About, Book, Multiplied, Power, Value
from coset.symmetry.discovery.rules import passed, straight, without
from coset.symmetry.discovery.terms import Atom, Term, atoms, resolve

_RANKED = frozenset({"topk", "sort", "argsort", "argmax", "argmin", "max", "min"})
_PRODUCTS = frozenset({"grouped_mm_fallback", "_grouped_mm", "grouped_mm"})


def routed(book: Book, call: Call, known: Tensor | None) -> Any:
    """What an operation with numbers of units says, or None if it is none; ``known``: its third argument, if known."""
    x = call.args[0] if call.args else None
    if not isinstance(x, Value):
        return None
    if call.name in _RANKED:
        return _ranked(book, call, x)
    if call.name in _PRODUCTS:
        return _by_groups(book, call)
    if call.name in ("index", "_unsafe_index"):
        return _indexed(book, call, x)
    if call.name in ("gather", "take_along_dim"):
        return _gathered(book, call, x)
    if call.name == "embedding" and _places(call.args[1]) is not None:
        index = call.args[1]
        book.same_term(x.dims[0], index.about.term)
        return _picked(book, call, x, 0, index, 0)
    if call.name == "one_hot" and _places(x) is not None:
        return _one_hot(book, call, x)
    if call.name == "histc" and _places(x) is not None:
        return _counted(book, call, x)
    if call.name == "cumsum" and x.about is not None and x.about.role == "count":
        result = book.like(call.shapes[0], [x])
        result.about = About("end", x.about.term)
        book.neutral(result)
        return result
    if call.name == "index_put":
        return _inverse(book, call, known)
    return None


def settle(book: Book, value: Value) -> None:
    """Numbers of units are used in a way that nothing is known of: the units are told apart."""
    assert value.about is not None
    book.limit_term(value.about.term, "the numbers of these units are computed with")


def settle_orders(book: Book) -> None:
    """Tell units apart where the order that sorting by their numbers makes is read after all.

    It is read if it has met positions that are told apart, another order, or an axis of a parameter.
    """
    met: dict[Atom, int] = {}
    for order, _ in book.orders:
        for atom in atoms(resolve(order)):
            met[atom] = met.get(atom, 0) + 1
    for order, units in book.orders:
        found = list(atoms(resolve(order)))
        whole = found == [order] or (len(found) == 1 and found[0].size == order.size)
        if not whole or any(atom.pinned or atom.stuck or met[atom] > 1 or atom in book.own for atom in found):
            book.limit_term(units, "the order of what is sorted by these units is read")
    for order, _ in book.orders:
        for atom in atoms(resolve(order)):
            atom.pinned = atom.pinned or "an order that depends on data"


def _places(value: Any) -> Term | None:
    """The dimension whose positions the numbers of a tensor are."""
    about = value.about if isinstance(value, Value) else None
    return about.term if about is not None and about.role in ("place", "order") else None


def _ranked(book: Book, call: Call, x: Value) -> Any:
    """Where the largest stand: numbers of the units that are ranked. Of numbers of units: a sorting into groups."""
    only_places = call.name.startswith("arg")
    dim = call.argument("dim", None if only_places and call.name != "argsort" else -1)
    if call.name in ("max", "min") and "dim" not in str(getattr(call.target, "_overloadname", "")):
        return None
    if dim is None or not x.ndim or (not only_places and 1 not in call.used):
        return None
    dim %= x.ndim
    if x.about is not None:
        return _sorted_by_units(book, call, x) if call.name in ("sort", "argsort") and x.ndim == 1 else None
    if x.inert:
        return None
    book.neutral(x, scale=False)
    book.neutral(x, dims=[dim])
    book.sees_beside(x, [dim])
    results: list[Value] = []
    for result, ranks, where in by_rank(book, call, x, dim):
        book.hold(result, ranks, f"ranks of {call.name}")
        if where:
            result.about = About("place", x.dims[dim], len(book.values))
            if results:  # the same ranks
                book.meet(result, results[0], straight(result))
        results.append(result)
    return results


def _sorted_by_units(book: Book, call: Call, x: Value) -> Any:
    """Sorting numbers of units brings what they stand for into groups; sorting an order gives the inverse order."""
    assert x.about is not None
    if x.about.role == "order":
        inverse = _numbers(book, x, x.about.term, About("order", x.dims[0]))
        return [inverse] if len(call.shapes) == 1 else None
    order = Atom(x.shape[0])
    book.orders.append((order, x.about.term))
    book.implied.append(((order,), x.about.term, None))
    places = _numbers(book, x, order, About("order", x.dims[0]))
    return [places] if len(call.shapes) == 1 else [_numbers(book, x, order, x.about), places]


def _numbers(book: Book, source: Value, term: Term, about: About) -> Value:
    """Whole numbers along one dimension that are computed from others, and what they are."""
    made = book.value((term.size,), [term])
    made.data, made.about = source.data, about
    book.neutral(made)
    return made


def _tell_picked(book: Book, result: Value, index: Value) -> None:
    """What was picked has, at each place of the index, units of the one that the index names there."""
    if index.about is not None and index.about.role == "place":
        book.implied.append((tuple(index.dims), index.about.term, index.about.index))
        result.picked |= {index.about.index}


def _picked(book: Book, call: Call, x: Value, dim: int, index: Value, first: int) -> Value:
    """Entries of x along ``dim`` at the places of the index, whose dimensions begin at ``first`` in the result."""
    result = book.like(call.shapes[0], [x, index])
    book.neutral(x, dims=[dim])
    book.neutral(index)
    kept = [j for j in range(x.ndim) if j != dim]
    _tell_picked(book, result, index)
    book.meet(result, index, [j - first if first <= j < first + index.ndim else None for j in range(result.ndim)])
    # All units along the dimension meet what is beside them, but each in what was picked for it alone.
    return passed(book, x, result, [*kept[:first], *(None,) * index.ndim, *kept[first:]])


def _indexed(book: Book, call: Call, x: Value) -> Value | None:
    """x[…, index, …] with one index."""
    indices = call.args[1]
    used = [i for i, index in enumerate(indices) if index is not None]
    if len(used) != 1:
        return None
    dim, index = used[0], indices[used[0]]
    term = _places(index)
    if term is not None and term.size == x.shape[dim]:
        book.same_term(x.dims[dim], term)
        return _picked(book, call, x, dim, index, dim)
    if index.inert or not any(atom in book.sorted_atoms() for d in index.dims for atom in atoms(resolve(d))):
        return None
    # Computed from an order: plain numbers of positions that stay, one behind the other in that order.
    if index.about is not None:
        settle(book, index)
    book.limit(x, [dim], "positions picked by an index")
    return _picked(book, call, x, dim, index, dim)


def _gathered(book: Book, call: Call, x: Value) -> Value | None:
    """x along one dimension at places that are given for every position of the others."""
    dim, index = call.argument("dim"), call.argument("index", call.argument("indices"))
    term = _places(index)
    if dim is None or term is None or index.ndim != x.ndim:
        return None
    dim %= x.ndim
    if term.size != x.shape[dim] or any(x.shape[j] != index.shape[j] for j in range(x.ndim) if j != dim):
        return None
    book.same_term(x.dims[dim], term)
    result = book.like(call.shapes[0], [x, index])
    book.neutral(x, dims=[dim])
    book.neutral(index)
    _tell_picked(book, result, index)
    book.sees_beside(x, [dim])
    book.meet(result, index, straight(result))
    return passed(book, x, result, without(x, [dim]))


def _one_hot(book: Book, call: Call, x: Value) -> Value | None:
    """1 at the place that a number names, 0 elsewhere: the units stand on the last dimension."""
    assert x.about is not None
    if call.shapes[0][-1] != x.about.term.size:
        return None
    result = book.like(call.shapes[0], [x])
    book.meet(result, x, [*range(x.ndim), None])
    book.same_term(result.dims[-1], x.about.term)
    book.neutral(result)
    return result


def _counted(book: Book, call: Call, x: Value) -> Value | None:
    """How often each unit is named."""
    assert x.about is not None
    size = x.about.term.size
    if (call.argument("bins", 100), call.argument("min", 0), call.argument("max", 0)) != (size, 0, size - 1):
        return None
    return _numbers(book, x, x.about.term, About("count", x.about.term))


def _by_groups(book: Book, call: Call) -> Value | None:
    """x_g W_{e(g)} for tokens g sorted by their expert e(g): (tokens, in) and (experts, in, out) → (tokens, out)."""
    x, weight, ends = call.args[:3]
    if not isinstance(ends, Value) or ends.about is None or ends.about.role != "end" or weight.ndim != 3:
        return None
    units = ends.about.term
    sorted_so = any(resolve(order) is resolve(x.dims[0]) and resolve(by) is resolve(units) for order, by in book.orders)
    if not sorted_so or weight.shape[0] != units.size:
        return None
    book.same_term(weight.dims[0], units)
    result = book.like(call.shapes[0], [x, weight])
    book.meet(result, x, (0, None))
    book.meet(result, weight, (None, 2))
    book.same(x, 1, weight, 1)
    book.neutral(weight, dims=[0])
    # What is summed over meets one expert at a time.
    book.sees_terms(units, x.dims[1])
    book.relations.append(Multiplied(result, (Power(x, (0, None)), Power(weight, (None, 2))), ((1, 1),)))
    return result


def _inverse(book: Book, call: Call, known: Tensor | None) -> Value | None:
    """0, 1, 2, … put at the places of an order: the inverse order."""
    indices = call.args[1]
    index = indices[0] if len(indices) == 1 else None
    if not isinstance(index, Value) or index.about is None or index.about.role != "order" or known is None:
        return None
    if index.ndim != 1 or call.shapes[0] != index.shape or call.argument("accumulate", False):
        return None
    if not torch.equal(known.cpu(), torch.arange(index.shape[0], dtype=known.dtype)):
        return None
    return _numbers(book, index, index.about.term, About("order", index.dims[0]))
