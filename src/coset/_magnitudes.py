"""Numbers of any size: powers of two that bring them near 1, so that no square or product leaves the range of a type.

A power of two changes no digit. So what does not depend on the scale of numbers (a cosine, a permutation, a distance
up to its unit) is computed of x·2⁻ᵉ and has the same digits. Numbers of ordinary size have e = 0: nothing is done.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

_NARROW, _WIDE = 20, 96


def magnitude(*tensors: Tensor) -> int | None:
    """e with 2^(e−1) ≤ max |x| < 2^e over all entries; None if all are 0, or one is NaN or infinite."""
    sizes = [_largest(tensor.detach()) for tensor in tensors if tensor.numel() and _has_size(tensor)]
    if not all(map(math.isfinite, sizes)) or not any(sizes):
        return None
    return math.frexp(max(sizes))[1]


def exponent(*tensors: Tensor) -> int:
    """The e by which to divide, see ``scaled``: ``magnitude``, but 0 where it is ordinary or there is none.

    Ordinary are sizes from 2⁻²⁰ to 2²⁰, in float64 from 2⁻⁹⁶ to 2⁹⁶: fourth powers, summed, are numbers of the type.
    """
    found = magnitude(*tensors)
    return 0 if found is None or abs(found) <= min(map(_ordinary, tensors)) else found


def exponents(tensor: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """``exponent`` of each of the parts that stand along the other dimensions than ``dim``; whole numbers."""
    sizes = tensor.detach().abs().amax(dim)
    found = torch.frexp(sizes.double()).exponent
    known = torch.isfinite(sizes) & (sizes > 0) & (found.abs() > _ordinary(tensor))
    return torch.where(known, found, torch.zeros_like(found))


def scaled(tensor: Tensor, by: int) -> Tensor:
    """x·2⁻ᵉ, of its own type; the tensor itself where e is 0, or where it is not of floating point numbers."""
    if by == 0 or not _has_size(tensor):
        return tensor
    # In two steps: 2⁻ᵉ itself may be out of range.
    half = by // 2
    result: Tensor = tensor * 2.0**-half * 2.0 ** (half - by)
    return result


def scaled_by(tensor: Tensor, by: Tensor) -> Tensor:
    """x·2⁻ᵉ with its own e for each entry, ``by`` in a shape that broadcasts; the tensor itself where all are 0."""
    if not bool(by.any()):
        return tensor
    half = by // 2
    two = torch.full_like(by, 2, dtype=torch.float64)
    first, second = (two.pow(-part).to(tensor.dtype) for part in (half, by - half))
    return tensor * first * second


def squares_hold(squares: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Of which sums of squares, taken in ``dtype``, the digits are right: neither infinite nor all but 0."""
    limits = torch.finfo(dtype or squares.dtype)
    return torch.isfinite(squares) & (squares > limits.tiny / limits.eps)


def unscaled(value: float, by: int) -> float:
    """value·2ᵉ; ±∞ beyond the largest float, 0 below the smallest."""
    try:
        return math.ldexp(value, by)
    except OverflowError:
        return math.copysign(math.inf, value)


def equivariant(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """f(x, y, …) for an f with f(cx, cy, …) = c·f(x, y, …), a norm or a distance, computed of ordinary numbers."""
    by = exponent(*tensors)
    return scaled(function(*(scaled(tensor, by) for tensor in tensors)), -by)


def _largest(tensor: Tensor) -> float:
    if tensor.is_complex():
        return float(tensor.abs().max())
    # No copy is made, and NaN comes through.
    least, most = torch.aminmax(tensor)
    return max(abs(float(least)), abs(float(most)))


def _has_size(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _ordinary(tensor: Tensor) -> int:
    return _WIDE if tensor.dtype in (torch.float64, torch.complex128) else _NARROW
