"""Weights of a module put in place of others while it runs, and taken back in the middle of a pass if need be."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def borrowing(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[Callable[[], None]]:
    """While it is open, ``model`` computes with ``weights`` (name → tensor) in place of its own of those names.

    Gives a function that puts its own weights back; it may be called at any moment, by a hook in the middle of a pass
    for instance, and is called at the end. A tensor with several names is replaced under all of them.
    """
    places: list[tuple[dict[str, Any], str, Tensor]] = []
    replaced: list[tuple[dict[str, Any], str, Tensor]] = []
    named = _named(model) if weights else ()
    own = {id(tensor): weights[name] for name, tensor in named if name in weights}
    for module in model.modules() if own else ():
        stores: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for store in stores:
            for key, tensor in store.items():
                if tensor is not None and id(tensor) in own:
                    places.append((store, key, tensor))
                    replaced.append((store, key, own[id(tensor)]))

    def give_back() -> None:
        for store, key, tensor in places:
            store[key] = tensor

    try:
        for store, key, tensor in replaced:
            store[key] = tensor
        yield give_back
    finally:
        give_back()


def _named(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()
