"""How well every unit of some weights fits every unit of a posterior: one matrix for all permutations."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from coset._magnitudes import exponent, scaled
from coset.distribution.mean_field import MeanField
from coset.posterior.symmetrized.units import UnitEntries, Unknowns, permuting_class, unit_entries, unknowns
from coset.symmetry import Symmetry

LOG_2PI = math.log(2 * math.pi)


def pair_matrix(sym: Symmetry, q: MeanField, omega: Mapping[str, Tensor]) -> Tensor:
    """A_ij = log N(ν_i; μ_j, diag s_j²): unit i of the weights ω under unit j of q; ω (…) gives (…, n, n), in float64.

    ν_i are the entries of ω that belong to unit i of the one class that permutes: incoming weights, bias, outgoing
    weights. With r the entries of no unit and p the permutation of g, log q(g⁻¹·ω) = log q(r) + Σ_i A_{i,p[i]}: the
    mean over g is a permanent. Differentiable in ω, means and deviations.
    """
    over = unknowns(q)
    entries = unit_entries(sym, permuting_class(sym), q.mean, over.names)
    return pairs(entries, over, over.vector(omega))


def pairs(entries: UnitEntries, over: Unknowns, x: Tensor) -> Tensor:
    """``pair_matrix`` of weight vectors x (…, D)."""
    return unit_log_probs(entries.owned.to(x.device), x, over.mean, over.std)


def unit_log_probs(owned: Tensor, x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """A_ij = log N(x[owned_i]; mean[owned_j], std[owned_j]²), (…, n, n), of x (…, D) and places (n, k) by unit."""
    return compared(x[..., owned], mean[owned], std[owned])


def compared(units: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """A_ij = log N(units_i; mean_j, diag std_j²), (…, n, n), of rows (…, n, k) each.

    −½ [ν²·s⁻² − 2 ν·(μ s⁻²) + μ²·s⁻² + Σ log 2πs²], by two products. All is centred at the mean of the units' means
    first, so that the square loses less when it is taken apart.
    """
    centre = mean.detach().mean(-2, keepdim=True)
    # Of numbers whose squares are numbers; only the logarithm has a unit.
    by = exponent(mean, std)
    near, moved = scaled(units - centre, by), scaled(mean - centre, by)
    precision = scaled(std, by).square().reciprocal()
    constant = (moved.square() * precision).sum(-1) + 2 * std.log().sum(-1) + LOG_2PI * units.shape[-1]
    return near @ (moved * precision).mT - 0.5 * (near.square() @ precision.mT + constant[..., None, :])


def free_log_prob(entries: UnitEntries, over: Unknowns, x: Tensor) -> Tensor:
    """log q of the entries that belong to no unit, (…): the same for all permutations."""
    free = entries.free.to(x.device)
    return normal_log_prob(x[..., free], over.mean[free], over.std[free])


def normal_log_prob(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """log N(x; m, diag s²) summed over the last axis."""
    return torch.sum(-0.5 * ((x - mean) / std).square() - std.log() - 0.5 * LOG_2PI, -1)
