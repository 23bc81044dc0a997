"""What a posterior predicts: over labels, over real targets, and how well the targets agree with it."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from coset.errors import InputError
from coset.posterior.prediction.intervals import (
    Interval,
    check_level,
    empirical_quantile,
    mixture_quantile,
    mixture_regions,
    smallest_sets,
)


@dataclass(frozen=True, eq=False)
class TargetLikelihood:
    """log p(y_i | x_i) = log (1/M) Σ_j p(y_i | x_i, θ_j) of ``targets`` y, and how well M draws determine it.

    ``values`` (N,) and their Monte Carlo standard ``errors`` (N,), s_j(p_ij)/(p̄_i √M) by the delta method. The draws
    are shared by all points, so the error of the mean is not that of independent ones: ``mean_error`` is s_j(w_j)/√M
    with w_j = (1/N) Σ_i p_ij/p̄_i. Errors are 0 for a point and NaN for a single draw of anything else.
    """

    targets: Tensor
    values: Tensor
    errors: Tensor
    mean_error: float

    @cached_property
    def mean(self) -> float:
        """(1/N) Σ_i log p(y_i | x_i), in nats."""
        return float(self.values.mean())


@dataclass(frozen=True, eq=False)
class Predictive:
    """The average of ``draws`` networks' predictions; ``likelihood`` of the targets, if some were given."""

    draws: int
    likelihood: TargetLikelihood | None

    @property
    def log_likelihood(self) -> Tensor | None:
        """log p(y_i | x_i), (N,)."""
        return None if self.likelihood is None else self.likelihood.values


@dataclass(frozen=True, eq=False)
class ClassPredictive(Predictive):
    """p(y = c | x) = (1/M) Σ_j p(c | x, θ_j): ``log_probabilities`` (N, C).

    ``expected_entropy`` (N,): (1/M) Σ_j H[p(y | x, θ_j)], what remains uncertain if the weights were known.
    ``members`` (M, N, C): log p(c | x, θ_j), if asked for. In nats, float64.
    """

    log_probabilities: Tensor
    expected_entropy: Tensor
    members: Tensor | None

    @cached_property
    def probabilities(self) -> Tensor:
        """(N, C)."""
        return self.log_probabilities.exp()

    @cached_property
    def entropy(self) -> Tensor:
        """H[p(y | x)], (N,)."""
        return entropies(self.log_probabilities)

    @cached_property
    def mutual_information(self) -> Tensor:
        """I(y; θ | x) = H[p(y|x)] − E H[p(y|x, θ)] ≥ 0, (N,): what the weights would tell about the label."""
        # Never negative, but for rounding.
        return (self.entropy - self.expected_entropy).clamp(min=0)

    def highest_density(self, level: float = 0.9) -> Tensor:
        """The fewest labels of each point whose probability is ``level`` at least, (N, C) of booleans."""
        return smallest_sets(self.probabilities, check_level("level", level))

    def quantile(self, p: float) -> Tensor:
        """The quantile over the draws of p(c | x, θ_j), (N, C): what the weights leave open; needs ``keep=True``."""
        check_level("p", p)
        if self.members is None:
            raise InputError("the networks' own predictions were not kept; expected predictive(..., keep=True)")
        return empirical_quantile(self.members.exp(), p)

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The central interval of p(c | x, θ_j) over the draws, two of (N, C)."""
        check_level("level", level)
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def __repr__(self) -> str:
        points, classes = self.log_probabilities.shape
        return f"ClassPredictive({points} points, {classes} classes, {self.draws} draws)"


@dataclass(frozen=True, eq=False)
class RealPredictive(Predictive):
    """p(y | x) = (1/M) Σ_j N(y; m_j(x), diag s_j(x)²), its moments (N, D), float64.

    ``mean``; ``noise_std`` √((1/M) Σ s_j²), of the targets around each network (aleatoric); ``model_std``, of the
    networks' means (epistemic). ``member_means`` and ``member_stds`` (M, N, D): the mixture itself, unless left out.
    """

    mean: Tensor
    noise_std: Tensor
    model_std: Tensor
    member_means: Tensor | None
    member_stds: Tensor | None

    @cached_property
    def std(self) -> Tensor:
        """√(noise² + model²), (N, D)."""
        return torch.hypot(self.noise_std, self.model_std)

    def quantile(self, p: float) -> Tensor:
        """y with P(Y ≤ y | x) = p, (N, D), of the mixture itself: noise and weights."""
        return mixture_quantile(*self._mixture(), check_level("p", p))

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The central interval of probability ``level``, two of (N, D)."""
        check_level("level", level)
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def highest_density(self, level: float = 0.9) -> list[list[list[Interval]]]:
        """The smallest region of probability ``level``: of each point, of each target, its intervals in order."""
        check_level("level", level)
        means, stds = self._mixture()
        _, points, targets = means.shape
        return [
            [mixture_regions(means[:, n, d].cpu(), stds[:, n, d].cpu(), level) for d in range(targets)]
            for n in range(points)
        ]

    def _mixture(self) -> tuple[Tensor, Tensor]:
        if self.member_means is None or self.member_stds is None:
            raise InputError("the networks' own predictions were not kept; expected predictive(..., keep=True)")
        return self.member_means.double(), self.member_stds.double()

    def __repr__(self) -> str:
        points, targets = self.mean.shape
        return f"RealPredictive({points} points, {targets} targets, {self.draws} draws)"


def entropies(log_probabilities: Tensor) -> Tensor:
    """−Σ_c p_c log p_c, (…, C) → (…)."""
    terms: Tensor = torch.special.entr(log_probabilities.exp())
    return terms.sum(-1)


def target_likelihood(targets: Tensor, log_p: Tensor, exact: bool, chunk: int = 4096) -> TargetLikelihood:
    """From log p(y_i | x_i, θ_j), (M, N), some points at a time; ``exact``: one draw is the whole distribution."""
    draws, points = log_p.shape
    weights = log_p.new_zeros(draws)
    values, errors = [], []
    for part in torch.split(log_p, chunk, 1):
        value = part.logsumexp(0) - math.log(draws)
        ratio = (part - value).exp()
        weights += ratio.sum(1)
        values.append(value)
        errors.append(_error(ratio, exact))
    return TargetLikelihood(
        targets, torch.cat(values), torch.cat(errors), float(_error((weights / points).unsqueeze(1), exact))
    )


def _error(values: Tensor, exact: bool) -> Tensor:
    """The standard error of the means of (M, n) over M, (n,)."""
    draws = len(values)
    if draws == 1:
        return torch.full_like(values[0], 0.0 if exact else math.nan)
    return values.std(0) / math.sqrt(draws)
