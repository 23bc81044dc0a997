"""The posterior of the two-weight network on a grid, and how far a Gaussian and its average over G are from it."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from coset_studies.gelberg.two_weights._network import Moments, squared_error

_LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class Grid:
    """The posterior on a square grid: ``axis`` (n,), Simpson's ``weights`` (n,), ``log_density`` (n, n), normalised.

    ``log_evidence``: log p(Y) without −(N/2) log 2π·noise, as all ELBOs here. First index w₁, second w₂.
    """

    axis: Tensor
    weights: Tensor
    log_density: Tensor
    log_evidence: float

    @property
    def points(self) -> Tensor:
        """(n, n, 2)."""
        return torch.stack(torch.meshgrid(self.axis, self.axis, indexing="ij"), -1)

    def integral(self, values: Tensor) -> float:
        """∫ values over the grid, values (n, n)."""
        return float(self.weights @ values @ self.weights)

    def divergence(self, log_q: Tensor) -> float:
        """KL(q‖p) = ∫ q log(q/p), log q (n, n)."""
        return self.integral(log_q.exp() * (log_q - self.log_density))

    def slopes(self) -> tuple[float, float]:
        """E_p[a], E_p[b]: the average of all networks of the posterior itself is a·x for x > 0 and b·|x| for x < 0."""
        density, points = self.log_density.exp(), self.points
        up, down = (self.integral(density * torch.relu(sign * points).sum(-1)) for sign in (1, -1))
        return up, down


def grid_posterior(alpha: float, data: Moments, noise: float, prior: float, size: int, reach: float) -> Grid:
    """p(w|Y) on [−reach, reach]² with ``size`` points a side, 4k + 1: each half has its own Simpson rule.

    The density has kinks on w₁ = 0 and w₂ = 0, and nowhere else; a grid with nodes there does not see them.
    """
    axis = torch.linspace(-reach, reach, size, dtype=torch.float64)
    axis[size // 2] = 0.0
    points = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1)
    error = squared_error(points, torch.tensor(alpha, dtype=torch.float64), data)
    log_prior = -0.5 * points.square().sum(-1) / prior - _LOG_2PI - math.log(prior)
    log_joint = -error / (2 * noise) + log_prior
    weights = _simpson(size, reach)
    logs = weights.log()
    log_evidence = float(torch.logsumexp((log_joint + logs[:, None] + logs).flatten(), 0))
    return Grid(axis, weights, log_joint - log_evidence, log_evidence)


def sufficient_reach(alpha: float, data: Moments, noise: float, prior: float, deviations: float = 8.0) -> float:
    """Farther than so many deviations from ±α, of the prior or the likelihood, there is nothing of the posterior."""
    likelihood = noise / min(float(data.positive), float(data.negative))
    return alpha + deviations * math.sqrt(min(prior, likelihood))


def log_normal(points: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """log q(w) of q = N(mean, diag std²), points (…, 2) → (…)."""
    return (-0.5 * ((points - mean) / std).square() - std.log()).sum(-1) - _LOG_2PI


def log_symmetrized(points: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """log q^G(w) = log ½(q(w₁, w₂) + q(w₂, w₁)), the two-term sum."""
    both = torch.logaddexp(log_normal(points, mean, std), log_normal(points.flip(-1), mean, std))
    return both - math.log(2)


def _simpson(size: int, reach: float) -> Tensor:
    """Simpson's weights on [−reach, 0] and [0, reach] together; ``size`` = 4k + 1."""
    weights = torch.full((size,), 2.0, dtype=torch.float64)
    weights[1::2] = 4.0
    weights[0] = weights[-1] = 1.0
    return weights * (2 * reach / (size - 1) / 3)
