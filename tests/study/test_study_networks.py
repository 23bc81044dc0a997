"""Networks that studies share: one address, one training, and an interrupted training that goes on."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from coset.errors import InputError
from coset.models import build
from coset.store import Entry, Store
from coset.study import Context, networks
from coset.train import DivergenceError, Moment, Recipe, evaluate, fit

EPOCHS, STEPS = 5, 6 * 5  # 1438 images in batches of 256
RECIPE = Recipe(epochs=EPOCHS, batch_size=256, learning_rate=1e-2, optimizer="adam")
NETWORK: dict[str, Any] = {
    "model": "mlp",
    "options": {"in_features": 64, "widths": [8]},
    "data": "digits",
    "data_options": {"flatten": True},
    "recipe": RECIPE,
    "seed": 3,
}


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(0, torch.device("cpu"), Store(tmp_path / "store"))


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps that training took, each by its number; every epoch leaves a checkpoint."""
    steps: list[int] = []
    monkeypatch.setattr(networks, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(networks, "fit", _watched(lambda moment: steps.append(moment.step)))
    return steps


def _watched(each_step: Callable[[Moment], None]) -> Callable[..., Any]:
    def callback(moment: Moment) -> None:
        if moment.record is None:
            each_step(moment)

    return lambda *arguments, **settings: fit(*arguments, **settings, callback=callback)


def _bits(entry: Entry) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in entry.params.items()}


def _files(store: Store) -> list[str]:
    return sorted(path.name for path in store.root.rglob("*") if path.is_file())


def test_the_network_is_what_training_by_hand_gives(context: Context) -> None:
    entry = context.trained(**NETWORK)
    digits = context.data("digits", flatten=True)
    model = build("mlp", in_features=64, widths=[8], seed=3)
    result = fit(model, digits.train.x, digits.train.y, RECIPE, seed=3)
    assert _bits(entry) == {name: tensor.numpy().tobytes() for name, tensor in result.params.items()}
    for name, part in (("train", digits.train), ("test", digits.test)):
        metrics = evaluate(model, part.x, part.y, params=result.params)
        assert (entry.info[name]["loss"], entry.info[name]["count"]) == (metrics.loss, len(part))
    assert entry.info["test"]["accuracy"] > 0.5
    assert entry.info["steps"] == STEPS
    assert [epoch["train"]["loss"] for epoch in entry.info["history"]] == [e.train.loss for e in result.history]
    assert entry.config["fingerprint"] == digits.fingerprint
    assert entry.config["recipe"] == RECIPE.to_dict()
    assert (entry.config["kind"], entry.config["model"], entry.config["data"]) == ("network", "mlp", "digits")


def test_a_second_call_trains_nothing_and_studies_share_one_entry(context: Context, taken: list[int]) -> None:
    first = context.trained(**NETWORK)
    assert taken == list(range(1, STEPS + 1))
    # Another study: another seed of its own, and defaults named that the first left out.
    other = Context(7, torch.device("cpu"), context.store)
    options = {"widths": (8,), "in_features": 64, "activation": "relu", "out_features": 10}
    second = other.trained(**NETWORK | {"options": options, "data_options": {"flatten": True, "normalize": True}})
    assert len(taken) == STEPS
    assert (second.key, second.created) == (first.key, first.created)
    assert _files(context.store) == [f"{first.key}.safetensors"]


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 4},
        {"recipe": replace(RECIPE, learning_rate=2e-2)},
        {"options": {"in_features": 64, "widths": [9]}},
        {"options": {"in_features": 64, "widths": [8], "activation": "tanh"}},
        {"data_options": {"flatten": True, "seed": 1}},
        {"data_options": {"flatten": True, "normalize": False}},
    ],
)
def test_whatever_decides_the_weights_is_part_of_the_address(
    context: Context, taken: list[int], change: dict[str, Any]
) -> None:
    entries = [context.trained(**NETWORK), context.trained(**NETWORK | change)]
    assert entries[0].key != entries[1].key
    assert _bits(entries[0]) != _bits(entries[1])
    assert len(taken) == 2 * STEPS


