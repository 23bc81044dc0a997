"""Paths from source to data, and the velocities along them that a field learns (thesis, sections 3.2.3 and 3.3.2)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from coset._checks import check_positive
from coset.distribution.density import standard_normal
from coset.flow._space import Space
from coset.geometry import Arc, OppositeUnits

GEOMETRIES = ("euclidean", "normalized", "geometric")
"""Weights as they are; canonical weights on straight lines through the spheres, projected at the end; on geodesics."""

TIMES = ("uniform", "beta")
"""U(0, 1); Beta(1, 2), with density 2(1 − t), which looks more at the beginning."""

NUDGE = 1e-3
"""By so much, times a standard normal number, coordinates move where units are opposite."""

LAST = 1e-3
"""Quotients by 1 − t are by so much at least."""


@dataclass(frozen=True, eq=False)
class Path:
    """Conditional paths x_t from x₀ to x₁ on a ``space``, with noise of deviation ``sigma``.

    Without spheres x_t = (1−t)x₀ + t·x₁ + σε and u = x₁ − x₀ (3.11, 3.12); on spheres x_t = exp_{x₀}(t·log_{x₀} x₁)
    (3.15) and u = log_{x_t}(x₁)/(1−t) (3.16), of which without noise the derivative of the arc is the same and divides
    by nothing small; noise is σε along tangents, ended by exp.
    """

    space: Space
    sigma: float = 0.0

    def __post_init__(self) -> None:
        check_positive("sigma", self.sigma, zero=True)

    def between(self, x0: Tensor, x1: Tensor, t: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """x_t and its velocity, both (N, D), at times (N,)."""
        if not self.space.curved:
            place = torch.lerp(x0, x1, t[:, None])
            return (
                place + self.sigma * standard_normal(tuple(x0.shape), x0, generator) if self.sigma else place
            ), x1 - x0
        arc = self._arc(x0, x1, generator)
        place = self.space.project(self.space.rows(arc(t)))
        if not self.sigma:
            return place, self.space.rows(arc.velocity(t))
        noise = self.space.tangent(place, self.sigma * standard_normal(tuple(x0.shape), x0, generator))
        place = self.space.project(self.space.exp(place, noise))
        return place, self.space.log(place, x1) / remaining(t)[:, None]

    def _arc(self, x0: Tensor, x1: Tensor, generator: torch.Generator) -> Arc:
        """The geodesics of all pairs; x₀ moves a little if a unit is opposite at both ends, as happens on circles."""
        end = self.space.coordinates(x1)
        try:
            return self.space.manifold.arc(self.space.coordinates(x0), end)
        except OppositeUnits:
            moved = self.space.project(x0 + NUDGE * standard_normal(tuple(x0.shape), x0, generator))
            return self.space.manifold.arc(self.space.coordinates(moved), end)

    def towards(self, x: Tensor, end: Tensor, t: Tensor) -> Tensor:
        """The velocity at x_t of a path that ends in x̂₁: (x̂₁ − x_t)/(1−t), on spheres log_{x_t}(x̂₁)/(1−t)."""
        left = remaining(t)[:, None]
        if not self.space.curved:
            return (end - x) / left
        return self.space.log(x, self.space.project(end)) / left


def remaining(t: Tensor) -> Tensor:
    """1 − t, but no less than ``LAST``."""
    return (1 - t).clamp_min(LAST)


def draw_times(kind: str, count: int, like: Tensor, generator: torch.Generator) -> Tensor:
    """Times (N,) between 0 and 1; of Beta(1, 2) by its quantile 1 − √(1 − u)."""
    u = torch.rand(count, generator=generator, dtype=torch.float64, device=generator.device)
    found = u if kind == "uniform" else 1 - (1 - u).sqrt()
    return found.to(like)
