"""How far two distributions over weights are from each other, where that has a closed form."""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from coset._magnitudes import scaled
from coset.distribution.contract import Distribution, rule_for, unwrapped
from coset.distribution.delta import Delta
from coset.distribution.density import vector
from coset.distribution.gaussian import Gaussian
from coset.distribution.low_rank import LowRank
from coset.distribution.mean_field import MeanField
from coset.distribution.rescaling import common_exponent, rescaled
from coset.distribution.samples import Samples
from coset.distribution.ties import check_alike, ties
from coset.errors import InputError

_Divergence = Callable[[Any, Any], Tensor]
_Normal = MeanField | Gaussian | LowRank


def kl(q: Distribution, p: Distribution) -> Tensor:
    """KL[q ‖ p] = E_q[log q − log p] in nats, in float64, differentiable; for the pairs in ``KL``.

    ½ [Tr(S_p⁻¹ S_q) + (m_p − m_q)ᵀ S_p⁻¹ (m_p − m_q) − D + log det S_p − log det S_q], over what varies, which must be
    the same names in both; points play no part, as in ``log_prob``. It does not change if one element of the group
    moves both. What has no density (a deviation of 0, a singular covariance) is an InputError: the KL is infinite.
    """
    q, p = unwrapped(q), unwrapped(p)
    # It has no unit: both may be multiplied by what makes their squares numbers.
    by = 0 if rule_for(KL, q, p) is None else common_exponent(q, p)
    return _of(KL, rescaled(q, by), rescaled(p, by), "kl")


def wasserstein2(q0: Distribution, q1: Distribution) -> Tensor:
    """W₂, the distance itself and not its square: the root of ``wasserstein2_squared``.

    Of weights of any size: where their squares are no numbers, both are first multiplied by a power of two.
    """
    squared, by = _w2_squared(q0, q1)
    return scaled(squared.sqrt(), -by)


def wasserstein2_squared(q0: Distribution, q1: Distribution) -> Tensor:
    """W₂² = min E‖θ₀ − θ₁‖² over couplings, in float64; for the pairs in ``WASSERSTEIN``.

    Over all floating point tensors, tied ones once; what is a point varies by 0. Mean field: ‖m0−m1‖² + ‖s0−s1‖².
    Gaussians: ‖m0−m1‖² + Tr(S0 + S1 − 2(S0^½ S1 S0^½)^½) (Rossi et al. 2023, eq. 5). Draws: the best assignment of as
    many to as many. From a point to anything: ‖m0−m1‖² + Σ s². Invariant under permutations and signs, not scales.
    An InputError where the distance is a number and its square is not.
    """
    squared, by = _w2_squared(q0, q1)
    result = scaled(squared, -2 * by)
    if by and bool(squared > 0) and not torch.finfo(result.dtype).tiny <= float(result) < math.inf:
        raise InputError(
            f"q0 and q1 are {float(scaled(squared.sqrt(), -by)):.3g} apart, whose square is no number in float64; "
            f"expected weights nearer to 1, or use wasserstein2"
        )
    return result


def _w2_squared(q0: Distribution, q1: Distribution) -> tuple[Tensor, int]:
    """W₂²·4⁻ᵉ, and e."""
    q0, q1 = unwrapped(q0), unwrapped(q1)
    _check_same(q0.mean, q1.mean)
    by = common_exponent(q0, q1)
    return _of(WASSERSTEIN, rescaled(q0, by), rescaled(q1, by), "wasserstein2"), by


def _kl_mean_fields(q: MeanField, p: MeanField) -> Tensor:
    """½ Σ [s_q²/s_p² + (m_p − m_q)²/s_p² − 1 − log(s_q²/s_p²)]."""
    names = _common_names(q, p)
    (mq, sq), (mp, sp) = ((_mean(part, names), _deviations(part, names)) for part in (q, p))
    for part, deviations in (("q", sq), ("p", sp)):
        if bool((deviations == 0).any()):
            raise InputError(f"{part} has deviations of 0, so the KL is infinite; expected deviations > 0")
    ratio = (sq / sp).square()
    return 0.5 * (ratio + ((mp - mq) / sp).square() - 1 - ratio.log()).sum()


