"""The independent check: a model run eagerly in float64, as its user runs it, before and after an element acts."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from coset.symmetry import Symmetry


def doubled(model: nn.Module) -> nn.Module:
    """A copy in double precision, complex numbers included; tensors under several names stay one."""
    twin = copy.deepcopy(model).eval()
    known: dict[int, Tensor] = {}
    for module in twin.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is None or not (tensor.is_floating_point() or tensor.is_complex()):
                    continue
                if id(tensor) not in known:
                    wide = tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)
                    known[id(tensor)] = nn.Parameter(wide) if isinstance(tensor, nn.Parameter) else wide
                table[name] = known[id(tensor)]
    return twin


def wide(inputs: Any) -> Any:
    """Floating tensors of inputs in float64."""
    return tree_map(lambda x: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x, inputs)


def outputs(
    model: nn.Module, params: Mapping[str, Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Tensor]:
    """All tensors that the model returns, run with other weights; what it writes to, buffers and inputs, are copies."""
    given = {name: tensor.clone() for name, tensor in params.items()}
    args, kwargs = tree_map(
        lambda item: item.clone() if isinstance(item, Tensor) else item, (tuple(args), dict(kwargs))
    )
    with torch.no_grad():
        # Names of one tensor get a value each where all names are given.
        tie = not model.state_dict().keys() <= given.keys()
        result = torch.func.functional_call(model, given, args, kwargs, tie_weights=tie)
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]


def change(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """The largest change of an output over the size of the largest entry of its tensor."""
    worst = 0.0
    for one, two in zip(before, after, strict=True):
        if one.shape != two.shape or one.dtype != two.dtype:
            return float("inf")
        if not one.numel():
            continue
        if not (one.is_floating_point() or one.is_complex()):
            worst = max(worst, 0.0 if torch.equal(one, two) else float("inf"))
            continue
        finite = torch.isfinite(one)
        if not torch.equal(finite, torch.isfinite(two)):
            return float("inf")
        if bool(finite.any()):
            size = float(one[finite].abs().max())
            worst = max(worst, float((one - two)[finite].abs().max()) / (size or 1.0))
    return worst


def moved(sym: Symmetry, params: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    """The weights moved by a random element."""
    return sym.act(sym.random(generator), dict(params))


@contextmanager
def holding(model: nn.Module, params: Mapping[str, Tensor]) -> Iterator[bool]:
    """The model itself with other weights, as ``load_state_dict`` writes them; gives whether it holds all of them.

    Weights that share storage cannot hold two values: a symmetry that moves them apart is none. All is put back.
    """
    state = model.state_dict()
    before = {name: tensor.clone() for name, tensor in state.items()}
    model.load_state_dict(dict(params))
    try:
        # To rounding: a tensor and its transpose are multiplied by the same factors in another order.
        yield all(change([params[name]], [tensor]) < 1e-12 for name, tensor in state.items())
    finally:
        model.load_state_dict(before)
