"""Importance weights of permutations, and the two sides of −log q^G(ω)/q(ω) that they give.

With z(ω) = q^G(ω)/q(ω) = (1/|G|) Σ_g e^{Δ_g}, Δ_g = log q(g⁻¹·ω) − log q(ω), the information is I(g; ω) = E_q[−log z].
Of draws g_j from a proposal r the weights w_j = e^{Δ_g}/(|G| r(g)) have the mean z, so that E[−log mean w] ≥ −log z: an
upper bound. If r does not know which g moved ω (it may depend on ω, but only so that r(hg | hω) = r(g | ω)), then the
identity is as good as any draw from the posterior of g given ω, and with its weight among them E[−log mean w] ≤ I: a
lower bound. For uniform r this is InfoNCE (Gelberg et al. 2024, theorem 4.3); K = 1 is the bound of Barber & Agakov
(2003). Gradients take the draws and r as given: those of the sum Σ_g e^{Δ_g}, by importance sampling.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.posterior.symmetrized.orbit import Moves


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
