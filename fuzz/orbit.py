"""An oracle of the whole connected group that knows no rules: the null space of the derivative at the weights.

Moving along a symmetry changes no output, so that the directions of the orbit lie in the null space of ∂f/∂θ over all
inputs. Directions of orbits and translations of a larger rank are wrong ones; with a smaller rank something is missed.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from coset.symmetry import Symmetry
from coset.symmetry.mixing import centred_basis, matrices_shape
from fuzz.networks import draw_input
from fuzz.pieces import Kind
from fuzz.scaling import counted_leaves, gradient_rows, scale_directions

_TINY = 1e-9


def orbit_dimension(sym: Symmetry, params: Mapping[str, Tensor], read: Mapping[str, Tensor]) -> int:
    """The rank of ∂(g·θ)/∂g at the identity over scales and matrices and of translations, on the entries of ``read``
    (masks).
    """
    parts = (scale_directions(sym, params, read), _turns(sym, params, read), _translations(sym, params, read))
    columns = [part for part in parts if part is not None]
    if not columns:
        return 0
    matrix = torch.cat(columns, 1)
    return int(torch.linalg.matrix_rank(matrix / matrix.norm(dim=0).clamp(min=1e-300), rtol=_TINY))


def _turns(sym: Symmetry, params: Mapping[str, Tensor], read: Mapping[str, Tensor]) -> Tensor | None:
    """∂(g·θ)/∂(generators of matrices), (entries, generators); None where nothing mixes."""
    shapes = {name: matrices_shape(sym, name) for name in sym.continuous}

    def moved(free: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        matrices = {name: _near_one(sym.continuous[name].kind, part) for name, part in free.items()}
        return sym.act(sym.element(matrices=matrices), params)

    return _derivative(moved, shapes, read)


def _translations(sym: Symmetry, params: Mapping[str, Tensor], read: Mapping[str, Tensor]) -> Tensor | None:
    """∂(θ + δ(θ, z))/∂z at 0, (entries, free numbers); None where there are none."""
    shapes = {item.name: item.shape for item in sym.translations}
    return _derivative(lambda free: sym.translate(free, params), shapes, read)


def _derivative(
    moved: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]],
    shapes: Mapping[str, tuple[int, ...]],
    read: Mapping[str, Tensor],
) -> Tensor | None:
    """The derivative of moved weights by free numbers of ``shapes`` at 0, without columns of zeros."""
    if not shapes:
        return None
    sizes = [math.prod(shape) for shape in shapes.values()]

    def entries(vector: Tensor) -> Tensor:
        parts = zip(shapes.items(), vector.split(sizes), strict=True)
        result = moved({name: part.reshape(shape) for (name, shape), part in parts})
        return torch.cat([result[name][mask].flatten() for name, mask in read.items()])

    columns: Tensor = torch.func.jacfwd(entries)(torch.zeros(sum(sizes), dtype=torch.float64))
    return columns[:, columns.norm(dim=0) > 0]


def _near_one(kind: str, generator: Tensor) -> Tensor:
    """1 + K, a rotation to first order, or one that leaves 1 where it is; of pairs 1 + K in each of them."""
    n = generator.shape[-1]
    turn = generator if kind == "general" else generator - generator.mT
    if kind == "centred":
        plane = centred_basis(n) @ centred_basis(n).T
        turn = plane @ turn @ plane
    return torch.eye(n, dtype=torch.float64) + turn


def null_space(model: nn.Module, kind: Kind, seed: int) -> tuple[int, dict[str, Tensor]] | None:
    """The dimension of the null space of ∂f/∂θ over many inputs at the model's own weights, and masks of the entries
    that have a derivative; None where this cannot be counted.
    """
    leaves = counted_leaves(model)
    if leaves is None:
        return None
    count = sum(tensor.numel() for tensor in leaves.values())
    generator = torch.Generator().manual_seed(seed)
    rows: list[Tensor] = []
    try:
        while len(rows) < 2 * count + 40:
            rows += gradient_rows(model, leaves, None, draw_input(kind, 4, generator), generator)
    except RuntimeError:
        return None  # the model overwrites what its derivative needs, or an operation has none
    matrix = torch.stack(rows)
    matrix = matrix[matrix.isfinite().all(1)]
    sizes = matrix.norm(dim=0)
    read = sizes > 1e-12
    if len(matrix) < count or not bool(read.any()):
        return None
    rank = int(torch.linalg.matrix_rank(matrix[:, read] / sizes[read], rtol=1e-10))
    parts = read.split([tensor.numel() for tensor in leaves.values()])
    masks = {name: part.reshape(leaves[name].shape) for name, part in zip(leaves, parts, strict=True)}
    return int(read.sum()) - rank, masks
