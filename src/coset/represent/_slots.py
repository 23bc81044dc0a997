"""Weights of a module put in place of others while it runs, and taken back in the middle of a pass if need be."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

from torch import Tensor, nn


@contextmanager
def borrowing(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[Callable[[], None]]:
    """While it is open, ``model`` computes with ``weights`` (name → tensor) in place of its own of those names.

    Gives a function that puts its own weights back; it may be called at any moment, by a hook in the middle of a pass
    for instance, and is called at the end. A tensor with several names is replaced under all of them.
    """
    named = chain(model.named_parameters(), model.named_buffers()) if weights else ()
    others = {id(tensor): weights[name] for name, tensor in named if name in weights}
    places: list[tuple[dict[str, Any], str, Tensor]] = [
        (store, key, tensor)
        for module in (model.modules() if others else ())
        for store in (module._parameters, module._buffers)
        for key, tensor in store.items()
        if tensor is not None and id(tensor) in others
    ]

    def give_back() -> None:
        for store, key, tensor in places:
            store[key] = tensor

    try:
        for store, key, tensor in places:
            store[key] = others[id(tensor)]
        yield give_back
    finally:
        give_back()
