"""Where a flow runs: points of a manifold as rows of numbers, which fields, solvers and couplings work on."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from coset._values import freeze, ties
from coset.errors import InputError
from coset.geometry import Manifold, spheres

Points = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Space:
    """The coordinates of a product of spheres and a Euclidean space, (…, D): parameters one after the other.

    ``manifold``: which coordinates are on spheres. ``like``: one point, of whose types points are made again, and from
    which all comes that is no coordinate (buffers that do not move, whole numbers, further names of tied weights).
    """

    manifold: Manifold
    like: Points

    def __post_init__(self) -> None:
        freeze(self, "like")
        read = self.manifold.read(self.like, "like")
        if self.manifold.lead(read):
            raise InputError(f"like has the leading axes {self.manifold.lead(read)}; expected a single point")
        if not read:
            raise InputError("like has no coordinates: no parameter of it is of floating point numbers")
        for name, tensor in read.items():
            if tensor.is_complex():
                raise InputError(f"'{name}' is of {tensor.dtype}; expected real numbers, flows know no complex ones")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The parameters that are coordinates, in their order in a row."""
        return tuple(self.manifold.read(self.like, "like"))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """How many coordinates each of the ``names`` has."""
        return tuple(math.prod(self.manifold.shapes[name]) for name in self.names)

    @property
    def size(self) -> int:
        """D, the number of coordinates."""
        return sum(self.sizes)

    @property
    def curved(self) -> bool:
        """Whether any coordinates are on spheres."""
        return bool(self.manifold.spheres)

    @cached_property
    def flat(self) -> "Space":
        """The space around the spheres: the same coordinates, all of them Euclidean."""
        own = self.manifold
        return replace(self, manifold=Manifold((), own.shapes, own.tied, own.fixed, own.complex_names))

    def __repr__(self) -> str:
        return f"Space({self.size:,} coordinates, {self.manifold!r})"

    # Rows and points --------------------------------------------------------------------------------------------------

    def rows(self, points: Points) -> Tensor:
        """Points (…, *shape) → (…, D)."""
        read = self.manifold.read(points, "points")
        lead = self.manifold.lead(read)
        if missing := [name for name in self.names if name not in read]:
            raise InputError(f"'{missing[0]}' of points is not of floating point numbers, as it was before")
        return torch.cat([read[name].reshape(*lead, -1) for name in self.names], -1)

    def coordinates(self, rows: Tensor) -> dict[str, Tensor]:
        """(…, D) → parameters by name, as views, and nothing else."""
        if rows.shape[-1] != self.size:
            raise InputError(f"rows have {rows.shape[-1]} numbers; expected {self.size}")
        parts = torch.split_with_sizes(rows, self.sizes, -1)
        return {
            name: part.reshape(*rows.shape[:-1], *self.manifold.shapes[name])
            for name, part in zip(self.names, parts, strict=True)
        }

    def points(self, rows: Tensor) -> dict[str, Tensor]:
        """(…, D) → whole points, in the types of ``like`` and with all that it has beside coordinates."""
        lead = rows.shape[:-1]
        found = {name: tensor.to(self.like[name]) for name, tensor in self.coordinates(rows).items()}
        whole = {name: tensor.expand((*lead, *tensor.shape)) for name, tensor in self.like.items()}
        return self.manifold.complete(found, whole)

    # Geometry ---------------------------------------------------------------------------------------------------------

    def project(self, rows: Tensor) -> Tensor:
        """The nearest points of the manifold, r·x/‖x‖ on every sphere."""
        return self._rows(self.manifold.project(self.coordinates(rows))) if self.curved else rows

    def tangent(self, at: Tensor, v: Tensor) -> Tensor:
        """The part of v that is tangent at the points ``at``."""
        if not self.curved:
            return v
        return self._rows(self.manifold.tangent(self.coordinates(at), self.coordinates(v)))

    def exp(self, at: Tensor, v: Tensor) -> Tensor:
        """exp_x(v): the ends of geodesics."""
        if not self.curved:
            return at + v
        return self._rows(self.manifold.exp(self.coordinates(at), self.coordinates(v)))

    def log(self, at: Tensor, to: Tensor) -> Tensor:
        """log_x(y): the tangent vectors that lead from ``at`` to ``to``."""
        if not self.curved:
            return to - at
        return self._rows(self.manifold.log(self.coordinates(at), self.coordinates(to)))

    def geodesic(self, start: Tensor, end: Tensor, t: float | Tensor) -> Tensor:
        """The points at t, a number or one for each row, of shortest geodesics."""
        if not self.curved:
            along = t if not isinstance(t, Tensor) or t.ndim == 0 else t[..., None]
            between: Tensor = start + along * (end - start)
            return between
        return self._rows(self.manifold.arc(self.coordinates(start), self.coordinates(end))(t))

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """The lengths of shortest geodesics, (…)."""
        if not self.curved:
            return spheres.norm(x - y)
        return self.manifold.distance(self.coordinates(x), self.coordinates(y))

    def _rows(self, coordinates: Points) -> Tensor:
        lead = self.manifold.lead({name: coordinates[name] for name in self.names})
        return torch.cat([coordinates[name].reshape(*lead, -1) for name in self.names], -1)


def euclidean(like: Points) -> Space:
    """The Euclidean space of all floating point parameters of a point; tied weights count once."""
    first = ties(like)
    shapes = {name: tuple(t.shape) for name, t in like.items() if first[name] == name and t.is_floating_point()}
    tied = {name: one for name, one in first.items() if name != one}
    fixed = tuple(name for name in like if name not in shapes and name not in tied)
    return Space(Manifold((), shapes, tied, fixed), like)