def _kl_gaussians(q: _Normal, p: _Normal) -> Tensor:
    """With S = L Lᵀ: ½ [‖L_p⁻¹ L_q‖² + ‖L_p⁻¹(m_p − m_q)‖² − D] + Σ log (L_p)_ii − Σ log (L_q)_ii."""
    names = _common_names(q, p)
    triangles = []
    for part, which in ((q, "q"), (p, "p")):
        triangle, info = torch.linalg.cholesky_ex(_covariance(part, names))
        if int(info):
            raise InputError(f"{which} has a singular covariance, so the KL is infinite; expected a regular one")
        triangles.append(triangle)
    lq, lp = triangles
    away = (_mean(p, names) - _mean(q, names))[:, None]
    solved = torch.linalg.solve_triangular(lp, torch.cat([lq, away], dim=1), upper=False)
    volumes = lp.diagonal().log().sum() - lq.diagonal().log().sum()
    divergence: Tensor = 0.5 * (solved.square().sum() - len(lq)) + volumes
    return divergence


def _w2_uncorrelated(q0: Distribution, q1: Distribution) -> Tensor:
    """‖m0−m1‖² + ‖s0−s1‖², of independent Gaussians and wherever one is a point, whose deviations are 0."""
    names = _floating_names(q0.mean)
    spreads = [_deviations(part, names) for part in (q0, q1)]
    return (_mean(q0, names) - _mean(q1, names)).square().sum() + (spreads[0] - spreads[1]).square().sum()


def _w2_gaussians(q0: _Normal, q1: _Normal) -> Tensor:
    """‖m0−m1‖² + min over orthogonal U of ‖F0 − F1 U‖², S = F Fᵀ.

    The minimum is Tr(S0 + S1 − 2(S0^½ S1 S0^½)^½): the singular values of F1ᵀF0 sum to the trace of that root. As a sum
    of squares it loses nothing to cancellation where S0 and S1 are nearly equal, nor where they are singular.
    """
    names = _floating_names(q0.mean)
    varying = [name for name in names if name in _varying(q0) | _varying(q1)]
    f0, f1 = (_root(_covariance(part, varying)) for part in (q0, q1))
    left, _, right = torch.linalg.svd(f1.mT @ f0)
    bures: Tensor = (f0 - f1 @ (left @ right)).square().sum()
    return (_mean(q0, names) - _mean(q1, names)).square().sum() + bures


def _w2_samples(q0: Samples, q1: Samples) -> Tensor:
    if len(q0) != len(q1):
        raise InputError(
            f"there are {len(q0)} draws in q0 and {len(q1)} in q1; expected as many in both (see Samples.thin)"
        )
    names = _floating_names(q0.mean)
    x, y = (vector(part.flat, names, part.mean).double() for part in (q0, q1))
    y = y.to(x.device)
    squares = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square()
    row, column = linear_sum_assignment(squares.detach().cpu().numpy())
    return (x[torch.as_tensor(row)] - y[torch.as_tensor(column)]).square().sum(1).mean()


_NORMALS = (MeanField, Gaussian, LowRank)

KL: dict[tuple[type, type], _Divergence] = {
    **dict.fromkeys(itertools.product(_NORMALS, _NORMALS), _kl_gaussians),
    (MeanField, MeanField): _kl_mean_fields,
}
"""Kinds of q and p → their KL divergence."""

WASSERSTEIN: dict[tuple[type, type], _Divergence] = {
    **dict.fromkeys(itertools.product(_NORMALS, _NORMALS), _w2_gaussians),
    (MeanField, MeanField): _w2_uncorrelated,
    (Samples, Samples): _w2_samples,
    (Delta, Distribution): _w2_uncorrelated,
    (Distribution, Delta): _w2_uncorrelated,
}
"""Kinds of q0 and q1 → their squared Wasserstein distance."""


def _of(registry: Mapping[tuple[type, type], _Divergence], a: Distribution, b: Distribution, what: str) -> Tensor:
    rule = rule_for(registry, a, b)
    if rule is None:
        known = ", ".join(f"{one.__name__} and {two.__name__}" for one, two in registry)
        raise InputError(
            f"{what} of a {type(a).__name__} and a {type(b).__name__} has no closed form; expected one of: {known}"
        )
    return rule(a, b)


