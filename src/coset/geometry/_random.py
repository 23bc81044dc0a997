"""Random points of a manifold of weights, and their densities by the volume of the product."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coset._checks import check_count, check_positive
from coset.errors import InputError
from coset.geometry import spheres

if TYPE_CHECKING:
    from coset.geometry._manifold import Manifold

Point = Mapping[str, Tensor]


def uniform(
    space: "Manifold", generator: torch.Generator, count: int | None, like: Point, std: float
) -> dict[str, Tensor]:
    """Uniform on spheres (a Gaussian vector over its norm), N(0, std²) on Euclidean parts."""
    check_positive("std", std)
    read = space.read(like, "like")
    if space.lead(read):
        raise InputError(f"like has the leading axes {space.lead(read)}; expected a single point")
    lead = () if count is None else (check_count("count", count),)
    drawn = {name: _gaussian((*lead, *t.shape), t, generator) * std for name, t in read.items()}
    return space.project(space.complete(drawn, _repeated(like, lead)))


def uniform_log_density(space: "Manifold", x: Point, std: float) -> Tensor:
    """−Σ log vol(sphere) + log N(Euclidean part; 0, std²)."""
    check_positive("std", std)
    read = space.read(x, "x")
    kinds = frozenset(name for name, tensor in read.items() if tensor.is_complex())
    volume = sum(spheres.log_volume(int(size) - 1, item.radius) for item in space.spheres for size in item.sizes(kinds))
    flat = _normal_log_density([part for (part,) in space.euclidean(read)], std)
    return torch.zeros(space.lead(read), dtype=torch.float64) - volume + flat


def wrapped_normal(
    space: "Manifold", x: Point, std: float, generator: torch.Generator, count: int | None
) -> dict[str, Tensor]:
    """exp_x(v), v ~ N(0, std²) on the tangent space: what is tangent of a Gaussian vector."""
    check_positive("std", std)
    read = space.read(x, "x")
    lead = () if count is None else (check_count("count", count),)
    drawn = {name: _gaussian((*lead, *t.shape), t, generator) * std for name, t in read.items()}
    found = space.exp(read, space.tangent(read, drawn))
    return space.complete(found, _repeated(x, lead))


def wrapped_normal_log_density(space: "Manifold", x: Point, y: Point, std: float) -> Tensor:
    """Σ over spheres of ``spheres.wrapped_normal_log_density``, and log N(y; x, std²) on Euclidean parts."""
    check_positive("std", std)
    a, b = ({name: _wide(t) for name, t in space.read(point, "xy"[i]).items()} for i, point in enumerate((x, y)))
    kinds = frozenset(name for name, tensor in a.items() if tensor.is_complex())
    angles = space.angles(a, b)
    total = torch.zeros(spheres.common_shape(space.lead(a), space.lead(b)), dtype=torch.float64)
    for item in space.spheres:
        sizes = item.sizes(kinds)
        for size in sorted(set(sizes.tolist())):
            own = angles[item.key][..., (sizes == size).to(angles[item.key].device)]
            found = spheres.wrapped_normal_log_density(own, std, size - 1, item.radius)
            total = total + found.sum(-1).cpu()
    return total + _normal_log_density([second - first for first, second in space.euclidean(a, b)], std)


def _normal_log_density(parts: list[Tensor], std: float) -> Tensor:
    """log N(parts; 0, std²) over last axes."""
    total = torch.zeros((), dtype=torch.float64)
    for part in parts:
        squares = (part.double() / std).square().sum(-1).cpu()
        total = total - 0.5 * squares - part.shape[-1] * 0.5 * math.log(2 * math.pi * std * std)
    return total


def _gaussian(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    """N(0, 1) in every real number, of the type and on the device of ``like``."""
    if like.is_complex():
        parts = torch.randn(*shape, 2, generator=generator, dtype=like.real.dtype, device=generator.device)
        return torch.view_as_complex(parts).to(like.device)
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=generator.device).to(like.device)


def _repeated(point: Point, lead: tuple[int, ...]) -> dict[str, Tensor]:
    """A point with further leading axes, all alike."""
    return {name: tensor.expand((*lead, *tensor.shape)) for name, tensor in point.items()}


def _wide(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)
