"""Tensors that are split only to be taken apart: ``view(…, 3, heads, dim)`` followed by ``unbind``.

As one tensor its slices would share their units. Here it is a stack of tensors from the start, each with units of its
own: queries, keys and values of a fused projection. Where slices are longer than one (several query heads, then one for
keys and one for values) it is a row of segments.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from torch import Tensor
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from coset.symmetry.discovery.calls import Call, is_pointwise
from coset.symmetry.discovery.elementwise import unary
from coset.symmetry.discovery.movement import order_of
from coset.symmetry.discovery.relations import Book, Value, regroupings
from coset.symmetry.discovery.rules import passed

SPLITS = frozenset({"view", "reshape", "unflatten", "_unsafe_view"})
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
    schema = getattr(node.target, "_schema", None)
    return str(schema.name).partition("::")[2] if schema is not None else ""


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


def _left_alone(source: tuple[int, ...], target: tuple[int, ...], dim: int) -> int | None:
    """Where a dimension is after a reshape that groups only others."""
    left, right = next(group for group in regroupings(source, target) if dim in group[0])
    wide = [j for j in right if target[j] > 1]
    return wide[0] if [i for i in left if source[i] > 1] == [dim] and len(wide) == 1 else None


def split_into_stack(book: Book, x: Value, shape: tuple[int, ...], dim: int) -> Stack | None:
    """Reshape ``x`` to ``shape`` as a stack along ``dim``; None where the slices are not segments of one dimension."""
    row = split_into_segments(book, x, shape, dim, [1] * shape[dim])
    if row is None:
        return None
    parts = []
    for segment in row.parts:
        part = book.like([*shape[:dim], *shape[dim + 1 :]], [x])
        book.regroup(segment, part)
        parts.append(part)
    return Stack(parts, dim)


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
    apart = book.like([*shape[:dim], shape[dim] * inner, *shape[end:]], [x])
    book.regroup(x, apart)
    rows = [book.like([*shape[:dim], size * inner, *shape[end:]], [x]) for size in sizes]
    book.join(apart, rows, dim)
    parts = []
    for row, size in zip(rows, sizes, strict=True):
        part = book.like([*shape[:dim], size, *shape[dim + 1 :]], [x])
        book.regroup(row, part)
        parts.append(part)
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
    result = picked[0]
    if len(picked) > 1:
        result = book.like([*result.shape[: row.dim], length, *result.shape[row.dim + 1 :]], picked)
        book.join(result, picked, row.dim)
    if call.name != "select":
        return result
    kept = [j for j in range(result.ndim) if j != row.dim]
    return passed(book, result, book.like(call.shapes[0], [result]), kept)


def stays_stacked(call: Call, stack: Stack) -> bool:
    """Whether an operation is one that ``on_stack`` carries out."""
    if call.name in ("select", "unbind"):
        return bool(call.argument("dim", 0) % stack.ndim == stack.dim)
    if call.name in _TURNS or call.name in ("unsqueeze", "squeeze"):
        return _moved_to(call.name, call.args, stack.shape, stack.dim) is not None
    if call.name in SPLITS or call.name == "flatten":
        return any(
            at is not None
            for at in (
                _left_alone(stack.shape, call.shapes[0], stack.dim),
                _joined_at(stack, call.shapes[0]),
                _woven_at(stack, call.shapes[0]),
            )
        )
    alone = not call.tensors() and sum(isinstance(item, Stack) for item in tree_leaves((call.args, call.kwargs))) == 1
    return call.name in _COPIES or (is_pointwise(call.target, call.name) and alone)


def _joined_at(stack: Stack, shape: tuple[int, ...]) -> int | None:
    """The dimension into which a reshape puts the parts one after the other."""
    left, right = next(group for group in regroupings(stack.shape, shape) if stack.dim in group[0])
    wide = [j for j in right if shape[j] > 1]
    first = next(i for i in left if stack.shape[i] > 1)
    return wide[0] if first == stack.dim and len(wide) == 1 else None


def _woven_at(stack: Stack, shape: tuple[int, ...]) -> int | None:
    """The dimension into which a reshape puts the parts in turns: they were stacked behind their units."""
    left, right = next(group for group in regroupings(stack.shape, shape) if stack.dim in group[0])
    wide = [j for j in right if shape[j] > 1]
    last = [i for i in left if stack.shape[i] > 1][-1]
    return wide[0] if last == stack.dim and len(wide) == 1 else None


def say_interleaved(book: Book, call: Call, stack: Stack) -> None:
    """Where a reshape puts the parts between each other, say that they share units which could be their own."""
    if call.name not in SPLITS and call.name != "flatten":
        return
    left, _ = next(group for group in regroupings(stack.shape, call.shapes[0]) if stack.dim in group[0])
    before = [i for i in left if i < stack.dim and stack.shape[i] > 1]
    terms = [part.dims[i] for part in stack.parts for i in before]
    book.less(terms, "tensors that are stacked behind their units and flattened share one permutation")


def as_tensor(book: Book, stack: Stack) -> Value:
    """A stack as one tensor, whose slices share their units."""
    thin = []
    for part in stack.parts:
        lifted = book.like([*part.shape[: stack.dim], 1, *part.shape[stack.dim :]], [part])
        book.regroup(part, lifted)
        thin.append(lifted)
    if len(thin) == 1:
        return thin[0]
    result = book.like(stack.shape, thin)
    book.join(result, thin, stack.dim)
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
    parts = []
    for part in stack.parts:
        result = book.like(shape, [part])
        if call.name in _TURNS:
            order = [j for j in order_of(call.name, call.args, stack.ndim) if j != stack.dim]
            passed(book, part, result, [j - (j > stack.dim) for j in order])
        else:
            book.regroup(part, result)
        parts.append(result)
    return Stack(parts, moved)


def _reshaped(book: Book, shape: tuple[int, ...], stack: Stack) -> Stack | Value:
    """Each part in its new shape, as a stack; or all parts one after the other, or in turns, as the shape says."""
    moved = _left_alone(stack.shape, shape, stack.dim)
    joined, woven = _joined_at(stack, shape), _woven_at(stack, shape)
    at = next(at for at in (moved, joined, woven) if at is not None)
    size = [shape[at] // len(stack.parts)] if moved is None else []
    parts = []
    for part in stack.parts:
        result = book.like([*shape[:at], *size, *shape[at + 1 :]], [part])
        book.regroup(part, result)
        parts.append(result)
    if moved is not None:
        return Stack(parts, at)
    whole = book.like(shape, parts)
    book.join(whole, parts, at, woven=joined is None)
    return whole


def _on_part(book: Book, call: Call, stack: Stack, part: Value) -> Value:
    """An elementwise function of one part."""
    args = tuple(part if argument is stack else argument for argument in call.args)
    result: Value = unary(book, replace(call, args=args, shapes=[part.shape]))
    return result
