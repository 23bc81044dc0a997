"""What microcanonical Langevin chains learn in their warm-up: a step size, and how long velocities are remembered.

The error of a leapfrog step is of third order, so that E[ΔE²] grows as ε⁶. With ξ = E[ΔE²]/(D·target) of a step of
size ε, the size that meets the target is ε ξ^{−1/6}; its inverse sixth power ξ/ε⁶ is averaged over the steps, later
ones and those near the target counting more (Robnik et al. 2023, section 4).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

MEMORY = 150.0
"""The average is over about so many steps."""

WIDTH = 1.5
"""A step counts less where its size was off by more than this in its logarithm."""

SHRINK = 0.8
"""A broken step makes all later ones so much smaller."""

SETTLING, SPREADING = 0.4, 0.7
"""Shares of the warm-up: the step size alone; then also the spread of each chain; after it, how fast they forget."""

KEPT, WATCHED = 512, 64
"""So many states are kept to find autocorrelations from, and so many coordinates of each."""

AUTOCORRELATION = 0.4
"""L in units of ε times the steps between effectively independent states."""

GROWTH = 2.0
"""A step is at most so many times the one before."""


@dataclass
class StepSize:
    """ε and what is known of it; ``write`` and ``read`` are for the state that a checkpoint keeps."""

    size: float
    total: float = 0.0
    weight: float = 0.0
    limit: float = math.inf

    @classmethod
    def read(cls, state: Tensor) -> "StepSize":
        return cls(*state.tolist())

    def write(self, state: Tensor) -> None:
        state.copy_(torch.tensor([self.size, self.total, self.weight, self.limit], dtype=torch.float64))

    def broken(self) -> None:
        """After a step of which some chain's energy was not finite: never again so large a step."""
        self.limit = SHRINK * self.size
        self.size = self.limit

    def learn(self, square: float, target: float) -> None:
        """Take in the mean ΔE²/D of a step over the chains."""
        ratio = square / target + 1e-8
        weight = math.exp(-0.5 * (math.log(ratio) / (6 * WIDTH)) ** 2)
        decay = (MEMORY - 1) / (MEMORY + 1)
        self.total = decay * self.total + weight * ratio / self.size**6
        self.weight = decay * self.weight + weight
        if self.total > 0 and self.weight > 0:
            wanted = (self.total / self.weight) ** (-1 / 6)
            self.size = min(max(wanted, self.size / GROWTH), self.size * GROWTH, self.limit)

    def rescaled(self, factor: float) -> "StepSize":
        """As if it had been learned in units ``factor`` times as small."""
        return StepSize(self.size * factor, self.total * factor**-6, self.weight, self.limit * factor)


def effective_steps(states: Tensor) -> float:
    """Steps between effectively independent states: 1 + 2 Σ ρ_t of chains (C, n, k), the harmonic mean over
    coordinates.

    ρ_t is the mean over the chains of each one's autocorrelation, summed in pairs as long as these are positive
    (Geyer 1992).
    """
    wide = states.double()
    away = wide - wide.mean(1, keepdim=True)
    count = away.shape[1]
    power = torch.fft.rfft(away, 2 * count, dim=1).abs().square()
    covariances = torch.fft.irfft(power, 2 * count, dim=1)[:, :count].mean(0)
    varying = covariances[0] > 0
    if not bool(varying.any()):
        return float(count)
    correlations = covariances[:, varying] / covariances[0, varying]
    even = correlations[: count - count % 2].reshape(-1, 2, correlations.shape[1]).sum(1)
    positive = (even > 0).long().cumprod(0)
    times = (2 * (even * positive).sum(0) - 1).clamp(min=1.0, max=count)
    return float(1 / (1 / times).mean())
