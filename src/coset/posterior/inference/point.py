"""One network: the maximum of the posterior, and the descent that other methods build on."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from coset.distribution.delta import Delta
from coset.posterior.fit import Callback, Control, Fit
from coset.posterior.inference.flat_optimizer import FlatOptimizer, numbered_batches, optimization, run_descent
from coset.posterior.inference.starting import Start, initial_weights, points_of
from coset.posterior.likelihoods import Likelihood
from coset.posterior.priors import Density
from coset.posterior.problem import Data, PriorLike, Problem, pose
from coset.train import Recipe


class NegativeLogJoint:
    """ℓ(θ) = −(1/N) {log p(Y|θ) + log p(θ)} and its gradient, for one network or for members on a leading axis.

    The gradient of a Gaussian prior N(m, s²) is written by hand, (θ − m)/(N s²); that of any other is autograd's.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._moments = problem.prior_moments()

    def write_gradient(self, flat: Tensor, x: Tensor, y: Tensor, gradient: Tensor) -> Tensor:
        """The mean negative log-likelihood of a batch at ``flat`` (D,); ∇ℓ is written to ``gradient`` (D,)."""
        nll = self.problem.mean_loss_gradient(flat, x, y, gradient)
        self.add_prior_gradient(flat, gradient)
        return nll

    def add_prior_gradient(self, flats: Tensor, gradient: Tensor) -> None:
        """Add −∇log p(θ)/N at ``flats`` (…, D) to ``gradient`` (…, D)."""
        count = self.problem.count
        with torch.no_grad():
            if self._moments is not None:
                mean, std = self._moments
                gradient.addcdiv_(flats - mean, std.square(), value=1 / count)
                return
            # torch.func gives zeros where a density does not depend on the weights; autograd would refuse.
            of_prior = torch.func.grad(self.problem.log_prior)
            if flats.ndim > 1:
                of_prior = torch.func.vmap(of_prior)
            gradient.sub_(of_prior(flats.detach()), alpha=1 / count)

    @torch.no_grad()
    def log_prior(self, flat: Tensor) -> float:
        """log p(θ)/N, per data point."""
        return float(self.problem.log_prior(flat.detach()).double()) / self.problem.count


def fit_map(
    model: nn.Module,
    data: Data,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    likelihood: Likelihood | str = "categorical",
    prior: PriorLike | None = 1.0,
    temperature: float = 1.0,
    optimizer: str = "adam",
    momentum: float = 0.0,
    schedule: str = "constant",
    warmup_epochs: int = 0,
    start: Start | None = None,
    seed: int = 0,
    checkpoint: Path | str | None = None,
    checkpoint_seconds: float = 5.0,
    callback: Callback | None = None,
    show: bool | None = None,
) -> Fit[Delta]:
    """The weights of highest posterior density: minimise −(1/N) {log p(Y|θ) + log p(θ)} by minibatches.

    ``prior`` None is no prior: maximum likelihood. ``temperature`` is taken as all methods take it and moves nothing:
    a power of a density has its maximum where the density has. Begins at ``start``: weights, a distribution (its mean)
    or a ``Fit``; by default the model's own weights. The trace has, per data point, the loss, its nll as the epoch saw
    it while θ moved, and the log_prior at its end.
    """
    problem = pose(model, data, likelihood, given_or_flat(prior), temperature, points_of(start))
    recipe = optimization(epochs, batch_size, learning_rate, optimizer, momentum, schedule, warmup_epochs)
    maximum = Maximization(problem, recipe, start, seed)
    control = Control(seed, checkpoint, checkpoint_seconds, callback, show)
    trace, seconds = run_descent("MAP", problem, maximum.flat, control, maximum.steps, maximum.report)
    return Fit(Delta(problem.layout.whole(maximum.flat.state["values"])), trace, "MAP", seconds)


class Maximization:
    """The descent of one network from ``start``, for ``run_descent``."""

    def __init__(self, problem: Problem, recipe: Recipe, start: Start | None, seed: int) -> None:
        self.seed = seed
        self.objective = NegativeLogJoint(problem)
        self.flat = FlatOptimizer(initial_weights(problem, start), recipe, -(-problem.count // recipe.batch_size))

    def steps(self, epoch: int) -> Iterator[Tensor]:
        """One pass over the data."""
        for number, (x, y) in numbered_batches(self.objective.problem, self.flat, self.seed, epoch):
            loss = self.objective.write_gradient(self.flat.state["values"], x, y, self.flat.gradient)
            self.flat.step(number)
            yield loss

    def report(self, epoch: int, nll: Tensor) -> dict[str, float]:
        """Per data point, the loss, its nll and the log_prior now."""
        share = self.objective.log_prior(self.flat.state["values"])
        return {"loss": float(nll) - share, "nll": float(nll), "log_prior": share}


def given_or_flat(prior: PriorLike | None) -> PriorLike:
    """A prior as it is; None is the improper flat one, log p(θ) = 0."""
    return Density(_zero) if prior is None else prior


def _zero(params: Mapping[str, Tensor]) -> Tensor:
    return next(iter(params.values())).new_zeros(())
