"""Small spaces to run flows in, and fields on them whose flows are known."""

import math
from types import SimpleNamespace

import torch

from coset.flow import Space, euclidean
from coset.geometry import Manifold
from coset.geometry._layout import laid_out


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def plane(size=2):
    return euclidean({"x": torch.zeros(size, dtype=torch.float64)})


def sphere(radius=1.0, size=3):
    one = laid_out("x", {"x": torch.zeros(size, dtype=torch.long)}, radius)
    return Space(Manifold((one,), {"x": (size,)}, {}), {"x": torch.zeros(size, dtype=torch.float64)})


def product():
    """Two 2-spheres of radius 1, a circle of radius 2 and two Euclidean coordinates, in no simple order."""
    first = laid_out("a", {"a": torch.arange(2)[:, None].expand(2, 3)})
    second = laid_out("b", {"b": torch.tensor([0, -1, 0, -1])}, 2.0)
    like = {"b": torch.zeros(4, dtype=torch.float64), "a": torch.zeros(2, 3, dtype=torch.float64)}
    return Space(Manifold((first, second), {"b": (4,), "a": (2, 3)}, {}), like)


SPACES = {"plane": plane(3), "sphere": sphere(1.7), "product": product()}


def points(space, count, seed=0):
    return space.project(normal(count, space.size, seed=seed))


def tangents(space, x):
    """An orthonormal basis of the tangent space at one point, (D, d)."""
    projector = space.tangent(x.expand(space.size, -1), torch.eye(space.size, dtype=x.dtype))
    values, vectors = torch.linalg.eigh(projector)
    return vectors[:, values > 0.5]


def turned(x, angle):
    """x (N, 3) turned around the third axis by an angle."""
    c, s = math.cos(angle), math.sin(angle)
    return x @ torch.tensor([[c, s, 0], [-s, c, 0], [0, 0, 1]], dtype=x.dtype)


def turning():
    """ω(t)·e₃ × x with ω = 1 + 2t: it turns by t + t²; not made tangent beforehand, 0.3x is added."""

    def velocity(t, x):
        return (1 + 2 * t) * torch.stack([-x[:, 1], x[:, 0], 0 * x[:, 2]], 1) + 0.3 * x

    return SimpleNamespace(velocity=velocity, end=lambda x: turned(x, 2.0))


def climbing(radius, pull=1.3):
    """κa, whose tangent part is the gradient of κ⟨a, x⟩: artanh(⟨a, x⟩/r) grows by κ/r in time 1, longitudes stay.

    From u' = (κ/r)(1 − u²) for u = ⟨a, x⟩/r. Of the uniform density on S² it makes the uniform one times
    (cosh κ/r − u₁ sinh κ/r)⁻², as div = −2κu/r integrates to −2 log(cosh s₁/cosh s₀), s = artanh u.
    """
    a = torch.tensor([2.0, -1.0, 2.0], dtype=torch.float64) / 3

    def end(x):
        u = x @ a / radius
        after = torch.tanh(torch.atanh(u) + pull / radius)
        across = x / radius - u[:, None] * a
        return radius * (after[:, None] * a + across * ((1 - after**2) / (1 - u**2)).sqrt()[:, None])

    def log_density(x):
        c = pull / radius
        return -math.log(4 * math.pi * radius**2) - 2 * torch.log(math.cosh(c) - x @ a / radius * math.sinh(c))

    return SimpleNamespace(velocity=lambda t, x: pull * a + 0 * x, end=end, log_density=log_density, axis=a)


def smooth(space, seed=0, width=6):
    """A field without a closed form: W₂ tanh(W₁x + t·b), not tangent."""
    w1, w2 = normal(width, space.size, seed=seed) * 0.7, normal(space.size, width, seed=seed + 1) * 0.25
    b = normal(width, seed=seed + 2)
    return lambda t, x: torch.tanh(x @ w1.mT + t * b) @ w2.mT


def sphere_quadrature(radius, count=20):
    """Points of S² and weights that integrate smooth functions: Gauss in the height, evenly in longitude."""
    import numpy as np

    heights, shares = (torch.tensor(part) for part in np.polynomial.legendre.leggauss(count))
    angles = torch.arange(2 * count, dtype=torch.float64) * (math.pi / count)
    u, phi = (part.flatten() for part in torch.meshgrid(heights, angles, indexing="ij"))
    across = (1 - u**2).sqrt()
    x = radius * torch.stack([across * phi.cos(), across * phi.sin(), u], 1)
    return x, (shares[:, None] * torch.full_like(angles, math.pi / count * radius**2)).flatten()
