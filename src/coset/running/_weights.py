"""A model run with given weights, itself unchanged: names that are one tensor, buffers, types of inputs."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from coset._values import memory_of
from coset.errors import InputError

Network = Callable[[Tensor], Tensor]

T = TypeVar("T")


def owners(model: nn.Module) -> dict[str, str]:
    """For every parameter and buffer of ``model``, the first name under which the same tensor stands."""
    first: dict[int, str] = {}
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {name: first.setdefault(id(tensor), name) for name, tensor in named}


def check_model(model: object) -> None:
    """Raise unless ``model`` is a module."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}; expected a torch.nn.Module")


def under_owners(model: nn.Module, params: Mapping[str, T]) -> dict[str, T]:
    """``params`` of ``model``, each tensor once and under its first name; of several names for one, the first given."""
    owner = owners(model)
    return {owner.get(name, name): params[name] for name in reversed(list(params))}


def whole_weights(model: nn.Module, params: Mapping[str, Tensor], *, partial: bool = False) -> dict[str, Tensor]:
    """All that ``model`` holds, each tensor under its first name, with ``params`` in place of its own.

    Buffers that ``params`` leaves out (counters, constants that are not saved) are the model's, on the device of
    ``params``; if ``partial``, so are weights that it leaves out. Raises unless ``params`` are weights of this model:
    no other names, none missing, its shapes, and equal values under names that are one tensor in the model.
    """
    owner = owners(model)
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    given: dict[str, Tensor] = {}
    for name, tensor in params.items():
        if name not in owner:
            raise InputError(f"'{name}' is not a parameter of the model; expected names as in its state_dict()")
        expected = own[owner[name]].shape
        if tensor.shape != expected:
            raise InputError(f"'{name}' has shape {tuple(tensor.shape)}; the model expects {tuple(expected)}")
        if not _equal(given.setdefault(owner[name], tensor), tensor):
            raise InputError(
                f"'{name}' and '{owner[name]}' are one tensor in the model and differ here; expected equal values"
            )
    for name in () if partial else model.state_dict():
        if name in owner and owner[name] not in given and _is_real_or_complex(own[owner[name]]):
            raise InputError(f"'{name}' of the model is not among the parameters; expected all that it has")
    device = next(iter(params.values())).device
    return {name: given[name] if name in given else tensor.detach().to(device) for name, tensor in own.items()}


def copies_of(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all tensors of a model, each under its first name, which a pass may write to."""
    return {name: t.detach().clone() for name, t in (*model.named_parameters(), *model.named_buffers())}


def call_with(model: nn.Module, tensors: Mapping[str, Tensor], /, *args: Any, **keywords: Any) -> Any:
    """model(*args, **keywords) with these very tensors in place of its own, under their first names.

    What the pass writes to buffers it writes to them. Derivatives and ``vmap`` pass through everything.
    """
    return functional_call(model, dict(tensors), args, keywords)


def with_weights(model: nn.Module, weights: Mapping[str, Tensor], task: Callable[[Network], T]) -> T:
    """The result of ``task``, which is given x ↦ f(x; θ), θ the ``weights``, each under its first name.

    What ``weights`` leaves out is the model's own. Buffers are copied: a forward pass that writes to them changes
    neither the model nor the weights. Many batches in one task are faster than one each: weights are put in place once.
    """
    bound = {f"model.{name}": tensor for name, tensor in _bound(model, weights).items()}
    result: T = call_with(_Task(model), bound, task)
    return result


def outputs_with(model: nn.Module, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """f(x; θ): one pass of ``with_weights``, with less around it; derivatives and ``vmap`` pass through θ and x."""
    outputs: Tensor = call_with(model, _bound(model, weights), x)
    return outputs


def suited(inputs: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    """Inputs on the device of the weights and, if they are real numbers, of the type of the first real weight."""
    real = next((tensor for tensor in weights.values() if tensor.is_floating_point()), None)
    if real is not None and inputs.is_floating_point():
        return inputs.to(real.device, real.dtype)
    return inputs.to(next((tensor.device for tensor in weights.values()), inputs.device))


class _Task(nn.Module):
    """A module whose forward pass is a task for another: ``call_with`` holds the weights for the length of it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, task: Callable[[Network], T]) -> T:
        return task(self.model)


def _bound(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights, and copies of all buffers."""
    buffers = {name: weights.get(name, buffer).detach().clone() for name, buffer in model.named_buffers()}
    return {**weights, **buffers}


def _equal(a: Tensor, b: Tensor) -> bool:
    return memory_of(a) == memory_of(b) or torch.equal(a, b)


def _is_real_or_complex(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
