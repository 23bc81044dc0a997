"""One epoch of training: tensors in memory, no worker processes, one short pass of Python per step."""

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from coset._show.progress import Ticker
from coset.errors import InputError
from coset.train._checkpoint import State
from coset.train._recipe import Recipe
from coset.train._result import Callback, Moment
from coset.train.augment import AUGMENTATIONS, Mix, Motions, draw_mixes, mix_inputs, mix_values, move
from coset.train.loss import LOSSES, Loss
from coset.train.metrics import Metrics, evaluate_batches
from coset.train.modes import training_mode
from coset.train.randomness import own_global_state, seed_global_state, stream, stream_seed
from coset.train.schedule import learning_rate

_ADVICE = "a lower learning_rate, more warmup_epochs or a clip may help"

# Seconds between two looks at the losses: on an accelerator each look waits for the work in flight.
LOOK = 0.2


class DivergenceError(InputError):
    """Training went to infinity: the recipe does not suit the model and the data."""


@dataclass(frozen=True)
class Run:
    """What stays fixed while a network trains; data on ``device``."""

    x: Tensor
    y: Tensor
    recipe: Recipe
    seed: int
    device: torch.device
    still: tuple[str, ...]
    """Modules that stay in evaluation mode."""
    callback: Callback | None

    @property
    def loss(self) -> Loss:
        """The recipe's loss."""
        return LOSSES[self.recipe.loss]

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch, the last of them possibly smaller."""
        return -(-len(self.x) // self.recipe.batch_size)


@dataclass(frozen=True)
class Plan:
    """All random choices of an epoch: the order of the examples (N,), their motions, and a mix per step."""

    order: Tensor
    motions: Motions | None
    mixes: list[Mix] | None


def draw_plan(run: Run, epoch: int) -> Plan:
    """Draw the choices of one epoch; they depend on the seed and the number of the epoch only."""
    recipe, count = run.recipe, len(run.x)
    order = torch.randperm(count, generator=stream("order", run.seed, epoch), device="cpu")
    motions = AUGMENTATIONS[recipe.augmentation](count, recipe.shift, stream("augmentation", run.seed, epoch))
    shape, mixing = tuple(run.x.shape[1:]), stream("mixing", run.seed, epoch)
    mixes = draw_mixes(run.steps_per_epoch, recipe.mixup, recipe.cutmix, shape, mixing)
    return Plan(order.to(run.device), None if motions is None else motions.to(run.device), mixes)


def train_epoch(run: Run, state: State, epoch: int, bar: Ticker) -> Metrics:
    """Train the state's model for one epoch; the metrics are means over the epoch."""
    recipe, steps = run.recipe, run.steps_per_epoch
    plan = draw_plan(run, epoch)
    trained = [parameter for parameter in state.model.parameters() if parameter.requires_grad]
    losses: list[Tensor] = []
    score = torch.zeros((), dtype=torch.float64, device=run.device)
    looked, seen = time.perf_counter(), 0
    training_mode(state.model, run.still)
    seed_global_state(stream_seed("model", run.seed, epoch), run.device)
    for index in range(steps):
        rate = learning_rate(recipe, epoch * steps + index, steps)
        loss, right = _step(run, state, plan, trained, index, rate)
        losses.append(loss)
        score += right
        if run.callback is not None:
            tell(run, state, Moment(epoch, epoch * steps + index + 1, loss, state.model))
        now = time.perf_counter()
        if now - looked >= LOOK or index == steps - 1:
            last = _require_finite_losses(losses, seen, epoch, state.history[-1].train.loss if epoch else None)
            bar.advance(len(losses) - seen, note=f"epoch {epoch + 1}/{recipe.epochs} loss {last:.4f}")
            looked, seen = now, len(losses)
    _require_finite_weights(state.model, epoch)
    sizes = torch.full((steps,), recipe.batch_size, dtype=torch.float64, device="cpu")
    sizes[-1] = len(run.x) - (steps - 1) * recipe.batch_size
    total = torch.stack(losses).double().cpu() @ sizes
    return Metrics.of_sums(run.loss, float(total), float(score), len(run.x))


def _step(
    run: Run, state: State, plan: Plan, trained: list[nn.Parameter], index: int, rate: float
) -> tuple[Tensor, Tensor]:
    """One optimizer step; returns the loss and the score of its batch, still on the device."""
    recipe, loss, optimizer = run.recipe, run.loss, state.optimizer
    start = index * recipe.batch_size
    picked = plan.order[start : start + recipe.batch_size]
    inputs, targets = run.x.index_select(0, picked), run.y.index_select(0, picked)
    if plan.motions is not None:
        inputs = move(inputs, plan.motions, start)
    if plan.mixes is None:
        outputs = state.model(inputs)
        value = loss.mean(outputs, targets, recipe.label_smoothing)
        right = loss.score(outputs.detach(), targets)
    else:
        mix = plan.mixes[index]
        outputs = state.model(mix_inputs(inputs, mix))
        seen = outputs.detach()
        value = mix_values(lambda labels: loss.mean(outputs, labels, recipe.label_smoothing), targets, mix)
        right = mix_values(lambda labels: loss.score(seen, labels), targets, mix)
    # What zero_grad does, without its bookkeeping, which takes a tenth of the step of a small network.
    for parameter in trained:
        parameter.grad = None
    value.backward()  # type: ignore[no-untyped-call]
    if recipe.clip is not None:
        clip_grad_norm_(trained, recipe.clip)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    return value.detach(), right


def validate(run: Run, model: nn.Module, data: tuple[Tensor, Tensor], epoch: int) -> Metrics:
    """The metrics on validation data at the end of an epoch."""
    model.eval()
    metrics = evaluate_batches(model, *data, run.loss, run.device)
    if not math.isfinite(metrics.loss):
        raise DivergenceError(
            f"the validation loss is {metrics.loss} after epoch {epoch + 1}, expected a finite number; {_ADVICE}"
        )
    return metrics


def tell(run: Run, state: State, moment: Moment) -> None:
    """Call the callback with generators of its own, so that what it draws does not change the run."""
    if run.callback is not None:
        with own_global_state(run.device):
            state.ended |= run.callback(moment) is True


def _require_finite_losses(losses: list[Tensor], seen: int, epoch: int, earlier: float | None) -> float:
    """The last loss, if all those after the first ``seen`` are finite; ``earlier``: that of the epoch before."""
    finite = torch.stack(losses[seen:]).isfinite()
    if not bool(finite.all()):
        at = seen + int(finite.logical_not().nonzero()[0])
        known = float(losses[at - 1]) if at else earlier
        before = "" if known is None else f"the last finite one was {known:.6g}; "
        raise DivergenceError(
            f"the loss is {float(losses[at])} in epoch {epoch + 1}, step {at + 1}, expected a finite number; "
            f"{before}{_ADVICE}"
        )
    return float(losses[-1])


def _require_finite_weights(model: nn.Module, epoch: int) -> None:
    """The last step of an epoch may break the weights after a finite loss."""
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise DivergenceError(f"parameter {name} is no longer finite at the end of epoch {epoch + 1}; {_ADVICE}")
