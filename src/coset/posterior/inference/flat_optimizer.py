"""Torch's fused optimizers on flat tensors, with their state where a checkpoint can reach it."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

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
