"""What is summed over the draws of a predictive: nothing that grows with their number, unless it is to be kept."""

import math
from typing import Protocol

import torch
from torch import Tensor

from coset.errors import InputError
from coset.posterior.likelihoods import Classification, Likelihood, Regression
from coset.posterior.prediction.results import ClassPredictive, Predictive, RealPredictive, TargetLikelihood


class Sums(Protocol):
    """What is summed over the draws, in place, as their outputs (draws, rows, …) come in."""

    def add(self, number: int, rows: slice, outputs: Tensor) -> Tensor:
        """Add the draws from ``number`` on; returns what ``log_prob`` takes."""
        ...

    def log_prob(self, predicted: Tensor, targets: Tensor) -> Tensor:
        """log p(y_i | x_i, θ_j) of targets (rows, …), (draws, rows)."""
        ...

    def result(self, used: int, found: TargetLikelihood | None) -> Predictive:
        """The averages over ``used`` draws."""
        ...


class ClassSums:
    """log Σ_j p(c | x, θ_j), (N, C), and Σ_j H[p(y | x, θ_j)], (N,)."""

    def __init__(self, likelihood: Classification, points: int, like: Tensor, keep: bool) -> None:
        self.likelihood = likelihood
        classes = likelihood.log_probabilities(like).shape[-1]
        self.logs = torch.full((points, classes), -math.inf, dtype=torch.float64, device=like.device)
        self.entropies = torch.zeros(points, dtype=torch.float64, device=like.device)
        self.members = _Kept(points) if keep else None

    def add(self, number: int, rows: slice, outputs: Tensor) -> Tensor:
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
        return predicted.gather(-1, targets.expand(predicted.shape[:-1]).unsqueeze(-1)).squeeze(-1)

    def result(self, used: int, found: TargetLikelihood | None) -> ClassPredictive:
        _require_numbers(self.logs)
        members = None if self.members is None else self.members.stacked()
        return ClassPredictive(used, found, self.logs - math.log(used), self.entropies / used, members)


class RealSums:
    """Means of m_j and of s_j², and the sum of squares of m_j around its mean (Chan et al. 1983), each (N, D)."""

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
    """Every draw's prediction, (M, N, …)."""

    def __init__(self, points: int) -> None:
        self.points = points
        self.parts: dict[int, Tensor] = {}

    def add(self, number: int, rows: slice, values: Tensor) -> None:
        if number not in self.parts:
            self.parts[number] = values.new_empty(len(values), self.points, *values.shape[2:])
        self.parts[number][:, rows] = values

    def stacked(self) -> Tensor:
        return torch.cat(list(self.parts.values()))


def sums_for(likelihood: Likelihood, example: Tensor, points: int, keep: bool | None) -> Sums:
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
