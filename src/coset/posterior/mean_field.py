"""Mean-field variational inference with reparametrised gradients (Rossi et al. 2023, appendix E)."""

import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from coset.distribution import MeanField
from coset.errors import InputError
from coset.posterior.fit import (
    Callback,
    Control,
    Fit,
    check_count,
    check_positive,
    device_stream,
    epoch_batches,
    require_finite_losses,
    run_rounds,
)
from coset.posterior.flat_optimizer import FlatOptimizer, optimization
from coset.posterior.likelihoods import Likelihood
from coset.posterior.problem import Data, PriorLike, Problem, pose
from coset.posterior.starting import Start, initial_weights, points_of
from coset.sealed import checksum

ADVICE = "a lower learning_rate, a smaller std to begin with or more samples may help"

KLWeight = Callable[[int], float]
"""The weight of the KL in each epoch, counted from 0."""

_HALF_LOG_2PI_E = 0.5 * math.log(2 * math.pi * math.e)


class NegativeELBO:
    """ℓ(μ, ρ) = −(1/N) {E_q[log p(Y|θ) + log p(θ)] + T·H(q)}, q = N(μ, diag σ²), σ = e^ρ, and its gradient by hand.

    With θ = μ + σε, g = ∇_θ of the mean negative log-likelihood of a batch and w the weight of the KL:

    - Gaussian prior N(m, s²), in closed form: ∂μ = g + w(μ − m)/(N s²), ∂ρ = g·ε·σ + w(σ²/s² − T)/N;
    - any prior, by Monte Carlo (eq. 30, with its sign corrected): h = g − w ∇log p(θ)/N, ∂μ = h, ∂ρ = h·ε·σ − wT/N;
    - "sticking-the-landing" (Roeder et al. 2017): log q counts along the path only, h = g − w(∇log p(θ) + Tε/σ)/N,
      ∂μ = h, ∂ρ = h·ε·σ. Both its gradient and its noise vanish where q is the posterior.

    ``values`` (2, D) holds μ and ρ; ``gradient`` (2, D) is written to. ``antithetic``: every second draw mirrors the
    one before it, −ε for ε. Each gradient is unbiased all the same, half of the noise need not be drawn (which takes a
    tenth of a step), and what is odd in ε cancels between the two.
    """

    def __init__(self, problem: Problem, samples: int, kl: str, *, antithetic: bool = True) -> None:
        self.problem = problem
        self.samples = samples
        self.kl = kl
        self.antithetic = antithetic
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
        for number in range(self.samples):
            sign = self._draw(values, generator)
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
        return losses[0] if self.samples == 1 else torch.stack(losses).mean()

    def step(
        self,
        flat: FlatOptimizer,
        number: int,
        x: Tensor,
        y: Tensor,
        generator: torch.Generator,
        weight: float = 1.0,
    ) -> Tensor:
        """One step of an optimizer of ``values`` along this gradient, as step ``number``; the loss of the batch."""
        scale = weight / self.problem.count
        # A prior so wide that it says nothing would be divided by.
        plain = self.samples == 1 and self.kl == "closed" and self.flat_prior
        if not (plain and flat.takes_decay and scale * float(self.precision[0]) > 1e-12):
            loss = self.write_gradient(flat.state["values"], x, y, generator, flat.gradient, weight)
            flat.step(number)
            return loss
        loss, parts, decay = self.write_spreads(flat.state["values"], x, y, generator, flat.gradient[1], scale)
        flat.step(number, parts, decay)
        return loss

    def write_spreads(
        self, values: Tensor, x: Tensor, y: Tensor, generator: torch.Generator, spreads: Tensor, scale: float
    ) -> tuple[Tensor, list[Tensor], float]:
        """``write_gradient`` for one draw and the paper's prior, with few passes over memory; ``scale`` is w/N.

        With c = w/(N s²): ∂μ = g + cμ, of which the loss, the pieces of g and c are returned, and
        ∂ρ = cσ·(σ + g·ε/c) − wT/N, written to ``spreads``.
        """
        with torch.no_grad():
            torch.exp(values[1], out=self.sigma)
        strength = scale * float(self.precision[0])
        sign = self._draw(values, generator)
        loss, parts = self.loss_gradients(x, y)
        sizes = self.problem.layout.sizes
        with torch.no_grad():
            rows = (torch.split(row, sizes) for row in (self.sigma, self.noise, spreads))
            for part, sigma, noise, spread in zip(parts, *rows, strict=True):
                torch.addcmul(sigma, part, noise, value=sign / strength, out=spread)
            constant = spreads.new_full((1,), -scale * self.problem.temperature)
            torch.addcmul(constant, self.sigma, spreads, value=strength, out=spreads)
        return loss, parts, strength

    def fresh(self) -> None:
        """Begin with new noise: the next draw mirrors none before it."""
        self.draws = 0

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


KL = ("closed", "monte-carlo", "sticking")


