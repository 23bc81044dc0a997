"""The manifold of canonical weights: a product of spheres, one for each unit, and a Euclidean space."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from coset._values import freeze
from coset.errors import InputError
from coset.geometry import _random, spheres
from coset.geometry._arc import Arc
from coset.geometry._blocks import counted, stepped
from coset.geometry._layout import Scattered, Spheres, norms_of_any_size, with_ones

Point = Mapping[str, Tensor]

_GRAM = 2**24
"""So many inner products are held at once where means are found."""


class OppositeUnits(InputError):
    """Units that are opposite at two points: between them no geodesic is the shortest."""


@dataclass(frozen=True, eq=False)
class Manifold:
    """The product of the spheres of units and of a Euclidean space, in which canonical weights live; see ``manifold``.

    Points are parameters by name, tangent vectors likewise; both with any leading axes, the same for all names, and
    axes of two points broadcast. A point may hold more than coordinates: what is not trained and does not move
    (``fixed``), and whole numbers, come from the first point that is given, and tangent vectors have none of these.
    Tied weights count once. Everything is computed in the type of the points but means and densities (float64).

    ``spheres``: by family of scales. ``shapes``: the parameters that are coordinates, under their first names.
    ``tied``: further names of these. ``complex_names``: those known to be of complex numbers, which count twice.
    """

    spheres: tuple[Spheres, ...]
    shapes: Mapping[str, tuple[int, ...]]
    tied: Mapping[str, str]
    fixed: tuple[str, ...] = ()
    complex_names: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        freeze(self, "shapes", "tied")
        for name, count in self._counts.items():
            if bool((count > 1).any()):
                raise InputError(f"entries of '{name}' belong to two units at once, whose norms are not independent")

    # What it is -------------------------------------------------------------------------------------------------------

    @property
    def dimension(self) -> int:
        """The dimension of the whole manifold."""
        return self.euclidean_dimension + sum(int((s.sizes(self.complex_names) - 1).sum()) for s in self.spheres)

    @property
    def euclidean_dimension(self) -> int:
        """The number of coordinates on no sphere."""
        held = sum(int(s.sizes(self.complex_names).sum()) for s in self.spheres)
        return sum((2 if n in self.complex_names else 1) * math.prod(shape) for n, shape in self.shapes.items()) - held

    def __repr__(self) -> str:
        kinds: Counter[tuple[int, float]] = Counter()
        for item in self.spheres:
            kinds.update((int(size) - 1, item.radius) for size in item.sizes(self.complex_names))
        parts = [
            f"{count:,} sphere{'s' if count > 1 else ''} S^{d}" + (f" of radius {radius:.4g}" if radius != 1 else "")
            for (d, radius), count in kinds.items()
        ]
        return f"Manifold({', '.join([*parts, f'Euclidean {self.euclidean_dimension:,}'])}; {self.dimension:,} in all)"

    @cached_property
    def _counts(self) -> dict[str, Tensor]:
        """On how many spheres each entry of a parameter is, for those with some on any."""
        found: dict[str, Tensor] = {}
        for item in self.spheres:
            for place in item.places:
                count = found.setdefault(place.name, torch.zeros(place.shape, dtype=torch.int8))
                if isinstance(place, Scattered):
                    count.view(-1)[place.positions[place.there]] += 1
                elif place.axis is None:
                    count += 1
                else:
                    count.narrow(place.axis, place.start, place.count).add_(1)
        return found

    @cached_property
    def _flat(self) -> dict[str, Tensor | None]:
        """Parameters with Euclidean entries: which, None for all."""
        masks = {name: count == 0 for name, count in self._counts.items()}
        return {name: masks.get(name) for name in self.shapes if name not in masks or bool(masks[name].any())}

    @cached_property
    def _whole(self) -> frozenset[str]:
        """Parameters that are slices of one family, and nothing else."""
        return frozenset(place.name for item in self.spheres for place in item.places if place.whole)

    # Reading and writing points ---------------------------------------------------------------------------------------

    def read(self, point: Point, what: str, at: Point | None = None) -> dict[str, Tensor]:
        """The coordinates of a point, or of a tangent vector at a point that was read, checked."""
        if not isinstance(point, Mapping):
            raise InputError(f"{what} is a {type(point).__name__}; expected parameters by name")
        for name in point:
            if name not in self.shapes and name not in self.tied and name not in self.fixed:
                raise InputError(f"'{name}' of {what} is not a parameter of this manifold")
        others = {first: name for name, first in self.tied.items() if name in point}
        found: dict[str, Tensor] = {}
        lead: tuple[int, ...] | None = None
        for name, shape in self.shapes.items():
            if at is not None and name not in at:
                continue
            tensor = point.get(name, point.get(others.get(name, name)))
            if tensor is None:
                raise InputError(f"{what} has no '{name}'; expected all parameters of the manifold")
            if tuple(tensor.shape[max(0, tensor.ndim - len(shape)) :]) != shape:
                raise InputError(f"'{name}' of {what} has shape {tuple(tensor.shape)}; expected {shape} at the end")
            if not (tensor.is_floating_point() or tensor.is_complex()):
                if name in self._counts:
                    raise InputError(f"'{name}' of {what} is of {tensor.dtype}; expected numbers with a point")
                continue
            own = tuple(tensor.shape[: tensor.ndim - len(shape)])
            if lead is not None and own != lead:
                raise InputError(f"'{name}' of {what} has the leading axes {own}; expected {lead} as before it")
            lead, found[name] = own, tensor
        return found

    def lead(self, point: Point) -> tuple[int, ...]:
        """The leading axes of what ``read`` gives."""
        return next((tuple(t.shape[: t.ndim - len(self.shapes[name])]) for name, t in point.items()), ())

    def complete(self, coordinates: dict[str, Tensor], like: Point) -> dict[str, Tensor]:
        """A point of these coordinates, with everything else that ``like`` has."""
        return {name: coordinates.get(self.tied.get(name, name), tensor) for name, tensor in like.items()}

    def vector(self, coordinates: dict[str, Tensor], like: Point) -> dict[str, Tensor]:
        """A tangent vector of these coordinates under the names that ``like`` has for them."""
        first = {name: self.tied.get(name, name) for name in like}
        return {name: coordinates[one] for name, one in first.items() if one in coordinates}

    def mapped(
        self,
        points: Sequence[dict[str, Tensor]],
        flat: Callable[..., Tensor],
        curved: Callable[..., Tensor],
        room: dict[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Coordinates by ``flat(*tensors)`` on Euclidean parts, and ``curved(*tensors, radius, dim)`` on spheres.

        With ``room``, memory for all coordinates, which may be that of a point, ``curved`` takes ``out``, too.
        """
        lead = spheres.common_shape(*(self.lead(point) for point in points))
        out: dict[str, Tensor] = {}
        for name in points[0]:
            if name not in self._whole:
                result = flat(*(point[name] for point in points)).expand((*lead, *self.shapes[name]))
                # Into those that are partly on spheres the other part is written.
                out[name] = result.clone() if name in self._counts else result
        for item in self.spheres:
            parts = [item.view(point) for point in points]
            direct = room is not None and item.in_memory_of(room)
            given = {"out": item.view(room)[0]} if room is not None and direct else {}
            try:
                result = curved(*(part for part, _ in parts), item.radius, parts[0][1], **given)
            except spheres.Opposite as error:
                raise self.opposite(item, error.where.flatten(len(lead))) from error
            if not direct:
                item.put(out, result, points[0])
        if room is None:
            return {name: out[name] for name in points[0]}
        for name, tensor in out.items():
            room[name].copy_(tensor)
        return room

    def opposite(self, item: Spheres, where: Tensor) -> OppositeUnits:
        """What is raised where units (…, S) are opposite at two points."""
        *network, unit = where.nonzero()[0].tolist()
        which = f" of network {', '.join(map(str, network))}" if network else ""
        return OppositeUnits(
            f"the incoming weights of unit {int(item.units[unit])} of '{item.key}'{which}, in {_listed(item)}, are "
            f"opposite at the two ends; expected directions between which one great circle is the shortest"
        )

    # Maps -------------------------------------------------------------------------------------------------------------

    def exp(self, x: Point, v: Point, *, out: Point | None = None) -> dict[str, Tensor]:
        """exp_x(v): the end of the geodesic from x in the direction v, of length ‖v‖; x + v on Euclidean parts.

        ``out``: a point whose memory takes the coordinates of the result, such as that of the last step, or x itself;
        for large stacks fresh memory takes longer than the arithmetic. No derivatives follow it.
        """
        start = self.read(x, "x")
        points = (start, self.read(v, "v", start))
        room = None if out is None else self._room(out, points)
        return self.complete(self.mapped(points, torch.add, stepped(spheres.exp), room), x)

    def _room(self, out: Point, points: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """The memory of ``out``, checked."""
        room, lead = self.read(out, "out", points[0]), spheres.common_shape(*(self.lead(point) for point in points))
        if self.lead(room) != lead:
            raise InputError(f"out has the leading axes {self.lead(room)}; expected {lead} as the result")
        for name, tensor in room.items():
            parts = [point[name] for point in points]
            dtype = torch.result_type(*parts)
            if tensor.dtype != dtype or tensor.device != parts[0].device:
                raise InputError(
                    f"'{name}' of out is of {tensor.dtype} on {tensor.device}; expected {dtype} on {parts[0].device}"
                )
            if any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)):
                raise InputError(f"'{name}' of out has several entries in one place; expected a place for each")
            if torch.is_grad_enabled() and any(part.requires_grad for part in (tensor, *parts)):
                raise InputError(
                    f"out is given and '{name}' requires a gradient; expected out=None, or torch.no_grad()"
                )
        return room

    def log(self, x: Point, y: Point) -> dict[str, Tensor]:
        """log_x(y): the tangent vector at x with exp_x(log_x(y)) = y; no unit may be opposite."""
        found = self.mapped((self.read(x, "x"), self.read(y, "y")), lambda a, b: b - a, stepped(spheres.log))
        return self.vector(found, x)

    def transport(self, x: Point, y: Point, v: Point) -> dict[str, Tensor]:
        """v, tangent at x, carried in parallel along the shortest geodesic to y; an isometry of tangent spaces."""
        start = self.read(x, "x")
        points = (start, self.read(y, "y"), self.read(v, "v", start))
        return self.vector(self.mapped(points, lambda a, b, w: w, stepped(spheres.transport)), v)

    def tangent(self, x: Point, v: Point) -> dict[str, Tensor]:
        """The part of any vector that is tangent at x: v − ⟨x, v⟩x/r² on every sphere."""
        start = self.read(x, "x")
        found = self.mapped((start, self.read(v, "v", start)), lambda a, w: w, stepped(spheres.tangent))
        return self.vector(found, v)

    def project(self, x: Point) -> dict[str, Tensor]:
        """The nearest point: r·x/‖x‖ on every sphere. A unit that is 0 has none and is refused; ``manifold(sym,
        at=…)`` leaves units that vanish at given points out.
        """
        read = self.read(x, "x")
        partly = self._counts.keys() - self._whole
        out = {name: tensor.clone() if name in partly else tensor for name, tensor in read.items()}
        for item in self.spheres:
            part, dims = item.view(read)
            try:
                item.put(out, stepped(_onto)(part, item.radius, dims), read)
            except _NoDirection as error:
                *_, unit = error.where.nonzero()[0].tolist()
                raise InputError(
                    f"the incoming weights of unit {int(item.units[unit])} of '{item.key}', in {_listed(item)}, have "
                    f"norm {float(error.norms[error.where][0]):g}; expected a positive number"
                ) from error
        return self.complete(out, x)

    def arc(self, x: Point, y: Point, dtype: torch.dtype | None = None) -> Arc:
        """The geodesic from x to y as a function of t, computed in ``dtype`` or in the type of the points."""
        start, end = self.read(x, "x"), self.read(y, "y")
        shares = []
        for item in self.spheres:
            (a, dims), (b, _) = item.view(start), item.view(end)
            rounding = torch.finfo(a.dtype).eps
            a, b = a.to(dtype or a.dtype), b.to(dtype or b.dtype)
            norms = [spheres.norm(end, dims, keepdim=True) for end in (a, b)]
            norms = [torch.where(size > 0, size, 1) for size in norms]
            a, b = a / norms[0], b / norms[1]
            apart, along = spheres.norm(a - b, dims, keepdim=True), spheres.norm(a + b, dims, keepdim=True)
            where = spheres.are_opposite(apart, along, rounding)
            if bool(where.any()):
                lead = apart.ndim - 1 - len(dims)
                raise self.opposite(item, where.flatten(lead))
            shares.append((norms[0], norms[1], apart, spheres.angle_of(apart, along)))
        return Arc(self, start, end, tuple(shares), dtype)

    def geodesic(self, x: Point, y: Point, t: float | Tensor) -> dict[str, Tensor]:
        """The point at t of the shortest geodesic from x (t = 0) to y (t = 1), at constant speed; t a number, or one
        for each of the leading axes.
        """
        return self.complete(self.arc(x, y)(t), x)

    # Numbers ----------------------------------------------------------------------------------------------------------

    def angles(self, x: Point, y: Point) -> dict[str, Tensor]:
        """φ = 2·atan2(‖x − y‖, ‖x + y‖) of every unit: family → (…, S)."""
        return self._angles(self.read(x, "x"), self.read(y, "y"))

    def _angles(self, a: dict[str, Tensor], b: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for item in self.spheres:
            (first, dims), (second, _) = item.view(a), item.view(b)
            found[item.key] = counted(spheres.angle)(first, second, item.radius, dims)
        return found

    def distance(self, x: Point, y: Point) -> Tensor:
        """√(Σ r²φ² + ‖x − y‖² on Euclidean parts), the length of the shortest geodesic, (…)."""
        radii = {item.key: item.radius for item in self.spheres}
        a, b = self.read(x, "x"), self.read(y, "y")
        parts = [radii[key] * spheres.norm(angle) for key, angle in self._angles(a, b).items()]
        return _joined([*parts, *(spheres.norm(b - a) for a, b in self.euclidean(a, b))])

    def euclidean(self, *points: dict[str, Tensor]) -> list[list[Tensor]]:
        """The Euclidean entries of points, flat, parameter by parameter."""
        found = []
        for name, mask in self._flat.items():
            if name in points[0]:
                flat = [p[name].reshape(*p[name].shape[: p[name].ndim - len(self.shapes[name])], -1) for p in points]
                real = [torch.view_as_real(part).flatten(-2) if part.is_complex() else part for part in flat]
                if mask is not None:
                    own = mask.flatten().repeat_interleave(2) if flat[0].is_complex() else mask.flatten()
                    real = [part[..., own.to(part.device)] for part in real]
                found.append(real)
        return found

    def length(self, curve: Point | Sequence[Point]) -> Tensor:
        """∫ √g(γ̇, γ̇) dt of a curve through points: Σ of the distances of neighbours (thesis (3.14), with its root).

        ``curve``: points in order, or one with these along its first axis.
        """
        if isinstance(curve, Mapping):
            read = self._stack(curve, "curve")
            return self.distance({n: t[:-1] for n, t in read.items()}, {n: t[1:] for n, t in read.items()}).sum(0)
        if len(curve) < 2:
            raise InputError(f"curve has {len(curve)} points; expected at least two")
        return torch.stack([self.distance(a, b) for a, b in pairwise(curve)]).sum(0)

    def inner(self, x: Point, u: Point, v: Point) -> Tensor:
        """⟨u, v⟩ of tangent vectors at x, (…): that of the space around the spheres."""
        start = self.read(x, "x")
        a, b = self.read(u, "u", start), self.read(v, "v", start)
        products = [(a[name].conj() * b[name]).real for name in a]
        return torch.stack([self._flattened(name, p).sum(-1) for name, p in zip(a, products, strict=True)]).sum(0)

    def norm(self, x: Point, v: Point) -> Tensor:
        """‖v‖ of a tangent vector at x, (…)."""
        read = self.read(v, "v", self.read(x, "x"))
        return _joined([spheres.norm(self._flattened(name, tensor)) for name, tensor in read.items()])

    def _flattened(self, name: str, tensor: Tensor) -> Tensor:
        return tensor.reshape(*tensor.shape[: tensor.ndim - len(self.shapes[name])], -1)

    def check(self, x: Point, tolerance: float | None = None) -> bool:
        """Whether x is on the manifold: all numbers finite, and norms those of the spheres, relatively within
        ``tolerance``; unless told within the rounding of 32 + 8√D operations.
        """
        read = self.read(x, "x")
        if not all(bool(torch.isfinite(tensor).all()) for tensor in read.values()):
            return False
        for item in self.spheres:
            rounding = max(torch.finfo(read[name].dtype).eps for name in item.names)
            allowed = (32 + 8 * item.sizes().double().sqrt()) * rounding if tolerance is None else tolerance
            if bool(((item.norms(read) / item.radius - 1).abs().cpu() > allowed).any()):
                return False
        return True

    # Means ------------------------------------------------------------------------------------------------------------

    def mean(
        self, points: Point | Sequence[Point], weights: Sequence[float] | Tensor | None = None
    ) -> dict[str, Tensor]:
        """The Fréchet mean argmin_m Σ wᵢ d(m, xᵢ)²: Karcher means on spheres, plain means of Euclidean parts.

        ``points``: in a sequence, or one with N of them along its first axis; ``weights``: N numbers, by default equal.
        Found in float64, for all spheres at once, from the inner products of the N points on each. Units that are
        opposite, or too far apart to have a mean, are refused.
        """
        if not isinstance(points, Mapping):
            if not points:
                raise InputError("points is empty; expected at least one")
            points = {name: torch.stack([p[name] for p in points]) for name in points[0]}
        read = self._stack(points, "points")
        count = self.lead(read)[0]
        share = _shares(weights, count)
        out: dict[str, Tensor] = {}
        for name, tensor in read.items():
            if name not in self._whole:
                wide = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
                out[name] = torch.tensordot(share.to(wide), wide, 1).to(tensor.dtype)
        for item in self.spheres:
            rows = item.rows(read).movedim(0, -2)
            flat = rows.reshape(-1, *rows.shape[-2:])
            step = max(1, _GRAM // count**2)
            means = []
            for start in range(0, len(flat), step):
                try:
                    means.append(spheres.mean(flat[start : start + step], share.to(flat.device), item.radius))
                except spheres.NoMean as error:
                    unit = int(item.units[(start + error.where) % len(item.units)])
                    raise InputError(f"unit {unit} of '{item.key}', in {_listed(item)}: {error}") from error
            item.put_rows(out, torch.cat(means).reshape(*rows.shape[:-2], rows.shape[-1]), read)
        return self.complete(out, {name: tensor[0] for name, tensor in points.items()})

    def _stack(self, points: Point, what: str) -> dict[str, Tensor]:
        read = self.read(points, what)
        if not self.lead(read):
            raise InputError(f"{what} is a single point; expected a leading axis of points, or a sequence")
        return read

    # Random points ----------------------------------------------------------------------------------------------------

    def uniform(
        self, generator: torch.Generator, count: int | None, like: Point, *, std: float = 1.0
    ) -> dict[str, Tensor]:
        """``count`` points (None: one, without a leading axis), uniform on spheres, N(0, std²) on Euclidean parts.

        ``like``: one point, of whose types they are, and from which the rest comes.
        """
        return _random.uniform(self, generator, count, like, std)

    def uniform_log_density(self, x: Point, *, std: float = 1.0) -> Tensor:
        """log of the density of ``uniform`` at x, by the volume of the product, (…) in float64."""
        return _random.uniform_log_density(self, x, std)

    def wrapped_normal(
        self, x: Point, std: float, generator: torch.Generator, count: int | None = None
    ) -> dict[str, Tensor]:
        """exp_x(v), v ~ N(0, std²) on the tangent space at x; ``count`` of them along a new first axis."""
        return _random.wrapped_normal(self, x, std, generator, count)

    def wrapped_normal_log_density(self, x: Point, y: Point, std: float) -> Tensor:
        """log of the density of ``wrapped_normal`` around x at y, by the volume of the product, (…) in float64."""
        return _random.wrapped_normal_log_density(self, x, y, std)


class _NoDirection(InputError):
    """Units (…, S) with ``norms`` that are 0 or no numbers; ``where``: which."""

    def __init__(self, where: Tensor, norms: Tensor) -> None:
        super().__init__("units have norm 0")
        self.where, self.norms = where, norms


def _onto(part: Tensor, radius: float, dim: tuple[int, ...], out: Tensor | None = None) -> Tensor:
    """r·x/‖x‖ of every unit."""
    norms = norms_of_any_size(part, radius, dim)
    if bool((bad := ~(torch.isfinite(norms) & (norms > 0))).any()):
        raise _NoDirection(bad, norms)
    factor = radius / norms.reshape(with_ones(part, dim))
    return (part * factor).to(part.dtype) if out is None else out.copy_(part * factor)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """√Σ of squares of numbers (…), in the widest of their types."""
    if not parts:
        return torch.zeros(())
    dtype = max((part.dtype for part in parts), key=lambda dtype: torch.finfo(dtype).bits)
    lead = spheres.common_shape(*(part.shape for part in parts))
    return spheres.norm(torch.stack([part.to(parts[0].device, dtype).expand(lead) for part in parts]), 0)


def _shares(weights: Sequence[float] | Tensor | None, count: int) -> Tensor:
    """Weights with sum 1, in float64."""
    if count == 0:
        raise InputError("points is empty; expected at least one")
    given = torch.ones(count) if weights is None else torch.as_tensor(weights, dtype=torch.float64)
    given = given.detach().to("cpu", torch.float64)
    if given.shape != (count,):
        raise InputError(f"weights has shape {tuple(given.shape)}; expected one for each of the {count} points")
    if not bool(torch.isfinite(given).all() & (given >= 0).all() & (given.sum() > 0)):
        raise InputError(f"weights are {given.tolist()}; expected numbers ≥ 0 with a positive sum")
    return given / given.sum()


def _listed(item: Spheres) -> str:
    return ", ".join(f"'{name}'" for name in item.names)
