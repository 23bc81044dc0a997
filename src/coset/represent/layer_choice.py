"""Which layers are compared unless someone says: those whose outputs are handed to weights."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from coset.errors import InputError
from coset.represent.layer_group import layer_groups
from coset.represent.layers import layer_names
from coset.represent.unit_groups import UnitGroup
from coset.symmetry import Symmetry
from coset.train.metrics import evaluation_mode


def called_layers(model: nn.Module, inputs: Tensor) -> tuple[str, ...]:
    """The innermost layers in the order in which a pass calls them, as names for ``features``: 'relu#1' where needed.

    The hooks are gone afterwards, whatever happens.
    """
    leaves = {name: module for name, module in model.named_modules() if name and not list(module.children())}
    called: list[str] = []

    def hook(name: str) -> Callable[..., None]:
        return lambda *_: called.append(name)

    handles = [module.register_forward_hook(hook(name)) for name, module in leaves.items()]
    try:
        with torch.no_grad(), evaluation_mode(model):
            model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return tuple(
        f"{name}#{called[:place].count(name)}" if called.count(name) > 1 else name for place, name in enumerate(called)
    )


def layers_before_weights(model: nn.Module, inputs: Tensor) -> tuple[str, ...]:
    """The layers that are called right before one with a matrix of weights, and the last: one a stage of the network.

    For conv → batch norm → ReLU → conv → … → linear these are the ReLUs and the linear layer.
    """
    called = called_layers(model, inputs)
    if not called:
        raise InputError("the model calls no layers; expected a module made of modules")
    weighted = [
        any(parameter.ndim > 1 for parameter in model.get_submodule(name.partition("#")[0]).parameters())
        for name in called
    ]
    return tuple(name for name, next_weighted in zip(called, [*weighted[1:], True], strict=True) if next_weighted)


def matching_layers(model: nn.Module, patterns: Sequence[str], inputs: Tensor) -> tuple[str, ...]:
    """The layers that ``patterns`` name: as in ``features``, or with * and ? for those that a pass calls."""
    chosen: list[str] = []
    called: tuple[str, ...] | None = None
    for pattern in patterns:
        if not any(sign in pattern for sign in "*?["):
            chosen.append(pattern)
            continue
        called = called_layers(model, inputs) if called is None else called
        found = [name for name in called if fnmatchcase(name, pattern)]
        if not found:
            raise InputError(
                f"no layer that is called matches '{pattern}'; there are {', '.join(called or layer_names(model))}"
            )
        chosen += found
    return tuple(dict.fromkeys(chosen))


def groups_of_comparable(
    sym: Symmetry, model: nn.Module, layers: Sequence[str], inputs: Tensor
) -> tuple[dict[str, UnitGroup], dict[str, str]]:
    """``layer_groups`` of the layers that have one, and of the others why not: name → group, name → complaint."""
    try:
        return layer_groups(sym, model, layers, inputs), {}
    except InputError:
        groups, refused = {}, {}
        for layer in layers:
            try:
                groups[layer] = layer_groups(sym, model, [layer], inputs)[layer]
            except InputError as error:
                refused[layer] = str(error)
        if not groups:
            raise
        return groups, refused