def test_other_content_under_the_same_name_is_another_network(context: Context, taken: list[int]) -> None:
    first = context.trained(**NETWORK)
    changed = Context(0, context.device, context.store)
    digits = changed.data("digits", flatten=True)
    for key in changed._loaded:
        changed._loaded[key] = replace(digits, fingerprint="0" * 64)
    assert changed.trained(**NETWORK).key != first.key
    assert len(taken) == 2 * STEPS


def test_interrupted_training_goes_on_with_the_same_bits(
    context: Context, taken: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Context(0, torch.device("cpu"), Store(tmp_path / "whole")).trained(**NETWORK)
    taken.clear()
    watch = networks.fit

    def stop(moment: Moment) -> None:
        if moment.step == 20:  # in the fourth epoch of six steps each
            raise KeyboardInterrupt

    monkeypatch.setattr(networks, "fit", _watched(stop))
    with pytest.raises(KeyboardInterrupt):
        context.trained(**NETWORK)
    key = context.store.key(whole.config)
    assert _files(context.store) == [f".{key}.checkpoint"]
    assert context.store.prune().leftovers == ()
    monkeypatch.setattr(networks, "fit", watch)
    resumed = context.trained(**NETWORK)
    assert taken == list(range(19, STEPS + 1))
    assert _bits(resumed) == _bits(whole)
    assert resumed.info["train"] == whole.info["train"]
    assert len(resumed.info["history"]) == EPOCHS
    assert _files(context.store) == [f"{key}.safetensors"]


_KILLED = """
import os, signal, sys
import torch
from coset.store import Store
from coset.study import Context, networks
from coset.train import Recipe, fit
torch.set_num_threads(1)
def stop(moment):
    if moment.step == 20 and moment.record is None:
        os.kill(os.getpid(), signal.SIGKILL)
networks.CHECKPOINT_SECONDS = 0.0
networks.fit = lambda *arguments, **settings: fit(*arguments, **settings, callback=stop)
recipe = Recipe(epochs=5, batch_size=256, learning_rate=1e-2, optimizer="adam")
Context(0, torch.device("cpu"), Store(sys.argv[1])).trained(
    model="mlp", options={"in_features": 64, "widths": [8]}, data="digits", data_options={"flatten": True},
    recipe=recipe, seed=3,
)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_training_of_a_killed_process_goes_on_with_the_same_bits(
    context: Context, taken: list[int], tmp_path: Path
) -> None:
    whole = Context(0, torch.device("cpu"), Store(tmp_path / "whole")).trained(**NETWORK)
    taken.clear()
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, str(context.store.root)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = context.trained(**NETWORK)
    assert taken == list(range(19, STEPS + 1))
    assert _bits(resumed) == _bits(whole)
    assert _files(context.store) == [f"{resumed.key}.safetensors"]


def test_training_that_diverges_leaves_nothing(context: Context) -> None:
    wild = Recipe(epochs=3, batch_size=256, learning_rate=1e30)
    with pytest.raises(DivergenceError):
        context.trained(**NETWORK | {"recipe": wild})
    assert _files(context.store) == []


def test_data_without_a_test_part_have_no_test_metrics(context: Context, data_folder: Path) -> None:
    recipe = Recipe(epochs=1, batch_size=50, learning_rate=1e-3, optimizer="adam", loss="mse")
    options = {"in_features": 1, "widths": [4], "out_features": 1}
    entry = context.trained(model="mlp", options=options, data="snelson", recipe=recipe, seed=0)
    assert entry.info["test"] is None
    assert entry.info["train"]["rmse"] > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "nets.py:make"}, "model is 'nets.py:make'; expected one of mlp, "),
        ({"options": {"depht": 3}}, "model 'mlp': got an unexpected keyword argument 'depht'"),
        ({"options": {"activation": torch.nn.ReLU}}, r"config\['options'\]\['activation'\] is a type"),
        ({"data": "digit"}, "dataset is 'digit'; expected one of"),
        ({"recipe": RECIPE.to_dict()}, "recipe is a dict, expected a coset.train.Recipe"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_input_is_refused_and_leaves_nothing(context: Context, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        context.trained(**NETWORK | change)
    assert _files(context.store) == []


def test_a_run_reads_a_dataset_once(context: Context) -> None:
    assert context.data("digits", flatten=True) is context.data("digits", flatten=True)
    assert context.data("digits").shape == (1, 8, 8)
