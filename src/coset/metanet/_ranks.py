"""How well predictions order networks: Kendall's τ-b, with intervals over networks and over seeds."""

import torch
from torch import Tensor

from coset._checks import check_seed
from coset.errors import InputError
from coset.represent import Interval
from coset.represent.similarity.resampling import check_draws, percentile_interval

_AT_ONCE = 500
"""So many resamples are computed in one product of matrices."""


def rank_correlation(
    predicted: Tensor,
    truth: Tensor,
    *,
    against: Tensor | None = None,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> Interval:
    """Kendall's τ-b between predictions and the truth (N,), with a bootstrap interval over networks.

    τ = Σ sign(pᵢ − pⱼ) sign(tᵢ − tⱼ) / √(#{pᵢ ≠ pⱼ} · #{tᵢ ≠ tⱼ}) over all pairs (Kendall 1945, with ties).
    ``predicted``: (N,), or (S, N) of S seeds: then the mean of their τ, and the seeds are drawn again with replacement,
    too. ``against``: predictions of another method, (N,) or with as many seeds: the interval is that of the difference,
    each resample having the same networks and seeds for both. Predictions that are all equal have τ = 0.
    """
    if not isinstance(truth, Tensor) or truth.ndim != 1 or len(truth) < 2 or not bool(truth.isfinite().all()):
        raise InputError("truth is no row of two or more finite numbers; expected one for each network")
    check_draws(draws, level)
    seeds = [_rows("predicted", predicted, truth)]
    if against is not None:
        seeds.append(_rows("against", against, truth))
        most = max(map(len, seeds))
        if any(len(rows) not in (1, most) for rows in seeds):
            counts = [len(rows) for rows in seeds]
            raise InputError(f"predicted and against have {counts[0]} and {counts[1]} seeds; expected as many of both")
        seeds = [rows.expand(most, -1) for rows in seeds]
    generator = torch.Generator().manual_seed(check_seed(seed))
    ones = torch.ones(1, len(truth), dtype=torch.float64)
    networks = torch.randint(len(truth), (draws, len(truth)), generator=generator)
    chosen = torch.randint(len(seeds[0]), (draws, len(seeds[0])), generator=generator)
    weights = torch.zeros(draws, len(truth), dtype=torch.float64)
    weights.scatter_add_(1, networks, torch.ones_like(networks, dtype=torch.float64))
    value, found = 0.0, torch.zeros(draws, dtype=torch.float64)
    for sign, rows in zip((1.0, -1.0), seeds, strict=False):
        value += sign * float(_taus(rows, truth, ones).mean())
        found += sign * _taus(rows, truth, weights).gather(1, chosen).mean(1)
    return percentile_interval(value, found, level)


def _rows(name: str, values: Tensor, truth: Tensor) -> Tensor:
    """Predictions as (seeds, networks)."""
    if not isinstance(values, Tensor) or values.ndim not in (1, 2) or values.shape[-1] != len(truth) or not len(values):
        found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise InputError(f"{name} is {found}; expected a number for each of {len(truth)} networks, or so for each seed")
    if not bool(values.isfinite().all()):
        raise InputError(f"{name} has values that are not finite")
    return values.reshape(-1, len(truth))


def _taus(rows: Tensor, truth: Tensor, weights: Tensor) -> Tensor:
    """τ of every row under every weighting of the networks, (weightings, rows).

    A network that is drawn w times has weight w: pairs of one network with itself are tied in both.
    """
    order = _signs(truth)
    found = []
    for row in rows:
        own = _signs(row)
        for_each = [_quadratic(matrix, weights) for matrix in (own * order, own.abs(), order.abs())]
        scale = (for_each[1] * for_each[2]).sqrt()
        found.append(torch.where(scale > 0, for_each[0] / scale.clamp_min(1.0), 0.0))
    return torch.stack(found, 1)


def _signs(values: Tensor) -> Tensor:
    """sign(vᵢ − vⱼ), (N, N)."""
    wide = values.detach().double().cpu()
    return (wide[:, None] - wide[None]).sign()


def _quadratic(matrix: Tensor, weights: Tensor) -> Tensor:
    """wᵀMw of every row of weights."""
    return torch.cat([((part @ matrix) * part).sum(1) for part in torch.split(weights, _AT_ONCE)])
