"""A call of an operation in the exported graph, as the rules see it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from coset.errors import InputError
from coset.symmetry.discovery.relations import Value
from coset.symmetry.intertwiners._intertwiner import Intertwiner
from coset.symmetry.intertwiners.inferring import infer_intertwiner


@dataclass
class Call:
    """``name`` of the operation; ``args`` and ``kwargs`` with Values in place of tensors; ``shapes`` of its results.

    ``used``: the numbers of those results that are read. ``floating``: whether the first is a floating tensor.
    ``variances``: where batch norms enter (variance, gain, ε).
    """

    name: str
    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shapes: list[tuple[int, ...]]
    used: frozenset[int] = frozenset()
    floating: bool = True
    variances: list[tuple[Value, Value | None, float]] = field(default_factory=list)

    def tensors(self) -> list[Value]:
        """All tensors among the arguments, in order."""
        return tensors_in((*self.args, *self.kwargs.values()))

    def argument(self, name: str, default: Any = None) -> Any:
        """An argument by its name in the operation's schema."""
        position = _positions(self.target).get(name)
        if position is None:
            return default
        return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)

    def reduction(self, x: Value, default: Sequence[int] | None = None) -> tuple[list[int], list[int | None]]:
        """The dimensions a reduction goes over, and those of its result: None for ones that are kept with size 1."""
        dims = self.argument("dim")
        if dims is None or dims == []:
            dims = range(x.ndim) if default is None or dims == [] else default
        over = [dim % x.ndim for dim in ([dims] if isinstance(dims, int) else dims)]
        keep = bool(self.argument("keepdim", False))
        return over, [None if i in over else i for i in range(x.ndim) if keep or i not in over]

    def intertwiner(self) -> Intertwiner:
        """What passes through this operation as a function of its one tensor, decided from its values."""
        position = next((i for i, arg in enumerate(self.args) if isinstance(arg, Value)), None)
        if position is None:
            raise InputError("no tensor among the positional arguments")
        rest = tuple(None if i == position else _key(arg) for i, arg in enumerate(self.args))
        return _inferred(self.target, position, rest, tuple(sorted((k, _key(v)) for k, v in self.kwargs.items())))


@cache
def _positions(target: Callable[..., Any]) -> dict[str, int]:
    """The places of an operation's arguments by their names in its schema."""
    schema = getattr(target, "_schema", None)
    return {item.name: position for position, item in enumerate(schema.arguments if schema is not None else ())}


def tensors_in(argument: Any) -> list[Value]:
    """All Values in nested lists, tuples and dicts, in order."""
    if isinstance(argument, Value):
        return [argument]
    if isinstance(argument, dict):
        argument = list(argument.values())
    return [value for item in argument for value in tensors_in(item)] if isinstance(argument, list | tuple) else []


def _key(argument: Any) -> Any:
    if isinstance(argument, list):
        return tuple(argument)
    if isinstance(argument, float) and math.isnan(argument):
        raise InputError("NaN among the arguments")
    return argument


@cache
def _inferred(
    target: Callable[..., Any], position: int, rest: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]
) -> Intertwiner:
    def function(x: Tensor) -> Tensor:
        result: Tensor = target(*(x if i == position else value for i, value in enumerate(rest)), **dict(kwargs))
        return result

    try:
        return infer_intertwiner(function)
    except InputError as error:
        if "constant" in str(error):
            return Intertwiner("constant", "one")
        raise


def is_pointwise(target: Callable[..., Any], name: str) -> bool:
    """Whether an operation of this name acts entry by entry."""
    return torch.Tag.pointwise in getattr(target, "tags", ()) or name in _COMPOSED


# Elementwise operations that torch composes of others and therefore does not mark as such.
_COMPOSED = frozenset(
    {
        "selu",
        "floor_divide",
        "celu",
        "softsign",
        "tanhshrink",
        "hardswish",
        "relu6",
        "silu",
        "log_sigmoid",
        "square",
        "rrelu",
        "softshrink",
        "hardshrink",
        "logsigmoid",
    }
)