def fit_mean_field(
    model: nn.Module,
    data: Data,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    likelihood: Likelihood | str = "categorical",
    prior: PriorLike = 1.0,
    temperature: float = 1.0,
    optimizer: str = "adam",
    momentum: float = 0.0,
    schedule: str = "constant",
    warmup_epochs: int = 0,
    samples: int = 1,
    antithetic: bool = True,
    std: float = 0.01,
    kl: str | None = None,
    kl_weight: KLWeight | None = None,
    start: Start | None = None,
    seed: int = 0,
    checkpoint: Path | str | None = None,
    checkpoint_seconds: float = 5.0,
    callback: Callback | None = None,
    show: bool | None = None,
) -> Fit[MeanField]:
    """Maximise the ELBO E_q[log p(Y|θ)] − KL[q‖p] over q = N(m, diag(s²)); tempered: see ``NegativeELBO``.

    Begins at ``start`` (by default the model's own weights; a distribution's mean) with all deviations ``std``, or at a
    given ``MeanField`` with its own.
    ``samples`` weights are drawn for each step, every second the mirror image of the one before if ``antithetic``.
    ``kl``: "closed" for Gaussian priors (their default), "monte-carlo" or "sticking" for any. ``kl_weight``: a weight
    of the KL for each epoch; None is 1 throughout, and anything else does not maximise the ELBO. The trace has, per
    data point, the elbo, the nll E_q[−log p(Y|θ)] as the epoch saw it while q moved, and the kl at its end
    (−E_q[log p] − T·H if tempered).
    """
    problem = pose(model, data, likelihood, prior, temperature, points_of(start))
    recipe = optimization(epochs, batch_size, learning_rate, optimizer, momentum, schedule, warmup_epochs)
    check_count("samples", samples)
    check_positive("std", std)
    closed = problem.prior_moments() is not None
    chosen = ("closed" if closed else "monte-carlo") if kl is None else kl
    if chosen not in KL:
        raise InputError(f"kl is {kl!r}; expected one of {', '.join(KL)}")
    weights = None if kl_weight is None else _kl_weights(kl_weight, epochs)
    objective = NegativeELBO(problem, samples, chosen, antithetic=antithetic)
    steps = -(-problem.count // batch_size)
    flat = FlatOptimizer(_initial_values(problem, start, std), recipe, steps, problem.layout.sizes)
    losses: list[float] = []

    def advance(epoch: int) -> dict[str, float]:
        weight = 1.0 if weights is None else weights[epoch]
        nll = _epoch(objective, flat, batch_size, seed, epoch, weight, losses[-1] if losses else None)
        losses.append(nll)
        share = objective.divergence(flat.state["values"], device_stream("divergence", seed, epoch, problem.start))
        share /= problem.count
        return {"elbo": -nll - share, "nll": nll, "kl": share, "kl_weight": weight}

    settings = {
        **{f"recipe {name}": value for name, value in recipe.to_dict().items()},
        "samples": samples,
        "antithetic": antithetic,
        "std": std,
        "kl": chosen,
        "kl weights": weights,
        "start": f"checksum {checksum(flat.state['values']):08x}",
    }
    control = Control(seed, checkpoint, checkpoint_seconds, callback, show)
    trace, seconds = run_rounds(
        "mean-field VI", problem, settings, flat.state, epochs, advance, control, ("nll", losses)
    )
    return Fit(mean_field_of(problem, flat.state["values"]), trace, "mean-field VI", seconds)


def _kl_weights(kl_weight: KLWeight, epochs: int) -> list[float]:
    if not callable(kl_weight):
        raise InputError(f"kl_weight is a {type(kl_weight).__name__}; expected a function of the epoch")
    weights = [kl_weight(epoch) for epoch in range(epochs)]
    for epoch, weight in enumerate(weights):
        check_positive(f"kl_weight({epoch})", weight, zero=True)
    return [float(weight) for weight in weights]


def mean_field_of(problem: Problem, values: Tensor) -> MeanField:
    """The distribution whose flat means and logarithms of deviations (2, D) are given."""
    layout = problem.layout
    deviations = {name: tensor.clone() for name, tensor in layout.views(values[1].detach().exp()).items()}
    return MeanField(layout.whole(values[0]), layout.with_aliases(deviations))


def _initial_values(problem: Problem, start: Start | None, std: float) -> Tensor:
    layout = problem.layout
    start = start.posterior if isinstance(start, Fit) else start
    if isinstance(start, MeanField):
        mean, spread = layout.flatten(start.mean), layout.flatten(start.std)
        if bool((spread <= 0).any()):
            raise InputError("start has deviations of 0; expected a MeanField with deviations > 0")
        log_std = spread.log()
    else:
        mean = initial_weights(problem, start)
        log_std = torch.full_like(mean, math.log(std))
    values = torch.stack([mean, log_std]).to(problem.start)
    if not bool(values.isfinite().all()):
        raise InputError("start has values that are NaN or infinite")
    return values


def _epoch(
    objective: NegativeELBO,
    flat: FlatOptimizer,
    batch_size: int,
    seed: int,
    epoch: int,
    weight: float,
    before: float | None,
) -> float:
    """One pass over the data; the mean negative log-likelihood over it."""
    problem = objective.problem
    generator = device_stream("noise", seed, epoch, problem.start)
    objective.fresh()
    losses, sizes = [], []
    for index, (x, y) in enumerate(epoch_batches(problem, batch_size, seed, epoch)):
        losses.append(objective.step(flat, epoch * flat.steps_per_epoch + index, x, y, generator, weight))
        sizes.append(len(x))
    values = require_finite_losses(losses, before, epoch, ADVICE)
    counts = torch.tensor(sizes, dtype=torch.float64)
    return float(values @ counts / counts.sum())
