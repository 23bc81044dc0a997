"""The recipe: its plain form, its strictness, the published ones."""

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from coset.errors import InputError
from coset.train import RECIPES, Recipe

PLAIN = Recipe(epochs=3, batch_size=4, learning_rate=0.1)


@pytest.mark.parametrize("name", RECIPES)
def test_published_recipes_survive_json(name: str) -> None:
    assert Recipe.from_dict(json.loads(json.dumps(RECIPES[name].to_dict()))) == RECIPES[name]


def test_plain_dict_has_every_setting_and_the_version() -> None:
    assert PLAIN.to_dict().keys() == {"version", *(field.name for field in fields(Recipe))}
    assert PLAIN.to_dict()["version"] == 1


def test_equal_recipes_have_one_text() -> None:
    whole = Recipe(epochs=3, batch_size=4, learning_rate=1, optimizer="adam", betas=[0, 0.5], clip=2)  # type: ignore[arg-type]
    real = Recipe(epochs=3, batch_size=4, learning_rate=1.0, optimizer="adam", betas=(0.0, 0.5), clip=2.0)
    assert whole == real
    assert json.dumps(whole.to_dict()) == json.dumps(real.to_dict())


def test_absent_settings_have_their_defaults() -> None:
    assert Recipe.from_dict({"version": 1, "epochs": 3, "batch_size": 4, "learning_rate": 0.1}) == PLAIN


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epoch": 3}, "unknown setting epoch"),
        ({"version": 2}, "version is 2, expected 1"),
        ({"version": None}, "version is None"),
    ],
)
def test_unknown_content_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Recipe.from_dict(PLAIN.to_dict() | change)


def test_missing_settings_are_named() -> None:
    with pytest.raises(InputError, match="epochs, learning_rate is missing"):
        Recipe.from_dict({"version": 1, "batch_size": 4})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "epochs is 0, expected a whole number of at least 1"),
        ({"epochs": -1}, "epochs is -1"),
        ({"epochs": 2.0}, "epochs is 2.0"),
        ({"epochs": True}, "epochs is True"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0, expected a number above 0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast'"),
        ({"optimizer": "lion"}, "optimizer is 'lion', expected one of sgd, adam, adamw"),
        (
            {"schedule": "sine"},
            "schedule is 'sine', expected one of constant, linear, cosine, step, triangular, one-cy",
        ),
        ({"loss": "hinge"}, "loss is 'hinge', expected one of cross-entropy, mse, binary-cross-entropy"),
        ({"augmentation": "flip"}, "augmentation is 'flip', expected one of none, shift, shift-flip"),
        ({"keep": "first"}, "keep is 'first', expected one of last, best"),
        ({"keep": ["best"]}, r"keep is \['best'\]"),
        ({"momentum": 1.0}, r"momentum is 1.0, expected a number in \[0, 1\)"),
        ({"weight_decay": -1e-4}, "weight_decay is -0.0001"),
        ({"betas": (0.9,)}, r"betas is \(0.9,\), expected two numbers"),
        ({"betas": (0.9, 1.0)}, "expected two numbers"),
        ({"nesterov": 1}, "nesterov is 1, expected True or False"),
        ({"nesterov": True}, "nesterov needs momentum"),
        ({"warmup_epochs": 3}, "warmup_epochs is 3, expected fewer than the 3 epochs"),
        ({"schedule": "step", "drops": 0}, "drops is 0"),
        ({"schedule": "step", "drop_factor": 1.0}, "drop_factor is 1.0"),
        ({"schedule": "triangular", "peak": 1.0}, "peak is 1.0"),
        ({"label_smoothing": 1.0}, "label_smoothing is 1.0"),
        ({"mixup": -0.1}, "mixup is -0.1"),
        ({"cutmix": float("inf")}, "cutmix is inf"),
        ({"augmentation": "shift", "shift": 0}, "shift is 0"),
        ({"clip": 0.0}, "clip is 0.0, expected a number above 0, or None"),
    ],
)
def test_bad_values_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(PLAIN, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"optimizer": "adam", "momentum": 0.9},
            "momentum has no effect with optimizer 'adam', expected optimizer 'sgd'",
        ),
        ({"betas": (0.5, 0.9)}, "betas has no effect with optimizer 'sgd'"),
        ({"drops": 2}, "drops has no effect with schedule 'constant'"),
        ({"drop_factor": 0.1}, "drop_factor has no effect"),
        ({"peak": 0.5}, "peak has no effect"),
        ({"schedule": "one-cycle", "warmup_epochs": 1}, "warmup_epochs has no effect with schedule 'one-cycle'"),
        ({"loss": "mse", "label_smoothing": 0.1}, "label_smoothing has no effect with loss 'mse'"),
        ({"shift": 3}, "shift has no effect with augmentation 'none'"),
    ],
)
def test_settings_without_effect_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(PLAIN, **change)


def test_published_numbers() -> None:
    cifar = RECIPES["godfrey-cifar"]
    assert (cifar.optimizer, cifar.epochs, cifar.batch_size, cifar.learning_rate) == ("adam", 50, 32, 1e-3)
    assert (cifar.schedule, cifar.drops, cifar.drop_factor, cifar.keep) == ("step", 4, 0.5, "best")
    assert (cifar.augmentation, cifar.shift) == ("shift-flip", 2)
    cct = RECIPES["godfrey-cct"]
    assert (cct.optimizer, cct.learning_rate, cct.weight_decay, cct.schedule) == ("adamw", 55e-5, 6e-2, "cosine")
    assert cct.mixup > 0
    assert cct.cutmix > 0
    imagenet = RECIPES["godfrey-imagenet"]
    assert (imagenet.epochs, imagenet.batch_size, imagenet.learning_rate) == (88, 512, 1.7)
    assert (imagenet.label_smoothing, imagenet.weight_decay, imagenet.schedule) == (0.1, 1e-4, "triangular")
