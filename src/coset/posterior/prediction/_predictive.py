"""What a posterior over weights predicts (Rossi et al. 2023, section 2): the average p(y | x) = E p(y | x, θ).

Memory: beside the inputs, sums (N, C), one chunk's activations, and one draw of the weights (or a group of small ones,
``predictive_chunks``); with targets (M, N) numbers log p(y_i | x_i, θ_j), for the Monte Carlo error. All draws' outputs
(M, N, C) are kept only if asked for, or for the mixtures of a regression, whose scores need them.
"""

import math

import torch
from torch import Tensor, nn

from coset._checks import check_positive
from coset._show.progress import progress
from coset.errors import InputError
from coset.posterior.likelihoods import Classification, Likelihood, Regression, as_likelihood
from coset.posterior.prediction.chunks import Runner, runner
from coset.posterior.prediction.draws import Posterior, draws_of
from coset.posterior.prediction.results import (
    ClassPredictive,
    Predictive,
    RealPredictive,
    TargetLikelihood,
    target_likelihood,
)


class ClassSums:
    """log Σ_j p(c | x, θ_j), (N, C), and Σ_j H[p(y | x, θ_j)], (N,), in place as outputs (draws, rows, …) come in."""

    def __init__(self, likelihood: Classification, points: int, like: Tensor, keep: bool) -> None:
        self.likelihood = likelihood
        classes = likelihood.log_probabilities(like).shape[-1]
        self.logs = torch.full((points, classes), -math.inf, dtype=torch.float64, device=like.device)
        self.entropies = torch.zeros(points, dtype=torch.float64, device=like.device)
        self.members = _Kept(points) if keep else None

    def add(self, number: int, rows: slice, outputs: Tensor) -> Tensor:
        """Add the draws from ``number`` on; returns what ``log_prob`` takes."""
        logs = self.likelihood.log_probabilities(outputs)
        # The products are exact enough, and logarithms of p would cost as much as all the rest; 0 log 0 = 0.
        bounded = logs.clamp(min=torch.finfo(logs.dtype).min)
        self.entropies[rows] -= (logs.exp() * bounded).sum((0, -1))
        part = logs[0] if len(logs) == 1 else logs.logsumexp(0)
        self.logs[rows] = torch.logaddexp(self.logs[rows], part)
        if self.members is not None:
            self.members.add(number, rows, logs)
        return logs

    def log_prob(self, predicted: Tensor, targets: Tensor) -> Tensor:
        """log p(y_i | x_i, θ_j) of targets (rows, …), (draws, rows)."""
        return predicted.gather(-1, targets.expand(predicted.shape[:-1]).unsqueeze(-1)).squeeze(-1)

    def result(self, used: int, found: TargetLikelihood | None) -> ClassPredictive:
        """The averages over ``used`` draws."""
        _require_numbers(self.logs)
        members = None if self.members is None else self.members.stacked()
        return ClassPredictive(used, found, self.logs - math.log(used), self.entropies / used, members)


class RealSums:
    """As ``ClassSums``: means of m_j and s_j², the sum of squares of m_j around its mean (Chan et al. 1983), (N, D)."""

    def __init__(self, likelihood: Regression, points: int, like: Tensor, keep: bool) -> None:
        self.likelihood = likelihood
        size = likelihood.moments(like)[0].shape[-1]
        self.means = torch.zeros(points, size, dtype=torch.float64, device=like.device)
        self.squares = torch.zeros_like(self.means)
        self.variances = torch.zeros_like(self.means)
        self.members = (_Kept(points), _Kept(points)) if keep else None

    def add(self, number: int, rows: slice, outputs: Tensor) -> Tensor:
        means, stds = self.likelihood.moments(outputs)
        count, before = len(means), number
        centre = means.mean(0)
        away = centre - self.means[rows]
        self.squares[rows] += (means - centre).square().sum(0) + away.square() * (before * count / (before + count))
        self.means[rows] += away * (count / (before + count))
        self.variances[rows] += stds.square().sum(0)
        if self.members is not None:
            self.members[0].add(number, rows, means)
            self.members[1].add(number, rows, stds)
        return outputs

    def log_prob(self, predicted: Tensor, targets: Tensor) -> Tensor:
        return self.likelihood.log_prob(predicted, targets)

    def result(self, used: int, found: TargetLikelihood | None) -> RealPredictive:
        _require_numbers(self.means)
        noise, model = (self.variances / used).sqrt(), (self.squares / used).sqrt()
        kept = (None, None) if self.members is None else tuple(part.stacked() for part in self.members)
        return RealPredictive(used, found, self.means, noise, model, *kept)


class _Kept:
    """What every draw gives for every point, (M, N, …)."""

    def __init__(self, points: int) -> None:
        self.points = points
        self.parts: dict[int, Tensor] = {}

    def add(self, number: int, rows: slice, values: Tensor) -> None:
        if number not in self.parts:
            self.parts[number] = values.new_empty(len(values), self.points, *values.shape[2:])
        self.parts[number][:, rows] = values

    def stacked(self) -> Tensor:
        return torch.cat(list(self.parts.values()))


def sums_for(likelihood: Likelihood, example: Tensor, points: int, keep: bool | None) -> ClassSums | RealSums:
    """For the task of ``likelihood``; ``example``: some outputs of a network (n, …)."""
    like = example.double()
    if likelihood.task == "classification" and isinstance(likelihood, Classification):
        # Outputs that do not suit the likelihood are its own to refuse; label 0 is always one.
        likelihood.fit_targets(torch.zeros(len(like), dtype=torch.long, device=like.device), like)
        return ClassSums(likelihood, points, like, bool(keep))
    if likelihood.task == "regression" and isinstance(likelihood, Regression):
        _check_moments(likelihood, like)
        return RealSums(likelihood, points, like, keep is None or keep)
    raise InputError(
        f"likelihood is a {type(likelihood).__name__} for {likelihood.task}; expected one that has log_probabilities "
        f"for classification, or moments for regression"
    )


