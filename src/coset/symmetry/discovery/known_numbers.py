"""What a graph computes from constants alone: masks, indices, positions, sizes; and numbers read off tensors."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from coset.symmetry.discovery.calls import Call, tensors_in
from coset.symmetry.discovery.relations import Book, Value
from coset.symmetry.discovery.rules import RULES

# What a number that depends on data is called in the graph.
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)

_LARGEST = 1_000_000
"""Entries of a constant that is kept."""


@dataclass
class Constants:
    """``tensors``: the values of nodes that are known. ``sizes``: what symbols for sizes turned out to be."""

    tensors: dict[Node, Tensor] = field(default_factory=dict)
    sizes: dict[Any, int] = field(default_factory=dict)

    def learn(self, node: Node) -> None:
        """Compute a node from constants, if it depends on nothing else."""
        if not hasattr(node.target, "_schema") or any(other not in self.tensors for other in node.all_input_nodes):
            return
        if not isinstance(node.meta.get("val"), Tensor):
            return
        target: Any = node.target
        args, kwargs = map_arg((node.args, node.kwargs), self.tensors.__getitem__)
        with torch.no_grad():
            value = target(*args, **kwargs)
        if isinstance(value, Tensor) and value.numel() <= _LARGEST:
            self.tensors[node] = value

    def shape(self, node: Node, meta: Tensor) -> tuple[int, ...] | None:
        """The shape of what a node makes, or None where it depends on data."""
        if node not in self.tensors and any(self._size(n) is None for n in meta.shape):
            self._picked(node, meta)
        shape = [self._size(n) for n in meta.shape]
        return None if any(n is None for n in shape) else tuple(n for n in shape if n is not None)

    def places(self, index: Node) -> tuple[Tensor, ...] | None:
        """The positions that a boolean mask picks, one tensor for each of its dimensions; None for anything else."""
        mask = self.tensors.get(index)
        return mask.nonzero(as_tuple=True) if mask is not None and mask.dtype == torch.bool and mask.ndim else None

    def _size(self, n: Any) -> int | None:
        if isinstance(n, int):
            return n
        known = n.node.expr.xreplace(self.sizes)
        return int(known) if known.is_Integer else None

    def _picked(self, node: Node, meta: Tensor) -> None:
        """How many entries a known mask picks is how long the result is."""
        if "index" not in str(node.target) or len(node.args) < 2 or not isinstance(node.args[1], list | tuple):
            return
        found = [self.places(index) for index in node.args[1] if isinstance(index, Node)]
        counts = {len(places[0]) for places in found if places is not None}
        unknown: list[Any] = [n for n in meta.shape if self._size(n) is None]
        if len(counts) == 1 and len(unknown) == 1 and unknown[0].node.expr.is_Symbol:
            self.sizes[unknown[0].node.expr] = counts.pop()


def number_of(book: Book, node: Node, args: tuple[Any, ...]) -> Any:
    """A number read off a tensor is a tensor without dimensions; a function of such numbers lets nothing through."""
    values = tensors_in(args)
    name = getattr(node.target, "__name__", str(node.target)).partition(".")[0]
    if not values or not isinstance(node.meta.get("val"), _SYMBOLS) or name.startswith("sym_"):
        return node.meta.get("val")  # a size is no function of what a tensor holds
    if name in ("item", "_local_scalar_dense") and isinstance(node.meta["val"], torch.SymFloat):
        return book.reshaped(values[0], ())
    for value in values:
        book.hold(value, reason="a number is computed from it", known=False)
    made = book.like((), values)
    book.neutral(made)
    return made


def has_number(call: Call) -> bool:
    """Whether a number that depends on data stands where the operation's schema has no tensor."""
    schema = getattr(call.target, "_schema", None)
    others = [item.name for item in schema.arguments if "Tensor" not in str(item.type)] if schema is not None else []
    return any(tensors_in(call.argument(name)) for name in others)


def unmasked(book: Book, constants: Constants, node: Node, indices: Sequence[Value | None]) -> list[Value | None]:
    """Indices with every known mask replaced by the positions that it picks."""
    found: list[Value | None] = []
    given: Any = node.args[1]
    for argument, value in zip(given, indices, strict=True):
        places = constants.places(argument) if isinstance(argument, Node) else None
        if places is None:
            found.append(value)
            continue
        found += [book.constant(place.shape, "a constant") for place in places]
    return found


def masked_fill(book: Book, constants: Constants, node: Node, call: Call) -> Value | None:
    """x[mask] ← number, with a mask for every entry, is a fill of what is under the mask."""
    x, indices = call.args[:2]
    given: Any = node.args[1]
    number = constants.tensors.get(node.args[2]) if isinstance(node.args[2], Node) else None
    mask = given[0].meta.get("val") if len(given) == 1 and isinstance(given[0], Node) else None
    entire = mask is not None and mask.dtype == torch.bool and indices[0].shape == x.shape
    if not entire or number is None or number.numel() != 1 or call.argument("accumulate", False):
        return None
    filled: Value = RULES["masked_fill"](book, replace(call, args=(x, indices[0], number.item())))
    return filled
