"""Where flows begin: distributions of rows that can be drawn from and have a density."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coset._checks import check_positive
from coset.distribution import Distribution
from coset.distribution.density import standard_normal
from coset.errors import InputError
from coset.flow._space import Space
from coset.geometry import spheres

_LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True, eq=False)
class Source(ABC):
    """A distribution over the rows (N, D) of a ``space``, with its moments entry by entry: ``mean``, ``std`` (D,)."""

    space: Space
    mean: Tensor
    std: Tensor

    @abstractmethod
    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """``count`` rows."""

    @abstractmethod
    def log_density(self, rows: Tensor) -> Tensor:
        """log p₀ of rows (N, D) by the volume of the space, (N,) in float64."""

    def tensors(self) -> tuple[Tensor, ...]:
        """All that tells it from other sources of its kind."""
        return self.mean, self.std

    def to(self, like: Tensor) -> "Source":
        """The same on the device and in the type of a tensor."""
        return type(self)(self.space, self.mean.to(like), self.std.to(like))


class NormalSource(Source):
    """N(m, diag s²) in a space without spheres."""

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        return self.mean + self.std * standard_normal((count, len(self.mean)), self.mean, generator)

    def log_density(self, rows: Tensor) -> Tensor:
        return _normal(rows, self.mean, self.std).sum(-1)


class UniformSource(Source):
    """Uniform on all spheres, N(m, diag s²) on Euclidean coordinates: a Gaussian row, projected.

    On spheres ``mean`` is 0 and ``std`` r/√(d + 1), which are those of the uniform distribution entry by entry.
    """

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        return self.space.project(self.mean + self.std * standard_normal((count, len(self.mean)), self.mean, generator))

    def log_density(self, rows: Tensor) -> Tensor:
        own = self.space.manifold
        each = self.space.coordinates(_normal(rows, self.mean, self.std))
        total = torch.zeros(rows.shape[:-1], dtype=torch.float64, device=rows.device)
        for (part,) in own.euclidean(each):
            total = total + part.sum(-1)
        volumes = (spheres.log_volume(int(size) - 1, item.radius) for item in own.spheres for size in item.sizes())
        return total - sum(volumes)


@dataclass(frozen=True, eq=False)
class WrappedSource(Source):
    """exp_c(v), v ~ N(0, s²) on the tangent space at a ``centre`` (D,); on Euclidean coordinates N(c, s²)."""

    centre: Tensor
    spread: float

    def tensors(self) -> tuple[Tensor, ...]:
        return self.mean, self.std, self.centre, torch.tensor(self.spread, dtype=torch.float64)

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        own = self.space.manifold
        return self.space.rows(own.wrapped_normal(self.space.points(self.centre), self.spread, generator, count)).to(
            self.mean
        )

    def log_density(self, rows: Tensor) -> Tensor:
        centre, at = self.space.coordinates(self.centre.double()), self.space.coordinates(rows.double())
        found = self.space.manifold.wrapped_normal_log_density(centre, at, self.spread)
        return found.to(rows.device)

    def to(self, like: Tensor) -> "Source":
        moments = (self.mean.to(like), self.std.to(like))
        return type(self)(self.space, *moments, self.centre.to(like), self.spread)


@dataclass(frozen=True, eq=False)
class GivenSource(Source):
    """Any distribution over the weights, in a space without spheres."""

    distribution: Distribution

    def tensors(self) -> tuple[Tensor, ...]:
        return self.mean, self.std, self.sample(4, torch.Generator(self.mean.device).manual_seed(0))

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        return self.space.rows(self.distribution.sample(count, generator)).to(self.mean)

    def log_density(self, rows: Tensor) -> Tensor:
        return self.distribution.log_prob(self.space.points(rows)).double()

    def to(self, like: Tensor) -> "Source":
        return type(self)(self.space, self.mean.to(like), self.std.to(like), self.distribution)


def _normal(rows: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """log N(x; m, s²) entry by entry, in float64."""
    wide = std.double()
    return -0.5 * ((rows.double() - mean.double()) / wide).square() - wide.log() - 0.5 * _LOG_2PI


def _typical(space: Space, rows: Tensor) -> Tensor:
    """√⟨x²⟩ of each parameter over data and entries, for each of its entries, (D,)."""
    sizes = [part.double().square().mean().sqrt() for part in torch.split_with_sizes(rows, space.sizes, -1)]
    known = torch.stack([torch.where(size > 0, size, torch.ones_like(size)) for size in sizes]).to(rows)
    return torch.repeat_interleave(known, torch.tensor(space.sizes, device=rows.device))


def _gaussian(space: Space, rows: Tensor, std: float) -> Source:
    return NormalSource(space.flat, torch.zeros_like(rows[0]), std * _typical(space, rows))


def _kaiming(space: Space, rows: Tensor, std: float) -> Source:
    """N(0, 2/fan-in) for matrices and filters (He et al.); of biases and gains the moments of the data."""
    means, stds = [], []
    for name, part in zip(space.names, torch.split_with_sizes(rows, space.sizes, -1), strict=True):
        shape = space.manifold.shapes[name]
        if len(shape) >= 2:
            means.append(torch.zeros_like(part[0]))
            stds.append(torch.full_like(part[0], std * math.sqrt(2 / math.prod(shape[1:]))))
        else:
            centre = part.mean()
            spread = (part - centre).square().mean().sqrt()
            means.append(centre.expand_as(part[0]))
            stds.append((std * torch.where(spread > 0, spread, torch.ones_like(spread))).expand_as(part[0]))
    return NormalSource(space.flat, torch.cat(means), torch.cat(stds))


def _uniform(space: Space, rows: Tensor, std: float) -> Source:
    if not space.curved:
        raise InputError("source is 'uniform', and no coordinates are on spheres; expected 'gaussian' or 'kaiming'")
    typical = space.coordinates(std * _typical(space, rows))
    typical = {name: tensor.clone() for name, tensor in typical.items()}
    for item in space.manifold.spheres:
        part = item.rows(typical)
        even = item.radius / item.sizes().double().sqrt()
        item.put_rows(typical, even.to(part)[:, None].expand_as(part), typical)
    return UniformSource(space, torch.zeros_like(rows[0]), space.rows(typical).to(rows))


def _wrapped(space: Space, rows: Tensor, std: float) -> Source:
    centre = space.project(rows.mean(0))
    drawn = WrappedSource(space, centre, torch.ones_like(centre), centre, std)
    some = drawn.sample(1024, torch.Generator().manual_seed(0))
    spread = some.double().std(0).to(rows)
    return WrappedSource(space, some.mean(0), torch.where(spread > 0, spread, torch.ones_like(spread)), centre, std)


SOURCES: Mapping[str, Callable[[Space, Tensor, float], Source]] = {
    "gaussian": _gaussian,
    "kaiming": _kaiming,
    "uniform": _uniform,
    "wrapped-normal": _wrapped,
}
"""Name → the source of a space, given rows of data and a factor of its deviations."""


def make_source(source: "str | Distribution", space: Space, rows: Tensor, std: float) -> Source:
    """A source by name, or of a distribution over the weights."""
    check_positive("source_std", std)
    if isinstance(source, str):
        if source not in SOURCES:
            raise InputError(f"source is {source!r}; expected one of {', '.join(SOURCES)}, or a distribution")
        return SOURCES[source](space, rows, std)
    if not isinstance(source, Distribution):
        raise InputError(
            f"source is a {type(source).__name__}; expected one of {', '.join(SOURCES)}, or a distribution"
        )
    if space.curved:
        raise InputError(
            "source is a distribution over all weights, and this flow runs on spheres; expected 'uniform' or "
            "'wrapped-normal'"
        )
    mean, std_of = space.rows(source.mean).to(rows), space.rows({**space.like, **source.std}).to(rows)
    return GivenSource(space, mean, torch.where(std_of > 0, std_of, torch.ones_like(std_of)), source)
