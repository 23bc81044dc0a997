"""Torch's fused optimizers on flat tensors, with their state where a checkpoint can reach it."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from coset.train import Recipe
from coset.train.optimizer import make_optimizer
from coset.train.schedule import learning_rate


class FlatOptimizer:
    """Steps on one tensor ``values`` along ``gradient``, by the optimizer and schedule of a recipe.

    ``state`` holds all that changes, ``values`` included; writing an earlier state into these tensors goes back to it.
    """

    def __init__(self, values: Tensor, recipe: Recipe, steps_per_epoch: int) -> None:
        self.values = nn.Parameter(values.detach())
        self.gradient = torch.zeros_like(self.values)
        self.values.grad = self.gradient
        self.recipe = recipe
        self.steps_per_epoch = steps_per_epoch
        self._optimizer = make_optimizer([self.values], recipe)
        memory = _fresh_memory(recipe, self.values)
        self._optimizer.state[self.values].update(memory)
        self.state: dict[str, Tensor] = {"values": self.values.data, **memory}

    def step(self, number: int) -> None:
        """One step along ``gradient``, at the rate of step ``number`` of the run."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(self.recipe, number, self.steps_per_epoch)
        self._optimizer.step()


def _fresh_memory(recipe: Recipe, values: Tensor) -> Mapping[str, Tensor]:
    """What the optimizer would make before its first step."""
    if recipe.optimizer == "sgd":
        return {"momentum_buffer": torch.zeros_like(values)} if recipe.momentum else {}
    step = torch.zeros((), dtype=torch.float32, device=values.device)
    return {"step": step, "exp_avg": torch.zeros_like(values), "exp_avg_sq": torch.zeros_like(values)}


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
