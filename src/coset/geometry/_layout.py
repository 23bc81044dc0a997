"""Where the spheres of a family stand in the parameters: which entries make up each unit, and how they are reached.

Where a unit is a slice of one parameter, sums are taken in place over the other dimensions. Where its entries are in
several parameters these are joined, and where they are scattered they are gathered.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coset._magnitudes import exponents, scaled_by
from coset.geometry._blocks import counted
from coset.geometry.spheres import norm

_SMALL, _LARGE = 2.0**-400, 2.0**400
"""Norms between these have squares, and sums of squares, that are numbers in float64."""


@dataclass(frozen=True, eq=False)
class Slices:
    """Unit i is the slice ``start + i`` of a parameter along ``axis``; with no axis the whole parameter is one unit.

    ``shape``: of the parameter; ``count``: of units.
    """

    name: str
    shape: tuple[int, ...]
    axis: int | None
    start: int
    count: int

    @property
    def whole(self) -> bool:
        """Whether all entries of the parameter are on these spheres."""
        return self.axis is None or self.count == self.shape[self.axis]

    @property
    def width(self) -> int:
        """The number of entries of a unit."""
        return math.prod(self.shape) if self.axis is None else math.prod(self.shape) // self.shape[self.axis]

    @property
    def sizes(self) -> Tensor:
        """The number of entries of each unit, (count,)."""
        return torch.full((self.count,), self.width)

    def view(self, tensor: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """The entries with one dimension for units, and the dimensions that a unit is made of."""
        # A complex number is two: its parts are one dimension more.
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        ndim = len(self.shape) + int(tensor.is_complex())
        if self.axis is None:
            return real.reshape(*real.shape[: real.ndim - ndim], 1, -1), (-1,)
        if ndim == 1:
            return real[..., self.start : self.start + self.count, None], (-1,)
        axis = self.axis - len(self.shape) - int(tensor.is_complex())
        part = real if self.whole else real.narrow(axis, self.start, self.count)
        return part, tuple(dim for dim in range(-ndim, 0) if dim != axis)

    def rows(self, tensor: Tensor) -> Tensor:
        """The entries, (…, count, entries of a unit)."""
        part, dims = self.view(tensor)
        if len(dims) == 1:
            return part if dims[0] == -1 else part.movedim(dims[0], -1)
        (axis,) = (dim for dim in range(-len(dims) - 1, 0) if dim not in dims)
        return part.movedim(axis, -len(dims) - 1).flatten(-len(dims))

    def of_rows(self, rows: Tensor, complex_: bool) -> Tensor:
        """What ``view`` gives, of what ``rows`` gives."""
        shape = [*self.shape, 2] if complex_ else list(self.shape)
        if self.axis is None or len(shape) == 1:
            return rows
        del shape[self.axis]
        return rows.reshape(*rows.shape[:-1], *shape).movedim(-len(shape) - 1, self.axis - len(shape) - 1)

    def put(self, out: dict[str, Tensor], part: Tensor, complex_: bool) -> None:
        """Write what ``view`` gives back."""
        shape = [*self.shape, 2] if complex_ else list(self.shape)
        if self.axis is None:
            part = part.reshape(*part.shape[:-2], *shape)
        elif len(shape) == 1:
            part = part[..., 0]
        part = torch.view_as_complex(part.contiguous()) if complex_ else part
        if self.whole:
            out[self.name] = part
        else:
            assert self.axis is not None
            out[self.name].narrow(self.axis - len(self.shape), self.start, self.count).copy_(part)


@dataclass(frozen=True, eq=False)
class Scattered:
    """The entries of a parameter that units have anywhere in it.

    ``shape``: of the parameter. ``positions`` (count, W): of the entries of each unit in the flat parameter, as many as
    the largest has; ``there`` (count, W): whether there is one.
    """

    name: str
    shape: tuple[int, ...]
    positions: Tensor
    there: Tensor
    whole = False

    @property
    def width(self) -> int:
        """The number of entries of the largest unit."""
        return self.there.shape[1]

    @property
    def sizes(self) -> Tensor:
        """The number of entries of each unit, (count,)."""
        return self.there.sum(1)

    def rows(self, tensor: Tensor) -> Tensor:
        """The entries, (…, count, W), with zeros where there is none; of complex ones (…, count, 2W)."""
        flat = tensor.reshape(*tensor.shape[: tensor.ndim - len(self.shape)], -1)
        found = flat[..., self.positions.to(tensor.device)] * self.there.to(tensor.device)
        return torch.view_as_real(found).flatten(-2) if found.is_complex() else found

    def of_rows(self, rows: Tensor, complex_: bool) -> Tensor:
        """As they are."""
        return rows

    def put(self, out: dict[str, Tensor], part: Tensor, complex_: bool) -> None:
        """Write what ``rows`` gives back."""
        part = torch.view_as_complex(part.reshape(*part.shape[:-1], -1, 2).contiguous()) if complex_ else part
        there = self.there.to(part.device)
        before = out[self.name]
        lead = before.shape[: before.ndim - len(self.shape)]
        flat = before.reshape(*lead, -1)
        entries = part[..., there].to(flat.dtype)
        out[self.name] = flat.index_copy(-1, self.positions.to(part.device)[there], entries).reshape(before.shape)


Place = Slices | Scattered


@dataclass(frozen=True, eq=False)
class Spheres:
    """The spheres of one family of scales, one for each of S units.

    ``key``: the family. ``units`` (S,): the numbers of its units, over all blocks, in order. ``radius``: of every
    sphere. ``places``: where their entries are.
    """

    key: str
    units: Tensor
    radius: float
    places: tuple[Place, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters the spheres are in."""
        return tuple(place.name for place in self.places)

    def sizes(self, complex_: frozenset[str] = frozenset()) -> Tensor:
        """The number of real numbers that make up each unit, (S,), given which parameters are of complex ones."""
        parts = [place.sizes * (2 if place.name in complex_ else 1) for place in self.places]
        return torch.stack(parts).sum(0)

    def in_memory_of(self, point: Mapping[str, Tensor]) -> bool:
        """Whether what ``view`` gives of a point is all of a parameter, in its own memory."""
        alone = self._alone()
        return alone is not None and alone.whole and point[alone.name].is_contiguous()

    def _alone(self) -> Slices | None:
        """The place, if units are slices of one parameter."""
        first = self.places[0]
        return first if len(self.places) == 1 and isinstance(first, Slices) else None

    def view(self, point: Mapping[str, Tensor]) -> tuple[Tensor, tuple[int, ...]]:
        """The entries of all units, with one dimension of S, and the dimensions that a unit is made of."""
        alone = self._alone()
        return (self.rows(point), (-1,)) if alone is None else alone.view(point[alone.name])

    def rows(self, point: Mapping[str, Tensor]) -> Tensor:
        """The entries of all units, (…, S, entries of a unit), padded with zeros where units differ in size."""
        rows = [place.rows(point[place.name]) for place in self.places]
        return torch.cat(rows, -1) if len(rows) > 1 else rows[0]

    def put(self, out: dict[str, Tensor], entries: Tensor, like: Mapping[str, Tensor]) -> None:
        """Write entries as ``view`` gives them into parameters; those partly on spheres must be there already."""
        alone = self._alone()
        if alone is None:
            self.put_rows(out, entries, like)
        else:
            alone.put(out, entries, like[alone.name].is_complex())

    def put_rows(self, out: dict[str, Tensor], rows: Tensor, like: Mapping[str, Tensor]) -> None:
        """``put`` for entries as ``rows`` gives them."""
        kinds = [like[place.name].is_complex() for place in self.places]
        widths = [place.width * (2 if kind else 1) for place, kind in zip(self.places, kinds, strict=True)]
        for place, part, kind in zip(self.places, torch.split(rows, widths, -1), kinds, strict=True):
            place.put(out, place.of_rows(part, kind), kind)

    def norms(self, point: Mapping[str, Tensor]) -> Tensor:
        """‖x‖ of every unit, of any size, (…, S) in float64."""
        rows, dims = self.view(point)
        return counted(norms_of_any_size)(rows, self.radius, dims)


