"""Training a group: networks of one architecture side by side, or, where ``vmap`` does not take it, one by one."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coset._files.sealed import read_sealed, write_sealed
from coset._show.progress import Ticker
from coset.errors import InputError
from coset.train import Recipe
from coset.train.check import probe
from coset.train.loop import Run
from coset.train.loss import LOSSES
from coset.train.metrics import evaluation_mode
from coset.train.schedule import learning_rate
from coset.zoo._batches import Batch, draw_plans
from coset.zoo._data import Data
from coset.zoo._index import finite
from coset.zoo._measure import measure_stack
from coset.zoo._members import Member, new_model
from coset.zoo._memory import keep_freed_memory
from coset.zoo._optimizers import StackOptimizer, clip_each, stack_optimizer
from coset.zoo._spec import ZooSpec
from coset.zoo._stacked import Stack, Tensors, each, outputs_of, saved, stacked

KEY = "coset.zoo.checkpoint"
FORMAT = 1

DIVERGED = "training diverged"

Keep = Callable[[int, Mapping[str, Tensor]], None]
"""Is given the step of a snapshot and the stacked weights after it."""


def steps_per_epoch(recipe: Recipe, examples: int) -> int:
    """Batches in an epoch, the last of which may be smaller."""
    return -(-examples // recipe.batch_size)


def snapshot_steps(spec: ZooSpec, recipe: Recipe, examples: int) -> tuple[int, ...]:
    """The steps after which weights are kept; one behind the last is refused."""
    each_epoch = steps_per_epoch(recipe, examples)
    steps = tuple((each_epoch if spec.snapshots_in == "epochs" else 1) * at for at in spec.snapshots)
    last = recipe.epochs * each_epoch
    if steps and steps[-1] > last:
        raise InputError(f"a snapshot is to be taken after step {steps[-1]}; the training has {last} steps")
    return steps


@dataclass(frozen=True)
class Task:
    """A group of a zoo: what its members share, and where its state is kept while it trains."""

    spec: ZooSpec
    members: Sequence[Member]
    data: Data
    checkpoint: Path
    checkpoint_seconds: float
    keep: Keep
    bar: Ticker
    stop: Callable[[], None]
    """Called after every step; what it raises ends the training there."""

    @property
    def recipe(self) -> Recipe:
        """The recipe of the first network: what all share of theirs."""
        return self.members[0].recipe

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch."""
        return steps_per_epoch(self.recipe, len(self.data.train))

    @property
    def snapshots(self) -> tuple[int, ...]:
        """The steps after which weights are kept."""
        return snapshot_steps(self.spec, self.recipe, len(self.data.train))

    def models(self) -> list[nn.Module]:
        """The networks before their training."""
        return [new_model(self.spec, member.options, member.seed, member.scale) for member in self.members]


@dataclass(frozen=True)
class Trained:
    """The weights of a group, (N, …) under names as in ``state_dict()``, and what is known of every network."""

    tensors: Tensors
    records: list[dict[str, Any]]


@dataclass
class _State:
    """A group between two steps: the one thing that training changes."""

    stack: Stack
    optimizer: StackOptimizer
    sums: Tensor
    """(epochs, N): sums of the loss over the examples of an epoch."""
    step: int = 0
    best: Tensors = field(default_factory=dict)
    merit: Tensor | None = None

    def tensors(self) -> Tensors:
        """All that a checkpoint holds."""
        parts = {"stack": self.stack.everything, "optimizer": self.optimizer.state, "best": self.best}
        found = {f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}
        merit = {} if self.merit is None else {"merit": self.merit}
        return {**found, **merit, "sums": self.sums, "step": torch.tensor(self.step)}


def train_stack(task: Task) -> Trained:
    """Train the networks of a group side by side; what an earlier call left in the checkpoint is continued."""
    keep_freed_memory()
    models = task.models()
    model, recipe, train = models[0], task.recipe, task.data.train
    loss = LOSSES[recipe.loss]
    with evaluation_mode(model):
        probed = probe(model, train.x[:2], "x")
    y = loss.fit_targets(train.y, probed, f"the targets of {task.spec.data[task.members[0].data].name}")
    shared = task.spec.order == "shared"
    runs = [
        Run(train.x, y, member.recipe, task.spec.seed if shared else member.seed, train.x.device, (), None)
        for member in task.members
    ]
    stack = stacked(models)
    leaves = list(stack.trained.values())
    sums = torch.zeros(recipe.epochs, len(models), dtype=torch.float64)
    state = _State(stack, stack_optimizer(leaves, [member.recipe for member in task.members]), sums)
    if recipe.keep == "best":
        state.best = {name: tensor.detach().clone() for name, tensor in stack.everything.items()}
        state.merit = torch.full((len(models),), -math.inf, dtype=torch.float64)
    if task.checkpoint.is_file():
        _restore(task.checkpoint, state)
    task.bar.advance(state.step)
    if state.step == 0 and 0 in task.snapshots:
        task.keep(0, saved(model, stack.everything))
    with torch.enable_grad():
        _train(task, model, runs, state)
    kept = state.best or stack.everything
    metrics = {
        name: measure_stack(model, kept, part, recipe.loss) for name, part in task.data.parts.items() if name != "train"
    }
    tensors = saved(model, kept)
    usable = torch.tensor(finite(tensors)) & state.sums.isfinite().all(0)
    records = []
    for number in range(len(models)):
        record: dict[str, Any] = {"problem": None if usable[number] else DIVERGED}
        record["losses"] = (state.sums[:, number] / len(train)).tolist()
        record["metrics"] = {name: asdict(found[number]) for name, found in metrics.items()}
        records.append(plain(record))
    return Trained(tensors, records)


