"""The ELBO: of a mean-field posterior with its gradient by hand, drawn in place; of any Gaussian with its error."""

import math
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from coset._checks import check_count
from coset.distribution import Estimate, Normal
from coset.distribution.contract import require
from coset.errors import InputError
from coset.posterior.fit import Control, Fit
from coset.posterior.likelihoods import Likelihood
from coset.posterior.problem import Data, PriorLike, Problem, pose

KL = ("closed", "monte-carlo", "sticking")
"""How the KL from the prior is had."""

_HALF_LOG_2PI_E = 0.5 * math.log(2 * math.pi * math.e)


class EntropyTerm(Protocol):
    """What the entropy of q is to count more: a function of sampled weights, added to H(q) under its temperature."""

    def begin(self, seed: int, epoch: int) -> None:
        """An epoch begins: random numbers come from streams of this seed and epoch."""
        ...

    def gradient(self, values: Tensor, noise: Tensor, sign: int) -> Tensor | None:
        """Of the value at θ = μ ± e^ρ·ε, with respect to ``values`` = (μ, ρ), (2, D); None if it is zero.

        It may be memory that the next call writes to.
        """
        ...

    def mean(self) -> float:
        """Of its values since the epoch began."""
        ...


class NegativeELBO:
    """ℓ(μ, ρ) = −(1/N) {E_q[log p(Y|θ) + log p(θ)] + T·H(q)}, q = N(μ, diag σ²), σ = e^ρ, and its gradient by hand.

    With θ = μ + σε, g = ∇_θ of the mean negative log-likelihood of a batch and w the weight of the KL:

    - Gaussian prior N(m, s²), in closed form: ∂μ = g + w(μ − m)/(N s²), ∂ρ = g·ε·σ + w(σ²/s² − T)/N;
    - any prior, by Monte Carlo (eq. 30, with its sign corrected): h = g − w ∇log p(θ)/N, ∂μ = h, ∂ρ = h·ε·σ − wT/N;
    - "sticking-the-landing" (Roeder et al. 2017): log q counts along the path only, h = g − w(∇log p(θ) + Tε/σ)/N,
      ∂μ = h, ∂ρ = h·ε·σ. Both its gradient and its noise vanish where q is the posterior.

    ``values`` (2, D) holds μ and ρ; ``gradient`` (2, D) is written to. ``antithetic``: every second draw mirrors the
    one before it, −ε for ε. Each gradient is unbiased all the same, half of the noise need not be drawn (which takes a
    tenth of a step), and what is odd in ε cancels between the two. ``term``: what is added to H(q).
    """

    def __init__(
        self, problem: Problem, samples: int, kl: str, *, antithetic: bool = True, term: EntropyTerm | None = None
    ) -> None:
        self.problem = problem
        self.samples = samples
        self.kl = kl
        self.antithetic = antithetic
        self.term = term
        moments = problem.prior_moments()
        if kl == "closed":
            if moments is None:
                raise InputError(
                    f"kl is 'closed' and the prior is a {type(problem.prior).__name__}; a closed form needs a Gaussian "
                    f"prior: expected kl='monte-carlo' or 'sticking'"
                )
            self.prior_mean, self.prior_std = moments
            self.precision = self.prior_std.square().reciprocal()
            # The paper's prior is the same for all weights: numbers instead of vectors save passes over memory.
            self.flat_prior = bool((self.prior_mean == 0).all()) and bool((self.precision == self.precision[0]).all())
        self.noise = torch.empty_like(problem.start)
        self.theta = torch.empty_like(problem.start)
        self.sigma = torch.empty_like(problem.start)
        self.own = torch.empty_like(problem.start)
        self.zero = torch.zeros_like(problem.start[:1])
        self.loss_gradients = problem.bind(self.theta)
        self.draws = 0

    def write_gradient(
        self, values: Tensor, x: Tensor, y: Tensor, generator: torch.Generator, gradient: Tensor, weight: float = 1.0
    ) -> Tensor:
        """The mean negative log-likelihood of a batch, over the samples; the gradient of ℓ is written to ``gradient``.

        Without an autograd graph but that of the network: samples are drawn in place, and only the gradient with
        respect to the sampled weights is asked for.
        """
        with torch.no_grad():
            torch.exp(values[1], out=self.sigma)
        scale = weight / self.problem.count
        losses = []
        added: Tensor | None = None
        for number in range(self.samples):
            sign = self._draw(values, generator)
            part = None if self.term is None else self.term.gradient(values, self.noise, sign)
            if part is not None:
                added = part.clone() if added is None else added.add_(part)
            own = self.own if number else gradient[0]
            loss, parts = self.loss_gradients(x, y)
            torch.cat(parts, out=own)
            losses.append(loss)
            if self.kl != "closed":
                own -= self._sampled_terms(sign, weight)
            with torch.no_grad():
                if number == 0 and sign == 1:
                    torch.mul(own, self.noise, out=gradient[1])
                elif number == 0:
                    torch.addcmul(self.zero, own, self.noise, value=sign, out=gradient[1])
                else:
                    gradient[0] += own
                    gradient[1].addcmul_(own, self.noise, value=sign)
        with torch.no_grad():
            self._finish(values, gradient, scale)
            if added is not None:
                gradient.add_(added, alpha=-scale * self.problem.temperature / self.samples)
        return losses[0] if self.samples == 1 else torch.stack(losses).mean()

    def begin(self, seed: int, epoch: int) -> None:
        """An epoch begins with new noise: the next draw mirrors none before it."""
        self.draws = 0
        if self.term is not None:
            self.term.begin(seed, epoch)

    @torch.no_grad()
    def _draw(self, values: Tensor, generator: torch.Generator) -> int:
        """θ = μ ± σε and its sign; mirrored draws use the noise of the one before."""
        sign = -1 if self.antithetic and self.draws % 2 else 1
        self.draws += 1
        if sign == 1:
            self.noise.normal_(generator=generator)
        torch.addcmul(values[0], self.sigma, self.noise, value=sign, out=self.theta)
        return sign

    def _finish(self, values: Tensor, gradient: Tensor, scale: float) -> None:
        """Means over the samples, ∂ρ = σ·(…), and the terms in closed form; ``scale`` is w/N."""
        means, spreads = gradient
        if self.samples > 1:
            gradient /= self.samples
        if self.kl == "closed" and self.flat_prior:
            means.add_(values[0], alpha=scale * float(self.precision[0]))
            spreads.add_(self.sigma, alpha=scale * float(self.precision[0]))
        elif self.kl == "closed":
            means.addcmul_(values[0] - self.prior_mean, self.precision, value=scale)
            spreads.addcmul_(self.sigma, self.precision, value=scale)
        entropy = 0.0 if self.kl == "sticking" else -scale * self.problem.temperature
        torch.addcmul(spreads.new_tensor(entropy), self.sigma, spreads, out=spreads)

    def _sampled_terms(self, sign: int, weight: float) -> Tensor:
        """w ∇log p(θ)/N at the sampled weights, and wTε/(σN) where log q counts along the path."""
        # Unlike autograd.grad this takes a density that does not depend on some parameters, or on none.
        terms: Tensor = torch.func.grad(self.problem.log_prior)(self.theta)
        if self.kl == "sticking":
            terms = terms + sign * self.problem.temperature * self.noise / self.sigma
        return terms * (weight / self.problem.count)

    def divergence(self, values: Tensor, generator: torch.Generator) -> float:
        """−E_q[log p(θ)] − T·H(q), a sum: the KL from the prior at T = 1; by ``samples`` draws if not closed."""
        mean, log_std = values.detach().double()
        entropy = float(log_std.sum()) + len(log_std) * _HALF_LOG_2PI_E
        if self.kl == "closed":
            quadratic = ((mean - self.prior_mean).square() + (2 * log_std).exp()) * self.precision
            cross = float((0.5 * quadratic + self.prior_std.log()).sum()) + len(mean) * (_HALF_LOG_2PI_E - 0.5)
            return cross - self.problem.temperature * entropy
        total = 0.0
        with torch.no_grad():
            for _ in range(self.samples):
                self.noise.normal_(generator=generator)
                torch.addcmul(values[0], values[1].exp(), self.noise, out=self.theta)
                total -= float(self.problem.log_prior(self.theta))
        return total / self.samples - self.problem.temperature * entropy


