"""Great circles: paths on which the incoming weights of every unit keep their unit norm (thesis, section 4.4)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from coset._values import freeze
from coset.errors import InputError
from coset.geometry import Arc, Spheres, manifold
from coset.geometry.scales import incoming_weights
from coset.landscape._path import Point, between, check_joinable, check_tau, params_of
from coset.symmetry.action import check_names, check_tensor
from coset.symmetry.symmetry import Symmetry

TOLERANCE = 1e-4
"""How far from 1 the norm of a unit's incoming weights may be."""


@dataclass(frozen=True, eq=False)
class GreatCircle:
    """Every unit's incoming weights on the great circle between its ends, at constant speed; all else on the line.

    The geodesic of ``coset.geometry.manifold``: x(τ) = [sin((1−τ)ω) x₀ + sin(τω) x₁] / sin ω, computed in float64 and
    given in the type of the ends. The ends are the ends themselves.
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
        self._arc  # noqa: B018

    @cached_property
    def _arc(self) -> Arc:
        # Families whose scales no norm settles are refused.
        list(incoming_weights(self.sym))
        # Units that vanish at both ends are measured as ``normalize_scales`` does, or stay where they are.
        space = manifold(self.sym.monomial, at=(self.start, self.end))
        for item in space.spheres:
            self._check_unit(item)
        return space.arc(self.start, self.end, torch.float64)

    def _check_unit(self, item: Spheres) -> None:
        norms = torch.stack([item.norms(point) for point in (self.start, self.end)])
        if not bool(((norms - 1).abs() > self.tolerance).any()):
            return
        end, unit = divmod(int((norms - 1).abs().argmax()), norms.shape[1])
        names = ", ".join(f"'{name}'" for name in item.names)
        raise InputError(
            f"the incoming weights of unit {int(item.units[unit])} of '{item.key}', in {names}, have norm "
            f"{norms[end, unit]:.6g} at the {('start', 'end')[end]}; expected 1 within {self.tolerance:g}: normalise "
            f"both ends first, with coset.distribution.normalize_scales"
        )

    def __call__(self, tau: float, /) -> dict[str, Tensor]:
        """The point at τ; at 0 and 1 the tensors of the ends themselves."""
        tau = check_tau(tau)
        if tau in (0, 1):
            return between(self.start, self.end, tau)
        return self._arc.manifold.complete(self._arc(tau), between(self.start, self.end, tau))


def great_circle(a: Point, b: Point, sym: Symmetry, *, tolerance: float = TOLERANCE) -> GreatCircle:
    """The path from ``a`` (τ = 0) to ``b`` (τ = 1) on the product of the spheres of units' incoming weights.

    For networks in the gauge without scales, as ``normalize_scales(sym, params)`` gives them: there the incoming
    weights of every unit of every family of scales in ``sym`` have norm 1 (weights alone, biases stand beside them;
    the gain and offset of a norm where there is nothing else), and all points of the path do, too. Biases, last layers,
    running statistics move on the line. Norms must be 1 within ``tolerance``, and no unit turned around.
    """
    return GreatCircle(params_of(a, "a"), params_of(b, "b"), sym, tolerance)
