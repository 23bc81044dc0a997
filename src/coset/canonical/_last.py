"""The scale of the logits: the last layer of a classifier at the norm √C (thesis, section 4.4)."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from coset.errors import InputError
from coset.symmetry import Symmetry


def last_layer(sym: Symmetry, classifier: bool | str, params: Mapping[str, Tensor]) -> tuple[str, ...]:
    """The names of the weight and the bias of the last layer: of the layer ``classifier``, or of the one that the
    network ends in, as ``sym.graph`` knows it.
    """
    if isinstance(classifier, str):
        layer = classifier
    else:
        if len(sym.graph.ends) != 1:
            found = ", ".join(repr(name) for name in sym.graph.ends) or "none that is known"
            raise InputError(f"the network ends in {found}; expected one layer: name it, classifier='…'")
        layer = sym.graph.ends[0]
    own = [name for name in params if name.rpartition(".")[0] == layer and name in sym.parameters]
    weights = [name for name in own if len(sym.parameters[name].shape) >= 2]
    if len(weights) != 1 or any(len(sym.parameters[name].shape) > 1 for name in own if name != weights[0]):
        raise InputError(
            f"classifier={layer!r} names a layer with the parameters {', '.join(own) or 'none'}; expected one with a "
            f"weight of two axes or more, and perhaps a bias"
        )
    for name in own:
        tied = [other for other, item in sym.parameters.items() if item.tied == name] + [sym.parameters[name].tied]
        if tied[0] is not None:
            raise InputError(f"'{name}' is tied to '{tied[0]}', so that it cannot be scaled alone")
    return (weights[0], *(name for name in own if name != weights[0]))


def logit_factors(names: tuple[str, ...], stack: Mapping[str, Tensor]) -> Tensor:
    """√C/‖W‖ of every network, (N,), C the length of the bias or else of the first axis; of weights that are 0, one."""
    weight = stack[names[0]]
    classes = stack[names[-1]].shape[1]
    norms = torch.linalg.vector_norm(weight.detach().double().flatten(1), dim=1).cpu()
    factors = math.sqrt(classes) / norms
    return torch.where(norms > 0, factors, torch.ones_like(factors))


def multiplied(names: tuple[str, ...], factors: Tensor, stack: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The stack with the last layer multiplied by a factor for each network."""
    result = dict(stack)
    for name in names:
        tensor = result[name]
        result[name] = tensor * factors.to(tensor).reshape(-1, *[1] * (tensor.ndim - 1))
    return result
