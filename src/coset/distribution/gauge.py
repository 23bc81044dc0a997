"""Remove the scales: the representative of an orbit in which incoming weights have unit norm (thesis, section 4.4)."""

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from coset._magnitudes import magnitude
from coset.distribution.contract import Distribution
from coset.distribution.ties import ties
from coset.errors import InputError
from coset.geometry.scales import incoming_weights, removed_norms
from coset.symmetry.element import Element
from coset.symmetry.stacks import Stack, move_stack
from coset.symmetry.symmetry import Symmetry

_T = TypeVar("_T", bound=Mapping[str, Tensor] | Distribution)


def normalize_scales(sym: Symmetry, params: _T) -> tuple[_T, Element]:
    """The representative whose units have incoming weights of unit norm, and the element that undoes it.

    Family by family, from the input on: d = ‖incoming weights‖ per unit, θ → d⁻¹·θ. Incoming are the parameters that
    carry the scale with power +1 and have the most axes (weights before biases; the gain and offset of a norm where
    there is nothing else), as far as all other scales they carry are already removed: the first writers of a residual
    stream, not the blocks that read it. So the result does not depend on the scales of the input. Units whose incoming
    weights vanish are measured by the parameters with fewer axes, and units without any of these keep their scale.
    For a distribution the norms are those of its means. Norms are taken in float64, and as numbers: no derivative
    follows them.

    Returns (representative, g) with act(g, representative) = params. Where a batch norm's variance is so small that it
    is kept positive (see ``Symmetry.act``), what comes back has the same function but not the same gain and variance.
    """
    means: Mapping[str, Tensor] = params if isinstance(params, Mapping) else params.mean
    families = _counted_once(sym, means)
    for _, ranks in families:
        for name in (name for rank in ranks for name in rank):
            if means[name].ndim != len(sym.parameters[name].shape):
                raise InputError(f"'{name}' has leading sample axes; normalise one network at a time")
    norms = removed_norms(sym, families, _absolute({name: tensor[None] for name, tensor in means.items()}))
    scales = {key: norm[0] for key, norm in norms.items()}
    undo = sym.element(scales=scales)
    given: Any = params
    representative = sym.act(sym.inverse(undo), given)
    for name, tensor in (representative if isinstance(representative, Mapping) else representative.mean).items():
        if not tensor.is_floating_point():
            continue
        if not bool(torch.isfinite(tensor).all()):
            raise InputError(f"'{name}' overflows {tensor.dtype} without its scales; pass parameters in float64")
        if _vanishes(means[name], tensor):
            raise InputError(f"'{name}' underflows {tensor.dtype} without its scales; pass parameters in float64")
    return representative, undo


def normalize_stack(sym: Symmetry, stack: Stack) -> tuple[dict[str, Tensor], Tensor]:
    """``normalize_scales`` of N networks with a leading axis, and of which of them the result is not to be used, (N,).

    These over- or underflow without their scales; ``normalize_scales`` of one says where.
    """
    norms = removed_norms(sym, _counted_once(sym, stack), _absolute(stack))
    inverse = {key: 1 / norm for key, norm in norms.items()}
    known = {name: tensor for name, tensor in stack.items() if name not in sym.unsaved}
    found = {**stack, **(move_stack(sym, Element(scales=inverse), known) if inverse else known)}
    bad = torch.zeros(len(next(iter(stack.values()))), dtype=torch.bool)
    for name, tensor in found.items():
        if tensor.is_floating_point() and tensor.numel():
            before, after = (part.detach().abs().reshape(len(part), -1).amax(1).cpu() for part in (stack[name], tensor))
            tiny = torch.finfo(tensor.dtype).tiny
            bad |= ~torch.isfinite(after) | ((before >= tiny) & (after < tiny))
    return found, bad


def _counted_once(sym: Symmetry, params: Mapping[str, Tensor]) -> list[tuple[str, list[list[str]]]]:
    """``incoming_weights``, tied ones once, all of them among the parameters."""
    single = set(ties(params).values())
    found = []
    for key, ranks in incoming_weights(sym):
        for name in (name for rank in ranks for name in rank):
            if name not in params:
                raise InputError(
                    f"'{name}' is needed to normalise the scales of '{key}' and is not among the parameters"
                )
        found.append((key, [[name for name in rank if name in single] for rank in ranks]))
    return found


def _absolute(stack: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Absolute values of complex weights, which have the same norms, and the same scales."""
    return {name: tensor.abs() if tensor.is_complex() else tensor for name, tensor in stack.items()}


def _vanishes(before: Tensor, after: Tensor) -> bool:
    """Whether a tensor has lost its digits: its largest entry is below the smallest that has all of them."""
    least, was = magnitude(after), magnitude(before)
    smallest = math.frexp(torch.finfo(after.dtype).tiny)[1]
    return was is not None and was >= smallest and (least is None or least < smallest)
