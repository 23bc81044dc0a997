"""Quantiles, intervals and regions of highest density of what a posterior predicts."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from coset._checks import is_number
from coset.errors import InputError

HALVINGS = 80
"""Bisections of a quantile: the bracket ends below double precision."""

GRID = 4096
"""Points at which a density is compared with the threshold of its region."""

TAIL = 1e-7
"""Mass on either side of that grid."""

Interval = tuple[float, float]


def check_level(name: str, value: object) -> float:
    """A number strictly between 0 and 1."""
    if not is_number(value) or not 0 < value < 1:
        raise InputError(f"{name} is {value!r}; expected a number between 0 and 1")
    return float(value)


def mixture_quantile(means: Tensor, stds: Tensor, p: float) -> Tensor:
    """y with (1/M) Σ_j Φ((y − m_j)/s_j) = p, of components (M, …), by bisection; (…).

    It lies between the least and the largest of the components' own quantiles.
    """
    standard = math.sqrt(2) * float(torch.erfinv(torch.tensor(2 * p - 1, dtype=torch.float64)))
    each = means + stds * standard
    low, high = each.amin(0), each.amax(0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        below = torch.special.ndtr((middle - means) / stds).mean(0) < p
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2


def mixture_regions(means: Tensor, stds: Tensor, level: float) -> list[Interval]:
    """The smallest set that a mixture of Gaussians (M,) has the mass ``level`` in, as intervals in order.

    {y: p(y) ≥ t}: t is found on a grid of ``GRID`` points, and the ends of intervals by lines between them.
    """
    ends = [float(mixture_quantile(means, stds, p)) for p in (TAIL, 1 - TAIL)]
    grid = torch.linspace(ends[0], ends[1], GRID, dtype=torch.float64)
    density = torch.zeros_like(grid)
    for part in torch.split(torch.stack([means, stds]), 256, 1):
        scaled = (grid - part[0, :, None]) / part[1, :, None]
        density += (torch.exp(-0.5 * scaled.square()) / part[1, :, None]).sum(0)
    ordered = density.sort(descending=True).values
    mass = ordered.cumsum(0) / ordered.sum()
    threshold = float(ordered[int((mass < level).sum().clamp(max=GRID - 1))])
    return _runs(grid, density, threshold)


def _runs(grid: Tensor, density: Tensor, threshold: float) -> list[Interval]:
    """Where the line through (grid, density) is at or above the threshold."""
    inside = (density >= threshold).tolist()
    x, f = grid.tolist(), density.tolist()

    def crossing(k: int) -> float:
        share = (threshold - f[k]) / (f[k + 1] - f[k])
        return float(x[k] + share * (x[k + 1] - x[k]))

    found: list[Interval] = []
    begun = x[0] if inside[0] else None
    for k in range(len(x) - 1):
        if not inside[k] and inside[k + 1]:
            begun = crossing(k)
        elif inside[k] and not inside[k + 1]:
            assert begun is not None
            found.append((begun, crossing(k)))
            begun = None
    if begun is not None:
        found.append((begun, x[-1]))
    return found


def smallest_sets(probabilities: Tensor, level: float) -> Tensor:
    """The fewest labels whose probabilities (N, C) sum to ``level`` at least, (N, C) of booleans."""
    ordered, places = probabilities.sort(1, descending=True)
    before = ordered.cumsum(1) - ordered
    chosen = torch.zeros_like(probabilities, dtype=torch.bool)
    return chosen.scatter(1, places, before < level)


def empirical_quantile(values: Tensor, p: float | Sequence[float]) -> Tensor:
    """Quantiles of draws (M, …) by linear interpolation."""
    return torch.quantile(values, torch.as_tensor(p, dtype=values.dtype, device=values.device), dim=0)
