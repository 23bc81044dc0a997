"""Gather and multiply along the dimensions of a tensor, in one sweep through memory where that is possible."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from coset._values import transformed_by_functorch

# A block of so many entries stays in the cache between its passes, and is too small for torch to start threads on.
_BLOCK = 32768


@dataclass(frozen=True)
class Pass:
    """new[i] = factor[i]·old[index[i]] along ``dims``, which are taken as one; None stands for nothing to do."""

    dims: tuple[int, ...]
    index: Tensor | None
    factor: Tensor | None


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is just its values: no derivative, backward or forward, and no transform follows it."""
    if transformed_by_functorch(tensor) or tensor.requires_grad:
        return False
    if not tensor.is_floating_point():
        return True
    tangent: Tensor | None = forward_ad.unpack_dual(tensor).tangent  # type: ignore[no-untyped-call]
    return tangent is None


def apply(tensor: Tensor, passes: Sequence[Pass]) -> Tensor:
    """All passes, one after the other. The result is a new tensor, differentiable in ``tensor`` and in the factors."""
    if tensor.is_floating_point() and any(_is_extreme(step.factor, tensor.dtype) for step in passes):
        # Factors that cancel each other may lie outside the type's range one by one.
        return apply(tensor.double(), passes).to(tensor.dtype)
    passes = [_ready(step, tensor) for step in passes]
    if _can_sweep(tensor, passes):
        return _sweep(tensor, passes)
    for step in passes:
        tensor = _along(tensor, step)
    return tensor


def _is_extreme(factor: Tensor | None, dtype: torch.dtype) -> bool:
    """Whether a factor leaves the middle half of the exponents of a narrower type."""
    if factor is None or dtype == torch.float64 or factor.numel() == 0 or not is_plain(factor):
        return False
    limits = torch.finfo(dtype)
    size = factor.abs()
    return bool((size > limits.max**0.5).any() or (size < limits.tiny**0.5).any())


def _ready(step: Pass, tensor: Tensor) -> Pass:
    """Index and factor on the tensor's device, the factor in its type."""
    index = None if step.index is None else step.index.to(tensor.device)
    factor = None if step.factor is None else step.factor.to(device=tensor.device, dtype=tensor.dtype)
    return Pass(step.dims, index, factor)


def _along(tensor: Tensor, step: Pass) -> Tensor:
    """One pass over the whole tensor; dimensions with others between them are brought together first."""
    first, count = step.dims[0], len(step.dims)
    adjacent = list(range(first, first + count))
    sizes = [tensor.shape[dim] for dim in step.dims]
    if count > 1:
        tensor = tensor.movedim(step.dims, adjacent).flatten(first, first + count - 1)
    if step.index is not None:
        tensor = tensor.index_select(first, step.index)
    if step.factor is not None:
        tensor = tensor * step.factor.reshape(-1, *(1,) * (tensor.ndim - first - 1))
    if count > 1:
        tensor = tensor.reshape(*tensor.shape[:first], *sizes, *tensor.shape[first + 1 :]).movedim(adjacent, step.dims)
    return tensor


def _can_sweep(tensor: Tensor, passes: Sequence[Pass]) -> bool:
    """Writing into parts of a result is faster on a CPU, but derivatives and transforms cannot follow it."""
    inputs = [tensor, *(step.factor for step in passes if step.factor is not None)]
    return (
        tensor.device.type == "cpu"
        and tensor.numel() > _BLOCK
        and tensor.is_contiguous()
        and all(len(step.dims) == 1 for step in passes)
        and all(type(part) in (Tensor, nn.Parameter) for part in inputs)
        and all(is_plain(part if torch.is_grad_enabled() else part.detach()) for part in inputs)
    )


@torch.no_grad()
def _sweep(tensor: Tensor, passes: Sequence[Pass]) -> Tensor:
    """Block by block along the first dimension: each block goes through all passes while it is in the cache.

    Two passes over a large tensor read and write it twice and touch fresh memory twice; this does both once.
    """
    result = torch.empty_like(tensor)
    rows = max(1, _BLOCK // (tensor.numel() // tensor.shape[0]))
    leading = [step for step in passes if step.dims == (0,)]
    following = [step for step in passes if step.dims != (0,)]
    for start in range(0, tensor.shape[0], rows):
        block, target = slice(start, start + rows), result[start : start + rows]
        piece = tensor[block]
        for step in leading:
            index = None if step.index is None else step.index[block]
            piece = tensor.index_select(0, index) if index is not None else piece
        for position, step in enumerate(following):
            if step.index is not None:
                last = position == len(following) - 1
                piece = (
                    torch.index_select(piece, step.dims[0], step.index, out=target)
                    if last
                    else piece.index_select(step.dims[0], step.index)
                )
        if piece.data_ptr() != target.data_ptr():
            target.copy_(piece)
        for step in passes:
            if step.factor is not None:
                factor = step.factor[block] if step.dims == (0,) else step.factor
                target.mul_(factor.reshape(-1, *(1,) * (tensor.ndim - step.dims[0] - 1)))
    return result
