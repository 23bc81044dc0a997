"""Sums over the entries of each unit, for many networks at once: what rules for signs and orders are made of."""

from collections.abc import Callable

import torch
from torch import Tensor

from coset.symmetry import Symmetry
from coset.symmetry.incidence import Carrier, moving_dims, sums_by_unit
from coset.symmetry.stacks import Stack


def wide(stack: Stack) -> dict[str, Tensor]:
    """All parameters in float64 on the CPU, of whole numbers none.

    A complex number z stands as ±|z|, with the sign of its real part, or else of its imaginary one: positive scales and
    signs act on that as on z, and norms are the same.
    """
    return {
        name: _real(tensor.detach()).to(device="cpu", dtype=torch.float64)
        for name, tensor in stack.items()
        if tensor.is_floating_point() or tensor.is_complex()
    }


def _real(tensor: Tensor) -> Tensor:
    if not tensor.is_complex():
        return tensor
    side = torch.where(tensor.real == 0, tensor.imag, tensor.real)
    return torch.where(side < 0, -tensor.abs(), tensor.abs())


def witnesses(sym: Symmetry, stack: Stack) -> list[str]:
    """The parameters by which units are told apart, each tensor under one name: trained ones before buffers, those
    with most axes first. Variances, which are moved with their ε, are not asked, nor what translations bring to 0.
    """
    items = sym.parameters
    none = {item.pivot for item in sym.translations if item.target is None and not item.moves[0].over}
    own = [name for name in sym.structures if name in stack and items[name].tied is None and not items[name].shift]
    own = [name for name in own if name not in none]
    return sorted(own, key=lambda name: (items[name].buffer, -len(items[name].shape)))


def unit_sums(
    sym: Symmetry,
    parameter: str,
    place: Carrier,
    tensor: Tensor,
    function: Callable[[Tensor], Tensor],
    marks: Tensor | None = None,
) -> Tensor:
    """Σ f(x) over the entries x of each unit at one appearance of its class, (N, ∏shape) in float64; with ``marks``
    Σ f(x)·mark.

    A sum does not depend on the order of the units of other classes.
    """
    stretch, item = place
    whole = function(tensor.reshape(-1, *sym.structures[parameter].sizes))
    whole = whole if marks is None else whole * marks
    rest = [1 + dim for dim in range(whole.ndim - 1) if dim not in stretch.dims]
    rows = (whole.sum(rest) if rest else whole).reshape(len(whole), -1)
    return sums_by_unit(sym, rows, item)


def fixed_marks(sym: Symmetry, parameter: str) -> Tensor:
    """∏ 1/(1 + position) along the axes of a parameter on which no class stands, of ``structure.sizes``."""
    structure = sym.structures[parameter]
    moving = moving_dims(structure)
    marks = torch.ones(structure.sizes, dtype=torch.float64)
    for dim, length in enumerate(structure.sizes):
        if dim not in moving:
            shape = [length if at == dim else 1 for at in range(len(structure.sizes))]
            marks = marks * rank_marks(torch.arange(length)).reshape(shape)
    return marks


def rank_marks(ranks: Tensor) -> Tensor:
    """1/(1 + r): what comes first counts most, and no two ranks count alike."""
    return 1 / (1 + ranks.double())


def plain(x: Tensor) -> Tensor:
    """x itself."""
    return x


def signed_square(x: Tensor) -> Tensor:
    """x·|x|: odd, and large entries count most."""
    return x * x.abs()


def size(x: Tensor) -> Tensor:
    """x²."""
    return x.square()
