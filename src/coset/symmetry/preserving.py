"""Whether a symmetry from elsewhere, a file or a declaration, is one of a model: forward passes before and after."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from coset.errors import InputError
from coset.symmetry.discovery.evaluation import double
from coset.symmetry.discovery.examples import called_with
from coset.symmetry.discovery.exporting import first_line
from coset.symmetry.discovery.general_position import general_position
from coset.symmetry.discovery.verification import difference
from coset.symmetry.symmetry import Symmetry

_TOLERANCE = 1e-4
"""Models may compute in single precision inside, whatever their weights are."""


_PROVEN: "WeakKeyDictionary[nn.Module, set[str]]" = WeakKeyDictionary()
"""For every model the symmetries that it was run with, by their fingerprints and translations."""


def remember(sym: Symmetry, model: nn.Module) -> None:
    """Note that a symmetry was verified on this very model."""
    _PROVEN.setdefault(model, set()).add(_key(sym))


def is_proven(sym: Symmetry, model: nn.Module) -> bool:
    """Whether a symmetry was verified on this very model in this process."""
    return _key(sym) in _PROVEN.get(model, ())


def _key(sym: Symmetry) -> str:
    """A fingerprint says nothing of translations."""
    return f"{sym.fingerprint} {sym.translations!r}"


def check_model_of(sym: Symmetry, model: nn.Module) -> None:
    """Raise unless ``model`` has the parameters and buffers of ``sym``, of the same shapes."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}; expected the torch.nn.Module whose weights are aligned")
    own = model.state_dict()
    for name, parameter in sym.parameters.items():
        if name not in own:
            raise InputError(f"the symmetry knows '{name}', which model ({type(model).__name__}) has not")
        if tuple(own[name].shape) != parameter.shape:
            raise InputError(
                f"'{name}' of model ({type(model).__name__}) has shape {tuple(own[name].shape)}; the symmetry expects "
                f"{parameter.shape}"
            )
    if unknown := [name for name in own if name not in sym.parameters]:
        raise InputError(f"model ({type(model).__name__}) has '{unknown[0]}', which the symmetry does not know")


def check_preserves(
    sym: Symmetry,
    model: nn.Module,
    example_inputs: Any,
    *,
    kwargs: Mapping[str, Any] | None = None,
    elements: int = 2,
    seed: int = 0,
) -> None:
    """Raise unless random elements and translations leave the outputs of ``model`` alone: f(g·θ, x) = f(θ, x).

    The model is run as it is, eagerly, with weights of its shapes in general position, in float64 if it takes that and
    else in its own type. ``example_inputs``, ``kwargs``: as in ``discover``. What the example does not exercise is not
    seen here: a branch that it does not enter, units that are dead on it.
    """
    given = called_with(example_inputs, kwargs)
    _check_fits(sym, _tensors(model))
    generator = torch.Generator().manual_seed(seed)
    twin, (inputs, keywords), before, theta = _first_run(sym, model, given, generator)
    if not any(bool(torch.isfinite(item).any()) for item in before if item.is_floating_point() or item.is_complex()):
        raise InputError(
            f"{type(model).__name__} returns no finite number on the example, by which it could be checked"
        )
    for _ in range(elements):
        theta = sym.act(sym.random(generator), theta)
        change = difference(before, _outputs(twin, theta, inputs, keywords))
        if change > _TOLERANCE:
            raise InputError(
                f"it is no symmetry of {type(model).__name__}: a random element of it changes the outputs by "
                f"{100 * change:.2g} % of their size"
            )
    for item in sym.translations:
        # One by one, so that the message names the one that is wrong.
        values = sym.random_translation(theta, generator)[item.name]
        change = difference(before, _outputs(twin, sym.translate({item.name: values}, theta), inputs, keywords))
        if change > _TOLERANCE:
            raise InputError(
                f"it is no symmetry of {type(model).__name__}: its translation '{item.name}' changes the outputs by "
                f"{100 * change:.2g} % of their size"
            )
    remember(sym, model)


def _first_run(
    sym: Symmetry, model: nn.Module, given: tuple[tuple[Any, ...], dict[str, Any]], generator: torch.Generator
) -> tuple[nn.Module, tuple[tuple[Any, ...], dict[str, Any]], list[Tensor], dict[str, Tensor]]:
    """A copy of the model that runs on the example, the example in its type, its outputs, and its weights.

    In evaluation mode: dropout and statistics of batches are no functions of the weights.
    """
    for wide in (True, False):
        twin = copy.deepcopy(model).eval()
        if wide:
            for tensor in {id(item): item for item in _tensors(twin).values()}.values():
                tensor.data = double(tensor.data)
        example = tree_map(double, given) if wide else given
        own = _tensors(twin)
        moved = general_position({name: tensor.detach().clone() for name, tensor in own.items()}, sym, generator)
        theta = {name: tensor.to(own[name].dtype) for name, tensor in moved.items()}
        try:
            return twin, example, _outputs(twin, theta, *example), theta
        except Exception as error:
            # A type that is fixed inside of the model: then in its own, which bounds the changes less tightly.
            if not wide:
                kind = type(model).__name__
                raise InputError(f"{kind} cannot be called with these example inputs: {first_line(error)}") from error
    raise AssertionError


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: item for name, item in model.state_dict(keep_vars=True).items() if isinstance(item, Tensor)}


def _check_fits(sym: Symmetry, tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if name not in sym.parameters:
            raise InputError(f"it does not know '{name}' of the model, which is not of its architecture")
        if tuple(tensor.shape) != sym.parameters[name].shape:
            raise InputError(
                f"'{name}' has shape {tuple(tensor.shape)} in the model; it expects {sym.parameters[name].shape}"
            )


def _outputs(
    model: nn.Module, theta: Mapping[str, Tensor], inputs: Sequence[Any], keywords: Mapping[str, Any]
) -> list[Tensor]:
    """What the model returns with these weights, which are copied into it: what shares memory goes on to share it."""
    with torch.no_grad():
        for name, tensor in _tensors(model).items():
            tensor.copy_(theta[name])
        result = model(*inputs, **keywords)
    # Copies: an output may be one of the weights, which are written over for the next run.
    return [double(item).clone() for item in tree_leaves(result) if isinstance(item, Tensor)]
