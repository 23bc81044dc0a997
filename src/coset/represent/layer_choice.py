"""Which layers are compared unless someone says: those whose outputs are handed to weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn.utils.parametrize import is_parametrized

from coset.errors import InputError
from coset.represent._layer_group import layer_groups
from coset.represent.unit_groups import UnitGroup
from coset.running import layer_names, outputs_with
from coset.symmetry import Symmetry
from coset.train.metrics import evaluation_mode

# So many examples tell which layer reads which.
_PROBED = 4
_PARAMETRIZATIONS = "parametrizations"
"""As torch calls the child that makes a module's weights from others."""


def called_layers(model: nn.Module, inputs: Tensor) -> tuple[str, ...]:
    """The innermost layers in the order in which a pass calls them, as names for ``features``: 'relu#1' where needed.

    The hooks are gone afterwards, whatever happens.
    """
    called: list[str] = []
    with torch.no_grad(), evaluation_mode(model), ExitStack() as hooks:
        for name, module in _innermost(model):
            hooks.callback(module.register_forward_hook(_noting(called, name)).remove)
        model(inputs)
    return _numbered(called)


def layers_before_weights(model: nn.Module, inputs: Tensor) -> tuple[str, ...]:
    """The innermost layers that hand their outputs to a layer with a matrix of weights, or to the model's outputs.

    No other layer lies between the two; sums, reshapes and other functions may. Which layer reads which is told by the
    graph of derivatives of one pass, not by the order of calls, in which the layers are given. For conv → batch norm →
    ReLU → conv → … → linear these are the ReLUs and the linear layer, whatever is called on another branch meanwhile.
    """
    called: list[str] = []
    spoken: dict[Node, int] = {}
    """The last step of each call of a layer, and the place of the call in ``called``."""
    handing: set[int] = set()

    def read(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        handing.update(_nearest((args, kwargs), spoken))

    def speak(name: str) -> Callable[..., None]:
        def note(_module: nn.Module, _args: Any, outputs: Any) -> None:
            # A layer that hands on what it is given has the last word on it.
            spoken.update((node, len(called)) for node in _last_steps(outputs))
            called.append(name)

        return note

    weights = {name: parameter.detach().requires_grad_() for name, parameter in model.named_parameters()}
    probe = inputs[:_PROBED].detach().clone()
    if probe.is_floating_point():
        probe.requires_grad_()
    with torch.enable_grad(), evaluation_mode(model), ExitStack() as hooks:
        for _, module in model.named_modules():
            if any(parameter.ndim > 1 for parameter in _own_parameters(module)):
                hooks.callback(module.register_forward_pre_hook(read, with_kwargs=True).remove)
        for name, module in _innermost(model):
            hooks.callback(module.register_forward_hook(speak(name)).remove)
        outputs = outputs_with(model, weights, probe)
        handing |= _nearest(outputs, spoken)
    if not called:
        raise InputError("the model calls no layers; expected a module made of modules")
    if not handing:
        raise InputError("no layer reaches weights or the outputs of the model by ways that have derivatives")
    names = _numbered(called)
    return tuple(names[place] for place in sorted(handing))


def _innermost(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Modules without modules inside; what makes a module's weights from others (weight norm) is not one of these."""
    return [
        (name, module)
        for name, module in model.named_modules()
        if name
        and _PARAMETRIZATIONS not in name.split(".")
        and {child for child, _ in module.named_children()} <= _made(module)
    ]


def _made(module: nn.Module) -> set[str]:
    """The name of the child that makes the module's weights, if there is one."""
    return {_PARAMETRIZATIONS} if is_parametrized(module) else set()


def _own_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters of the module itself, or from which its own are made."""
    yield from module.parameters(recurse=False)
    for name in _made(module):
        yield from module.get_submodule(name).parameters()


def _noting(called: list[str], name: str) -> Callable[..., None]:
    return lambda *_: called.append(name)


def _numbered(called: Sequence[str]) -> tuple[str, ...]:
    """Names of calls: with their number where a layer is called more than once."""
    return tuple(
        f"{name}#{called[:place].count(name)}" if called.count(name) > 1 else name for place, name in enumerate(called)
    )


def _last_steps(values: Any) -> Iterator[Node]:
    """The step of the graph of derivatives that made each tensor in ``values``, which may be nested."""
    if isinstance(values, Tensor):
        if values.grad_fn is not None:
            yield values.grad_fn
    elif isinstance(values, Mapping):
        for value in values.values():
            yield from _last_steps(value)
    elif isinstance(values, tuple | list):
        for value in values:
            yield from _last_steps(value)


def _nearest(values: Any, spoken: Mapping[Node, int]) -> set[int]:
    """The calls from which a way leads to ``values`` that passes no other."""
    found: set[int] = set()
    seen: set[Node] = set()
    open_ = list(_last_steps(values))
    while open_:
        node = open_.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in spoken:
            found.add(spoken[node])
        else:
            open_ += [before for before, _ in node.next_functions if before is not None]
    return found


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
