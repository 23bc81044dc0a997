"""Descents: torch's fused optimizers on flat tensors, with their state where a checkpoint can reach it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from coset._files.sealed import checksum
from coset.posterior.fit import Control, Trace, epoch_batches, require_finite_losses, run_rounds
from coset.posterior.problem import Problem
from coset.train import Recipe
from coset.train.optimizer import make_optimizer
from coset.train.schedule import learning_rate


class FlatOptimizer:
    """Steps on one tensor ``values`` along ``gradient``, by the optimizer and schedule of a recipe.

    ``state`` holds all that changes, ``values`` included; writing an earlier state into these tensors goes back to it.
    """

    def __init__(self, values: Tensor, recipe: Recipe, steps_per_epoch: int) -> None:
        self.recipe = recipe
        self.steps_per_epoch = steps_per_epoch
        values = values.detach().clone()
        self.gradient = torch.zeros_like(values)
        parameter = nn.Parameter(values)
        parameter.grad = self.gradient
        self._optimizer = make_optimizer([parameter], recipe)
        self.state: dict[str, Tensor] = {"values": values, **_fresh_memory(recipe, values)}
        for name, memory in self.state.items():
            if name != "values":
                self._optimizer.state[parameter][name] = memory[0] if name == "step" else memory

    def step(self, number: int) -> None:
        """One step along ``gradient``, at the rate of step ``number`` of the run."""
        self._optimizer.param_groups[0]["lr"] = learning_rate(self.recipe, number, self.steps_per_epoch)
        self._optimizer.step()


def _fresh_memory(recipe: Recipe, values: Tensor) -> Mapping[str, Tensor]:
    """What the optimizer would make before its first step."""
    if recipe.optimizer == "sgd":
        return {"momentum_buffer": torch.zeros_like(values)} if recipe.momentum else {}
    steps = torch.zeros(1, dtype=torch.float32, device=values.device)
    return {"step": steps, "exp_avg": torch.zeros_like(values), "exp_avg_sq": torch.zeros_like(values)}


def optimization(
    epochs: int,
    batch_size: int,
    learning_rate: float,
    optimizer: str,
    momentum: float,
    schedule: str,
    warmup_epochs: int,
) -> Recipe:
    """The settings of a descent, checked, as a recipe."""
    return Recipe(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        optimizer=optimizer,
        momentum=momentum,
        schedule=schedule,
        warmup_epochs=warmup_epochs,
    )


def numbered_batches(
    problem: Problem, flat: FlatOptimizer, seed: int, epoch: int
) -> Iterator[tuple[int, tuple[Tensor, Tensor]]]:
    """The batches of an epoch, each with the number of its step in the run."""
    batches = epoch_batches(problem, flat.recipe.batch_size, seed, epoch)
    return enumerate(batches, epoch * flat.steps_per_epoch)


def run_descent(
    method: str,
    problem: Problem,
    flat: FlatOptimizer,
    control: Control,
    steps: Callable[[int], Iterator[Tensor]],
    report: Callable[[int, Tensor], Mapping[str, float]],
    *,
    loss_of: Callable[[Mapping[str, float]], float] = lambda record: record["nll"],
    settings: Mapping[str, Any] | None = None,
    state: Mapping[str, Tensor] | None = None,
    advice: str = "a lower learning_rate or a warm-up may help",
) -> tuple[Trace, float]:
    """Epochs of a recipe: ``steps(epoch)`` takes them one by one and yields the losses (…) of their batches.

    ``report(epoch, mean)`` makes a record of the epoch from their mean over the data (…), and ``loss_of`` finds it
    there again. ``settings`` tell runs apart, beside recipe and start; ``state``: what changes beside the optimizer's.
    """
    size, count = flat.recipe.batch_size, problem.count
    points = torch.tensor([min(size, count - first) for first in range(0, count, size)], dtype=torch.float64)

    def advance(epoch: int, before: Mapping[str, float] | None) -> Mapping[str, float]:
        losses = torch.stack(list(steps(epoch)))
        each = losses.reshape(len(losses), -1).mean(1)
        require_finite_losses(each, None if before is None else loss_of(before), epoch, advice)
        return report(epoch, points @ losses.double().cpu() / points.sum())

    told = {
        **{f"recipe {name}": value for name, value in flat.recipe.to_dict().items()},
        "start": f"checksum {checksum(flat.state['values']):08x}",
        **(settings or {}),
    }
    return run_rounds(method, problem, told, {**flat.state, **(state or {})}, flat.recipe.epochs, advance, control)
