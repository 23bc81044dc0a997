"""Checks of a model and its data before any work is done."""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from coset.errors import InputError
from coset.train._recipe import Recipe
from coset.train.modes import training_mode


def check_pair(x: Tensor, y: Tensor, x_name: str, y_name: str) -> None:
    """Inputs and targets are tensors with the same, positive, number of examples, and the inputs are finite."""
    for name, value in ((x_name, x), (y_name, y)):
        if not isinstance(value, Tensor):
            raise InputError(f"{name} is a {type(value).__name__}, expected a torch.Tensor")
        if value.dim() == 0 or len(value) == 0:
            raise InputError(
                f"{name} has shape {tuple(value.shape)}, expected at least one example along its first axis"
            )
    if len(x) != len(y):
        raise InputError(f"{x_name} has {len(x)} examples and {y_name} has {len(y)}, expected as many of both")
    if not bool(x.isfinite().all()):
        raise InputError(f"{x_name} has values that are not finite, expected numbers only")


def model_device(model: nn.Module) -> torch.device:
    """The one device of a model's parameters."""
    devices = {parameter.device for parameter in model.parameters()}
    if not devices:
        raise InputError("model has no parameters, expected a network that can be trained")
    if len(devices) > 1:
        raise InputError(f"model lies on {', '.join(sorted(map(str, devices)))}, expected one device")
    return devices.pop()


def usable_device(device: torch.device | str) -> torch.device:
    """The device of that name, if this machine has it."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise InputError(f"device is {str(device)!r}, expected one that this machine has: {reason}") from error


def probe(model: Callable[[Tensor], Tensor], x: Tensor, name: str) -> Tensor:
    """The outputs of a model (in evaluation mode) for a few examples; what it cannot take is an InputError."""
    try:
        with torch.no_grad():
            outputs = model(x)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"{name}: the model cannot take inputs of shape (examples, {', '.join(map(str, x.shape[1:]))}) "
            f"and type {x.dtype}: {reason}"
        ) from error
    if not isinstance(outputs, Tensor) or not outputs.is_floating_point() or outputs.shape[:1] != x.shape[:1]:
        found = f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else f"type {type(outputs).__name__}"
        raise InputError(f"model: for {len(x)} examples its output has {found}, expected ({len(x)}, …) real numbers")
    return outputs


def check_images(x: Tensor, reason: str, least: int) -> None:
    """Augmentation and CutMix need images (N, C, H, W), floating, higher and wider than ``least`` pixels."""
    if x.dim() != 4 or not x.is_floating_point():
        raise InputError(
            f"x has shape {tuple(x.shape)} and type {x.dtype}, "
            f"{reason} expects real images (examples, channels, height, width)"
        )
    if min(x.shape[2:]) <= least:
        raise InputError(f"x has images of {x.shape[2]} × {x.shape[3]} pixels, {reason} expects more than {least}")


def check_recipe(recipe: Recipe, x: Tensor, *, validated: bool) -> None:
    """Inputs (N, …) must be what the recipe moves and mixes; the best epoch needs validation data to be known."""
    if recipe.augmentation != "none":
        check_images(x, f"augmentation {recipe.augmentation!r}", recipe.shift)
    if recipe.cutmix > 0:
        check_images(x, "cutmix", 0)
    if recipe.mixup > 0 and not x.is_floating_point():
        raise InputError(f"x has type {x.dtype}, mixup expects real numbers")
    if recipe.keep == "best" and not validated:
        raise InputError("validation is None, the recipe's keep='best' expects validation data")


def check_last_batch(model: nn.Module, x: Tensor, batch_size: int, still: Sequence[str]) -> None:
    """Batch normalisation cannot train on a single value per channel, which a last batch of one example may be.

    That of the modules named in ``still`` does not train.
    """
    if len(x) % batch_size != 1 % batch_size or not any(isinstance(part, _BatchNorm) for part in model.modules()):
        return
    trial = training_mode(copy.deepcopy(model), still)
    try:
        with torch.no_grad():
            trial(x[:1])
    except ValueError as error:
        raise InputError(
            f"recipe: batch_size {batch_size} leaves a batch of 1 of the {len(x)} examples, "
            "too few for the model's batch normalisation; expected another batch_size"
        ) from error