def elbo(
    model: nn.Module,
    q: Normal | Fit[Any],
    data: Data,
    *,
    likelihood: Likelihood | str = "categorical",
    prior: PriorLike = 1.0,
    temperature: float = 1.0,
    samples: int = 32,
    batch_size: int = 1000,
    seed: int = 0,
) -> Estimate:
    """(1/N) {E_q[log p(Y|θ) + log p(θ)] + T·H(q)}, per data point, by ``samples`` draws.

    The entropy is exact. At T = 1 this is a lower bound of log p(Y)/N, reached where q is the posterior.
    """
    given = q.posterior if isinstance(q, Fit) else q
    q = require(given, Normal, "q", "a MeanField, a LowRank or a Gaussian, or a Fit of one")
    Control(seed)
    check_count("samples", samples, 2)
    check_count("batch_size", batch_size)
    problem = pose(model, data, likelihood, prior, temperature, [q.mean])
    generator = torch.Generator(problem.start.device).manual_seed(seed)
    values = []
    for _ in range(samples):
        draw = {name: tensor[0] for name, tensor in q.sample(1, generator).items()}
        flat = problem.layout.flatten(draw).to(problem.start)
        with torch.no_grad():
            parts: list[Tensor] = [
                problem.log_likelihood(flat, x, y).double()
                for x, y in zip(torch.split(problem.x, batch_size), torch.split(problem.y, batch_size), strict=True)
            ]
            values.append(torch.stack(parts).sum() + problem.log_prior(flat).double())
    joint = torch.stack(values)
    total = float(joint.mean()) + temperature * float(q.entropy())
    return Estimate(total / problem.count, float(joint.std()) / math.sqrt(samples) / problem.count)
