"""A model run with given weights, itself unchanged."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from coset.errors import InputError
from coset.symmetry.action import memory_of


def owners(model: nn.Module) -> dict[str, str]:
    """For every parameter and buffer of ``model``, the first name under which the same tensor stands."""
    first: dict[int, str] = {}
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {name: first.setdefault(id(tensor), name) for name, tensor in named}


def bind(model: nn.Module, params: Mapping[str, Tensor]) -> Callable[[Tensor], Tensor]:
    """x ↦ f(x; θ): ``model`` with ``params`` in place of its own weights.

    Buffers are copied, so that a forward pass that writes to them changes neither the model nor ``params``; those that
    ``params`` leaves out (counters, constants that are not saved) are the model's. Of tied weights one is used, and
    they must be equal.
    """
    owner = owners(model)
    check_params(model, params)
    given = {owner[name]: tensor for name, tensor in params.items()}
    device = next(iter(given.values())).device
    buffers = dict(model.named_buffers())
    written = {name: given.get(name, own).detach().to(device, copy=True) for name, own in buffers.items()}
    weights = {**given, **written}

    def network(inputs: Tensor) -> Tensor:
        output: Tensor = functional_call(model, weights, (inputs,))
        return output

    return network


def check_params(model: nn.Module, params: Mapping[str, Tensor]) -> None:
    """Raise unless ``params`` are weights of ``model``: no other names, none missing, its shapes, ties kept."""
    owner = owners(model)
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    given: dict[str, str] = {}
    for name, tensor in params.items():
        if name not in owner:
            raise InputError(f"'{name}' is not a parameter of the model; expected names as in its state_dict()")
        expected = own[owner[name]].shape
        if tensor.shape != expected:
            raise InputError(f"'{name}' has shape {tuple(tensor.shape)}; the model expects {tuple(expected)}")
        tied = given.setdefault(owner[name], name)
        if tied != name and not _equal(params[tied], tensor):
            raise InputError(
                f"'{tied}' and '{name}' are one tensor in the model and differ here; expected equal values"
            )
    for name in model.state_dict():
        missing = name in owner and owner[name] not in given
        if missing and (own[owner[name]].is_floating_point() or own[owner[name]].is_complex()):
            raise InputError(f"'{name}' of the model is not among the parameters; expected all that it has")


def _equal(a: Tensor, b: Tensor) -> bool:
    return memory_of(a) == memory_of(b) or torch.equal(a, b)
