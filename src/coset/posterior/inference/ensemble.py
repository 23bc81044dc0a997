"""Deep ensembles: several networks from independent initialisations (Lakshminarayanan et al. 2017)."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from coset._checks import check_count
from coset.distribution.samples import Samples
from coset.errors import InputError
from coset.posterior.fit import Callback, Control, Fit, epoch_batches
from coset.posterior.inference.acceleration import Accelerator, Compile, check_compile
from coset.posterior.inference.chains import require_batching, samples_of
from coset.posterior.inference.flat_optimizer import FlatOptimizer, optimization, run_descent
from coset.posterior.inference.point import NegativeLogJoint, given_or_flat
from coset.posterior.inference.starting import fresh_weights, initial_weights, points_of
from coset.posterior.likelihoods import Likelihood
from coset.posterior.problem import Data, PriorLike, Problem, pose
from coset.train.randomness import stream_seed

BATCHED_WEIGHTS = 200_000
"""Networks of so many weights or fewer are trained together: there one call for all costs less than one for each."""


def fit_ensemble(
    model: nn.Module,
    data: Data,
    *,
    members: int,
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
    starts: Iterable[Mapping[str, Tensor]] | None = None,
    batched: bool | None = None,
    compile: Compile = "auto",
    seed: int = 0,
    checkpoint: Path | str | None = None,
    checkpoint_seconds: float = 5.0,
    callback: Callback | None = None,
    show: bool | None = None,
) -> Fit[Samples]:
    """``members`` maxima of the posterior (see ``fit_map``) as chains of one draw each, all equally likely.

    Each begins at weights of its own, see ``fresh_weights``, or at one of ``starts``, and sees the data in an order of
    its own: member k is what ``fit_map`` finds from there with the seed ``member_seed(seed, k)``. ``batched``: all
    members in one call per step, or one after the other; the same up to rounding, by default what is faster.
    ``compile``: how that one call is made faster, see ``acceleration.choose``. The trace has the loss per data point:
    its mean over the members, and "loss k" of each.
    """
    check_count("members", members)
    starts = None if starts is None else list(starts)
    problem = pose(model, data, likelihood, given_or_flat(prior), temperature, points_of(*(starts or ())))
    recipe = optimization(epochs, batch_size, learning_rate, optimizer, momentum, schedule, warmup_epochs)
    values = initial_members(problem, members, seed, starts, "members")
    flat = FlatOptimizer(values, recipe, -(-problem.count // batch_size))
    objective = NegativeLogJoint(problem)
    together = _train_together(problem, batched)
    accelerator = Accelerator(check_compile(compile) if together else None, epochs * flat.steps_per_epoch)
    write = _together(objective, accelerator) if together else _write_each

    def steps(epoch: int) -> Iterator[Tensor]:
        orders = [epoch_batches(problem, batch_size, member_seed(seed, k), epoch) for k in range(members)]
        for number, batches in enumerate(zip(*orders, strict=True), epoch * flat.steps_per_epoch):
            with accelerator.running():
                losses = write(objective, flat.state["values"], batches, flat.gradient)
            flat.step(number)
            yield losses

    def report(epoch: int, nlls: Tensor) -> dict[str, float]:
        shares = [objective.log_prior(member) for member in flat.state["values"]]
        each = [nll - share for nll, share in zip(nlls.tolist(), shares, strict=True)]
        return {"loss": math.fsum(each) / members, **{f"loss {k}": loss for k, loss in enumerate(each)}}

    settings = {"members": members, "batched": together, "compile": compile}
    control = Control(seed, checkpoint, checkpoint_seconds, callback, show)
    trace, seconds = run_descent(
        "ensemble", problem, flat, control, steps, report, loss_of=lambda record: record["loss"], settings=settings,
        state={"way": accelerator.state},
    )  # fmt: skip
    posterior = samples_of(problem, flat.state["values"].unsqueeze(1))
    return Fit(posterior, trace, "ensemble", seconds, accelerator.notes)


def member_seed(seed: int, number: int) -> int:
    """The seed of one member's order of the data."""
    return stream_seed("member", seed, number)


def initial_members(
    problem: Problem, count: int, seed: int, starts: Iterable[Mapping[str, Tensor]] | None, what: str
) -> Tensor:
    """Where so many networks begin, (count, D): at ``starts``, or initialised anew."""
    if starts is None:
        seeds = [stream_seed("initialisation", seed, number) for number in range(count)]
        otherwise = "starts: the weights each network begins with"
        return torch.stack([fresh_weights(problem, own, otherwise) for own in seeds])
    given = [initial_weights(problem, start) for start in starts]
    if len(given) != count:
        raise InputError(f"starts has {len(given)} networks and {what} is {count}; expected as many")
    return torch.stack(given)


def _train_together(problem: Problem, batched: bool | None) -> bool:
    """Whether all members go through one call: as asked, or where that is faster and the network allows it."""
    if batched is None and len(problem.start) > BATCHED_WEIGHTS:
        return False
    if batched is not False:
        try:
            require_batching(problem)
        except InputError:
            if batched:
                raise
            return False
    return batched is not False


Batches = tuple[tuple[Tensor, Tensor], ...]


def _write_each(objective: NegativeLogJoint, values: Tensor, batches: Batches, gradient: Tensor) -> Tensor:
    parts = zip(values, batches, gradient, strict=True)
    return torch.stack([objective.write_gradient(flat, x, y, out) for flat, (x, y), out in parts])


def _together(
    objective: NegativeLogJoint, accelerator: Accelerator
) -> Callable[[NegativeLogJoint, Tensor, Batches, Tensor], Tensor]:
    """As ``_write_each``, in one call."""
    problem = objective.problem

    def loss(flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return -problem.log_likelihood(flat, x, y) / x.shape[0]

    def gradients_and_losses(values: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = vmap(grad_and_value(loss))(values, x, y)
        return found

    def write(objective: NegativeLogJoint, values: Tensor, batches: Batches, gradient: Tensor) -> Tensor:
        x, y = (torch.stack(part) for part in zip(*batches, strict=True))
        # The last batch of an epoch may be smaller.
        function = accelerator.ready(f"losses of {x.shape[1]}", gradients_and_losses, (values, x, y))
        gradients, losses = function(values, x, y)
        gradient.copy_(gradients)
        objective.add_prior_gradient(values, gradient)
        return losses.detach()

    return write
