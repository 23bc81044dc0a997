"""What a module has computed when one of its layers has spoken, and what of that is still needed afterwards."""

from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from coset.errors import InputError
from coset.running import replacing, replacing_all
from coset.train.metrics import evaluation_mode


@dataclass(frozen=True)
class Crossing:
    """What crosses a cut behind a layer, beside its output.

    ``kept``: the layers whose outputs are needed above; ``skipped``: those below the cut that are not, with the shape
    of their outputs for one example; ``weights``: the parameters and buffers that are read below the cut by what is
    in neither. ``norms``: the batch normalisations called above.
    """

    kept: tuple[str, ...]
    skipped: Mapping[str, torch.Size]
    weights: tuple[str, ...]
    norms: tuple[nn.Module, ...]


def crossing(model: nn.Module, layer: str, inputs: Tensor) -> Crossing:
    """What crosses the cut of ``model`` behind ``layer``, found from one pass of ``inputs`` (N, …) and its derivatives.

    A value computed below the cut is needed above if the outputs depend on it other than through the layer's output.
    Layers called once that return a tensor of N rows are values; all else below the cut is run again.
    """
    calls = _watch(model, layer, inputs)
    values = {name: shape for name, shape in calls.below.items() if calls.counts[name] == 1}
    leaves: dict[str, Tensor] = {}

    def leaf(name: str) -> Any:
        def separate(output: Tensor) -> Tensor:
            leaves[name] = output.detach().clone().requires_grad_()
            return leaves[name]

        return separate

    with torch.enable_grad():
        weights = _differentiable(model)
        with borrowing(model, weights) as give_back:

            def speak(output: Tensor) -> Tensor:
                give_back()
                return output.detach()

            with replacing_all(model, {**{name: leaf(name) for name in values if name != layer}, layer: speak}):
                outputs = model(inputs)
        _check_outputs(outputs, inputs)
        needed = _reached(outputs, {**weights, **leaves})
    kept = tuple(name for name in leaves if name in needed)
    skipped = {name: shape for name, shape in values.items() if name not in kept and not _is_inside(name, values)}
    norms = (module for name, module in model.named_modules() if name in calls.above)
    needed |= _statistics(model, calls.finished - values.keys())
    return Crossing(
        kept,
        skipped,
        tuple(name for name in model.state_dict() if name in needed),
        tuple(module for module in norms if isinstance(module, _BatchNorm)),
    )


@dataclass(frozen=True)
class Below:
    """The part of a module at and below a layer: names of its parameters, and of the modules that have run by then."""

    parameters: tuple[str, ...]
    modules: tuple[str, ...]


def part_below(model: nn.Module, layer: str, inputs: Tensor) -> Below:
    """What of ``model`` has run when ``layer`` has spoken, on ``inputs`` (N, …).

    Parameters are those of modules that have finished by then, and others that the layer's output depends on.
    """
    with evaluation_mode(model), torch.enable_grad():
        calls = _watch(model, layer, inputs)
        weights = {name: t.detach().clone().requires_grad_() for name, t in model.named_parameters()}
        seen: list[Tensor] = []

        def keep(output: Tensor) -> Tensor:
            seen.append(output)
            return output

        with borrowing(model, weights), replacing(model, layer, keep):
            model(inputs)
        reached = _reached(seen[0], weights)
    owned = {id(t) for name in calls.finished for t in model.get_submodule(name).parameters(recurse=False)}
    names = tuple(name for name, t in model.named_parameters() if name in reached or id(t) in owned)
    return Below(names, tuple(name for name, _ in model.named_modules() if name in calls.finished))


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


@dataclass
class _Calls:
    """How often each module is called; which have finished when the layer has spoken; which are called afterwards.

    ``below``: of the finished ones those that return a tensor of N rows and write to none of their inputs, with the
    shape of a row.
    """

    counts: dict[str, int] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    below: dict[str, torch.Size] = field(default_factory=dict)
    above: set[str] = field(default_factory=set)
    open: list[list[tuple[Tensor, int]]] = field(default_factory=list)
    spoken: bool = False


def _watch(model: nn.Module, layer: str, inputs: Tensor) -> _Calls:
    """Run ``model`` once and note its calls."""
    calls = _Calls()

    def begin(_module: nn.Module, args: Any, kwargs: Any) -> None:
        tensors = [part for part in (*args, *kwargs.values()) if isinstance(part, Tensor)]
        calls.open.append([(tensor, tensor._version) for tensor in tensors])

    def end(name: str) -> Any:
        def note(_module: nn.Module, _args: Any, output: Any) -> None:
            untouched = all(tensor._version == version for tensor, version in calls.open.pop())
            calls.counts[name] = calls.counts.get(name, 0) + 1
            if calls.spoken:
                calls.above.add(name)
                return
            calls.finished.add(name)
            rows = isinstance(output, Tensor) and output.is_floating_point() and output.shape[:1] == inputs.shape[:1]
            if untouched and rows:
                calls.below[name] = output.shape[1:]

        return note

    def speak(output: Tensor) -> Tensor:
        calls.spoken = True
        return output

    with torch.no_grad(), ExitStack() as stack:
        for name, module in model.named_modules():
            stack.callback(module.register_forward_pre_hook(begin, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(end(name)).remove)
        # Registered last: a module that is the layer has finished when it has spoken.
        stack.enter_context(replacing(model, layer, speak))
        model(inputs)
    return calls


def _reached(outputs: Tensor, leaves: Mapping[str, Tensor]) -> set[str]:
    """The names of the leaves on which ``outputs`` depend."""
    if not outputs.requires_grad or not leaves:
        return set()
    slopes = torch.autograd.grad(outputs.sum(), tuple(leaves.values()), allow_unused=True)
    return {name for name, slope in zip(leaves, slopes, strict=True) if slope is not None}


def _differentiable(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers as leaves, without statistics of batch normalisation, which have no derivatives."""
    statistics = _statistics(model, {name for name, _ in model.named_modules()})
    named = [*model.named_parameters(), *((name, t) for name, t in model.named_buffers() if name not in statistics)]
    return {name: t.detach().clone().requires_grad_() for name, t in named if t.is_floating_point()}


def _statistics(model: nn.Module, modules: Set[str]) -> set[str]:
    """The names of the buffers of those of ``modules`` that are batch normalisations."""
    norms = {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
    return {
        f"{name}.{key}" if name else key
        for name, norm in norms.items()
        if name in modules
        for key, _ in norm.named_buffers(recurse=False)
    }


def _is_inside(name: str, others: Mapping[str, torch.Size]) -> bool:
    """Whether a module that contains ``name`` is among the others, and so never calls it."""
    parts = name.split(".")
    return any(".".join(parts[:length]) in others for length in range(1, len(parts)))


def _check_outputs(outputs: Any, inputs: Tensor) -> None:
    if not isinstance(outputs, Tensor) or outputs.ndim == 0 or len(outputs) != len(inputs):
        found = f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
        raise InputError(f"the outputs of the model are of {found}; expected one tensor of {len(inputs)} rows")