def _check_same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> None:
    check_alike(("the first distribution", "the second"), (a, b))
    mine, theirs = _first(a), _first(b)
    for name, one in mine.items():
        if one != theirs[name]:
            tied = one if one != name else theirs[name]
            raise InputError(f"'{name}' and '{tied}' are one tensor in one distribution and two in the other")


def _first(mean: Mapping[str, Tensor]) -> dict[str, str]:
    """Name → the first of the names it is tied to, in alphabetical order: that of the dict may differ between two."""
    return ties(dict(sorted(mean.items())))


def _varying(q: Distribution) -> set[str]:
    """What varies, each tied tensor under its first name."""
    first = _first(q.mean)
    return {first[name] for name in q.random_names}


def _common_names(q: Distribution, p: Distribution) -> list[str]:
    """What varies in both."""
    mine, theirs = _varying(q), _varying(p)
    if odd := sorted(mine ^ theirs):
        varies, fixed = ("q", "p") if odd[0] in mine else ("p", "q")
        raise InputError(f"'{odd[0]}' varies in {varies} and not in {fixed}; expected the same names to vary in both")
    names = sorted(mine)
    if not names:
        raise InputError("nothing varies in q and p: points have no KL; expected deviations")
    _check_same({name: q.mean[name] for name in names}, {name: p.mean[name] for name in names})
    return names


def _floating_names(mean: Mapping[str, Tensor]) -> list[str]:
    return [name for name, one in _first(mean).items() if one == name and mean[name].is_floating_point()]


def _mean(q: Distribution, names: list[str]) -> Tensor:
    return vector(q.mean, names, q.mean).double()


def _deviations(q: Distribution, names: list[str]) -> Tensor:
    """(D,); 0 for what does not vary."""
    first = _first(q.mean)
    known = {first[name]: deviation for name, deviation in q.std.items()}
    spreads = {name: known[name] if name in known else torch.zeros_like(q.mean[name]) for name in names}
    return vector(spreads, names, q.mean).double()


def _covariance(q: _Normal, names: list[str]) -> Tensor:
    """(D, D) over ``names``; rows of zeros for what does not vary."""
    rule = rule_for(COVARIANCES, q)
    if rule is None:
        raise InputError(f"a {type(q).__name__} is not in COVARIANCES; expected its covariance there")
    return rule(q, names)


def _diagonal(q: MeanField, names: list[str]) -> Tensor:
    return _deviations(q, names).square().diag()


def _low_rank(q: LowRank, names: list[str]) -> Tensor:
    """As ``LowRank.dense``, but in float64 from the start."""
    first = _first(q.mean)
    known = {first[name]: factor for name, factor in q.factors.items()}
    fixed = {name: q.mean[name].new_zeros(q.rank, *q.mean[name].shape) for name in names if name not in known}
    directions = vector({**known, **fixed}, names, q.mean).double()
    return _diagonal(MeanField(q.mean, q.diagonal), names) + directions.mT @ directions


def _dense(q: Gaussian, names: list[str]) -> Tensor:
    first = _first(q.mean)
    places, start = {}, 0
    for name in names:
        places[name] = torch.arange(start, start := start + q.mean[name].numel())
    found = torch.cat([places[first[name]] for name in q.names]).to(q.covariance.device)
    total = q.covariance.new_zeros(start, start, dtype=torch.float64)
    return total.index_put((found[:, None], found), q.covariance.double())


COVARIANCES: dict[type, Callable[[Any, list[str]], Tensor]] = {
    MeanField: _diagonal,
    LowRank: _low_rank,
    Gaussian: _dense,
}
"""Kind → its covariance over given names, float64."""


def _root(covariance: Tensor) -> Tensor:
    """The symmetric F with S = F Fᵀ."""
    values, vectors = torch.linalg.eigh(covariance)
    # Rounding of an eigenvalue of 0 is not small under the root.
    noise = 8 * len(values) * torch.finfo(values.dtype).eps * values.abs().amax() if len(values) else 0.0
    root: Tensor = vectors * values.where(values > noise, 0.0).sqrt() @ vectors.mT
    return root
