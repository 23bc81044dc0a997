"""Functions of units of many networks, in blocks that stay in the cache between their passes.

They take tensors (…, units and their entries), a radius and the dimensions ``dim`` of which a unit is made, from the
end.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from coset.errors import InputError
from coset.geometry.spheres import common_shape
from coset.symmetry.gather import is_plain

_BLOCK = 2**19
"""So many entries of a tensor are taken at once: with a vector and a result 6 MB in single precision. Smaller blocks
were measured to cost more in operations that start than they save.
"""

Dims = tuple[int, ...]


def stepped(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``function(*tensors, radius, dim, out=None)``, whose result has the shape of its tensors, block by block."""

    def result(*given: Tensor | float | Dims, out: Tensor | None = None) -> Tensor:
        tensors, rest = _parted(given)
        if not _may_be_cut(tensors, rest[-1]) or len({tensor.dtype for tensor in tensors}) > 1:
            return function(*given, out=out)
        with torch.no_grad():
            whole = tensors[0].new_empty(common_shape(*(t.shape for t in tensors))) if out is None else out
            try:
                for block, rows in _blocks(tensors):
                    function(*block, *rest, out=whole[rows])
            except InputError:
                # Once more, so that the error says where among all networks.
                function(*given)
                raise
        return whole

    return result


def counted(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``function(*tensors, radius, dim)``, whose result has numbers for networks, block by block."""

    def result(*given: Tensor | float | Dims) -> Tensor:
        tensors, rest = _parted(given)
        if not _may_be_cut(tensors, rest[-1]):
            return function(*given)
        return torch.cat([function(*block, *rest) for block, _ in _blocks(tensors)])

    return result


def _parted(given: tuple[Tensor | float | Dims, ...]) -> tuple[list[Tensor], tuple[float, Dims]]:
    *tensors, radius, dim = given
    assert isinstance(dim, tuple)
    assert isinstance(radius, float | int)
    return [tensor for tensor in tensors if isinstance(tensor, Tensor)], (radius, dim)


def _may_be_cut(tensors: list[Tensor], dim: Dims) -> bool:
    """Whether there are many networks on a CPU, and neither derivatives nor transforms: these cannot follow writing
    into parts of a result.
    """
    largest = max(tensors, key=lambda tensor: tensor.ndim)
    if largest.ndim <= len(dim) + 1 or max(tensor.numel() for tensor in tensors) <= _BLOCK:
        return False
    if any(type(tensor) is not Tensor and type(tensor) is not nn.Parameter for tensor in tensors):
        return False
    return all(
        tensor.device.type == "cpu" and is_plain(tensor if torch.is_grad_enabled() else tensor.detach())
        for tensor in tensors
    )


def _blocks(tensors: list[Tensor]) -> Iterator[tuple[list[Tensor], slice]]:
    """Parts of tensors along the first axis, as views, and which; what is one there, or has no such axis, is in all."""
    ndim = max(tensor.ndim for tensor in tensors)
    count = max(len(tensor) for tensor in tensors if tensor.ndim == ndim)
    entries = max(tensor.numel() for tensor in tensors)
    step = max(1, _BLOCK * count // entries)
    for start in range(0, count, step):
        rows = slice(start, start + step)
        yield [tensor[rows] if tensor.ndim == ndim and len(tensor) > 1 else tensor for tensor in tensors], rows
