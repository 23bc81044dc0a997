"""Spheres of any radius: exponential and logarithm, great circles, angles that are right near 0, means.

Points and tangent vectors lie along the last axis, (…, D); all but means is computed in their own type. Between
opposite points there is no shortest great circle: where one is asked for, they are refused.
"""

import math

import torch
from torch import Tensor

from coset.errors import InputError

_ANTIPODAL = 1e-7
"""‖x̂ + ŷ‖ at which x and y are opposite, where it comes of their cosine in float64: a root of rounding."""

_STEPS = 200


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


def distance(x: Tensor, y: Tensor, radius: float = 1.0) -> Tensor:
    """r·φ, the length of the great circle between two points, (…)."""
    return radius * angle_of(_norm(x - y), _norm(x + y))


def tangent(x: Tensor, v: Tensor, radius: float = 1.0) -> Tensor:
    """v − ⟨x, v⟩x/r², the part of v that is tangent to the sphere at x."""
    return v - (x * v).sum(-1, keepdim=True) * x / (radius * radius)


def exp(x: Tensor, v: Tensor, radius: float = 1.0) -> Tensor:
    """cos(‖v‖/r)x + r·sin(‖v‖/r)v/‖v‖: where the great circle from x in the direction v ends after the length ‖v‖."""
    turned = _norm(v)[..., None] / radius
    return turned.cos() * x + torch.sinc(turned / math.pi) * v


def log(x: Tensor, y: Tensor, radius: float = 1.0) -> Tensor:
    """r·φ·u/‖u‖, u = y − ⟨x, y⟩x/r²: the tangent vector at x with ``exp(x, log(x, y)) = y``; 0 at y = x."""
    # ⟨x, y − x⟩ is small where the angle is: u has the digits of y − x. Near the antipode u is small beside y: what is
    # left along x after the first projection is not, and goes with the second.
    direction = tangent(x, tangent(x, y - x, radius), radius)
    size = _norm(direction)[..., None]
    factor = _checked_angle(x, y, radius)[..., None] * radius / torch.where(size > 0, size, 1)
    return factor * direction


def slerp(x: Tensor, y: Tensor, t: float, radius: float = 1.0) -> Tensor:
    """[sin((1−t)φ)x + sin(tφ)y]/sin φ: the point at t of the great circle from x (t = 0) to y (t = 1)."""
    of_x, of_y = arc_shares(_checked_angle(x, y, radius), t)
    return of_x[..., None] * x + of_y[..., None] * y


def arc_shares(angle: Tensor, t: float) -> tuple[Tensor, Tensor]:
    """sin((1−t)φ)/sin φ and sin(tφ)/sin φ, what the point at t takes of either end; as quotients of sinc, for φ = 0."""
    whole = torch.sinc(angle / math.pi)
    first, second = (share * torch.sinc(share * angle / math.pi) / whole for share in (1 - t, t))
    return first, second


def mean(points: Tensor, weights: Tensor | None = None, radius: float = 1.0) -> Tensor:
    """The Karcher mean (D,) of points (N, D), found in float64: it minimises Σ wᵢ φ(m, xᵢ)²; unless told wᵢ = 1/N."""
    unit = points.double() / radius
    given = torch.ones(len(points)) if weights is None else weights
    cosines = (unit @ unit.mT).clamp(-1, 1)
    if bool(are_opposite_by_cosine(cosines).any()):
        raise InputError("points holds two that are opposite on the sphere; expected some with one mean")
    coefficients = mean_coefficients(cosines, given.to(unit) / given.sum())
    return (radius * (coefficients @ unit)).to(points.dtype)


def mean_coefficients(cosines: Tensor, shares: Tensor) -> Tensor:
    """The coefficients (N,) of the Karcher mean in N unit vectors, from their inner products (N, N) alone.

    ``shares`` (N,): weights with sum 1. The mean is found by m ← exp_m(Σ wᵢ log_m xᵢ), and every iterate is a
    combination of the xᵢ. Angles near 0 are inexact by that route, but enter only through φ/sin φ and cos φ, which are
    not. For two vectors it is the point on their great circle; no two may be opposite.
    """
    if len(shares) == 2:
        return torch.stack(arc_shares(angle_of_cosine(cosines[0, 1]), float(shares[1])))

    def unit(coefficients: Tensor) -> Tensor:
        square = coefficients @ cosines @ coefficients
        if not float(square) > _ANTIPODAL**2:
            raise InputError("the directions cancel; they have no mean on the sphere")
        return coefficients / square.sqrt()

    current = unit(shares)
    for _ in range(_STEPS):
        towards = (cosines @ current).clamp(-1, 1)
        factors = shares / torch.sinc(angle_of_cosine(towards) / math.pi)
        step = factors - (factors @ towards) * current
        size = (step @ cosines @ step).clamp(min=0).sqrt()
        if float(size) < 1e-14:
            return current
        current = unit(size.cos() * current + size.sin() * step / size)
    if float(size) < 1e-9:
        return current
    raise InputError(f"the mean on the sphere did not settle in {_STEPS} steps; the directions are too far apart")


def _norm(x: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return norm


def _checked_angle(x: Tensor, y: Tensor, radius: float) -> Tensor:
    apart, along = _norm(x - y), _norm(x + y)
    if bool(are_opposite(apart, along, torch.finfo(x.dtype).eps, radius).any()):
        raise InputError(
            "x and y are opposite on the sphere; expected points between which one great circle is the shortest"
        )
    return angle_of(apart, along)
