"""Training a network from tensors in memory."""

import copy
import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from coset._checks import check_count, is_count
from coset._files.sealed import check_writable
from coset._show.progress import Ticker, progress
from coset.callbacks import check_callback
from coset.errors import InputError
from coset.train._checkpoint import Identity, State, identify, load_checkpoint, save_checkpoint, snapshot
from coset.train._recipe import Recipe
from coset.train._result import Callback, Epoch, Moment, TrainResult
from coset.train.check import (
    check_images,
    check_last_batch,
    check_pair,
    check_recipe,
    model_device,
    probe,
    usable_device,
)
from coset.train.loop import Run, tell, train_epoch, validate
from coset.train.loss import LOSSES
from coset.train.modes import still_modules
from coset.train.optimizer import make_optimizer
from coset.train.randomness import own_global_state, seed_global_state, stream_seed
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
    patience: int | None = None,
    device: torch.device | str | None = None,
    channels_last: bool = False,
    show: bool | None = None,
    callback: Callback | None = None,
) -> TrainResult:
    """Train a copy of ``model`` on inputs x (N, …) and targets y (N,) or (N, …); the model itself stays as it is.

    The order of the examples, augmentation, mixing and dropout follow from ``seed`` alone: on one machine the same call
    gives the same bits (on an accelerator, if its kernels are deterministic). torch's global generators are left alone.
    Parameters that do not require gradients stay fixed, and in a model in training mode the modules that are in
    evaluation mode stay in it, frozen batch normalisation say; a model in evaluation mode trains as a whole.

    With ``checkpoint`` the state is written there at the end of an epoch, at least ``checkpoint_seconds`` after the
    last time, and always after the last epoch. The same call continues from an existing checkpoint, with the same bits
    as a run that was never interrupted; a checkpoint of another run is refused. The file stays when training ends, so
    that the same call returns at once; it is the caller's to remove. Only tensors are saved, parameters and buffers: a
    model whose ``forward`` counts or remembers in plain Python attributes starts with fresh ones when it is resumed.

    ``patience``: the run ends early once so many epochs in a row were not better on the validation data than the best.
    ``device``: where to train, by default where the model is. ``channels_last`` keeps filters and feature maps
    with the channels innermost, which shortens steps of convolutional networks by about a fifth on a CPU, and needs a
    model that never calls ``view`` on feature maps. ``show``: a progress bar, by default on a terminal. ``callback`` is
    called after every step and every epoch; if it returns True the run ends with that epoch, and the same call goes on
    from its checkpoint; what it raises ends the run at once.
    """
    if not is_count(seed, 0):
        raise InputError(f"seed is {seed!r}, expected a whole number of at least 0")
    if not checkpoint_seconds >= 0:
        raise InputError(f"checkpoint_seconds is {checkpoint_seconds!r}, expected a number of at least 0")
    if not isinstance(channels_last, bool):
        raise InputError(f"channels_last is {channels_last!r}, expected True or False")
    check_callback(callback)
    if patience is not None:
        check_count("patience", patience)
        if validation is None:
            raise InputError(f"patience is {patience} and validation is None; expected validation data")
    data = _data(x, y, validation)
    if channels_last:
        check_images(x, "channels_last", 0)
    place = model_device(model) if device is None else usable_device(device)
    with own_global_state(place), torch.enable_grad():
        trained = copy.deepcopy(model).to(place)
        if channels_last:
            trained = trained.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        run, held_out, outputs = _check(trained, data, recipe, seed, place, callback)
        state = State(trained, make_optimizer([p for p in trained.parameters() if p.requires_grad], recipe))
        save_to = None
        if checkpoint is not None:
            path = Path(checkpoint)
            save_to = (
                path,
                identify(
                    trained,
                    outputs,
                    data,
                    recipe,
                    seed=seed,
                    channels_last=channels_last,
                    still=run.still,
                    patience=patience,
                ),
            )
            # Not Path.exists, which raises for paths that cannot be.
            if os.path.exists(path):  # noqa: PTH110
                load_checkpoint(*save_to, state)
            if len(state.history) < recipe.epochs:
                check_writable(path)
        with progress("training", recipe.epochs * run.steps_per_epoch, show=show) as bar:
            bar.advance(len(state.history) * run.steps_per_epoch)
            _train(run, state, held_out, save_to, checkpoint_seconds, patience, bar)
    params = snapshot(state.model) if state.best is None else state.best
    return TrainResult(params, tuple(state.history), state.best_epoch, len(state.history) * run.steps_per_epoch)