def norms_of_any_size(part: Tensor, radius: float, dim: tuple[int, ...]) -> Tensor:
    """‖x‖ over ``dim`` in float64, of numbers whose squares are none."""
    wide = part.double()
    plain = norm(wide, dim)
    if bool(((plain > _SMALL) & (plain < _LARGE)).all()):
        return plain
    by = exponents(wide, dim)
    return scaled_by(norm(scaled_by(wide, by.reshape(with_ones(wide, dim))), dim), -by)


def with_ones(part: Tensor, dim: tuple[int, ...]) -> list[int]:
    """The shape of a tensor with ones for the dimensions ``dim``."""
    return [1 if number - part.ndim in dim else length for number, length in enumerate(part.shape)]


def laid_out(key: str, labels: Mapping[str, Tensor], radius: float = 1.0) -> Spheres:
    """The spheres of the units that ``labels`` name: parameter → the unit of each entry, of its shape, −1 for none."""
    units = torch.unique(torch.cat([label[label >= 0] for label in labels.values()]))
    number = torch.full((int(units.max()) + 2,), -1)
    number[units] = torch.arange(len(units))
    # The last place, for the label −1, stays −1.
    places = [_place(name, number[label], len(units)) for name, label in labels.items()]
    return Spheres(key, units, radius, tuple(places))


def _place(name: str, labels: Tensor, count: int) -> Place:
    """Where units 0, …, count − 1 stand in a parameter: as slices, if they do."""
    shape = tuple(labels.shape)
    if count == 1 and bool((labels == 0).all()):
        return Slices(name, shape, None, 0, 1)
    for axis in range(labels.ndim):
        lines = labels.movedim(axis, 0).flatten(1) if labels.ndim > 1 else labels[:, None]
        along = lines[:, 0]
        here = (along >= 0).nonzero().flatten()
        if len(here) == count and bool((lines == along[:, None]).all()):
            start = int(here[0])
            if torch.equal(along[start : start + count], torch.arange(count)):
                return Slices(name, shape, axis, start, count)
    flat = labels.flatten()
    order = flat.argsort(stable=True)
    order = order[flat[order] >= 0]
    sizes = torch.bincount(flat[order], minlength=count)
    there = torch.arange(int(sizes.max())) < sizes[:, None]
    positions = torch.zeros(there.shape, dtype=torch.long)
    positions[there] = order
    return Scattered(name, shape, positions, there)
