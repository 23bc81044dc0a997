"""Everything that fit refuses, each with one clear sentence."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coset.errors import InputError
from coset.train import DivergenceError, Moment, Recipe, fit

PLAIN = Recipe(epochs=2, batch_size=4, learning_rate=0.1)
X, Y = torch.randn(9, 5, generator=torch.Generator().manual_seed(0)), torch.arange(9) % 3
IMAGES = torch.zeros(9, 1, 4, 4)
MSE = {"recipe": replace(PLAIN, loss="mse")}
BINARY = {"recipe": replace(PLAIN, loss="binary-cross-entropy")}


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(5, 3)


class Returns(nn.Module):
    """A model that returns something of its own."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.answer = answer

    def forward(self, x: Tensor) -> Any:
        return self.answer


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": X[:8]}, "^x has 8 examples and y has 9, expected as many of both"),
        ({"x": X[:0], "y": Y[:0]}, r"^x has shape \(0, 5\), expected at least one example"),
        ({"x": X.tolist()}, r"^x is a list, expected a torch\.Tensor"),
        ({"y": torch.tensor(1)}, r"^y has shape \(\), expected at least one example"),
        ({"x": X / 0}, "^x has values that are not finite"),
        ({"y": Y + 1}, "^y has labels from 1 to 3, the model's 3 outputs allow 0 to 2"),
        ({"y": Y - 1}, "^y has labels from -1 to 1"),
        ({"y": Y.float()}, r"^y has shape \(9,\) and type torch.float32, cross-entropy expects integer labels"),
        ({"y": Y[:, None]}, r"^y has shape \(9, 1\) and type torch.int64"),
        ({"x": X[:, :4]}, r"^x: the model cannot take inputs of shape \(examples, 4\) and type torch.float32: mat1"),
        ({"x": X.double()}, r"^x: the model cannot take inputs of shape \(examples, 5\) and type torch.float64"),
        ({"seed": -1}, "^seed is -1, expected a whole number of at least 0"),
        ({"seed": 0.5}, "^seed is 0.5"),
        ({"checkpoint_seconds": -1.0}, "^checkpoint_seconds is -1.0, expected a number of at least 0"),
        ({"checkpoint_seconds": float("nan")}, "^checkpoint_seconds is nan"),
        ({"device": "abacus"}, "^device is 'abacus', expected one that this machine has"),
        ({"channels_last": "no"}, "^channels_last is 'no', expected True or False"),
        ({"validation": X}, "^validation is a Tensor, expected a pair of inputs and targets"),
        ({"validation": (X,)}, "^validation is a tuple, expected a pair of inputs and targets"),
        ({"channels_last": True}, "^x has shape .* channels_last expects real images"),
        (
            {"recipe": replace(PLAIN, keep="best")},
            "^validation is None, the recipe's keep='best' expects validation data",
        ),
        ({"validation": (X[:2], Y[:3])}, "^validation x has 2 examples and validation y has 3"),
        ({"validation": (X[:2], Y[:2] + 2)}, "^validation y has labels from 2 to 3"),
        ({"validation": (X[:2, :1], Y[:2])}, "^validation x: the model cannot take inputs"),
        ({**MSE, "y": X[:, 0]}, r"^y has shape \(9,\), expected one value for each of the model's outputs, \(9, 3\)"),
        ({**MSE, "y": X[:, :1]}, r"^y has shape \(9, 1\), expected .* \(9, 3\)"),
        ({**MSE, "y": X[:, :3].double()}, "^y has type torch.float64, the model's outputs have type torch.float32"),
        ({**MSE, "y": X[:, :3] / 0}, "^y has values that are not finite"),
        ({**BINARY, "y": Y}, r"^y has shape \(9,\), expected one value for each of the model's outputs"),
        ({**BINARY, "y": X[:, :3]}, "^y has values other than 0 and 1"),
        ({"recipe": replace(PLAIN, augmentation="shift")}, "^x has shape .* augmentation 'shift' expects real images"),
        ({"recipe": replace(PLAIN, cutmix=1.0)}, "^x has shape .* cutmix expects real images"),
        (
            {"recipe": replace(PLAIN, augmentation="shift-flip", shift=4), "x": IMAGES},
            "^x has images of 4 × 4 pixels, augmentation 'shift-flip' expects more than 4",
        ),
        ({"recipe": replace(PLAIN, mixup=1.0), "x": Y[:, None]}, "^x has type torch.int64, mixup expects real numbers"),
        ({"model": nn.ReLU()}, "^model has no parameters, expected a network that can be trained"),
        ({"model": linear().requires_grad_(False)}, "^model has no parameter that requires gradients"),
        ({"model": Returns(None)}, "^model: for 2 examples its output has type NoneType"),
        ({"model": Returns(torch.zeros(5, 3))}, r"^model: for 2 examples its output has shape \(5, 3\)"),
        (
            {"model": Returns(torch.zeros(2, 3, 4))},
            r"^y has shape \(9,\) and type torch.int64, cross-entropy expects integer labels of shape \(examples, 3\)",
        ),
        (
            {"model": Returns(torch.zeros(2))},
            r"^model: its outputs have shape \(2,\), cross-entropy expects \(examples, …, classes\)",
        ),
    ],
)
def test_bad_input_is_refused(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"model": linear(), "x": X, "y": Y, "recipe": PLAIN, "seed": 0} | change
    with pytest.raises(InputError, match=message):
        fit(**arguments)


