"""Tensors that are split only to be taken apart: ``view(…, 3, heads, dim)`` followed by ``unbind``.

As one tensor its slices would share their units. Here it is a stack of tensors from the start, each with units of its
own: queries, keys and values of a fused projection. Where slices are longer than one (several query heads, then one for
keys and one for values) it is a row of segments. Slices that are only joined again are the tensor itself.
"""

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from torch import Tensor
from torch.fx import Graph, Node
from torch.utils._pytree import tree_leaves

from coset.symmetry.discovery.calls import Call, is_pointwise
from coset.symmetry.discovery.elementwise import unary
from coset.symmetry.discovery.evaluation import name_of
from coset.symmetry.discovery.movement import order_of
from coset.symmetry.discovery.relations import Book, Value, regroupings
from coset.symmetry.discovery.rules import lifted, passed, rule, squeezed

SPLITS = frozenset({"view", "reshape", "unflatten", "_unsafe_view"})
_CUTS = frozenset({"split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk"})
_COPIES = frozenset({"contiguous", "clone", "alias", "detach", "_to_copy", "to"})
_TURNS = frozenset({"permute", "transpose", "movedim", "swapaxes", "swapdims"})


@dataclass
class Stack:
    """``parts`` along a dimension that was there only to be taken apart."""

    parts: list[Value]
    dim: int

    @property
    def shape(self) -> tuple[int, ...]:
        inner = self.parts[0].shape
        return (*inner[: self.dim], len(self.parts), *inner[self.dim :])

    @property
    def ndim(self) -> int:
        return len(self.shape)


def name_of_node(node: Node) -> str:
    """The name of the operation that a node calls, "" if it calls none."""
    return name_of(node.target).partition("::")[2]


def shape_of_node(node: Node) -> tuple[int, ...]:
    """The shape of the tensor that a node makes."""
    return tuple(int(n) for n in node.meta["val"].shape)


def stack_dimension(node: Node) -> int | None:
    """The dimension of a reshaped tensor along which all its users take single positions, if there is one."""
    shape = shape_of_node(node)
    return next((dim for dim, n in enumerate(shape) if 1 < n <= 16 and _taken_apart(node, dim)), None)


def _taken_apart(node: Node, dim: int) -> bool:
    for user in node.users:
        name = name_of_node(user)
        if name in ("select", "unbind"):
            at = user.args[1] if len(user.args) > 1 else user.kwargs.get("dim", 0)
            if not isinstance(at, int) or at % len(shape_of_node(node)) != dim:
                return False
        elif name in _COPIES:
            if not _taken_apart(user, dim):
                return False
        elif name in _TURNS or name in ("unsqueeze", "squeeze"):
            moved = _moved_to(name, tuple(user.args), shape_of_node(node), dim)
            if moved is None or not _taken_apart(user, moved):
                return False
        elif name in SPLITS:
            moved = _left_alone(shape_of_node(node), shape_of_node(user), dim)
            if moved is None or not _taken_apart(user, moved):
                return False
        else:
            return False
    return bool(node.users)


def _moved_to(name: str, args: tuple[Any, ...], shape: tuple[int, ...], dim: int) -> int | None:
    """Where a dimension is after an operation that only moves dimensions."""
    if name in _TURNS:
        return order_of(name, args, len(shape)).index(dim)
    at = args[1] if len(args) > 1 else None
    if not isinstance(at, int):
        return None
    if name == "unsqueeze":
        return dim + 1 if at % (len(shape) + 1) <= dim else dim
    at %= len(shape)
    return None if at == dim else dim - 1 if at < dim and shape[at] == 1 else dim


def _after_reshape(source: tuple[int, ...], target: tuple[int, ...], dim: int) -> tuple[int, str] | None:
    """The dimension into which a reshape puts another one, and how: "alone", "first" of those that are put there, so
    that its positions come one after the other, or "last", in turns. None where it goes into several or between others.
    """
    left, right = next(group for group in regroupings(source, target) if dim in group[0])
    here = [i for i in left if source[i] > 1]
    wide = [j for j in right if target[j] > 1]
    if len(wide) != 1 or dim not in (here[0], here[-1]):
        return None
    return wide[0], "alone" if len(here) == 1 else "first" if here[0] == dim else "last"


def _left_alone(source: tuple[int, ...], target: tuple[int, ...], dim: int) -> int | None:
    """Where a dimension is after a reshape that groups only others."""
    at = _after_reshape(source, target, dim)
    return at[0] if at is not None and at[1] == "alone" else None


def split_into_stack(book: Book, x: Value, shape: tuple[int, ...], dim: int) -> Stack | None:
    """Reshape ``x`` to ``shape`` as a stack along ``dim``; None where the slices are not segments of one dimension."""
    row = split_into_segments(book, x, shape, dim, [1] * shape[dim])
    if row is None:
        return None
    return Stack([book.reshaped(segment, [*shape[:dim], *shape[dim + 1 :]]) for segment in row.parts], dim)


