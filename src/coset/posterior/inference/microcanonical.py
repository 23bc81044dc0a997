"""Microcanonical (isokinetic) dynamics: positions x and velocities u of length 1, in D dimensions (Robnik et al. 2023).

With g = ∇log p and P = I − uuᵀ

    dx = u dt,    du = P g/(D − 1) dt + η P dW

leave p(x) × uniform(u) invariant, with or without the noise. A step is split into parts that are solved exactly: x
moves along u; u turns towards e = g/|g| by δ = ε|g|/(D − 1),

    u ← (u + e (sinh δ + a (cosh δ − 1)))/(cosh δ + a sinh δ),    a = ⟨e, u⟩,

which contracts the sphere by (cosh δ + a sinh δ)^{D−1} = exp ΔK; and u is partly drawn anew. ΔE = ΔK − Δlog p is the
error of a step: the log of what a Metropolis test accepts with is −ΔE.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

_LAMBDA = 0.1931833275037836
"""Of the splitting with the least error of second order (McLachlan 1995)."""

INTEGRATORS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "leapfrog": ((0.5, 0.5), (1.0,)),
    "minimal-norm": ((_LAMBDA, 1 - 2 * _LAMBDA, _LAMBDA), (0.5, 0.5)),
}
"""Shares of a step by which u turns and, between these, x moves. Each move costs a gradient."""

DIVERGENT = 1000.0
"""An energy error beyond this is no step of the dynamics."""


def turned(velocity: Tensor, gradient: Tensor, size: Tensor | float) -> tuple[Tensor, Tensor]:
    """Velocities (C, D) after turning towards gradients (C, D) for a time ``size``, and ΔK (C,).

    With ζ = exp(−δ), which does not overflow: ΔK = (D − 1)(δ + log ½(1 + a + (1 − a)ζ²)).
    """
    freedom = velocity.shape[-1] - 1
    strength = gradient.norm(dim=-1, keepdim=True)
    direction = gradient / strength.clamp(min=torch.finfo(gradient.dtype).tiny)
    along = (direction * velocity).sum(-1, keepdim=True).clamp(-1, 1)
    delta = size * strength / freedom
    decay = torch.exp(-delta)
    moved = direction * ((1 - decay) * (1 + decay + along * (1 - decay))) + velocity * (2 * decay)
    kinetic = freedom * (delta + torch.log(0.5 * (1 + along + (1 - along) * decay * decay)))
    return _directed(moved), kinetic.squeeze(-1)


def refreshed(velocity: Tensor, noise: Tensor, share: Tensor | float) -> Tensor:
    """(u + νξ)/|u + νξ|, ξ ~ N(0, I): rotations of which none is preferred."""
    return _directed(velocity + share * noise)


def refreshment(step: float, length: float, size: int) -> float:
    """ν = √((exp(2ε/L) − 1)/D): over the length L a velocity forgets what it was (Robnik and Seljak 2024)."""
    return math.sqrt(math.expm1(min(2 * step / length, 50.0)) / size)


class Moment(NamedTuple):
    """Positions and velocities (C, D), log-densities (C,) and gradients (C, D) there; ``error`` ΔE (C,) of the way."""

    position: Tensor
    velocity: Tensor
    value: Tensor
    gradient: Tensor
    error: Tensor


Drift = Callable[..., Moment]
"""(position, velocity, value, gradient, scale (D,), size (), *data) → the moment after one step."""


def drift_of(density: Callable[..., tuple[Tensor, Tensor]], integrator: str = "leapfrog") -> Drift:
    """One step of size ε without noise, for weights measured in units of ``scale``: reversible under u → −u."""
    turns, moves = INTEGRATORS[integrator]

    def drift(
        position: Tensor, velocity: Tensor, value: Tensor, gradient: Tensor, scale: Tensor, size: Tensor, *data: Tensor
    ) -> Moment:
        before = value
        velocity, error = turned(velocity, gradient * scale, turns[0] * size)
        for turn, move in zip(turns[1:], moves, strict=True):
            position = position + (move * size) * (scale * velocity)
            value, gradient = density(position, *data)
            velocity, kinetic = turned(velocity, gradient * scale, turn * size)
            error = error + kinetic
        return Moment(position, velocity, value, gradient, error - (value - before))

    return drift


def langevin_of(density: Callable[..., tuple[Tensor, Tensor]], integrator: str = "leapfrog") -> Callable[..., Moment]:
    """A step and the noise after it; a chain whose step is broken stays where it was and takes a new direction.

    (…as ``Drift``, share (), noise (C, D), *data) → ``Moment``; the error of a broken step is NaN.
    """
    drift = drift_of(density, integrator)

    def step(
        position: Tensor, velocity: Tensor, value: Tensor, gradient: Tensor, scale: Tensor, size: Tensor,
        share: Tensor, noise: Tensor, *data: Tensor,
    ) -> Moment:  # fmt: skip
        end = drift(position, velocity, value, gradient, scale, size, *data)
        # A sum is finite where all of it is, short of an overflow that is broken, too.
        whole = (end.error.abs() < DIVERGENT) & end.gradient.sum(-1).isfinite()
        rows = whole.unsqueeze(-1)
        onwards = torch.where(rows, refreshed(end.velocity, noise, share), _directed(noise))
        return Moment(
            torch.where(rows, end.position, position),
            onwards,
            torch.where(whole, end.value, value),
            torch.where(rows, end.gradient, gradient),
            torch.where(whole, end.error, torch.full_like(end.error, math.nan)),
        )

    return step


def minibatch_of(density: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Moment]:
    """A step that takes one gradient, of a minibatch, half way: x moves, u turns, x moves on; noise after it.

    The moment's value and gradient are those half way, and the error is ΔK alone, NaN of a broken step.
    """

    def step(
        position: Tensor, velocity: Tensor, value: Tensor, gradient: Tensor, scale: Tensor, size: Tensor,
        share: Tensor, noise: Tensor, *data: Tensor,
    ) -> Moment:  # fmt: skip
        half = position + (0.5 * size) * (scale * velocity)
        value, slope = density(half, *data)
        onwards, kinetic = turned(velocity, slope * scale, size)
        end = half + (0.5 * size) * (scale * onwards)
        whole = slope.sum(-1).isfinite() & value.isfinite() & end.sum(-1).isfinite()
        rows = whole.unsqueeze(-1)
        fresh = _directed(noise)
        return Moment(
            torch.where(rows, end, position),
            torch.where(rows, refreshed(onwards, noise, share), fresh),
            torch.where(whole, value, torch.zeros_like(value)),
            torch.where(rows, slope, gradient),
            torch.where(whole, kinetic, torch.full_like(value, math.nan)),
        )

    return step


def directions(like: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform velocities of length 1, (C, D)."""
    return _directed(torch.empty_like(like).normal_(generator=generator))


def _directed(vectors: Tensor) -> Tensor:
    """Vectors (…, D) at length 1."""
    unit: Tensor = vectors / vectors.norm(dim=-1, keepdim=True)
    return unit
