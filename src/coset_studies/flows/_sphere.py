"""Mixtures of von Mises-Fisher distributions on the 2-sphere: draws, densities, and integrals over it."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coset.flow import Space
from coset.geometry import Manifold, laid_out


def sphere() -> Space:
    """The unit sphere in three dimensions, of points {"x": (N, 3)}."""
    one = laid_out("x", {"x": torch.zeros(3, dtype=torch.long)})
    return Space(Manifold((one,), {"x": (3,)}, {}), {"x": torch.zeros(3)})


@dataclass(frozen=True, eq=False)
class VonMisesFisher:
    """Σ w κ/(4π sinh κ)·exp(κ⟨μ, x⟩): ``centres`` μ (K, 3) of norm 1, ``sharpness`` κ (K,), ``weights`` w (K,)."""

    centres: Tensor
    sharpness: Tensor
    weights: Tensor

    def log_density(self, x: Tensor) -> Tensor:
        """Of points (N, 3) by the area, (N,) in float64."""
        k = self.sharpness
        size = (k / (2 * math.pi * -torch.expm1(-2 * k))).log()
        each = self.weights.log() + size + k * (x.double() @ self.centres.mT - 1)
        return torch.logsumexp(each, -1)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """(count, 3), exactly: the quantile of ⟨μ, x⟩ is 1 + log(u + (1 − u)e^{−2κ})/κ."""
        chosen = torch.multinomial(self.weights, count, replacement=True, generator=generator)
        k, axis = self.sharpness[chosen], self.centres[chosen]
        u = torch.rand(count, generator=generator, dtype=torch.float64)
        along = 1 + torch.log(u + (1 - u) * torch.exp(-2 * k)) / k
        across = torch.randn(count, 3, generator=generator, dtype=torch.float64)
        across = across - (across * axis).sum(-1, keepdim=True) * axis
        across = across / across.norm(dim=-1, keepdim=True)
        found: Tensor = along[:, None] * axis + (1 - along.square()).clamp_min(0).sqrt()[:, None] * across
        return found


def four_modes() -> VonMisesFisher:
    """Four distributions of different places, widths and weights."""
    places = [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [-0.5, 0.8, -0.3], [-0.3, -1.0, -0.4]]
    centres = torch.nn.functional.normalize(torch.tensor(places, dtype=torch.float64), dim=-1)
    sharpness = torch.tensor([30.0, 15.0, 8.0, 50.0], dtype=torch.float64)
    return VonMisesFisher(centres, sharpness, torch.tensor([0.3, 0.3, 0.25, 0.15], dtype=torch.float64))


def quadrature(count: int) -> tuple[Tensor, Tensor]:
    """Points (2·count², 3) and weights that integrate smooth functions: Gauss in the height, evenly in longitude."""
    heights, shares = (torch.tensor(part) for part in np.polynomial.legendre.leggauss(count))
    angles = torch.arange(2 * count, dtype=torch.float64) * (math.pi / count)
    u, phi = (part.flatten() for part in torch.meshgrid(heights, angles, indexing="ij"))
    across = (1 - u.square()).sqrt()
    weights = (shares[:, None] * torch.full_like(angles, math.pi / count)).flatten()
    return torch.stack([across * phi.cos(), across * phi.sin(), u], 1), weights
