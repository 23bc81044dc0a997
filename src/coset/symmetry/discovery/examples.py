"""Example inputs in the forms in which people have them, and longer ones made of them."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from coset.errors import InputError


def called_with(example: Any, kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of the model's call.

    A tensor, a tuple or list of positional arguments, a mapping of keyword arguments, or None with keyword arguments.
    """
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise InputError(f"kwargs is a {type(kwargs).__name__}; expected a mapping of names to arguments")
    keywords = dict(kwargs or {})
    if isinstance(example, Mapping):
        named = {str(name): value for name, value in example.items()}
        if twice := sorted(named.keys() & keywords.keys()):
            raise InputError(f"'{twice[0]}' is given in example_inputs and in kwargs; expected once")
        return (), named | keywords
    if example is None and keywords:
        return (), keywords
    return tuple(example) if isinstance(example, tuple | list) else (example,), keywords


def longer_examples(
    inputs: tuple[Any, ...], keywords: Mapping[str, Any]
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Examples of other lengths: the same twice along the second dimension, along the last two, and a larger batch."""
    for dims in ((1,), (-1,), (-2, -1), (0,)):

        def grown(item: Any, dims: tuple[int, ...] = dims) -> Any:
            if not isinstance(item, Tensor) or item.ndim <= max(dims) or item.ndim < -min(dims) + (min(dims) < 0):
                return item
            for dim in dims:
                item = torch.cat([item, item], dim)
            return item

        yield tree_map(grown, (inputs, dict(keywords)))
