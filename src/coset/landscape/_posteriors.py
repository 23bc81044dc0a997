"""Functionals of posteriors: what their predictions are worth on data (Rossi et al. 2023, section 3)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from coset._checks import check_count, check_positive
from coset.distribution import Normal
from coset.distribution.contract import require
from coset.errors import InputError
from coset.landscape._functionals import Better
from coset.landscape._reading import Reading, standard_error
from coset.posterior.fit import Control, Fit
from coset.posterior.likelihoods import Classification, Likelihood, as_likelihood
from coset.posterior.prediction import BATCH_SIZE
from coset.posterior.prediction.chunks import Runner, runner
from coset.posterior.prediction.draws import Draws, draws_of
from coset.posterior.priors import Prior, as_prior
from coset.posterior.problem import Data, PriorLike, data_tensors, layout_of

SAMPLES = 32
"""Draws of a posterior at every point of a path, unless told otherwise."""


@dataclass(frozen=True, eq=False)
class PosteriorFunctional:
    """A number that a posterior has on ``data``, from M = ``samples`` draws θ_j; points and deltas count as posteriors.

    Under common random numbers: draw j depends on ``seed`` and j alone, so that along a path values move because the
    posterior does, and the ends of a path have the values of the posteriors they are. Functionals of one model, number
    of draws and seed share draws and, on the same data, forward passes.
    """

    name: str
    model: nn.Module
    data: tuple[Tensor, Tensor]
    measure: "Measure"
    likelihood: Likelihood
    samples: int = SAMPLES
    seed: int = 0
    batch_size: int = BATCH_SIZE
    better: Better = "higher"
    unit: str = "nats"
    prior: Prior | None = None

    def __post_init__(self) -> None:
        check_count("samples", self.samples)
        check_count("batch_size", self.batch_size)
        Control(self.seed)

    def __call__(self, q: Any) -> float:
        """The value of a posterior."""
        return read_posterior({self.name: self}, q)[self.name].value

    @property
    def drawing(self) -> tuple[object, ...]:
        """What tells whether two functionals can share their draws."""
        return (id(self.model), self.samples, self.seed, self.batch_size)

    @property
    def forward_pass(self) -> tuple[object, ...]:
        """What tells whether two functionals of the same draws can share their forward passes."""
        return (*(id(part) for part in self.data), self.likelihood)


def predictive_likelihood(
    model: nn.Module,
    data: Data,
    *,
    likelihood: Likelihood | str = "categorical",
    samples: int = SAMPLES,
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
    name: str = "log-likelihood",
) -> PosteriorFunctional:
    """L(q) = (1/N) Σ_i log (1/M) Σ_j p(y_i | x_i, θ_j), θ_j ~ q: a likelihood, so its barrier is a drop."""
    parts = (model, data_tensors(data, model), _log_likelihood, as_likelihood(likelihood))
    return PosteriorFunctional(name, *parts, samples, seed, batch_size)


def expected_loss(
    model: nn.Module,
    data: Data,
    *,
    likelihood: Likelihood | str = "categorical",
    samples: int = SAMPLES,
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
    name: str = "expected loss",
) -> PosteriorFunctional:
    """−(1/NM) Σ_ij log p(y_i | x_i, θ_j): the loss of one network drawn from q, not of their averaged predictions."""
    parts = (model, data_tensors(data, model), _expected_loss, as_likelihood(likelihood))
    return PosteriorFunctional(name, *parts, samples, seed, batch_size, "lower")


def predictive_error(
    model: nn.Module,
    data: Data,
    *,
    likelihood: Likelihood | str = "categorical",
    samples: int = SAMPLES,
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
    name: str = "error",
) -> PosteriorFunctional:
    """The share of points whose most probable label by the averaged predictions is wrong; its error is not known."""
    parts = (model, data_tensors(data, model), _wrong, _classifier(likelihood))
    return PosteriorFunctional(name, *parts, samples, seed, batch_size, "lower", "fraction")


def predictive_accuracy(
    model: nn.Module,
    data: Data,
    *,
    likelihood: Likelihood | str = "categorical",
    samples: int = SAMPLES,
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
    name: str = "accuracy",
) -> PosteriorFunctional:
    """1 − ``predictive_error``, of which higher values are better: its barrier is a drop."""
    parts = (model, data_tensors(data, model), _right, _classifier(likelihood))
    return PosteriorFunctional(name, *parts, samples, seed, batch_size, "higher", "fraction")


def evidence_bound(
    model: nn.Module,
    data: Data,
    *,
    likelihood: Likelihood | str = "categorical",
    prior: PriorLike = 1.0,
    temperature: float = 1.0,
    samples: int = SAMPLES,
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
    name: str = "ELBO",
) -> PosteriorFunctional:
    """(1/N) {E_q[log p(Y|θ) + log p(θ)] + T·H(q)} of Gaussians, per data point; the entropy is exact."""
    believed = as_prior(prior)
    check_positive("temperature", temperature, zero=True)
    measure = partial(_evidence_bound, prior=believed, temperature=temperature)
    parts = (model, data_tensors(data, model), measure, as_likelihood(likelihood))
    return PosteriorFunctional(name, *parts, samples, seed, batch_size, prior=believed)


def predictive_on(
    model: nn.Module,
    *,
    likelihood: Likelihood | str = "categorical",
    samples: int = SAMPLES,
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
    **splits: Data,
) -> dict[str, PosteriorFunctional]:
    """What a posterior is worth on each split, from the same draws: ``predictive_on(model, train=…, test=…)``.

    Gives "train log-likelihood", "train expected loss" and, of classifiers, "train error", and so on for every split.
    """
    if not splits:
        raise InputError("predictive_on has no data; expected some by name, as in predictive_on(model, train=(x, y))")
    chosen = as_likelihood(likelihood)
    settings: dict[str, Any] = {"likelihood": chosen, "samples": samples, "seed": seed, "batch_size": batch_size}
    kinds: dict[str, Callable[..., PosteriorFunctional]] = {
        "log-likelihood": predictive_likelihood,
        "expected loss": expected_loss,
    }
    if chosen.task == "classification":
        kinds["error"] = predictive_error
    found: dict[str, PosteriorFunctional] = {}
    for split, data in splits.items():
        pair = data_tensors(data, model)
        for kind, make in kinds.items():
            found[f"{split} {kind}"] = make(model, pair, name=f"{split} {kind}", **settings)
    return found


class Seen:
    """What M draws of a posterior ``q`` predict on one data set, filled in as their outputs come."""

    def __init__(self, q: Any, run: Runner, y: Tensor, draws: Draws, wanted: list[PosteriorFunctional]) -> None:
        likelihood = wanted[0].likelihood
        like = run.outputs.double()
        self.q, self.run, self.exact, self.likelihood = q, run, draws.exact, likelihood
        self.independent = draws.independent
        self.targets = likelihood.fit_targets(y.to(run.outputs.device), like)
        self.log_p = like.new_empty(draws.count, len(run.x))
        self.votes: Tensor | None = None
        if any(item.measure in (_wrong, _right) for item in wanted):
            assert isinstance(likelihood, Classification)
            self.votes = like.new_zeros(len(run.x), likelihood.log_probabilities(like).shape[-1])
        self.priors = {id(item.prior): item.prior for item in wanted if item.prior is not None}
        self.log_priors = {key: like.new_zeros(draws.count) for key in self.priors}

    def take(self, number: int, rows: slice, outputs: Tensor) -> None:
        """The outputs (draws, rows, …) of draws from ``number`` on."""
        outputs = outputs.double()
        if self.votes is None:
            found = self.likelihood.log_prob(outputs, self.targets[rows])
        else:
            assert isinstance(self.likelihood, Classification)
            logs = self.likelihood.log_probabilities(outputs)
            self.votes[rows] += logs.exp().sum(0)
            found = logs.gather(-1, self._labels(rows).expand(logs.shape[:-1]).unsqueeze(-1)).squeeze(-1)
        self.log_p[number : number + len(outputs), rows] = found

    def _labels(self, rows: slice) -> Tensor:
        return self.targets[rows].reshape(-1).long()

    def take_weights(self, number: int, trained: Mapping[str, Tensor]) -> None:
        """The weights of one draw, of which the prior density may be wanted."""
        for key, prior in self.priors.items():
            self.log_priors[key][number] = prior.log_prob(trained)

    def result(self, value: float, influence: Tensor) -> Reading:
        """A mean over draws, or a smooth function of such means, and its error by what each draw contributes, (M,).

        The error is 0 where one draw is all there is.

        Of ``Samples`` it is not known: draws of a chain depend on each other, and how well they stand for the posterior
        is a matter of the chains (``diagnose``), not of their number.
        """
        if not self.independent:
            return Reading(value)
        return Reading(value, 0.0) if self.exact else Reading(value, standard_error(influence), influence)


Measure = Callable[[Seen], Reading]


@torch.no_grad()
def read_posterior(functionals: Mapping[str, PosteriorFunctional], q: Any) -> dict[str, Reading]:
    """The readings of several functionals that share their draws."""
    first = next(iter(functionals.values()))
    q = q.posterior if isinstance(q, Fit) else q
    draws = draws_of(q, first.samples, first.seed)
    groups: dict[tuple[object, ...], dict[str, PosteriorFunctional]] = {}
    for name, functional in functionals.items():
        groups.setdefault(functional.forward_pass, {})[name] = functional
    seen: list[tuple[dict[str, PosteriorFunctional], Seen]] = []
    for group in groups.values():
        one = next(iter(group.values()))
        run = _runner(one, draws)
        seen.append((group, Seen(q, run, one.data[1], draws, list(group.values()))))
    together = max(part.run.group for _, part in seen)
    trained = list(layout_of(first.model).shapes) if any(part.priors for _, part in seen) else []
    for start in range(0, draws.count, together):
        numbers = range(start, min(start + together, draws.count))
        # Drawn once for all data.
        held = {number: draws.draw(number) for number in numbers}
        kept = Draws(draws.count, draws.exact, held.__getitem__)
        for _, part in seen:
            part.run.run(kept, start, len(numbers), part.take)
            if part.priors:
                for number, weights in held.items():
                    part.take_weights(number, {name: weights[name] for name in trained})
    return {name: functional.measure(part) for group, part in seen for name, functional in group.items()}


def _runner(functional: PosteriorFunctional, draws: Draws) -> Runner:
    try:
        return runner(functional.model, draws, functional.data[0], functional.batch_size)
    except InputError as problem:
        # Which data it was, the points do not know.
        raise InputError(f"{functional.name}: {problem}") from problem


def _classifier(likelihood: Likelihood | str) -> Likelihood:
    chosen = as_likelihood(likelihood)
    if not isinstance(chosen, Classification):
        raise InputError(f"likelihood is {chosen!r}, which classifies nothing; expected one of labels")
    return chosen


def _log_likelihood(seen: Seen) -> Reading:
    value = seen.log_p.logsumexp(0) - torch.tensor(float(len(seen.log_p)), dtype=torch.float64).log()
    return seen.result(float(value.mean()), (seen.log_p - value).exp_().mean(1))


def _expected_loss(seen: Seen) -> Reading:
    means = -seen.log_p.mean(1)
    return seen.result(float(means.mean()), means)


def _wrong(seen: Seen) -> Reading:
    assert seen.votes is not None
    if not bool(seen.votes.isfinite().all()):
        return Reading(float("nan"))
    wrong = seen.votes.argmax(-1) != seen.targets.reshape(-1).long()
    return Reading(float(wrong.double().mean()), 0.0 if seen.exact else None)


def _right(seen: Seen) -> Reading:
    wrong = _wrong(seen)
    return Reading(1 - wrong.value, wrong.error)


def _evidence_bound(seen: Seen, prior: Prior, temperature: float) -> Reading:
    q = require(seen.q, Normal, "q", "a Gaussian, whose entropy has a closed form")
    points = seen.log_p.shape[1]
    joint = seen.log_p.mean(1) + seen.log_priors[id(prior)] / points
    return seen.result(float(joint.mean()) + temperature * float(q.entropy()) / points, joint)