def _check_moments(likelihood: Regression, outputs: Tensor) -> None:
    """Raise unless outputs (n, …) are means and deviations to the likelihood."""
    reason = ""
    try:
        mean, std = likelihood.moments(outputs)
    except ValueError as error:
        reason = f" ({error})"
    if outputs.ndim != 2 or reason or mean.shape != std.shape:
        raise InputError(
            f"the model's outputs have shape {tuple(outputs.shape)}, which {likelihood!r} cannot read as (examples, "
            f"targets){reason}"
        )


def _require_numbers(values: Tensor) -> None:
    if bool(values.isnan().any()):
        number = int(values.isnan().any(-1).nonzero()[0])
        raise InputError(f"the networks' outputs are NaN or infinite for point {number} of x; expected finite numbers")


BATCH_SIZE = 1000
"""Points at a time: the activations of a layer then stay in the cache."""


@torch.no_grad()
def predictive(
    model: nn.Module,
    q: Posterior,
    x: Tensor,
    *,
    likelihood: Likelihood | str = "categorical",
    samples: int | None = None,
    seed: int | torch.Generator = 0,
    batch_size: int = BATCH_SIZE,
    y: Tensor | None = None,
    target_error: float | None = None,
    keep: bool | None = None,
    show: bool | None = None,
) -> Predictive:
    """p(y | x) = (1/M) Σ_j p(y | f(x; θ_j)), θ_j ~ q, at the points ``x`` (N, …): of labels or of real targets.

    ``samples``: M, 128 by default and all draws of ``Samples``. Draw j depends on ``seed`` and j alone, see
    ``draws_of``: not on x, the chunks or how many follow. With targets ``y`` the result has their log-likelihood and
    its Monte Carlo error, and ``target_error`` ends the drawing as soon as the error of the mean log-likelihood is
    no larger; it is looked at after 16 draws, and then each time there are a quarter more. ``keep``: also every
    network's prediction; by default for regression only. A model is run in evaluation mode, as a copy.
    """
    draws = draws_of(q, samples, seed)
    run = runner(model, draws, x, batch_size)
    chosen = as_likelihood(likelihood)
    targets = None if y is None else _fitted(chosen, run, y)
    if target_error is not None:
        check_positive("target_error", target_error)
        if targets is None:
            raise InputError("target_error is given and y is not; the error is that of the targets' log-likelihood")
    sums = sums_for(chosen, run.outputs, len(run.x), keep)
    logs = _Kept(len(run.x))

    def take(number: int, rows: slice, outputs: Tensor) -> None:
        predicted = sums.add(number, rows, outputs.double())
        if targets is not None:
            logs.add(number, rows, sums.log_prob(predicted, targets[rows]))

    used, found = 0, None
    with progress("predictive", draws.count, show=show) as bar:
        while used < draws.count:
            step = draws.count - used if target_error is None else min(_until_next_look(used), draws.count - used)
            run.run(draws, used, step, take, bar)
            used += step
            found = None if targets is None else target_likelihood(targets, logs.stacked(), draws.exact)
            if found is not None and target_error is not None and found.mean_error <= target_error:
                break
    return sums.result(used, found)


@torch.no_grad()
def predictive_log_likelihood(
    model: nn.Module,
    q: Posterior,
    x: Tensor,
    y: Tensor,
    *,
    likelihood: Likelihood | str = "categorical",
    samples: int | None = None,
    seed: int | torch.Generator = 0,
    batch_size: int = BATCH_SIZE,
    show: bool | None = None,
) -> TargetLikelihood:
    """log (1/M) Σ_j p(y_i | x_i, θ_j) at every point, and its Monte Carlo error: ``predictive`` without the rest.

    With the same seed, distributions along a path are seen through the same random numbers: the curve of their
    log-likelihoods is as smooth as the path, and its ends are those of the ends' own predictives.
    """
    draws = draws_of(q, samples, seed)
    run = runner(model, draws, x, batch_size)
    chosen = as_likelihood(likelihood)
    targets, logs = _fitted(chosen, run, y), _Kept(len(run.x))

    def take(number: int, rows: slice, outputs: Tensor) -> None:
        logs.add(number, rows, chosen.log_prob(outputs.double(), targets[rows]))

    with progress("predictive", draws.count, show=show) as bar:
        run.run(draws, 0, draws.count, take, bar)
    return target_likelihood(targets, logs.stacked(), draws.exact)


def _fitted(likelihood: Likelihood, run: Runner, y: Tensor) -> Tensor:
    """Targets as the likelihood takes them, one for each point."""
    if not isinstance(y, Tensor) or y.ndim == 0 or len(y) != len(run.x):
        found = f"of shape {tuple(y.shape)}" if isinstance(y, Tensor) else f"a {type(y).__name__}"
        raise InputError(f"y is {found}; expected a tensor with a target for each of the {len(run.x)} points")
    # Real targets take the type of the outputs, which are summed in double precision.
    return likelihood.fit_targets(y.to(run.outputs.device), run.outputs.double())


def _until_next_look(used: int) -> int:
    """Draws until the error is looked at again: each look costs as much as some draws of a small network."""
    return max(16 if used == 0 else 8, used // 4)
