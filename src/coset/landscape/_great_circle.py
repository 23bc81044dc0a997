"""Great circles: paths on which the incoming weights of every unit keep their unit norm (thesis, section 4.4)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from coset._values import freeze
from coset.distribution.ties import ties
from coset.errors import InputError
from coset.geometry.scales import incoming_weights, lengths
from coset.geometry.spheres import angle_of, arc_shares, are_opposite
from coset.landscape._path import Point, between, check_joinable, check_tau, params_of
from coset.symmetry.action import check_names, check_tensor
from coset.symmetry.incidence import unit_labels
from coset.symmetry.symmetry import Symmetry

TOLERANCE = 1e-4
"""How far from 1 the norm of a unit's incoming weights may be."""


@dataclass(frozen=True, eq=False)
class Arcs:
    """The spheres of one family of scales, one for each of its U units, and the arc on each.

    ``units``: parameter → the unit each entry belongs to, of the parameter's shape, −1 for entries on no sphere.
    ``angles`` (U,): between the ends. ``norms`` (2, U): of the ends, 1 within the tolerance. All in float64.
    """

    units: Mapping[str, Tensor]
    angles: Tensor
    norms: Tensor

    def weights(self, tau: float) -> tuple[Tensor, Tensor]:
        """What each unit takes of the start and of the end, two of (U,)."""
        norm = torch.lerp(self.norms[0], self.norms[1], tau)
        of_start, of_end = arc_shares(self.angles, tau)
        return of_start * norm / self.norms[0], of_end * norm / self.norms[1]


@dataclass(frozen=True, eq=False)
class GreatCircle:
    """Every unit's incoming weights on the great circle between its ends, at constant speed; all else on the line.

    x(τ) = [sin((1−τ)ω) x₀ + sin(τω) x₁] / sin ω, ω = 2·atan2(‖x₀−x₁‖, ‖x₀+x₁‖), which is exact for small angles where
    arccos ⟨x₀, x₁⟩ is not. Computed in float64, given in the type of the ends. The ends are the ends themselves.
    """

    start: Mapping[str, Tensor]
    end: Mapping[str, Tensor]
    sym: Symmetry
    tolerance: float = TOLERANCE

    def __post_init__(self) -> None:
        freeze(self, "start", "end")
        check_joinable((self.start, self.end), ("the start", "the end"))
        check_names(self.sym, self.start, partial=False)
        for name in self.sym.structures:
            check_tensor(name, self.start[name], self.sym.parameters[name].shape)
        if not self.tolerance >= 0:
            raise InputError(f"tolerance is {self.tolerance!r}; expected a number of at least 0")
        if not self.sym.scaling:
            raise InputError("sym has no free scales, and so no unit norms to keep; expected some, or use linear(a, b)")
        # What cannot be joined is refused here, not halfway.
        self._arcs  # noqa: B018

    @cached_property
    def _first(self) -> dict[str, str]:
        return ties(self.start, self.end)

    @cached_property
    def _arcs(self) -> tuple[Arcs, ...]:
        single = set(self._first.values())
        found = []
        for key, ranks in incoming_weights(self.sym):
            # Tied weights count once.
            names = [[name for name in rank if name in single] for rank in ranks]
            found.append(self._arcs_of(key, names))
        return tuple(found)

    def _arcs_of(self, key: str, ranks: list[list[str]]) -> Arcs:
        """The units of one family, each measured by the first rank of parameters that does not vanish at both ends.

        So do ``normalize_scales``; units all of whose parameters vanish have no direction and stay where they are.
        """
        family = self.sym.families[key]
        count = math.prod(self.sym.shape(family.owner))
        device = next(iter(self.start.values())).device
        norms = torch.zeros(2, count, dtype=torch.float64, device=device)
        units: dict[str, Tensor] = {}
        for rank in ranks:
            labels = {name: unit_labels(self.sym, name, family).to(device) for name in rank}
            sizes = torch.stack([lengths(labels, point, count) for point in (self.start, self.end)])
            new = (norms == 0).all(0) & (sizes > 0).any(0)
            self._check_unit(key, rank, torch.where(new, sizes, torch.ones_like(sizes)))
            norms = torch.where(new, sizes, norms)
            for name, label in labels.items():
                measured = (label >= 0) & new[label]
                if bool(measured.any()):
                    units[name] = torch.where(measured, label, -1)
        norms = torch.where(norms == 0, torch.ones_like(norms), norms)
        a, b = (
            {name: end[name].detach().double() / norm[label] for name, label in units.items()}
            for end, norm in zip((self.start, self.end), norms, strict=True)
        )
        apart = lengths(units, {name: a[name] - b[name] for name in units}, count)
        along = lengths(units, {name: a[name] + b[name] for name in units}, count)
        self._check_not_opposite(key, units, apart, along)
        # Where the ends agree the line gives back what they agree on, to the last bit.
        moving = {name: torch.where((label >= 0) & (apart[label] > 0), label, -1) for name, label in units.items()}
        return Arcs(moving, angle_of(apart, along), norms)

    def _check_unit(self, key: str, rank: list[str], lengths: Tensor) -> None:
        if not bool(((lengths - 1).abs() > self.tolerance).any()):
            return
        end, unit = divmod(int((lengths - 1).abs().argmax()), lengths.shape[1])
        raise InputError(
            f"the incoming weights of unit {unit} of '{key}', in {_listed(rank)}, have norm {lengths[end, unit]:.6g} "
            f"at the {('start', 'end')[end]}; expected 1 within {self.tolerance:g}: normalise both ends first, with "
            f"coset.distribution.normalize_scales"
        )

    def _check_not_opposite(self, key: str, units: Mapping[str, Tensor], apart: Tensor, along: Tensor) -> None:
        if not units:
            return
        rounding = max(torch.finfo(self.start[name].dtype).eps for name in units)
        opposite = are_opposite(apart, along, rounding)
        if bool(opposite.any()):
            unit = int(opposite.nonzero()[0])
            raise InputError(
                f"the incoming weights of unit {unit} of '{key}', in {_listed(list(units))}, are opposite at the two "
                f"ends; expected directions between which one great circle is the shortest"
            )

    def __call__(self, tau: float, /) -> dict[str, Tensor]:
        """The point at τ; at 0 and 1 the tensors of the ends themselves."""
        tau = check_tau(tau)
        point = between(self.start, self.end, tau)
        if tau in (0, 1):
            return point
        for arcs in self._arcs:
            of_start, of_end = arcs.weights(tau)
            for name, label in arcs.units.items():
                a, b = self.start[name].double(), self.end[name].double()
                moved = (of_start[label] * a + of_end[label] * b).to(point[name].dtype)
                point[name] = torch.where(label >= 0, moved, point[name])
        return {name: point[first] for name, first in self._first.items()}


def great_circle(a: Point, b: Point, sym: Symmetry, *, tolerance: float = TOLERANCE) -> GreatCircle:
    """The path from ``a`` (τ = 0) to ``b`` (τ = 1) on the product of the spheres of units' incoming weights.

    For networks in the gauge without scales, as ``normalize_scales(sym, params)`` gives them: there the incoming
    weights of every unit of every family of scales in ``sym`` have norm 1 (weights alone, biases stand beside them;
    the gain and offset of a norm where there is nothing else), and all points of the path do, too. Biases, last layers,
    running statistics move on the line. Norms must be 1 within ``tolerance``, and no unit turned around.
    """
    return GreatCircle(params_of(a, "a"), params_of(b, "b"), sym, tolerance)


def _listed(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
