"""Oracles of scales that know no rules: how many independent ones a symmetry has, and how many there could be."""

from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from coset.symmetry import Symmetry
from fuzz.networks import draw_input, draw_weights
from fuzz.pieces import Kind

MOST_PARAMETERS = 150


def jacobian_rank(sym: Symmetry, params: Mapping[str, Tensor], read: Mapping[str, Tensor] | None = None) -> int:
    """The rank of ∂(g·θ)/∂(log scales of g) at the identity: how many scales are independent.

    ``read``: masks of entries; those of the others do not count.
    """
    matrix = scale_directions(sym, params, read)
    if matrix is None:
        return 0
    sizes = matrix.norm(dim=1, keepdim=True)
    return int(torch.linalg.matrix_rank(matrix / sizes.where(sizes > 0, 1.0), rtol=1e-9))


def scale_directions(
    sym: Symmetry, params: Mapping[str, Tensor], read: Mapping[str, Tensor] | None = None
) -> Tensor | None:
    """∂(g·θ)/∂(log scales of g) at the identity, (entries, scales); None where there are none."""
    shapes = {key: sym.identity().scales[key].shape for key in sym.scaling}
    total = sum(shape.numel() for shape in shapes.values())
    if not total:
        return None

    def moved(vector: Tensor) -> Tensor:
        parts = torch.exp(vector).split([shape.numel() for shape in shapes.values()])
        scales = {key: part.reshape(shape) for (key, shape), part in zip(shapes.items(), parts, strict=True)}
        result = sym.act(sym.element(scales=scales), params)
        kept = {name: result[name][mask] for name, mask in read.items()} if read else result
        numbers = [t for t in kept.values() if t.is_floating_point() or t.is_complex()]
        return torch.cat([torch.view_as_real(t).flatten() if t.is_complex() else t.flatten() for t in numbers])

    directions: Tensor = torch.func.jacfwd(moved)(torch.zeros(total, dtype=torch.float64))
    return directions


def diagonal_scalings(
    model: nn.Module, kind: Kind, shifts: Mapping[str, float], seed: int
) -> tuple[int, dict[str, Tensor]] | None:
    """How many independent elementwise scalings θ ↦ exp(t·d)∘θ keep the function, and masks of the entries meant.

    The null space of the rows d ↦ Σ dⱼ θⱼ ∂f/∂θⱼ over many inputs and many θ: one θ alone would let every
    continuous symmetry count, and a few of them many where the outputs are few. Entries without
    derivative, because nobody reads them or only their sign, are left out.
    None where this cannot be counted: too many weights, complex ones, ties through storage, no derivative. The weights
    are left as they were.
    """
    leaves = counted_leaves(model)
    if leaves is None:
        return None
    count = sum(tensor.numel() for tensor in leaves.values())
    generator = torch.Generator().manual_seed(seed)
    before = {name: tensor.detach().clone() for name, tensor in leaves.items()}
    rows: list[Tensor] = []
    try:
        while len(rows) < 1.5 * count + 20:
            draw_weights(model, generator)
            scale = 8.0 if len(rows) % 3 == 0 else 1.0  # what saturates or is cut off does so for some
            rows += gradient_rows(model, leaves, shifts, draw_input(kind, 4, generator, scale), generator)
    except RuntimeError:
        return None  # the model overwrites what its derivative needs, or an operation has none
    finally:
        with torch.no_grad():
            for name, tensor in leaves.items():
                tensor.copy_(before[name])
    matrix = torch.stack(rows)
    matrix = matrix[matrix.isfinite().all(1)]
    matrix = matrix / matrix.norm(dim=1, keepdim=True).clamp(min=1e-300)
    sizes = matrix.norm(dim=0)
    read = sizes > 1e-12
    if matrix.shape[0] < count or not bool(read.any()):
        return None
    rank = int(torch.linalg.matrix_rank(matrix[:, read] / sizes[read], rtol=1e-8))
    parts = read.split([tensor.numel() for tensor in leaves.values()])
    masks = {name: part.reshape(leaves[name].shape) for name, part in zip(leaves, parts, strict=True)}
    return int(read.sum()) - rank, masks


def counted_leaves(model: nn.Module) -> dict[str, Tensor] | None:
    """The weights by name; None where they are too many, complex, or tied through storage."""
    leaves = {name: t for name, t in (*model.named_parameters(), *model.named_buffers()) if t.is_floating_point()}
    count = sum(tensor.numel() for tensor in leaves.values())
    homes = {tensor.untyped_storage().data_ptr() for tensor in leaves.values()}
    numbers = (*model.parameters(), *model.buffers())
    if not 0 < count <= MOST_PARAMETERS or len(homes) < len(leaves) or any(t.is_complex() for t in numbers):
        return None
    return leaves


def gradient_rows(
    model: nn.Module,
    leaves: Mapping[str, Tensor],
    shifts: Mapping[str, float] | None,
    x: Tensor,
    generator: torch.Generator,
) -> list[Tensor]:
    """(θ + shift)·∂/∂θ of random projections of the outputs; without ``shifts`` ∂/∂θ alone."""
    given = {name: tensor.detach().clone().requires_grad_() for name, tensor in leaves.items()}
    with patch.object(F, "batch_norm", _batch_norm):
        result = torch.func.functional_call(model, given, (x,))
    outputs = [t.flatten() for t in tree_leaves(result) if isinstance(t, Tensor) and t.requires_grad]
    if not outputs:
        return [torch.zeros(sum(t.numel() for t in given.values()), dtype=torch.float64)] * 4
    joined = torch.cat(outputs)
    rows = []
    for _ in range(min(len(joined), 4)):
        weights = torch.randn(len(joined), generator=generator, dtype=torch.float64)
        grads = torch.autograd.grad(joined @ weights, list(given.values()), retain_graph=True, allow_unused=True)
        parts = [
            torch.zeros_like(t)
            if grad is None
            else grad
            if shifts is None
            else (t.detach() + shifts.get(name, 0.0)) * grad
            for (name, t), grad in zip(given.items(), grads, strict=True)
        ]
        rows.append(torch.cat([part.flatten() for part in parts]))
    return rows


def _batch_norm(
    x: Tensor, mean: Tensor, var: Tensor, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> Tensor:
    """Batch norm in evaluation mode, written out: torch's has no derivative with respect to the statistics."""
    if training:
        raise ValueError("batch statistics")
    lift = (slice(None), *(None,) * (x.ndim - 2))
    result = (x - mean[lift]) * (var[lift] + eps).rsqrt()
    return result * (1 if weight is None else weight[lift]) + (0 if bias is None else bias[lift])
