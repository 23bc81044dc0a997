"""One network: the maximum of the posterior, and the descent that other methods build on."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coset._files.sealed import checksum
from coset.distribution.delta import Delta
from coset.posterior.fit import Callback, Control, Fit, epoch_batches, require_finite_losses, run_rounds
from coset.posterior.inference.flat_optimizer import FlatOptimizer, optimization
from coset.posterior.inference.starting import Start, initial_weights, points_of
from coset.posterior.likelihoods import Likelihood
from coset.posterior.priors import Density
from coset.posterior.problem import Data, PriorLike, Problem, pose

ADVICE = "a lower learning_rate or a warm-up may help"


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
    objective = NegativeLogJoint(problem)
    flat = FlatOptimizer(initial_weights(problem, start), recipe, -(-problem.count // batch_size))
    losses: list[float] = []

    def advance(epoch: int) -> dict[str, float]:
        nll = descend(objective, flat, batch_size, seed, epoch, losses[-1] if losses else None)
        losses.append(nll)
        share = objective.log_prior(flat.state["values"])
        return {"loss": nll - share, "nll": nll, "log_prior": share}

    settings = descent_settings(flat)
    control = Control(seed, checkpoint, checkpoint_seconds, callback, show)
    trace, seconds = run_rounds("MAP", problem, settings, flat.state, epochs, advance, control, ("nll", losses))
    return Fit(Delta(problem.layout.whole(flat.state["values"])), trace, "MAP", seconds)


def descend(
    objective: NegativeLogJoint,
    flat: FlatOptimizer,
    batch_size: int,
    seed: int,
    epoch: int,
    before: float | None,
    after_step: Callable[[int], None] | None = None,
) -> float:
    """One pass over the data; the mean negative log-likelihood over it. ``after_step`` gets the number of each step."""
    losses, sizes = [], []
    values = flat.state["values"]
    for index, (x, y) in enumerate(epoch_batches(objective.problem, batch_size, seed, epoch)):
        losses.append(objective.write_gradient(values, x, y, flat.gradient))
        sizes.append(len(x))
        number = epoch * flat.steps_per_epoch + index
        flat.step(number)
        if after_step is not None:
            after_step(number)
    found = require_finite_losses(losses, before, epoch, ADVICE)
    counts = torch.tensor(sizes, dtype=torch.float64)
    return float(found @ counts / counts.sum())


def descent_settings(flat: FlatOptimizer) -> dict[str, Any]:
    """What decides a descent, for the checkpoint: its recipe and where it begins."""
    recipe = {f"recipe {name}": value for name, value in flat.recipe.to_dict().items()}
    return {**recipe, "start": f"checksum {checksum(flat.state['values']):08x}"}


def given_or_flat(prior: PriorLike | None) -> PriorLike:
    """A prior as it is; None is the improper flat one, log p(θ) = 0."""
    return Density(_zero) if prior is None else prior


def _zero(params: Mapping[str, Tensor]) -> Tensor:
    return next(iter(params.values())).new_zeros(())
