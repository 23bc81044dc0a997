"""Numbers read off tensors, and indices and masks whose values are known."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from coset.symmetry.discovery.calls import Call, tensors_in
from coset.symmetry.discovery.constants import Constants
from coset.symmetry.discovery.relations import Book, Value
from coset.symmetry.discovery.rules import RULES
from coset.symmetry.discovery.terms import fresh

# What a number that depends on data is called in the graph.
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def number_of(book: Book, node: Node, args: tuple[Any, ...]) -> Any:
    """A number read off a tensor is a tensor without dimensions; a function of such numbers lets nothing through."""
    values = tensors_in(args)
    name = getattr(node.target, "__name__", str(node.target)).partition(".")[0]
    if not values or not isinstance(node.meta.get("val"), _SYMBOLS) or name.startswith("sym_"):
        return node.meta.get("val")  # a size is no function of what a tensor holds
    if name in ("item", "_local_scalar_dense") and isinstance(node.meta["val"], torch.SymFloat):
        return _entry(book, values[0])
    for value in values:
        book.limit(value, reason="a number is computed from it")
        book.neutral(value)
    made = book.like((), values)
    book.neutral(made)
    return made


def _entry(book: Book, value: Value) -> Value:
    """The only entry of a tensor."""
    made = book.like((), [value])
    book.regroup(value, made)
    return made


def has_number(call: Call) -> bool:
    """Whether a number that depends on data stands where the operation's schema has no tensor."""
    schema = getattr(call.target, "_schema", None)
    given = [] if schema is None else list(zip(schema.arguments, call.args, strict=False))
    given += (
        []
        if schema is None
        else [(item, call.kwargs[item.name]) for item in schema.arguments if item.name in call.kwargs]
    )
    return any("Tensor" not in str(item.type) and tensors_in(value) for item, value in given)


def unmasked(book: Book, constants: Constants, node: Node, indices: Sequence[Value | None]) -> list[Value | None]:
    """Indices with every known mask replaced by the positions that it picks."""
    found: list[Value | None] = []
    given: Any = node.args[1]
    for argument, value in zip(given, indices, strict=True):
        places = constants.places(argument) if isinstance(argument, Node) else None
        if places is None:
            found.append(value)
            continue
        for place in places:
            shape = tuple(place.shape)
            found.append(book.value(shape, [fresh(n, "a constant", True) for n in shape], inert=True))
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
