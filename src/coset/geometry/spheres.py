"""Spheres of any radius: exponential and logarithm, great circles, transport, angles that are right near 0, means.

Points and tangent vectors lie along the last axis, (…, D), or along the dimensions ``dim``; all but means is computed
in their own type. Between opposite points there is no shortest great circle: where one is asked for, they are refused.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from coset._values import transformed_by_functorch
from coset.errors import InputError

Dims = int | tuple[int, ...]

_ANTIPODAL = 1e-7
"""‖x̂ + ŷ‖ at which x and y are opposite, where it comes of their cosine in float64: a root of rounding."""

_STEPS = 1000


class Opposite(InputError):
    """Points that are opposite on their sphere; ``where``: which, with ones for the dimensions of the points."""

    def __init__(self, where: Tensor) -> None:
        super().__init__(
            "x and y are opposite on the sphere; expected points between which one great circle is the shortest"
        )
        self.where = where


def angle_of(apart: Tensor, along: Tensor) -> Tensor:
    """φ = 2·atan2(‖x − y‖, ‖x + y‖) of two points of one length: right near 0, where arccos ⟨x, y⟩ is not."""
    return 2 * torch.atan2(apart, along)


def angle_of_cosine(cosine: Tensor) -> Tensor:
    """φ of cos φ; right to a root of rounding near 0 and π."""
    return angle_of((2 - 2 * cosine).sqrt(), (2 + 2 * cosine).sqrt())


def are_opposite(apart: Tensor, along: Tensor, rounding: float, radius: float = 1.0) -> Tensor:
    """Whether two points are opposite, from ‖x − y‖ and ‖x + y‖; ``rounding``: the relative precision of points."""
    return (apart > radius) & (along <= 16 * rounding * radius)


def are_opposite_by_cosine(cosines: Tensor) -> Tensor:
    """Whether points are opposite, from their cosines in float64."""
    return (2 + 2 * cosines).sqrt() <= _ANTIPODAL


def distance(x: Tensor, y: Tensor, radius: float = 1.0, dim: Dims = -1) -> Tensor:
    """r·φ, the length of the great circle between two points, (…)."""
    return radius * angle(x, y, radius, dim)


def angle(x: Tensor, y: Tensor, radius: float = 1.0, dim: Dims = -1) -> Tensor:
    """φ of two points, (…)."""
    return angle_of(norm(x - y, dim), norm(x + y, dim))


def tangent(x: Tensor, v: Tensor, radius: float = 1.0, dim: Dims = -1, out: Tensor | None = None) -> Tensor:
    """v − ⟨x, v⟩x/r², the part of v that is tangent to the sphere at x."""
    return torch.addcmul(v, (x * v).sum(dim, keepdim=True) / (radius * radius), x, value=-1, out=out)


def exp(x: Tensor, v: Tensor, radius: float = 1.0, dim: Dims = -1, out: Tensor | None = None) -> Tensor:
    """cos(‖v‖/r)x + r·sin(‖v‖/r)v/‖v‖: where the great circle from x in the direction v ends after the length ‖v‖.

    ``out``: memory of the result, which may be that of x or of v.
    """
    turned = norm(v, dim, keepdim=True) / radius
    if out is not None and out.data_ptr() == x.data_ptr():
        return torch.mul(x, turned.cos(), out=out).addcmul_(torch.sinc(turned / math.pi), v)
    moved = torch.mul(v, torch.sinc(turned / math.pi), out=out)
    if moved.shape != common_shape(x.shape, v.shape) or transformed_by_functorch(x):
        return torch.addcmul(moved, turned.cos(), x)
    # Into memory that is there already: where there are many networks, fresh memory takes longer than the arithmetic.
    return moved.addcmul_(turned.cos(), x)


def log(x: Tensor, y: Tensor, radius: float = 1.0, dim: Dims = -1, out: Tensor | None = None) -> Tensor:
    """r·φ·u/‖u‖, u = y − ⟨x, y⟩x/r²: the tangent vector at x with ``exp(x, log(x, y)) = y``; 0 at y = x."""
    ahead = y - x
    angle = _checked(norm(ahead, dim, keepdim=True), norm(x + y, dim, keepdim=True), x.dtype, radius)
    # ⟨x, y − x⟩ is small where the angle is: u has the digits of y − x. Near the antipode u is small beside y: what is
    # left along x after the first projection is not, and goes with the second.
    direction = tangent(x, tangent(x, ahead, radius, dim), radius, dim)
    size = norm(direction, dim, keepdim=True)
    return torch.mul(angle * radius / torch.where(size > 0, size, 1), direction, out=out)


def transport(
    x: Tensor, y: Tensor, v: Tensor, radius: float = 1.0, dim: Dims = -1, out: Tensor | None = None
) -> Tensor:
    """v − 2⟨s, v⟩s/‖s‖², s = x + y: v, tangent at x, carried in parallel along the great circle to y.

    The reflection that takes x to −y. What is at right angles to the plane of x and y stays, in the plane x's tangent
    becomes y's; and as a reflection it keeps lengths and angles to the last digits.
    """
    _checked_angle(x, y, radius, dim)
    along = x + y
    share = (along * v).sum(dim, keepdim=True) / along.square().sum(dim, keepdim=True)
    return torch.addcmul(v, share, along, value=-2, out=out)


def slerp(x: Tensor, y: Tensor, t: float, radius: float = 1.0, dim: Dims = -1) -> Tensor:
    """[sin((1−t)φ)x + sin(tφ)y]/sin φ: the point at t of the great circle from x (t = 0) to y (t = 1)."""
    of_x, of_y = arc_shares(_checked_angle(x, y, radius, dim), t)
    return of_x * x + of_y * y


def arc_shares(angle: Tensor, t: float | Tensor) -> tuple[Tensor, Tensor]:
    """sin((1−t)φ)/sin φ and sin(tφ)/sin φ, what the point at t takes of either end; as quotients of sinc, for φ = 0."""
    whole = torch.sinc(angle / math.pi)
    first, second = (share * torch.sinc(share * angle / math.pi) / whole for share in (1 - t, t))
    return first, second


def arc_speeds(angle: Tensor, t: float | Tensor) -> tuple[Tensor, Tensor]:
    """−φ·cos((1−t)φ)/sin φ and φ·cos(tφ)/sin φ, the derivatives of ``arc_shares`` in t; −1 and 1 at φ = 0."""
    whole = torch.sinc(angle / math.pi)
    return -torch.cos((1 - t) * angle) / whole, torch.cos(t * angle) / whole


def log_volume(dimension: int, radius: float = 1.0) -> float:
    """log of the volume 2π^((d+1)/2)·r^d/Γ((d+1)/2) of the sphere of dimension d; of S⁰, two points, log 2."""
    half = (dimension + 1) / 2
    return math.log(2) + half * math.log(math.pi) - math.lgamma(half) + dimension * math.log(radius)


def wrapped_normal_log_density(angle: Tensor, std: float, dimension: int, radius: float = 1.0) -> Tensor:
    """log p(y) of y = exp_x(v), v ~ N(0, s²) on the tangent space, from the angle φ of x and y; by volume.

    p(y) = Σ_k N(r|φ + 2πk|; s)·(|φ + 2πk|/sin φ)^(d−1) over all whole k: v winds around the sphere any number of times,
    and exp changes volumes by (sin(‖v‖/r)/(‖v‖/r))^(d−1). At y = x, where for d > 1 windings have an infinite density
    (of no mass), the value is that of k = 0. On S⁰ all mass is at x. ``angle`` in float64.
    """
    if dimension == 0:
        return torch.where(angle < 1, 0.0, -math.inf).to(angle)
    # Beyond this no winding has a density that float64 would add to the others' (radii of v are about s·√d).
    most = math.ceil(0.5 + (12 + math.sqrt(dimension)) * std / radius / (2 * math.pi))
    turned = (angle[..., None] + 2 * math.pi * torch.arange(-most, most + 1, device=angle.device)).abs()
    power = dimension - 1
    # (φ/sin φ)^(d−1) of k = 0 is 1 at φ = 0.
    first = -0.5 * (radius * angle / std) ** 2 - power * torch.log(torch.sinc(angle / math.pi))
    terms = -0.5 * (radius * turned / std) ** 2 + power * (turned.log() - angle.sin().log()[..., None])
    terms = torch.where(torch.arange(-most, most + 1, device=angle.device) == 0, first[..., None], terms)
    total = torch.where(angle == 0, first, terms.logsumexp(-1)) if power else terms.logsumexp(-1)
    return total - 0.5 * dimension * math.log(2 * math.pi * std * std)


def mean(points: Tensor, weights: Tensor | None = None, radius: float = 1.0) -> Tensor:
    """The Karcher mean (…, D) of points (…, N, D), found in float64: it minimises Σ wᵢ φ(m, xᵢ)²; unless told
    wᵢ = 1/N.
    """
    unit = points.double() / radius
    given = torch.ones(points.shape[-2]) if weights is None else weights
    cosines = (unit @ unit.mT).clamp(-1, 1)
    if bool((opposite := are_opposite_by_cosine(cosines)).any()):
        which = opposite.flatten(-2).any(-1)
        raise NoMean("points holds two that are opposite on the sphere; expected some with one mean", which)
    coefficients = mean_coefficients(cosines, given.to(unit) / given.sum())
    return (radius * (coefficients[..., None, :] @ unit)[..., 0, :]).to(points.dtype)


class NoMean(InputError):
    """Points without a mean on their sphere; ``where``: the flat number of the sphere, of many."""

    def __init__(self, message: str, where: Tensor) -> None:
        super().__init__(message)
        self.where = int(where.flatten().nonzero()[0])


def mean_coefficients(cosines: Tensor, shares: Tensor) -> Tensor:
    """The coefficients (…, N) of the Karcher mean in N unit vectors, from their inner products (…, N, N) alone.

    ``shares`` (N,): weights with sum 1. The mean is found by m ← exp_m(Σ wᵢ log_m xᵢ), and every iterate is a
    combination of the xᵢ. Angles near 0 are inexact by that route, but enter only through φ/sin φ and cos φ, which are
    not. For two vectors it is the point on their great circle; no two may be opposite.
    """
    if len(shares) == 2:
        return torch.stack(arc_shares(angle_of_cosine(cosines[..., 0, 1]), float(shares[1])), -1)

    def unit(coefficients: Tensor) -> Tensor:
        square = _product(cosines, coefficients, coefficients)
        if bool((none := ~(square > _ANTIPODAL**2)).any()):
            raise NoMean("the directions cancel; they have no mean on the sphere", none)
        return coefficients / square.sqrt()[..., None]

    current = unit(shares.expand(cosines.shape[:-1]))
    for _ in range(_STEPS):
        towards = (cosines @ current[..., None])[..., 0].clamp(-1, 1)
        factors = shares / torch.sinc(angle_of_cosine(towards) / math.pi)
        step = factors - (factors * towards).sum(-1, keepdim=True) * current
        size = _product(cosines, step, step).clamp(min=0).sqrt()
        if bool((size < 1e-14).all()):
            return current
        turned = size[..., None]
        current = unit(turned.cos() * current + torch.sinc(turned / math.pi) * step)
    if not bool((open_ones := ~(size < 1e-9)).any()):
        return current
    raise NoMean(
        f"the mean on the sphere did not settle in {_STEPS} steps; the directions are too far apart", open_ones
    )


def _product(cosines: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return (a * (cosines @ b[..., None])[..., 0]).sum(-1)


def common_shape(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape to which all of these broadcast."""
    shape: Sequence[int] = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    return tuple(shape)


def norm(x: Tensor, dim: Dims = -1, keepdim: bool = False) -> Tensor:
    """‖x‖ over ``dim``."""
    found: Tensor = torch.linalg.vector_norm(x, dim=dim, keepdim=keepdim)
    return found


def _checked_angle(x: Tensor, y: Tensor, radius: float, dim: Dims) -> Tensor:
    """φ, with ones for the dimensions ``dim``."""
    return _checked(norm(x - y, dim, keepdim=True), norm(x + y, dim, keepdim=True), x.dtype, radius)


def _checked(apart: Tensor, along: Tensor, dtype: torch.dtype, radius: float) -> Tensor:
    """φ of ‖x − y‖ and ‖x + y‖; opposite points are refused."""
    opposite = are_opposite(apart, along, torch.finfo(dtype).eps, radius)
    if bool(opposite.any()):
        raise Opposite(opposite)
    return angle_of(apart, along)
