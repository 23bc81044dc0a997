"""Immutable values: mappings that do not change, what was computed of a value, and whether two tensors are one."""

import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import TypeVar

import torch
from torch import Tensor

K = TypeVar("K")
V = TypeVar("V")


class Frozen(Mapping[K, V]):
    """A mapping that cannot be changed, and can be copied and pickled."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[K, V]) -> None:
        self._items = dict(items)

    def __getitem__(self, key: K) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return repr(self._items)


def freeze(value: object, *names: str) -> None:
    """Make the mappings that a frozen dataclass has under these names its own; for ``__post_init__``."""
    for name in names:
        object.__setattr__(value, name, Frozen(getattr(value, name)))


def kept(function: Callable[[K], V]) -> Callable[[K], V]:
    """A function of an immutable value, which is called once for each such object as long as that lives."""
    # By what object it is: to compare two values may cost more than the function.
    found: dict[int, tuple[weakref.ref[K], V]] = {}

    @wraps(function)
    def once(value: K) -> V:
        number = id(value)
        if number not in found:
            result = function(value)
            found[number] = weakref.ref(value, lambda _: found.pop(number, None)), result
        return found[number][1]

    return once


def transformed_by_functorch(tensor: Tensor) -> bool:
    """Whether ``tensor`` stands for many (vmap) or carries derivatives (grad, jvp): its values are not its own."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def memory_of(tensor: Tensor) -> tuple[object, ...]:
    """What tells whether two tensors are one: their memory, or where there is none the object itself."""
    if transformed_by_functorch(tensor) or tensor.data_ptr() == 0:
        return ("object", id(tensor))
    return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad)


def ties(*parts: Mapping[str, Tensor]) -> dict[str, str]:
    """Name → the first name under which the same tensor stands, in every one of ``parts``."""
    # A mapping may make its tensors anew each time; those whose memory is compared are kept till the end.
    held = [dict(part) for part in parts]
    seen: dict[tuple[object, ...], str] = {}
    return {name: seen.setdefault(tuple(memory_of(part[name]) for part in held), name) for name in held[0]}
