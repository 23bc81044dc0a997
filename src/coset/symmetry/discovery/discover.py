"""``discover``: trace, infer, verify."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from coset.errors import InputError
from coset.symmetry.discovery.assembly import assemble
from coset.symmetry.discovery.exporting import export
from coset.symmetry.discovery.tracing import trace
from coset.symmetry.discovery.verification import verify as verified
from coset.symmetry.symmetry import Symmetry


def discover(
    model: nn.Module, example_inputs: Any, *, kwargs: Mapping[str, Any] | None = None, verify: bool = True
) -> Symmetry:
    """The symmetry group of a model nobody has described: permutations, scales and signs with f(g·θ, x) = f(θ, x).

    The model is exported to a graph of ATen operations. Dimensions are unified through it (what remains unified and
    unpinned is a class of interchangeable units); scales and signs are solved as a linear system, as physical units
    are.

    ``example_inputs``: a tensor, or a tuple of positional arguments; ``kwargs``: keyword arguments. With ``verify`` the
    result is checked in float64 on random elements before it is returned: a group that fails is an error.

    The group is that of the function on inputs of these shapes: a recurrence unrolled over one step, or an image of one
    pixel, may have more symmetry than on longer or larger inputs.

    ``sym.pinned`` lists operations without a rule, through which nothing was assumed to pass.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}; expected an nn.Module")
    inputs = tuple(example_inputs) if isinstance(example_inputs, tuple | list) else (example_inputs,)
    _check_mode(model)
    state = model.state_dict(keep_vars=True)
    movable = {name: tensor for name, tensor in state.items() if isinstance(tensor, Tensor)}
    if verify and any(tensor.is_meta for tensor in movable.values()):
        raise InputError("the model is on the meta device and has no values: nothing can be verified; use verify=False")
    program = export(model, inputs, kwargs or {})
    tracing = trace(program, movable)
    sym = assemble(tracing, movable).annotated(pinned=tuple(dict.fromkeys(tracing.pinned)))
    if verify:
        leaves = torch.utils._pytree.tree_leaves((inputs, dict(kwargs or {})))
        if not verified(sym, program, movable, leaves):
            unseen = "the outputs on the example inputs do not notice the weights: verification proves nothing here"
            return sym.annotated(notes=(*sym.notes, unseen))
    return sym


def _check_mode(model: nn.Module) -> None:
    """Dropout and batch statistics make a function random or dependent on its batch: they have to be off."""
    for path, module in model.named_modules():
        if not module.training:
            continue
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            raise InputError(f"'{path}' drops out at random: the model is in training mode; call model.eval() first")
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
            raise InputError(
                f"'{path}' uses the statistics of the batch: the model is in training mode; call model.eval() first"
            )
