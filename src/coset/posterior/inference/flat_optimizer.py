"""Descents: torch's fused optimizers on flat tensors, with their state where a checkpoint can reach it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
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
    ``sizes``: a first row (D,) of ``values`` (2, D) consists of pieces of these sizes, for which ``step`` then takes
    gradients of their own.
    """

    def __init__(
        self, values: Tensor, recipe: Recipe, steps_per_epoch: int, sizes: Sequence[int] | None = None
    ) -> None:
        self.recipe = recipe
        self.steps_per_epoch = steps_per_epoch
        self._sizes = sizes
        values = values.detach().clone()
        self.gradient = torch.zeros_like(values)
        self.state: dict[str, Tensor] = {"values": values}
        pieces = [nn.Parameter(piece) for piece in self._pieces(values)]
        self._optimizer = make_optimizer(pieces, recipe)
        self._first, self._decay = pieces[: len(sizes or ())], recipe.weight_decay
        if self._first:
            first = dict(self._optimizer.param_groups[0], params=self._first)
            self._optimizer.param_groups[0]["params"] = pieces[len(self._first) :]
            self._optimizer.add_param_group(first)
        for name, memory in _fresh_memory(recipe, values, len(pieces)).items():
            self.state[name] = memory
            parts = memory.unbind() if name == "step" else self._pieces(memory)
            for piece, part in zip(pieces, parts, strict=True):
                self._optimizer.state[piece][name] = part
        for piece, own in zip(pieces, self._pieces(self.gradient), strict=True):
            piece.grad = own

    @property
    def takes_decay(self) -> bool:
        """Whether ``step`` takes gradients of pieces: not where the optimizer keeps a decay apart from the gradient."""
        return bool(self._first) and self.recipe.optimizer in ("sgd", "adam")

    def step(self, number: int, parts: Sequence[Tensor] | None = None, decay: float = 0.0) -> None:
        """One step along ``gradient``, at the rate of step ``number`` of the run.

        ``parts``: instead of its first row, the row's gradient is these pieces and ``decay`` times the row: the
        optimizer's own kernel adds that without another pass over memory.
        """
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(self.recipe, number, self.steps_per_epoch)
        if self._first:
            own = self._pieces(self.gradient)[: len(self._first)] if parts is None else parts
            for piece, part in zip(self._first, own, strict=True):
                piece.grad = part
            self._optimizer.param_groups[1]["weight_decay"] = self._decay + decay
        self._optimizer.step()

    def _pieces(self, tensor: Tensor) -> list[Tensor]:
        """What the optimizer steps on, in a tensor like ``values``."""
        return [tensor] if self._sizes is None else [*torch.split(tensor[0], list(self._sizes)), tensor[1]]


def _fresh_memory(recipe: Recipe, values: Tensor, pieces: int) -> Mapping[str, Tensor]:
    """What the optimizer would make before its first step."""
    if recipe.optimizer == "sgd":
        return {"momentum_buffer": torch.zeros_like(values)} if recipe.momentum else {}
    steps = torch.zeros(pieces, dtype=torch.float32, device=values.device)
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