def _train(task: Task, model: nn.Module, runs: Sequence[Run], state: _State) -> None:
    """The steps that are left."""
    recipes = [member.recipe for member in task.members]
    steps, clips = task.steps_per_epoch, [recipe.clip for recipe in recipes if recipe.clip is not None]
    largest = torch.tensor(clips, dtype=getattr(torch, task.spec.dtype)) if clips else None
    rates = _Rates(recipes, steps)
    last, written = task.recipe.epochs * steps, time.monotonic()
    plans, drawn = None, -1
    while state.step < last:
        epoch, index = divmod(state.step, steps)
        if drawn != epoch or plans is None:
            plans, drawn = draw_plans(runs, epoch, shared=task.spec.order == "shared"), epoch
        batch = plans.batch(index)
        losses = _step(task.recipe, model, state, batch, rates(state.step), largest)
        size = batch.targets.shape[0 if batch.shared else 1]
        state.sums[epoch] += losses.double().cpu() * size
        state.step += 1
        if index == steps - 1 and state.merit is not None:
            _remember_best(task, model, state)
        if state.step in task.snapshots:
            task.keep(state.step, saved(model, state.stack.everything))
        if state.step < last and time.monotonic() - written >= task.checkpoint_seconds:
            write_sealed(task.checkpoint, KEY, FORMAT, state.tensors(), {})
            written = time.monotonic()
        task.bar.advance(1)
        task.stop()


def _step(
    recipe: Recipe, model: nn.Module, state: _State, batch: Batch, rates: Tensor, largest: Tensor | None
) -> Tensor:
    """One step of all networks; returns their losses (N,)."""
    loss, leaves = LOSSES[recipe.loss], list(state.stack.trained.values())
    outputs = outputs_of(model, state.stack.everything, batch.inputs, shared=batch.shared)

    def lost(targets: Tensor) -> Tensor:
        return each(lambda o, t: loss.mean(o, t, recipe.label_smoothing), outputs, targets, shared=batch.shared)

    losses = batch.mixed(lost)
    # Each network's loss has no part in the weights of others: the gradient of the sum is that of each.
    gradients = torch.autograd.grad(losses.sum(), leaves)
    state.optimizer.step(gradients if largest is None else clip_each(gradients, largest), rates)
    return losses.detach()


class _Rates:
    """The learning rates (N,) of every step; schedules that several networks share are computed once."""

    def __init__(self, recipes: Sequence[Recipe], steps: int) -> None:
        self.steps = steps
        self.highest = torch.tensor([recipe.learning_rate for recipe in recipes], dtype=torch.float64)
        shapes = [replace(recipe, learning_rate=1.0, weight_decay=0.0) for recipe in recipes]
        self.shapes = list(dict.fromkeys(shapes))
        self.which = torch.tensor([self.shapes.index(shape) for shape in shapes])

    def __call__(self, step: int) -> Tensor:
        factors = torch.tensor([learning_rate(r, step, self.steps) for r in self.shapes], dtype=torch.float64)
        return self.highest * factors[self.which]


def _remember_best(task: Task, model: nn.Module, state: _State) -> None:
    """Keep the weights of networks that are better on the validation part than they were after any epoch."""
    assert state.merit is not None
    found = measure_stack(model, state.stack.everything, task.data.parts["validation"], task.recipe.loss)
    merit = torch.tensor([metrics.merit for metrics in found], dtype=torch.float64)
    better = merit > state.merit
    state.merit = torch.where(better, merit, state.merit)
    for name, tensor in state.stack.everything.items():
        state.best[name][better] = tensor.detach()[better]


def _restore(path: Path, state: _State) -> None:
    """Put a fresh state where the checkpoint left off."""
    tensors, _ = read_sealed(path, KEY, FORMAT)
    own = state.tensors()
    if {name: t.shape for name, t in own.items()} != {name: t.shape for name, t in tensors.items()}:
        raise InputError(f"checkpoint {path} belongs to other networks; remove it to train the group anew")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])
    state.step = int(tensors["step"])


def plain(value: Any) -> Any:
    """Without numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list) else value