def _data(x: Tensor, y: Tensor, validation: tuple[Tensor, Tensor] | None) -> dict[str, Tensor]:
    """The data by name, without the gradients the caller may want of them."""
    check_pair(x, y, "x", "y")
    data = {"x": x, "y": y}
    if validation is not None:
        if not isinstance(validation, tuple | list) or len(validation) != 2:
            raise InputError(f"validation is a {type(validation).__name__}, expected a pair of inputs and targets")
        check_pair(*validation, "validation x", "validation y")
        data |= dict(zip(("validation x", "validation y"), validation, strict=True))
    return {name: tensor.detach() for name, tensor in data.items()}


def _check(
    model: nn.Module,
    data: dict[str, Tensor],
    recipe: Recipe,
    seed: int,
    device: torch.device,
    callback: Callback | None,
) -> tuple[Run, tuple[Tensor, Tensor] | None, Tensor]:
    """Refuse what cannot be trained; the run, the validation data on the device, the model's outputs for x[:2]."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError("model has no parameter that requires gradients, expected at least one to train")
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise InputError(f"model: {name} of its state_dict is a {type(value).__name__}, expected tensors only")
    x, y = data["x"].to(device), data["y"].to(device)
    check_recipe(recipe, x, validated="validation x" in data)
    fit_targets = LOSSES[recipe.loss].fit_targets
    still = still_modules(model)
    model.eval()
    # The outputs identify the model: one that always draws must draw the same when it is resumed.
    seed_global_state(stream_seed("probe", seed, 0), device)
    outputs = probe(model, x[:2], "x")
    run = Run(x, fit_targets(y, outputs, "y"), recipe, seed, device, still, callback)
    check_last_batch(model, x, recipe.batch_size, still)
    if "validation x" not in data:
        return run, None, outputs
    inputs, targets = data["validation x"].to(device), data["validation y"].to(device)
    targets = fit_targets(targets, probe(model, inputs[:2], "validation x"), "validation y")
    return run, (inputs, targets), outputs


def _train(
    run: Run,
    state: State,
    held_out: tuple[Tensor, Tensor] | None,
    save_to: tuple[Path, Identity] | None,
    checkpoint_seconds: float,
    patience: int | None,
    bar: Ticker,
) -> None:
    """The epochs that are left: train, validate, remember the best, write the checkpoint, tell the callback."""
    recipe, steps = run.recipe, run.steps_per_epoch
    written = time.perf_counter()
    for epoch in range(len(state.history), recipe.epochs):
        if _exhausted(state, patience):
            return
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
        last = epoch == recipe.epochs - 1 or _exhausted(state, patience)
        due = last or time.perf_counter() - written >= checkpoint_seconds
        if save_to is not None and due:
            save_checkpoint(*save_to, state)
            written = time.perf_counter()
        loss = torch.tensor(train.loss, device="cpu")
        tell(run, state, Moment(epoch, (epoch + 1) * steps, loss, state.model, state.history[-1]))
        if state.ended:
            if save_to is not None and not due:
                save_checkpoint(*save_to, state)
            return


def _exhausted(state: State, patience: int | None) -> bool:
    """Whether the best epoch lies so far back that the run is to end."""
    if patience is None or state.best_epoch is None:
        return False
    return len(state.history) - 1 - state.best_epoch >= patience
