"""Trained networks that studies share: one address for model, data, recipe and seed, and training that resumes."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch

from coset._checks import check_choice
from coset.data import Dataset, Split
from coset.errors import InputError
from coset.models import MODELS, build
from coset.store import Entry, Store
from coset.train import DivergenceError, Metrics, Recipe, evaluate, fit

Made = tuple[Mapping[str, torch.Tensor], Mapping[str, object]]
"""Tensors to store, and what is noted beside them."""

SCHEMA = 1
"""Version of the configuration and of what it stands for: to be raised where the same one comes to train otherwise."""

CHECKPOINT_SECONDS = 0.5
"""The least time between two checkpoints: epochs of small networks are shorter than the writing of one."""


def network_config(
    model: str, options: Mapping[str, Any], dataset: Dataset, recipe: Recipe, seed: int
) -> dict[str, object]:
    """What a trained network is stored under: all that decides its weights, apart from machine and software.

    Options that are left at their defaults are written out, so that it does not matter whether a study names them.
    """
    # A user's own factory may change under its name, and two of them may share it.
    check_choice("model", model, MODELS)
    if not isinstance(recipe, Recipe):
        raise InputError(f"recipe is a {type(recipe).__qualname__}, expected a coset.train.Recipe")
    return {
        "kind": "network",
        "schema": SCHEMA,
        "model": model,
        "options": all_options(model, options),
        "data": dataset.name,
        "fingerprint": dataset.fingerprint,
        "recipe": recipe.to_dict(),
        "seed": seed,
    }


def trained_network(
    store: Store,
    dataset: Dataset,
    *,
    model: str,
    options: Mapping[str, Any],
    recipe: Recipe,
    seed: int,
    device: torch.device,
    show: bool | None,
) -> Entry:
    """The network of that configuration from the store, trained if it is not there.

    Initial weights and training follow from ``seed``. At the end of an epoch the state is written to the store's
    checkpoint, from which the next one to ask goes on if this one is stopped. ``info`` of the entry holds the metrics
    on the train and test part, the steps, and the history.
    """

    def make(**keep: Any) -> Made:
        network, train = build(model, seed=seed, **options), dataset.train
        result = fit(network, train.x, train.y, recipe, seed=seed, device=device, show=show, **keep)

        def measure(part: Split) -> Metrics:
            return evaluate(network, part.x, part.y, params=result.params, loss=recipe.loss)

        return result.params, {
            "train": asdict(measure(dataset.train)),
            "test": asdict(measure(dataset.test)) if len(dataset.test) else None,
            "steps": result.steps,
            "history": [asdict(epoch) for epoch in result.history],
        }

    return resumed(store, network_config(model, options, dataset, recipe, seed), make)


def resumed(store: Store, config: Mapping[str, object], make: Callable[..., Made]) -> Entry:
    """The entry of ``config``, found or made; ``make`` takes by name where it keeps a checkpoint, and how often."""
    checkpoint = store.checkpoint(config)

    def kept() -> Made:
        try:
            return make(checkpoint=checkpoint, checkpoint_seconds=CHECKPOINT_SECONDS)
        except DivergenceError:
            # To go on from there would only diverge again.
            checkpoint.unlink(missing_ok=True)
            raise

    return store.get_or_make(config, kept)


def all_options(model: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """``options`` with the defaults of those that are not given."""
    try:
        arguments = inspect.signature(MODELS[model].make).bind(**options)
    except TypeError as error:
        raise InputError(f"model {model!r}: {error}") from error
    arguments.apply_defaults()
    return dict(arguments.arguments)