@dataclass
class Segments:
    """``parts`` one after the other along a dimension that is only ever read in such parts."""

    parts: list[Value]
    dim: int


def split_into_segments(
    book: Book, x: Value, shape: tuple[int, ...], dim: int, sizes: Sequence[int]
) -> Segments | None:
    """Reshape ``x`` to ``shape`` as parts of these sizes along ``dim``; None where they cut no dimension of ``x``."""
    group = next((right for _, right in regroupings(x.shape, shape) if dim in right), ())
    inner = math.prod(shape[j] for j in group if j > dim)
    if inner == 1:
        return None
    end = max(group) + 1
    apart = book.reshaped(x, [*shape[:dim], shape[dim] * inner, *shape[end:]])
    rows = book.cut(apart, [size * inner for size in sizes], dim)
    parts = [book.reshaped(row, [*shape[:dim], n, *shape[dim + 1 :]]) for row, n in zip(rows, sizes, strict=True)]
    return Segments(parts, dim)


def span_of(user: Node, shape: tuple[int, ...], constants: Mapping[Node, Tensor]) -> tuple[int, int, int] | None:
    """(dimension, start, length) of what an operation picks from a tensor of this shape, if that is one segment."""
    name, args = name_of_node(user), user.args
    if name == "select":
        dim, index = int(str(args[1])) % len(shape), int(str(args[2]))
        return dim, index % shape[dim], 1
    if name == "slice" and len(args) < 5:
        dim, start = (int(str(item or 0)) for item in (*args[1:3], 0, 0)[:2])
        dim %= len(shape)
        return dim, max(0, start + shape[dim] if start < 0 else start), shape_of_node(user)[dim]
    if name == "index" and isinstance(args[1], list | tuple):
        used = [(dim, index) for dim, index in enumerate(args[1]) if isinstance(index, Node)]
        known = [constants[node] for _, index in used if (node := _behind_copies(index)) in constants]
        if len(used) == len(known) == 1 and known[0].shape == (1,):
            return used[0][0], int(known[0]) % shape[used[0][0]], 1
    return None


def _behind_copies(node: Node) -> Node:
    while name_of_node(node) in (*_COPIES, "lift_fresh_copy", "lift_fresh") and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def segment_sizes(node: Node, constants: Mapping[Node, Tensor]) -> tuple[int, list[int]] | None:
    """The dimension of a reshaped tensor of which all its users take segments, and the sizes of the finest ones."""
    shape = shape_of_node(node)
    spans = [span_of(user, shape, constants) for user in node.users]
    known = [span for span in spans if span is not None and span[2]]
    if not known or len(known) < len(spans) or len({dim for dim, _, _ in known}) > 1:
        return None
    dim = known[0][0]
    cuts = sorted({0, shape[dim], *(cut for _, start, length in known for cut in (start, start + length))})
    return (dim, [b - a for a, b in pairwise(cuts)]) if len(cuts) > 2 else None


def on_segments(book: Book, call: Call, row: Segments, start: int, length: int) -> Value:
    """The parts of a row that an operation picks."""
    starts = [sum(part.shape[row.dim] for part in row.parts[:number]) for number in range(len(row.parts))]
    picked = [part for part, at in zip(row.parts, starts, strict=True) if start <= at < start + length]
    result = picked[0] if len(picked) == 1 else book.joined(picked, row.dim)
    return squeezed(book, result, row.dim) if call.name == "select" else result


def stays_stacked(call: Call, stack: Stack) -> bool:
    """Whether an operation is one that ``on_stack`` carries out."""
    if call.name in ("select", "unbind"):
        return bool(call.argument("dim", 0) % stack.ndim == stack.dim)
    if call.name in _TURNS or call.name in ("unsqueeze", "squeeze"):
        return _moved_to(call.name, call.args, stack.shape, stack.dim) is not None
    if call.name in SPLITS or call.name == "flatten":
        return _after_reshape(stack.shape, call.shapes[0], stack.dim) is not None
    alone = not call.tensors() and sum(isinstance(item, Stack) for item in tree_leaves((call.args, call.kwargs))) == 1
    return call.name in _COPIES or (is_pointwise(call.target, call.name) and alone)


def say_interleaved(book: Book, call: Call, stack: Stack) -> None:
    """Where a reshape puts the parts between each other, say that they share units which could be their own."""
    if call.name not in SPLITS and call.name != "flatten":
        return
    left, _ = next(group for group in regroupings(stack.shape, call.shapes[0]) if stack.dim in group[0])
    before = [i for i in left if i < stack.dim and stack.shape[i] > 1]
    terms = [part.dims[i] for part in stack.parts for i in before]
    book.less(terms, "tensors that are stacked behind their units and squeezed share one permutation")


