"""SWAG: a Gaussian from the iterates of a descent (Maddox et al. 2019)."""

import math
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from coset._checks import check_count
from coset.distribution.low_rank import LowRank
from coset.errors import InputError
from coset.posterior.fit import Callback, Control, Fit
from coset.posterior.inference.flat_optimizer import optimization, run_descent
from coset.posterior.inference.point import Maximization, given_or_flat
from coset.posterior.inference.starting import Start, points_of
from coset.posterior.likelihoods import Likelihood
from coset.posterior.problem import Data, PriorLike, Problem, pose


class Moments:
    """Mean, squared deviations and last deviations of a sequence of weights, one at a time and in fixed memory.

    With θ̄_i the mean of the first i: ``mean`` is θ̄_n, ``squares`` is Σ (θ_i − θ̄_n)² (Welford's recurrence: squares of
    weights never cancel), and ``deviations`` (K, D) has θ_i − θ̄_i of the last K, as a ring. All lie in ``state``.
    """

    def __init__(self, like: Tensor, rank: int) -> None:
        self.rank = rank
        self.state = {
            "collected": torch.zeros((), dtype=torch.int64),
            "mean": torch.zeros_like(like),
            "squares": torch.zeros_like(like),
            "deviations": like.new_zeros(rank, len(like)),
        }

    @property
    def count(self) -> int:
        """n, how many were added."""
        return int(self.state["collected"])

    @torch.no_grad()
    def add(self, theta: Tensor) -> None:
        """One more."""
        number = self.count
        before = theta - self.state["mean"]
        self.state["mean"].add_(before, alpha=1 / (number + 1))
        after = torch.sub(theta, self.state["mean"], out=self.state["deviations"][number % self.rank])
        self.state["squares"].addcmul_(before, after)
        self.state["collected"] += 1

    def gaussian(self, problem: Problem) -> LowRank:
        """N(θ̄, T·½(Σ_diag + D̂D̂ᵀ/(K − 1))), Σ_diag the variances Σ(θ_i − θ̄)²/n (eq. 2 of the paper; T is ours)."""
        rank = min(self.rank, self.count)
        if rank < 2:
            raise InputError(f"the run was stopped with {self.count} weights collected; SWAG expects at least two")
        layout, temperature = problem.layout, problem.temperature
        spread = (self.state["squares"] * (temperature / (2 * self.count))).sqrt()
        factors = self.state["deviations"][:rank] * math.sqrt(temperature / (2 * (rank - 1)))
        return LowRank(layout.whole(self.state["mean"]), layout.named(spread), layout.named(factors))


def fit_swag(
    model: nn.Module,
    data: Data,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    start: Start | None = None,
    burn_in_epochs: int = 0,
    collect_every: int | None = None,
    rank: int = 20,
    likelihood: Likelihood | str = "categorical",
    prior: PriorLike | None = 1.0,
    temperature: float = 1.0,
    optimizer: str = "sgd",
    momentum: float = 0.0,
    schedule: str = "constant",
    warmup_epochs: int = 0,
    seed: int = 0,
    checkpoint: Path | str | None = None,
    checkpoint_seconds: float = 5.0,
    callback: Callback | None = None,
    show: bool | None = None,
) -> Fit[LowRank]:
    """The Gaussian that the iterates of a descent at a constant rate trace out around a good solution.

    Begins at ``start``: weights, a distribution (its mean) or a ``Fit``, best a maximum of the posterior; by default at
    the model's own. After ``burn_in_epochs`` of the ``epochs`` weights are collected every ``collect_every`` steps,
    by default once an epoch; ``rank`` is the number K of directions kept. How wide it is depends on rate and batch
    size, for the noise is the descent's; ``temperature`` multiplies the covariance, as it does that of a Gaussian
    posterior. Batch-norm statistics stay those of the model. The trace is that of ``fit_map``, with what is collected.
    """
    problem = pose(model, data, likelihood, given_or_flat(prior), temperature, points_of(start))
    recipe = optimization(epochs, batch_size, learning_rate, optimizer, momentum, schedule, warmup_epochs)
    check_count("rank", rank, 2)
    check_count("burn_in_epochs", burn_in_epochs, 0)
    steps = -(-problem.count // batch_size)
    every = steps if collect_every is None else collect_every
    check_count("collect_every", every)
    first = burn_in_epochs * steps
    total = max(0, epochs * steps - first) // every
    if total < rank:
        raise InputError(
            f"rank is {rank} and {total} weights are collected in {epochs} epochs of {steps} steps; expected more "
            f"epochs, a smaller collect_every or a smaller rank"
        )
    maximum, moments = Maximization(problem, recipe, start, seed), Moments(problem.start, rank)

    def steps_and_collection(epoch: int) -> Iterator[Tensor]:
        for done, loss in enumerate(maximum.steps(epoch), epoch * steps + 1 - first):
            if done > 0 and done % every == 0:
                moments.add(maximum.flat.state["values"])
            yield loss

    def report(epoch: int, nll: Tensor) -> dict[str, float]:
        return {**maximum.report(epoch, nll), "collected": float(moments.count)}

    settings = {"burn_in_epochs": burn_in_epochs, "collect_every": every, "rank": rank}
    control = Control(seed, checkpoint, checkpoint_seconds, callback, show)
    trace, seconds = run_descent(
        "SWAG", problem, maximum.flat, control, steps_and_collection, report, settings=settings, state=moments.state
    )
    notes = () if moments.count >= rank else (f"stopped with {moments.count} of {total} weights collected",)
    return Fit(moments.gaussian(problem), trace, "SWAG", seconds, notes)
