"""The action with permutation matrices replaced by any matrices: the relaxation that gradients can follow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coset._values import memory_of
from coset.errors import InputError
from coset.symmetry import Symmetry
from coset.symmetry.action import check_names, check_tensor
from coset.symmetry.axes import Concat, Fixed, Interleaved, Node, Product, Units, factors_of, size_of, units_of
from coset.symmetry.structure import UnitClass, ancestors, stands_for


@dataclass(frozen=True)
class _Dim:
    """A dimension of a tensor: what stands there, on which axis of the parameter and in which factor of the axis."""

    node: Node
    axis: int
    factor: int


def soft_act(sym: Symmetry, matrices: Mapping[str, Tensor], params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """θ with unit i of every class in ``matrices`` replaced by Σ_j X[…, i, j]·(unit j).

    ``matrices``: class → X of shape (sizes of the classes around it; n, n), a nested class's by the old block. Where
    they are permutation matrices, X[…, i, p[i]] = 1, this is ``sym.act`` of the permutations p; otherwise it is linear
    in X once per appearance of the class on a parameter. Classes without a matrix keep their order. Scales and signs
    are not touched. Differentiable in the matrices and in ``params``; dimensions are contracted one by one, nested
    classes in their old blocks before these move.
    """
    _check_matrices(sym, matrices)
    params = dict(params)
    check_names(sym, params, partial=False)
    moved: dict[str, Tensor] = {}
    seen: dict[tuple[object, ...], Tensor] = {}
    for name, tensor in params.items():
        parameter = sym.parameters[name]
        check_tensor(name, tensor, parameter.shape)
        if not any(_moves_as(unit.name, sym.classes) in matrices for node in parameter.axes for unit in units_of(node)):
            moved[name] = tensor
            continue
        if not (tensor.is_floating_point() or tensor.is_complex()):
            raise InputError(f"'{name}' is of type {tensor.dtype}; a relaxed permutation can only mix floating numbers")
        # Tied weights come in as one piece of memory under two names and leave as one tensor.
        tie = (*memory_of(tensor), id(sym.structures[name]))
        if tie not in seen:
            lead = tensor.ndim - len(parameter.shape)
            dims = [_Dim(Fixed(tensor.shape[axis]), axis - lead, 0) for axis in range(lead)]
            dims += [_Dim(node, axis, 0) for axis, node in enumerate(parameter.axes)]
            seen[tie] = _moved(tensor, dims, matrices, sym.classes).reshape(tensor.shape)
        moved[name] = seen[tie]
    return moved


def _check_matrices(sym: Symmetry, matrices: Mapping[str, Tensor]) -> None:
    for name, matrix in matrices.items():
        if name not in sym.permuting:
            raise InputError(f"matrices have '{name}', which does not permute; expected {', '.join(sym.permuting)}")
        shape = sym.shape(name)
        if tuple(matrix.shape) != (*shape, shape[-1]):
            raise InputError(f"the matrix of '{name}' has shape {tuple(matrix.shape)}; expected {(*shape, shape[-1])}")


def _moved(
    tensor: Tensor, dims: Sequence[_Dim], matrices: Mapping[str, Tensor], classes: Mapping[str, UnitClass]
) -> Tensor:
    """Take products apart into dimensions and concatenations into pieces, until every dimension is fixed or a class.

    In such a piece the block of a nested class is the same dimension throughout, wherever it stands. Returns the piece
    with its factors as dimensions of their own joined again: one dimension per entry of ``dims``.
    """
    sizes = {name: item.size for name, item in classes.items()}
    for place, dim in enumerate(dims):
        if isinstance(dim.node, Product):
            factors = [
                # Within a concatenation all factors belong to the factor the concatenation was.
                _Dim(node, dim.axis, dim.factor or number)
                for number, node in enumerate(factors_of(dim.node), start=1)
            ]
            split = [size_of(factor.node, sizes) for factor in factors]
            apart = tensor.reshape(*tensor.shape[:place], *split, *tensor.shape[place + 1 :])
            inner = _moved(apart, [*dims[:place], *factors, *dims[place + 1 :]], matrices, classes)
            return inner.flatten(place, place + len(factors) - 1)
        if isinstance(dim.node, Concat):
            segments = [_Dim(node, dim.axis, dim.factor or -1) for node in dim.node.segments]
            lengths, woven = [size_of(segment.node, sizes) for segment in segments], isinstance(dim.node, Interleaved)
            if woven:
                shape = (*tensor.shape[:place], lengths[0], len(lengths), *tensor.shape[place + 1 :])
                pieces = list(tensor.reshape(shape).unbind(place + 1))
            else:
                pieces = list(torch.split(tensor, lengths, place))
            pieces = [
                _moved(piece, [*dims[:place], segment, *dims[place + 1 :]], matrices, classes)
                for piece, segment in zip(pieces, segments, strict=True)
            ]
            return torch.stack(pieces, place + 1).flatten(place, place + 1) if woven else torch.cat(pieces, place)
    return _contracted(tensor, dims, matrices, classes)


def _contracted(
    tensor: Tensor, dims: Sequence[_Dim], matrices: Mapping[str, Tensor], classes: Mapping[str, UnitClass]
) -> Tensor:
    """Σ_j X[a, …, i, j]·tensor[…, a, …, j, …] for every class, innermost first, so that a is still the old block."""
    places = [place for place, dim in enumerate(dims) if isinstance(dim.node, Units)]
    for place in sorted(places, key=lambda p: -len(ancestors(_name(dims[p]), classes))):
        name = _moves_as(_name(dims[place]), classes)
        if name not in matrices:
            continue
        matrix = matrices[name].to(device=tensor.device, dtype=tensor.dtype)
        every, new = list(range(tensor.ndim)), tensor.ndim
        result = [new if index == place else index for index in every]
        # A class that follows another moves as that one, which is not nested: alike in every block.
        around = _around(place, dims, classes) if name == _name(dims[place]) else []
        tensor = torch.einsum(matrix, [*around, new, place], tensor, every, result)
    return tensor


def _around(place: int, dims: Sequence[_Dim], classes: Mapping[str, UnitClass]) -> list[int]:
    """The dimensions of the classes around the one at ``place``, outermost first.

    The nearest appearance counts: in the same factor of the axis, then on the same axis, then on another.
    """
    parent = classes[_name(dims[place])].parent
    if parent is None:
        return []
    nearest, beyond = _nearest(place, parent, dims, classes), classes[parent].parent
    if classes[parent].follows is None or beyond is None:
        return [*_around(nearest, dims, classes), nearest]
    # A follower is inside of what is around the class at ``place``, on whatever axis it stands.
    outer = _nearest(place, beyond, dims, classes)
    return [*_around(outer, dims, classes), outer, nearest]


def _nearest(place: int, wanted: str, dims: Sequence[_Dim], classes: Mapping[str, UnitClass]) -> int:
    here = dims[place]
    candidates = [
        index
        for index, dim in enumerate(dims)
        if isinstance(dim.node, Units) and stands_for(dim.node.name, wanted, dim.axis == here.axis, classes)
    ]
    return min(
        candidates,
        key=lambda i: (_name(dims[i]) != wanted, dims[i].axis != here.axis, dims[i].factor != here.factor),
    )


def _moves_as(name: str, classes: Mapping[str, UnitClass]) -> str:
    return classes[name].follows or name


def _name(dim: _Dim) -> str:
    assert isinstance(dim.node, Units)
    return dim.node.name