@rule("stack")
def stacked(book: Book, call: Call) -> Value:
    """A new dimension whose positions are told apart by their segment."""
    return as_tensor(book, Stack(call.args[0], call.argument("dim", 0) % len(call.shapes[0])))


def as_tensor(book: Book, stack: Stack) -> Value:
    """A stack as one tensor, whose slices share their units."""
    thin = [lifted(book, part, stack.dim) for part in stack.parts]
    if len(thin) == 1:
        return thin[0]
    result = book.joined(thin, stack.dim)
    book.pin(result, [stack.dim], "positions of a stack")
    return result


def on_stack(book: Book, call: Call, stack: Stack) -> Any:
    """Carry out one of the operations that ``stack_dimension`` looks through."""
    if call.name == "select":
        return stack.parts[call.args[2] % len(stack.parts)]
    if call.name == "unbind":
        return stack.parts
    if call.name in _COPIES:
        return stack
    if call.name in SPLITS or call.name == "flatten":
        return _reshaped(book, call.shapes[0], stack)
    if is_pointwise(call.target, call.name):
        return Stack([_on_part(book, call, stack, part) for part in stack.parts], stack.dim)
    moved = _moved_to(call.name, call.args, stack.shape, stack.dim)
    assert moved is not None
    shape = [n for j, n in enumerate(call.shapes[0]) if j != moved]
    if call.name not in _TURNS:
        return Stack([book.reshaped(part, shape) for part in stack.parts], moved)
    order = [j - (j > stack.dim) for j in order_of(call.name, call.args, stack.ndim) if j != stack.dim]
    return Stack([passed(book, part, book.like(shape, [part]), order) for part in stack.parts], moved)


def _reshaped(book: Book, shape: tuple[int, ...], stack: Stack) -> Stack | Value:
    """Each part in its new shape, as a stack; or all parts one after the other, or in turns, as the shape says."""
    found = _after_reshape(stack.shape, shape, stack.dim)
    assert found is not None
    at, way = found
    size = [] if way == "alone" else [shape[at] // len(stack.parts)]
    parts = [book.reshaped(part, [*shape[:at], *size, *shape[at + 1 :]]) for part in stack.parts]
    return Stack(parts, at) if way == "alone" else book.joined(parts, at, woven=way == "last")


def _on_part(book: Book, call: Call, stack: Stack, part: Value) -> Value:
    """An elementwise function of one part."""
    args = tuple(part if argument is stack else argument for argument in call.args)
    result: Value = unary(book, replace(call, args=args, shapes=[part.shape]))
    return result


def rejoined(graph: Graph) -> dict[Node, Node]:
    """For every concatenation of all parts of one tensor, in order, that tensor; and for the parts themselves, too.

    Only where nobody else reads the parts.
    """
    found: dict[Node, Node] = {}
    for node in graph.nodes:
        if name_of_node(node) in ("cat", "concat", "concatenate") and isinstance(node.args[0], list | tuple):
            parts = [part for part in node.args[0] if isinstance(part, Node)]
            dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
            source = _source(parts, int(str(dim)) % len(shape_of_node(node))) if len(parts) > 1 else None
            if source is not None and shape_of_node(source) == shape_of_node(node):
                found |= dict.fromkeys((node, *parts, *(_cutter(part) for part in parts)), source)
    return found


def _cutter(part: Node) -> Node:
    """The operation that cuts a part off: the part itself, or what it is an item of."""
    first = part.args[0] if part.args else None
    return first if part.target is operator.getitem and isinstance(first, Node) else part


def _source(parts: list[Node], dim: int) -> Node | None:
    """The tensor of which these are all parts along a dimension, in order, each read once."""
    if any(len(part.users) != 1 for part in parts):
        return None
    cutters = {_cutter(part) for part in parts}
    sources = {cutter.args[0] if cutter.args else None for cutter in cutters}
    source = sources.pop() if len(sources) == 1 else None
    if not isinstance(source, Node):
        return None
    if all(part.target is operator.getitem for part in parts):
        if len(cutters) > 1:
            return None
        cutter = cutters.pop()
        along = cutter.args[2] if len(cutter.args) > 2 else cutter.kwargs.get("dim", 0)
        numbers = [part.args[1] for part in parts]
        whole = name_of_node(cutter) in _CUTS and int(str(along)) % len(shape_of_node(source)) == dim
        return source if whole and numbers == list(range(len(cutter.users))) else None
    at = 0
    for part in parts:
        span = span_of(part, shape_of_node(source), {}) if name_of_node(part) == "slice" else None
        if span is None or span[0] != dim or span[1] != at:
            return None
        at += span[2]
    return source if at == shape_of_node(source)[dim] else None
