"""Mean-field variational inference with reparametrised gradients (Rossi et al. 2023, appendix E)."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coset._checks import check_choice, check_count, check_positive
from coset.distribution import MeanField, Normal
from coset.errors import InputError
from coset.posterior.fit import Callback, Control, Fit, device_stream
from coset.posterior.inference.flat_optimizer import FlatOptimizer, numbered_batches, optimization, run_descent
from coset.posterior.inference.negative_elbo import KL, EntropyTerm, NegativeELBO
from coset.posterior.inference.starting import Start, initial_weights, points_of
from coset.posterior.likelihoods import Likelihood
from coset.posterior.problem import Data, PriorLike, Problem, pose
from coset.train import Recipe

ADVICE = "a lower learning_rate, a smaller std to begin with or more samples may help"

KLWeight = Callable[[int], float]
"""The weight of the KL in each epoch, counted from 0."""


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
    descent = Descent(recipe, samples, antithetic, std, kl, kl_weight)
    control = Control(seed, checkpoint, checkpoint_seconds, callback, show)
    return descend(problem, descent, start, control)


@dataclass(frozen=True)
class Descent:
    """How the ELBO is climbed: the settings of ``fit_mean_field`` that are not of the problem, checked."""

    recipe: Recipe
    samples: int = 1
    antithetic: bool = True
    std: float = 0.01
    kl: str | None = None
    kl_weight: KLWeight | None = None

    def __post_init__(self) -> None:
        check_count("samples", self.samples)
        check_positive("std", self.std)
        if self.kl is not None:
            check_choice("kl", self.kl, KL)


def descend(
    problem: Problem,
    how: Descent,
    start: Start | None,
    control: Control,
    *,
    method: str = "mean-field VI",
    term: EntropyTerm | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Fit[MeanField]:
    """Fit q to a problem that is posed; a ``term`` with the ``settings`` that tell its runs apart adds to H(q)."""
    recipe, seed = how.recipe, control.seed
    kl = ("closed" if problem.prior_moments() is not None else "monte-carlo") if how.kl is None else how.kl
    weights = [1.0] * recipe.epochs if how.kl_weight is None else _kl_weights(how.kl_weight, recipe.epochs)
    objective = NegativeELBO(problem, how.samples, kl, antithetic=how.antithetic, term=term)
    values, per_epoch = initial_values(problem, start, how.std), -(-problem.count // recipe.batch_size)
    flat = FlatOptimizer(values, recipe, per_epoch)

    def steps(epoch: int) -> Iterator[Tensor]:
        generator = device_stream("noise", seed, epoch, problem.start)
        objective.begin(seed, epoch)
        for number, (x, y) in numbered_batches(problem, flat, seed, epoch):
            loss = objective.write_gradient(flat.state["values"], x, y, generator, flat.gradient, weights[epoch])
            flat.step(number)
            yield loss

    def report(epoch: int, mean: Tensor) -> dict[str, float]:
        nll = float(mean)
        share = objective.divergence(flat.state["values"], device_stream("divergence", seed, epoch, problem.start))
        share /= problem.count
        record = {"elbo": -nll - share, "nll": nll, "kl": share, "kl_weight": weights[epoch]}
        if term is None:
            return record
        gain = problem.temperature * term.mean() / problem.count
        return record | {"gain": gain, "symmetrized_elbo": record["elbo"] + gain}

    told = {
        "samples": how.samples,
        "antithetic": how.antithetic,
        "std": how.std,
        "kl": kl,
        "kl weights": None if how.kl_weight is None else weights,
        **(settings or {}),
    }
    trace, seconds = run_descent(method, problem, flat, control, steps, report, settings=told, advice=ADVICE)
    return Fit(mean_field_of(problem, flat.state["values"]), trace, method, seconds)


def _kl_weights(kl_weight: KLWeight, epochs: int) -> list[float]:
    if not callable(kl_weight):
        raise InputError(f"kl_weight is a {type(kl_weight).__name__}; expected a function of the epoch")
    weights = [kl_weight(epoch) for epoch in range(epochs)]
    for epoch, weight in enumerate(weights):
        check_positive(f"kl_weight({epoch})", weight, zero=True)
    return [float(weight) for weight in weights]


def mean_field_of(problem: Problem, values: Tensor) -> MeanField:
    """The distribution whose flat means and logarithms of deviations (2, D) are given."""
    return MeanField(problem.layout.whole(values[0]), problem.layout.named(values[1].detach().exp()))


def initial_values(problem: Problem, start: Start | None, std: float) -> Tensor:
    """Flat means and logarithms of deviations (2, D): a mean field's own, else those of a network and ``std``."""
    layout = problem.layout
    start = start.posterior if isinstance(start, Fit) else start
    if isinstance(start, Normal) and start.independent:
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
