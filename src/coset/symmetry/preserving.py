"""Whether a symmetry from elsewhere, a file or a declaration, is one of a model: forward passes before and after."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from coset.errors import InputError
from coset.symmetry.discovery.evaluation import double
from coset.symmetry.discovery.examples import called_with
from coset.symmetry.discovery.general_position import general_position
from coset.symmetry.discovery.verification import difference
from coset.symmetry.symmetry import Symmetry

_TOLERANCE = 1e-4
"""Models may compute in single precision inside, whatever their weights are."""


def check_preserves(
    sym: Symmetry,
    model: nn.Module,
    example_inputs: Any,
    *,
    kwargs: Mapping[str, Any] | None = None,
    elements: int = 2,
    seed: int = 0,
) -> Symmetry:
    """Raise unless random elements leave the outputs of ``model`` alone: f(g·θ, x) = f(θ, x); the symmetry, as proven.

    The model is run as it is, eagerly, in float64, with weights of its shapes in general position. ``example_inputs``,
    ``kwargs``: as in ``discover``. A symmetry that is proven already is returned as it is.
    """
    if sym.proven:
        return sym
    inputs, keywords = tree_map(double, called_with(example_inputs, kwargs))
    # In evaluation mode: dropout and statistics of batches are no functions of the weights.
    twin = copy.deepcopy(model).eval()
    for tensor in {id(item): item for item in _tensors(twin).values()}.values():
        tensor.data = double(tensor.data)
    _check_fits(sym, _tensors(twin))
    generator = torch.Generator().manual_seed(seed)
    theta = general_position({n: t.detach().clone() for n, t in _tensors(twin).items()}, sym, generator)
    before = _outputs(twin, theta, inputs, keywords)
    for _ in range(elements):
        theta = sym.act(sym.random(generator), theta)
        change = difference(before, _outputs(twin, theta, inputs, keywords))
        if change > _TOLERANCE:
            raise InputError(
                f"it is no symmetry of {type(model).__name__}: a random element of it changes the outputs by "
                f"{100 * change:.2g} % of their size"
            )
    return sym.annotated(proven=True)


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
    leaves = [item for item in tree_leaves(result) if isinstance(item, Tensor)]
    return [double(item) for item in leaves]
