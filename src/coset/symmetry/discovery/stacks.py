"""Tensors that are split only to be taken apart: ``view(…, 3, heads, dim)`` followed by ``unbind``.

As one tensor its slices would share their units. Here it is a stack of tensors from the start, each with units of its
own: queries, keys and values of a fused projection.
"""

import math
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from coset.symmetry.discovery.calls import Call
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


def _name(node: Node) -> str:
    schema = getattr(node.target, "_schema", None)
    return str(schema.name).partition("::")[2] if schema is not None else ""


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(int(n) for n in node.meta["val"].shape)


def stack_dimension(node: Node) -> int | None:
    """The dimension of a reshaped tensor along which all its users take single positions, if there is one."""
    shape = _shape(node)
    return next((dim for dim, n in enumerate(shape) if 1 < n <= 16 and _taken_apart(node, dim)), None)


def _taken_apart(node: Node, dim: int) -> bool:
    for user in node.users:
        name = _name(user)
        if name in ("select", "unbind"):
            at = user.args[1] if len(user.args) > 1 else user.kwargs.get("dim", 0)
            if not isinstance(at, int) or at % len(_shape(node)) != dim:
                return False
        elif name in _COPIES:
            if not _taken_apart(user, dim):
                return False
        elif name in _TURNS or name in ("unsqueeze", "squeeze"):
            moved = _moved_to(name, tuple(user.args), _shape(node), dim)
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


def split_into_stack(book: Book, x: Value, shape: tuple[int, ...], dim: int) -> Stack | None:
    """Reshape ``x`` to ``shape`` as a stack along ``dim``; None where the slices are not segments of one dimension."""
    group = next((right for _, right in regroupings(x.shape, shape) if dim in right), ())
    behind = [j for j in group if j > dim]
    inner = math.prod(shape[j] for j in behind)
    if inner == 1:
        return None
    end = max(group) + 1
    apart = book.like([*shape[:dim], shape[dim] * inner, *shape[end:]], [x])
    book.regroup(x, apart)
    segments = [book.like([*shape[:dim], inner, *shape[end:]], [x]) for _ in range(shape[dim])]
    book.join(apart, segments, dim)
    parts = []
    for segment in segments:
        part = book.like([*shape[:dim], *shape[dim + 1 :]], [x])
        book.regroup(segment, part)
        parts.append(part)
    return Stack(parts, dim)


def stays_stacked(call: Call, stack: Stack) -> bool:
    """Whether an operation is one that ``on_stack`` carries out."""
    if call.name in ("select", "unbind"):
        return bool(call.argument("dim", 0) % stack.ndim == stack.dim)
    if call.name in _TURNS or call.name in ("unsqueeze", "squeeze"):
        return _moved_to(call.name, call.args, stack.shape, stack.dim) is not None
    return call.name in _COPIES


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
