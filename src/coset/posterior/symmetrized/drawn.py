"""Weights ω drawn from q beside q itself, and the two sides of −log q^G(ω)/q(ω) that permutations of them give.

With z(ω) = q^G(ω)/q(ω) = (1/|G|) Σ_g e^{Δ_g}, Δ_g = log q(g⁻¹·ω) − log q(ω), the information is I(g; ω) = E_q[−log z].
Of draws g_j from a proposal r the weights w_j = e^{Δ_g}/(|G| r(g)) have the mean z, so that E[−log mean w] ≥ −log z: an
upper bound. If r does not know which g moved ω (it may depend on ω, but only so that r(hg | hω) = r(g | ω)), then the
identity is as good as any draw from the posterior of g given ω, and with its weight among them E[−log mean w] ≤ I: a
lower bound. For uniform r this is InfoNCE (Gelberg et al. 2024, theorem 4.3); K = 1 is the bound of Barber & Agakov
(2003). Gradients take the draws and r as given: those of the sum Σ_g e^{Δ_g}, by importance sampling.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.posterior.symmetrized.orbit import Moves, Orbit, picked
from coset.posterior.symmetrized.units import normal_log_prob, unit_log_probs


class Drawn:
    """Weights ``x`` (…, D) and q = N(``mean``, diag ``std``²), both (D,), as ``orbit`` orders them; in float64.

    ``matrices``: what ``units`` gives, where it is there already; of the rest only the means may then be asked for.
    """

    def __init__(
        self, orbit: Orbit, x: Tensor, mean: Tensor, std: Tensor, matrices: Mapping[str, Tensor] | None = None
    ) -> None:
        self.orbit = orbit
        self.x, self.mean, self.std = x, mean, std
        self._matrices = dict(matrices or {})

    @property
    def lead(self) -> tuple[int, ...]:
        """The leading axes of x."""
        return tuple(self.x.shape[:-1])

    def with_densities_held(self) -> "Drawn":
        """The same weights beside the same q, through which no gradient flows."""
        return Drawn(self.orbit, self.x, self.mean.detach(), self.std.detach())

    def units(self, name: str) -> Tensor:
        """A_ij (…, n, n): unit i of x under unit j of q, by the weights that no other class moves."""
        if name not in self._matrices:
            self._matrices[name] = self._compare(name)
        return self._matrices[name]

    def log_ratios(self, moves: Moves) -> Tensor:
        """log q(g⁻¹·ω) − log q(ω), (…, K), for permutations (…, K, *shape) with leading axes as those of x, or 1."""
        parts = [picked(self.units(name), moves[name]) for name in self.orbit.alone]
        if len(self.orbit.shared) or not parts:
            parts.append(self._shared_ratios(moves))
        return sum(parts[1:], parts[0])

    def _shared_ratios(self, moves: Moves) -> Tensor:
        shared = self.orbit.shared.to(self.x.device)
        places = self.orbit.places(moves).to(self.x.device)
        # q(g⁻¹·ω) is the density of N(g·mean, diag (g·std)²) at ω.
        moved = normal_log_prob(self.x[..., None, shared], self.mean[places], self.std[places])
        return moved - normal_log_prob(self.x[..., shared], self.mean[shared], self.std[shared])[..., None]

    def _compare(self, name: str) -> Tensor:
        return unit_log_probs(self.orbit.alone[name].to(self.x.device), self.x, self.mean, self.std)


@dataclass(frozen=True, eq=False)
class LogWeights:
    """log w of ``draws`` (…, K) of permutations and of the ``identity`` (…).

    ``moves``: the permutations, where each weight is e^Δ of one of them times a constant.
    """

    draws: Tensor
    identity: Tensor
    moves: Moves | None = None

    def lower(self) -> Tensor:
        """−log of the mean of the identity's weight and those of all draws but the last, (…)."""
        together = torch.cat([self.identity[..., None], self.draws[..., :-1]], -1)
        return _minus_log_mean(together)

    def upper(self) -> Tensor:
        """−log of the mean weight of the draws, (…)."""
        return _minus_log_mean(self.draws)


def _minus_log_mean(logs: Tensor) -> Tensor:
    return math.log(logs.shape[-1]) - torch.logsumexp(logs, -1)