def test_a_state_that_is_no_tensor_is_refused() -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> Any:
            return {"a": 1}

        def set_extra_state(self, state: Any) -> None:
            return

    with pytest.raises(InputError, match="model: _extra_state of its state_dict is a dict, expected tensors only"):
        fit(Extra(5, 3), X, Y, PLAIN, seed=0)


@pytest.mark.parametrize(("batch_size", "count"), [(4, 9), (1, 9), (8, 1)])
def test_a_lone_example_is_refused_where_batch_normalisation_cannot_take_it(batch_size: int, count: int) -> None:
    model = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))
    with pytest.raises(InputError, match=f"batch_size {batch_size} leaves a batch of 1 of the {count} examples"):
        fit(model, X[:count], Y[:count], replace(PLAIN, batch_size=batch_size), seed=0)


def test_a_lone_example_is_enough_for_frozen_batch_normalisation() -> None:
    model = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))
    model[1].eval()
    assert fit(model, X, Y, PLAIN, seed=0).steps == 6


@pytest.mark.parametrize(
    "path",
    [
        "{file}/run.safetensors",
        "{file}/deeper/run.safetensors",
        "{folder}/" + "n" * 300,
        "{folder}/a\0b",
        "/proc/no/run",
    ],
)
def test_a_checkpoint_that_cannot_be_written_is_refused_before_training(path: str, tmp_path: Path) -> None:
    if path.startswith("/proc") and not Path("/proc/self").exists():
        pytest.skip("there is no /proc here, a folder that takes no files")
    (tmp_path / "file").touch()
    place = path.format(file=tmp_path / "file", folder=tmp_path)
    moments: list[Moment] = []
    with pytest.raises(InputError, match=f"^checkpoint {re.escape(place)} cannot be written: "):
        fit(linear(), X, Y, PLAIN, seed=0, checkpoint=place, callback=moments.append)
    assert moments == []
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_lone_image_is_enough_for_batch_normalisation() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    assert fit(model, IMAGES, Y, PLAIN, seed=0).steps == 6


def test_divergence_names_epoch_and_step() -> None:
    x = X.clone()
    recipe = replace(PLAIN, loss="mse", learning_rate=1e20)
    with pytest.raises(DivergenceError, match=r"the loss is (inf|nan) in epoch 1, step \d, .*lower learning_rate"):
        fit(linear(), x, x[:, :3], recipe, seed=0)


def test_the_first_bad_step_is_the_one_named() -> None:
    class BreaksAt(nn.Linear):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.calls += 1
            return super().forward(x) * (float("nan") if self.calls >= 5 else 1.0)

    with pytest.raises(DivergenceError, match="the loss is nan in epoch 2, step 2"):
        fit(BreaksAt(5, 3), X, Y, PLAIN, seed=0)


def test_weights_that_break_after_the_last_loss_are_noticed() -> None:
    class BadGradient(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5, 3)
            self.odd = nn.Parameter(torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            # √0 · 0: the value is 0, its derivative is not a number.
            outputs: Tensor = self.linear(x) + 0 * self.odd.sqrt()
            return outputs

    with pytest.raises(DivergenceError, match="parameter odd is no longer finite at the end of epoch 1"):
        fit(BadGradient(), X, Y, replace(PLAIN, batch_size=9), seed=0)


def test_an_infinite_validation_loss_is_noticed() -> None:
    far = torch.full((3, 5), 1e38)
    recipe = replace(PLAIN, loss="mse")
    with pytest.raises(DivergenceError, match="the validation loss is inf after epoch 1"):
        fit(linear(), X, X[:, :3], recipe, seed=0, validation=(far, far[:, :3]))
