"""The continuous ranked probability score of mixtures of Gaussians, in closed form (Grimit et al. 2006)."""

import math

import torch
from torch import Tensor

from coset._show.progress import progress
from coset.errors import InputError

ENTRIES = 2**22
"""Pairs of components × targets held at once."""


def crps_values(means: Tensor, stds: Tensor, y: Tensor, *, show: bool | None = None) -> Tensor:
    """E|Y − y| − ½ E|Y − Y'|, Y, Y' ~ (1/M) Σ_j N(m_j, s_j²): ``means``, ``stds`` (M, …) and ``y`` (…) → (…).

    With A(m, s) = E|N(m, s²)|: (1/M) Σ_j A(y − m_j, s_j) − (1/2M²) Σ_jk A(m_j − m_k, √(s_j² + s_k²)). In the units of
    y, 0 at best; for a single point |m − y|. The M² pairs are taken for some targets at a time.
    """
    if not means.shape == stds.shape or means.shape[1:] != y.shape or len(means) == 0 or y.numel() == 0:
        raise InputError(
            f"means, stds and y have shapes {tuple(means.shape)}, {tuple(stds.shape)} and {tuple(y.shape)}; expected "
            f"(M, …) twice and (…), none of them empty"
        )
    count = len(means)
    flat = [part.double().reshape(count, -1) for part in (means, stds)]
    target = y.double().reshape(-1)
    first, second = torch.triu_indices(count, count, offset=1, device=means.device)
    step = max(1, ENTRIES // max(count, len(first)))
    values = torch.empty_like(target)
    with progress("CRPS", len(target), show=show) as bar:
        for start in range(0, len(target), step):
            m, s = (part[:, start : start + step] for part in flat)
            away = expected_absolute(target[start : start + step] - m, s).mean(0)
            # Of the M² ordered pairs, those of a component with itself give 2s/√π.
            apart = 2 * expected_absolute(m[first] - m[second], torch.hypot(s[first], s[second])).sum(0)
            apart = (apart + 2 / math.sqrt(math.pi) * s.sum(0)) / count**2
            values[start : start + step] = away - apart / 2
            bar.advance(m.shape[1])
    return values.reshape(y.shape)


def expected_absolute(mean: Tensor, std: Tensor) -> Tensor:
    """E|N(m, s²)| = m (2Φ(m/s) − 1) + 2 s φ(m/s); |m| where s = 0."""
    scaled = mean / (std * math.sqrt(2))
    smooth = mean * torch.erf(scaled) + math.sqrt(2 / math.pi) * std * torch.exp(-scaled.square())
    return torch.where(std > 0, smooth, mean.abs())
