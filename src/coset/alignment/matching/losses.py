"""What a differentiable alignment minimises: functions of the reference and of the permuted network."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from coset._checks import check_choice
from coset._magnitudes import exponent, scaled
from coset._values import memory_of
from coset.alignment._result import Params
from coset.errors import InputError, refusing
from coset.running import outputs_with, under_owners
from coset.symmetry import Symmetry
from coset.train.loss import LOSSES
from coset.train.metrics import evaluation_mode

Batch = tuple[Tensor, Tensor]

Loss = Callable[[Params, Params, Batch | None], Tensor]
"""A loss of (reference, permuted parameters, batch of inputs and targets or None where no data are given)."""

Criterion = Callable[[Tensor, Tensor], Tensor]
"""A loss of (outputs, targets), averaged over the batch."""

# Where the loss of random points is looked at when elements are compared: the same points for all.
_FIXED_POINTS = (0.1, 0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True)
class Objective:
    """A loss to descend and the same loss as a yardstick.

    ``step(reference, permuted, batch, generator)`` may draw random numbers; ``value(reference, permuted, batch)`` draws
    none, so that values can be compared. ``needs_data``: whether the batch may not be None. ``least``: a value below
    which there is none.
    """

    name: str
    step: Callable[[Params, Params, Batch | None, torch.Generator], Tensor]
    value: Loss
    needs_data: bool
    least: float = -math.inf


@dataclass(frozen=True)
class Setting:
    """What objectives are made from: the two networks, and for losses on data the model and what its outputs cost."""

    sym: Symmetry
    reference: Params
    other: Params
    model: nn.Module | None
    criterion: str | Criterion


def objective_of(objective: str | Loss, setting: Setting) -> Objective:
    """The objective by its name in ``OBJECTIVES``, or any function loss(reference, permuted, batch) as one."""
    if callable(objective):
        given = objective
        return Objective("given", lambda a, b, batch, generator: given(a, b, batch), given, needs_data=False)
    return OBJECTIVES[check_choice("objective", objective, OBJECTIVES, otherwise=", or a function")](setting)


# Between parameters -------------------------------------------------------------------------------------------------


def _distance(setting: Setting) -> Objective:
    """‖a − Xb‖²/(‖a‖² + ‖b‖²) over the trained parameters, tied ones counted once (Peña et al. 2023, eq. 9)."""
    counted = {
        memory_of(tensor): name
        for name, tensor in setting.other.items()
        if tensor.is_floating_point() and not setting.sym.parameters[name].buffer
    }
    names = list(counted.values())
    both = (setting.reference, setting.other)
    # A ratio: both may be multiplied by what makes their squares numbers.
    by = exponent(*(params[name] for params in both for name in names)) if names else 0
    size = sum(float(scaled(params[name].detach(), by).double().square().sum()) for params in both for name in names)

    def loss(a: Params, b: Params, batch: Batch | None) -> Tensor:
        gaps = [scaled(a[name] - b[name], by).square().sum() for name in names]
        return torch.stack(gaps).sum() / (size or 1.0)

    return Objective("l2", lambda a, b, batch, generator: loss(a, b, batch), loss, needs_data=False, least=0.0)


# On data ------------------------------------------------------------------------------------------------------------


def _midpoint(setting: Setting) -> Objective:
    """The task loss of (a + Xb)/2."""
    task = _task("midpoint", setting)

    def loss(a: Params, b: Params, batch: Batch | None) -> Tensor:
        return task(between(a, b, 0.5), batch)

    return Objective("midpoint", lambda a, b, batch, generator: loss(a, b, batch), loss, needs_data=True)


def _random_point(setting: Setting) -> Objective:
    """The task loss of (1 − τ)a + τXb, τ uniform on (0, 1); as a yardstick its mean over evenly spread τ."""
    task = _task("random", setting)

    def step(a: Params, b: Params, batch: Batch | None, generator: torch.Generator) -> Tensor:
        tau = float(torch.rand((), generator=generator, dtype=torch.float64))
        return task(between(a, b, tau), batch)

    def value(a: Params, b: Params, batch: Batch | None) -> Tensor:
        return torch.stack([task(between(a, b, tau), batch) for tau in _FIXED_POINTS]).mean()

    return Objective("random", step, value, needs_data=True)


OBJECTIVES: dict[str, Callable[[Setting], Objective]] = {
    "l2": _distance,
    "midpoint": _midpoint,
    "random": _random_point,
}


def _task(name: str, setting: Setting) -> Callable[[Params, Batch | None], Tensor]:
    """The loss of a network on a batch."""
    model, criterion = setting.model, setting.criterion
    if not isinstance(model, nn.Module):
        raise InputError(
            f"model is {'not given' if model is None else f'a {type(model).__name__}'}; the objective '{name}' is a "
            f"loss on data and needs the torch.nn.Module of these networks"
        )
    chosen = criterion if callable(criterion) else _named(criterion)

    def loss(params: Params, batch: Batch | None) -> Tensor:
        if batch is None:
            raise InputError(f"data are not given; the objective '{name}' is a loss on data")
        inputs, targets = batch
        failed = f"the model does not run on data of shape {tuple(inputs.shape)} and type {inputs.dtype}"
        with refusing(failed), evaluation_mode(model), BatchStatistics():
            outputs = outputs_with(model, under_owners(model, params), inputs)
        value = chosen(outputs, targets)
        if not isinstance(value, Tensor):
            raise InputError(f"criterion gives a {type(value).__name__}; expected a tensor")
        return value.mean()

    return loss


def _named(criterion: str) -> Criterion:
    """A loss of ``coset.train`` as a mean over a batch."""
    loss = LOSSES[check_choice("criterion", criterion, LOSSES, otherwise=", or a function")]
    return lambda outputs, targets: loss.mean(outputs, loss.fit_targets(targets, outputs, "targets"), 0.0)


def between(a: Params, b: Params, tau: float) -> dict[str, Tensor]:
    """(1 − τ)a + τb; what is not a floating number, such as a count of batches, is a's."""
    return {
        name: torch.lerp(tensor, b[name], tau) if tensor.is_floating_point() else tensor for name, tensor in a.items()
    }


def arguments_of(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, defaults included, of a function that is written in Python."""
    call = inspect.signature(func).bind(*args, **kwargs)
    call.apply_defaults()
    return call.arguments


# Norm → the name of the argument by which it uses the statistics of the batch.
_BATCHED: dict[Callable[..., Any], str] = {
    functional.batch_norm: "training",
    functional.instance_norm: "use_input_stats",
}


class BatchStatistics(TorchFunctionMode):
    """Batch and instance norms use the statistics of the batch at hand, and keep none.

    The running statistics of two networks, averaged, are not those of the averaged network: where it is to be measured
    or trained, the batch's own are the ones it would have after its statistics are refreshed (Jordan et al. 2023).
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Calls as they are, but norms without running statistics."""
        if func not in _BATCHED:
            return func(*args, **(kwargs or {}))
        call = arguments_of(func, args, kwargs or {})
        x = call["input"]
        values = x.numel() // x.shape[1] if func is functional.batch_norm else x[0, 0].numel()
        if values < 2:
            raise InputError(
                f"a norm met an input of shape {tuple(x.shape)}, with {values} values per channel; the statistics of a "
                f"batch need at least 2: give larger batches in data, or a larger batch_size"
            )
        return func(**call | {"running_mean": None, "running_var": None, _BATCHED[func]: True})
