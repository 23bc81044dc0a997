"""Functionals: numbers that a point of weight space has, above all means over data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from coset._batches import BATCH_SIZE, Labelled, check_repeatable, labelled_batches
from coset.data import given
from coset.distribution import Estimate
from coset.errors import InputError
from coset.landscape._criterion import RIGHT, Criterion, Mean, check_name, mean_accuracy, mean_loss
from coset.landscape._path import params_of
from coset.landscape._reading import Reading
from coset.running import Network, suited, whole_weights, with_weights
from coset.train.check import probe
from coset.train.metrics import evaluation_mode

Better = Literal["lower", "higher"]


@dataclass(frozen=True, eq=False)
class Functional:
    """Any function ``of`` a point, under a ``name``; ``better`` says which values are good, ``unit`` what they are in.

    Shares of a whole have the unit "fraction" and are shown in percent.
    """

    name: str
    of: Callable[[Any], float | Tensor | Estimate]
    better: Better = "lower"
    unit: str = ""

    def __post_init__(self) -> None:
        if self.better not in ("lower", "higher"):
            raise InputError(f"better is {self.better!r} for '{self.name}'; expected 'lower' or 'higher'")

    def __call__(self, point: Any) -> float:
        """The value at a point."""
        return self.read(point).value

    def read(self, point: Any) -> Reading:
        """The value at a point, with its standard error where ``of`` gives an ``Estimate``."""
        value = self.of(point)
        if isinstance(value, Estimate):
            return Reading(float(value.value), float(value.error))
        try:
            return Reading(float(value))
        except (TypeError, ValueError, RuntimeError) as error:
            found = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise InputError(f"functional '{self.name}' gave {found}; expected one real number") from error


@dataclass(frozen=True, eq=False)
class DataFunctional:
    """The mean over ``data`` of what ``mean`` makes of the outputs of ``model`` and the targets.

    Batches weigh by their examples and are summed in float64. The model runs in evaluation mode, without gradients,
    with the weights of the point and on their device; its own weights and its mode stay as they are.
    """

    name: str
    model: nn.Module
    data: Labelled
    mean: Mean
    batch_size: int = BATCH_SIZE
    better: Better = "lower"
    unit: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", given(self.data, self.model))
        check_repeatable(self.data, f"the data of '{self.name}'")

    def __call__(self, point: Any) -> float:
        """The value at a point."""
        return data_means({self.name: self}, params_of(point, "the point"))[self.name]

    @property
    def forward_pass(self) -> tuple[int, ...]:
        """What tells whether two functionals can share their forward passes: the model, the data and the batches."""
        parts = self.data if isinstance(self.data, tuple) else (self.data,)
        return (id(self.model), self.batch_size, *(id(part) for part in parts))


def loss(
    model: nn.Module,
    data: Labelled,
    criterion: Criterion = "cross-entropy",
    *,
    name: str = "loss",
    batch_size: int = BATCH_SIZE,
) -> DataFunctional:
    """The mean loss per data point on ``data``: tensors or arrays (x, y), a loader, a file (``coset.data.given``).

    ``criterion``: "cross-entropy" (nats), "mse", "binary-cross-entropy" (nats), computed in float64 from the outputs;
    or a function of outputs and targets that gives their mean or one value each.
    """
    mean = mean_loss(criterion)
    if callable(criterion):
        return DataFunctional(name, model, data, mean, batch_size)
    unit = "" if criterion == "mse" else "nats"
    return DataFunctional(name, model, data, lambda f, y: mean(_float64(f), _float64(y)), batch_size, unit=unit)


def error(
    model: nn.Module,
    data: Labelled,
    criterion: str = "cross-entropy",
    *,
    name: str = "error",
    batch_size: int = BATCH_SIZE,
) -> DataFunctional:
    """The share of wrong answers, from 0 to 1: of classes, or of bits where ``criterion`` is "binary-cross-entropy"."""
    right = mean_accuracy(criterion)
    return DataFunctional(name, model, data, lambda f, y: 1 - right(f, y), batch_size, unit="fraction")


def accuracy(
    model: nn.Module,
    data: Labelled,
    criterion: str = "cross-entropy",
    *,
    name: str = "accuracy",
    batch_size: int = BATCH_SIZE,
) -> DataFunctional:
    """The share of right answers, from 0 to 1; the higher the better, so that its barrier is a drop."""
    right = mean_accuracy(criterion)
    return DataFunctional(name, model, data, right, batch_size, better="higher", unit="fraction")


def on(
    model: nn.Module, *, criterion: Criterion = "cross-entropy", batch_size: int = BATCH_SIZE, **splits: Labelled
) -> dict[str, DataFunctional]:
    """Loss and, of classifiers, error on each split: ``on(model, train=(x, y), test=loader)``.

    Gives "train loss", "train error", "test loss", "test error". A ``criterion`` of one's own gives the losses only.
    """
    if not splits:
        raise InputError("on has no data; expected some by name, as in on(model, train=(x, y), test=(x, y))")
    classifies = not callable(criterion) and check_name(criterion) in RIGHT
    found: dict[str, DataFunctional] = {}
    for split, data in ((split, given(data, model)) for split, data in splits.items()):
        parts = {"loss": loss(model, data, criterion, name=f"{split} loss", batch_size=batch_size)}
        if classifies:
            parts["error"] = error(model, data, str(criterion), name=f"{split} error", batch_size=batch_size)
        found |= {f"{split} {name}": functional for name, functional in parts.items()}
    return found


def data_means(group: Mapping[str, DataFunctional], params: Mapping[str, Tensor]) -> dict[str, float]:
    """The means over the data that all functionals of the group share."""
    names, first = list(group), next(iter(group.values()))
    device = next(iter(params.values())).device

    def task(network: Network) -> tuple[Tensor, int]:
        totals, count = torch.zeros(len(group), dtype=torch.float64, device=device), 0
        for inputs, targets in labelled_batches(first.data, first.batch_size):
            if inputs.ndim == 0 or inputs.shape[:1] != targets.shape[:1]:
                raise InputError(
                    f"a batch of data holds inputs of shape {tuple(inputs.shape)} and targets of shape "
                    f"{tuple(targets.shape)}; expected as many of each"
                )
            if len(inputs) == 0:
                continue
            outputs, y = probe(network, suited(inputs, params), "data"), targets.to(device)
            totals += len(inputs) * torch.stack([f.mean(outputs, y).double() for f in group.values()])
            count += len(inputs)
        return totals, count

    try:
        with torch.no_grad(), evaluation_mode(first.model):
            totals, count = with_weights(first.model, whole_weights(first.model, params), task)
    except InputError as problem:
        # Which data it was, the batches do not know.
        raise InputError(f"{names[0]}: {problem}") from problem
    if count == 0:
        raise InputError(f"{names[0]}: data holds no examples; expected at least one")
    return dict(zip(names, (totals / count).tolist(), strict=True))


def _float64(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor
