"""Symmetrized posteriors beyond mean field and permutations: correlated weights, and the signs of odd activations.

q^G(ω) = (1/|G|) Σ_g q(g⁻¹·ω) for q = N(m, S) and G the permutations, or with ``signs`` also ω → sω of units that allow
it, 2ⁿn! elements of a class of n units. |det g| = 1, so that nothing else changes (Gelberg et al. 2024, eq. 4).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from coset.distribution import Normal
from coset.distribution.density import vector
from coset.distribution.ties import ties
from coset.errors import InputError
from coset.posterior.symmetrized.units import (
    LOG_2PI,
    UnitEntries,
    Unknowns,
    normal_log_prob,
    unit_log_probs,
    unknowns,
)
from coset.symmetry import Symmetry

INDEPENDENT = 1e-9
"""Correlations between units that are smaller are rounding."""


@dataclass(frozen=True, eq=False)
class Correlated:
    """What a Gaussian q is over, as ``Unknowns`` for a mean field: ``mean`` (D,), ``covariance`` (D, D), float64."""

    names: tuple[str, ...]
    like: Mapping[str, Tensor]
    mean: Tensor
    covariance: Tensor

    @cached_property
    def triangle(self) -> Tensor:
        """L with S = L Lᵀ."""
        triangle: Tensor = torch.linalg.cholesky(self.covariance)
        return triangle

    def vector(self, params: Mapping[str, Tensor]) -> Tensor:
        """Weights, possibly behind leading sample axes, as (…, D)."""
        return vector(params, self.names, self.like).to(self.mean)

    def entropy(self) -> Tensor:
        """H(q) in nats."""
        return self.triangle.diagonal().log().sum() + 0.5 * len(self.mean) * (1 + LOG_2PI)


Known = Unknowns | Correlated


def known(q: Normal) -> Known:
    """The random weights of a Gaussian of any kind that has a density."""
    if isinstance(q, Normal) and q.independent:
        return unknowns(q)
    covariance = getattr(q, "covariance", None)
    if not isinstance(q, Normal) or not isinstance(covariance, Tensor):
        raise InputError(f"q is a {type(q).__name__}; expected a MeanField or a Gaussian")
    q.entropy()  # Says what is wrong where there is no density.
    first = ties(q.mean)
    names = tuple(first.get(name, name) for name in q.random_names)
    mean = vector(q.mean, names, q.mean).double()
    return Correlated(names, q.mean, mean, covariance.double().to(mean.device))


def log_density(over: Known, x: Tensor) -> Tensor:
    """log q of vectors (…, D), (…)."""
    if isinstance(over, Unknowns):
        return normal_log_prob(x, over.mean, over.std)
    return _normal(x - over.mean, over.triangle)


def unit_matrix(over: Known, entries: UnitEntries, x: Tensor) -> Tensor:
    """A_ij = log N(ν_i; μ_j, S_jj), (…, n, n), ν_i the weights of x (…, D) that belong to unit i."""
    owned = entries.owned.to(x.device)
    if isinstance(over, Unknowns):
        return unit_log_probs(owned, x, over.mean, over.std)
    _require_independent_units(over, entries)
    triangles = torch.linalg.cholesky(over.covariance[owned[:, :, None], owned[:, None, :]])
    away = x[..., owned].unsqueeze(-2) - over.mean[owned]
    return _normal(away, triangles)


def free_log_density(over: Known, entries: UnitEntries, x: Tensor) -> Tensor:
    """log q of the weights of no unit, (…)."""
    free = entries.free.to(x.device)
    if isinstance(over, Unknowns):
        return normal_log_prob(x[..., free], over.mean[free], over.std[free])
    if not len(free):
        return x.new_zeros(x.shape[:-1])
    triangle = torch.linalg.cholesky(over.covariance[free[:, None], free])
    return _normal(x[..., free] - over.mean[free], triangle)


def _normal(away: Tensor, triangle: Tensor) -> Tensor:
    """log N(away; 0, L Lᵀ) of (…, k) and L (…, k, k)."""
    scaled = torch.linalg.solve_triangular(triangle, away.unsqueeze(-1), upper=False).squeeze(-1)
    volume = triangle.diagonal(dim1=-2, dim2=-1).log().sum(-1) + 0.5 * LOG_2PI * away.shape[-1]
    found: Tensor = -0.5 * scaled.square().sum(-1) - volume
    return found


def _require_independent_units(over: Correlated, entries: UnitEntries) -> None:
    """Raise unless weights of different units, and those of none, are uncorrelated."""
    size = len(over.mean)
    unit = torch.full((size,), -1)
    unit[entries.owned.reshape(-1)] = torch.arange(entries.units).repeat_interleave(entries.owned.shape[1])
    apart = unit[:, None] != unit
    std = over.covariance.diagonal().sqrt()
    largest = ((over.covariance / std / std[:, None]).abs().cpu() * apart).max()
    if float(largest) > INDEPENDENT:
        raise InputError(
            f"q has weights of different units with a correlation of {float(largest):.3g}; the permanent expects units "
            f"that are independent of each other, or method='enumeration'"
        )


def sign_flips(sym: Symmetry, names: Sequence[str], like: Mapping[str, Tensor]) -> list[Tensor]:
    """What a change of the sign of one unit alone multiplies the weights by, (D,) of ±1 each, for all such units."""
    finite = sym.restrict(permutations=False, scales=False, continuous=False)
    ones = {name: torch.ones(like[name].shape, dtype=torch.float64) for name in names}
    flips = []
    for key, signs in finite.identity().signs.items():
        for unit in range(signs.numel()):
            flipped = signs.clone().reshape(-1)
            flipped[unit] = -1
            g = finite.element(signs={key: flipped.reshape(signs.shape)})
            flips.append(vector(finite.act(g, ones, partial=True), names, like).double())
    return flips


def unit_signs(sym: Symmetry, over: Known, entries: UnitEntries) -> Tensor:
    """The signs (k,) that the weights of a unit take when it changes its own, the same for all units of the class.

    An InputError where units have no such signs, or signs of other classes stand beside them.
    """
    flips = torch.stack(sign_flips(sym, over.names, over.like)) if sym.flipping else torch.ones(0, len(over.mean))
    if len(flips) != entries.units:
        raise InputError(
            f"sym has {len(flips)} free signs; the permanent expects one for each of the {entries.units} units of "
            f"'{entries.name}' (see Symmetry.restrict), or method='enumeration'"
        )
    own = flips[torch.arange(entries.units)[:, None], entries.owned]
    others = flips.clone()
    others[torch.arange(entries.units)[:, None], entries.owned] = 1
    if bool((others != 1).any()) or bool((own != own[0]).any()):
        raise InputError(
            f"signs of the units of '{entries.name}' act on weights of several units; expected method='enumeration'"
        )
    return own[0]
