"""Units of μ + e^ρ·ε against those of N(μ, e^{2ρ}), and the gradient in (μ, ρ), by hand and in memory of their own.

Inference does this once a step, beside a network that is not much larger.
"""

import torch
from torch import Tensor

from coset.posterior.symmetrized.pairs import LOG_2PI
from coset.posterior.symmetrized.places import Places


class NoiseComparison:
    """A (n, n) of the units whose weights are at the places ``owned`` (n, k) in vectors (D,), in the type of ``like``.

    With c the centre of the means, m = μ − c, ν = m + e^ρ·ε and W = e^{−2ρ},
    A = [ν, ν²]·[mW, −½W]ᵀ − ½Σ(m²W + 2ρ + log 2π). For M = ∂/∂A with the column sums b:
    ∂ν = M·mW − ν⊙(M·W), ∂μ = ∂ν + W⊙(Mᵀν − b m), ∂ρ = ∂ν⊙e^ρ·ε + W⊙(Mᵀν² − 2m⊙Mᵀν + b m²) − b.
    """

    def __init__(self, owned: Tensor, like: Tensor) -> None:
        self._places = Places(owned, like.device)
        n, k = owned.shape
        self._k = k
        self._gathered = like.new_empty(2, n, k)
        self._away, self._precision = like.new_empty(n, k), like.new_empty(n, k)
        self._units, self._weights = like.new_empty(n, 2 * k), like.new_empty(n, 2 * k)
        self._own = like.new_empty(2, n, k)

    def matrix(self, values: Tensor, noise: Tensor, sign: int) -> Tensor:
        """A (n, n) at μ ± e^ρ·ε, for ``values`` = (μ, ρ), (2, D), and ``noise`` ε (D,)."""
        k, away, precision = self._k, self._away, self._precision
        self._places.take(values, self._gathered)
        self._places.take(noise[None], away[None])
        mean, log_std = self._gathered
        torch.exp(log_std, out=precision)
        away.mul_(precision)
        if sign < 0:
            away.neg_()
        mean -= mean.mean(0)
        near = torch.add(mean, away, out=self._units[:, :k])
        torch.mul(near, near, out=self._units[:, k:])
        precision.square_().reciprocal_()
        torch.mul(mean, precision, out=self._weights[:, :k])
        torch.mul(precision, -0.5, out=self._weights[:, k:])
        constant = torch.linalg.vecdot(mean, self._weights[:, :k]) + 2 * log_std.sum(-1) + LOG_2PI * k
        return (self._units @ self._weights.mT).sub_(constant, alpha=0.5)

    def pull_back(self, along: Tensor, gradient: Tensor) -> None:
        """The gradient in (μ, ρ) for ∂/∂A = ``along`` (n, n), at the last ``matrix``, to its places in (2, D)."""
        k, precision, mean = self._k, self._precision, self._gathered[0]
        along = along.to(precision)
        sums = along.sum(0)[:, None]
        by_weights, by_units = along @ self._weights, along.mT @ self._units
        to_near = by_weights[:, :k].addcmul_(self._units[:, :k], by_weights[:, k:], value=2)
        first, second = by_units[:, :k], by_units[:, k:]
        scaled = sums * mean
        torch.addcmul(to_near, precision, first - scaled, out=self._own[0])
        second.addcmul_(mean, first.sub_(scaled, alpha=0.5), value=-2)
        torch.addcmul(to_near.mul_(self._away), precision, second, out=self._own[1]).sub_(sums)
        self._places.put(self._own, gradient)
