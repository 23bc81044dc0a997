"""Training a network from tensors in memory."""

import copy
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coset.errors import InputError
from coset.progress import Ticker, progress
from coset.train.check import check_images, check_last_batch, check_pair, model_device, probe, usable_device
from coset.train.checkpoint import State, load_checkpoint, save_checkpoint, snapshot
from coset.train.identity import identity
from coset.train.loop import Run, tell, train_epoch, validate
from coset.train.loss import LOSSES
from coset.train.optimizer import make_optimizer
from coset.train.randomness import own_global_state
from coset.train.recipe import Recipe
from coset.train.result import Callback, Epoch, Moment, TrainResult
from coset.train.schedule import learning_rate


def fit(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    recipe: Recipe,
    *,
    seed: int,
    validation: tuple[Tensor, Tensor] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 0.0,
    device: torch.device | str | None = None,
    channels_last: bool = False,
    show: bool | None = None,
    callback: Callback | None = None,
) -> TrainResult:
    """Train a copy of ``model`` on inputs x (N, …) and targets y (N,) or (N, …); the model itself stays as it is.

    The order of the examples, augmentation, mixing and dropout follow from ``seed`` alone: on one machine the same call
    gives the same bits (on an accelerator, if its kernels are deterministic). torch's global generators are left alone.
    Parameters that do not require gradients stay fixed.

    With ``checkpoint`` the state is written there at the end of an epoch, at least ``checkpoint_seconds`` after the
    last time, and always after the last epoch. The same call continues from an existing checkpoint, with the same bits
    as a run that was never interrupted; a checkpoint of another run is refused. The file stays when training ends, so
    that the same call returns at once; it is the caller's to remove.

    ``device``: where to train, by default where the model is. ``channels_last`` keeps filters and feature maps
    with the channels innermost, which shortens steps of convolutional networks by about a fifth on a CPU, and needs a
    model that never calls ``view`` on feature maps. ``show``: a progress bar, by default on a terminal. ``callback`` is
    called after every step and every epoch; what it raises ends the run.
    """
    if type(seed) is not int or seed < 0:
        raise InputError(f"seed is {seed!r}, expected a whole number of at least 0")
    if not checkpoint_seconds >= 0:
        raise InputError(f"checkpoint_seconds is {checkpoint_seconds!r}, expected a number of at least 0")
    check_pair(x, y, "x", "y")
    if channels_last:
        check_images(x, "channels_last", 0)
    place = model_device(model) if device is None else usable_device(device)
    with own_global_state(place), torch.enable_grad():
        trained = copy.deepcopy(model).to(place)
        if channels_last:
            trained = trained.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        run, held_out = _check(trained, x, y, validation, recipe, seed, place, callback)
        state = State(trained, make_optimizer([p for p in trained.parameters() if p.requires_grad], recipe))
        path, description = None, {}
        if checkpoint is not None:
            path = Path(checkpoint)
            data = {"x": x, "y": y}
            if validation is not None:
                data |= {"validation x": validation[0], "validation y": validation[1]}
            description = identity(trained, data, recipe, seed=seed, channels_last=channels_last)
            if path.exists():
                load_checkpoint(path, state, description)
        with progress("training", recipe.epochs * run.steps_per_epoch, show=show) as bar:
            bar.advance(len(state.history) * run.steps_per_epoch)
            _train(run, state, held_out, path, description, checkpoint_seconds, bar)
    params = snapshot(state.model) if state.best is None else state.best
    return TrainResult(params, tuple(state.history), state.best_epoch, len(state.history) * run.steps_per_epoch)


def _check(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    validation: tuple[Tensor, Tensor] | None,
    recipe: Recipe,
    seed: int,
    device: torch.device,
    callback: Callback | None,
) -> tuple[Run, tuple[Tensor, Tensor] | None]:
    """Refuse what cannot be trained; the run and the validation data, on the device."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError("model has no parameter that requires gradients, expected at least one to train")
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise InputError(f"model: {name} of its state_dict is a {type(value).__name__}, expected tensors only")
    if recipe.augmentation != "none":
        check_images(x, f"augmentation {recipe.augmentation!r}", recipe.shift)
    if recipe.cutmix > 0:
        check_images(x, "cutmix", 0)
    if recipe.mixup > 0 and not x.is_floating_point():
        raise InputError(f"x has type {x.dtype}, mixup expects real numbers")
    if recipe.keep == "best" and validation is None:
        raise InputError("validation is None, the recipe's keep='best' expects validation data")
    fit_targets = LOSSES[recipe.loss].fit_targets
    model.eval()
    x, y = x.to(device), y.to(device)
    run = Run(x, fit_targets(y, probe(model, x[:2], "x"), "y"), recipe, seed, device, callback)
    check_last_batch(model, x, recipe.batch_size)
    if validation is None:
        return run, None
    check_pair(*validation, "validation x", "validation y")
    inputs, targets = (part.to(device) for part in validation)
    outputs = probe(model, inputs[:2], "validation x")
    return run, (inputs, fit_targets(targets, outputs, "validation y"))


def _train(
    run: Run,
    state: State,
    held_out: tuple[Tensor, Tensor] | None,
    path: Path | None,
    description: dict[str, Any],
    checkpoint_seconds: float,
    bar: Ticker,
) -> None:
    """The epochs that are left: train, validate, remember the best, write the checkpoint, tell the callback."""
    recipe, steps = run.recipe, run.steps_per_epoch
    written = time.perf_counter()
    for epoch in range(len(state.history), recipe.epochs):
        begun = time.perf_counter()
        train = train_epoch(run, state, epoch, bar)
        metrics = None if held_out is None else validate(run, state.model, held_out, epoch)
        rate = learning_rate(recipe, epoch * steps, steps)
        state.history.append(Epoch(train, metrics, rate, time.perf_counter() - begun))
        if metrics is not None:
            best = None if state.best_epoch is None else state.history[state.best_epoch].validation
            if best is None or metrics.merit > best.merit:
                state.best_epoch = epoch
                state.best = snapshot(state.model) if recipe.keep == "best" else None
        due = time.perf_counter() - written >= checkpoint_seconds or epoch == recipe.epochs - 1
        if path is not None and due:
            save_checkpoint(path, state, description)
            written = time.perf_counter()
        loss = torch.tensor(train.loss)
        tell(run, Moment(epoch, (epoch + 1) * steps, loss, state.model, state.history[-1]))
