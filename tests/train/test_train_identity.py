"""A checkpoint knows its model by what it computes, even where names, shapes and initial weights are the same."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coset.errors import InputError
from coset.models import build
from coset.train import Moment, Recipe, fit
from coset.train._checkpoint import Identity, differences

RECIPE = Recipe(epochs=3, batch_size=8, learning_rate=0.05)
GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(24, 6, generator=GENERATOR), torch.arange(24) % 3
IMAGES = torch.randn(24, 3, 12, 12, generator=GENERATOR)


class Scaled(nn.Module):
    """A linear map times a number that is in no state_dict and no repr: an attribute, or a buffer of its own."""

    def __init__(self, scale: float, buffer: bool = False, used: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 3)
        self.used = used
        self.scale: Any
        if buffer:
            self.register_buffer("scale", torch.tensor(scale), persistent=False)
        else:
            self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y * self.scale if self.used else y


def interrupt(moment: Moment) -> None:
    if moment.record is not None:
        raise KeyboardInterrupt


def start(model: nn.Module, path: Path, x: Tensor = X) -> None:
    with pytest.raises(KeyboardInterrupt):
        fit(model, x, Y, RECIPE, seed=0, checkpoint=path, callback=interrupt)


def test_another_function_of_the_same_weights_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    start(Scaled(1.0), path)
    message = (
        r"another run: the outputs of the untrained model for the first 2 examples differ by up to \d\.\de-0\d, more"
    )
    with pytest.raises(InputError, match=message):
        fit(Scaled(1.001), X, Y, RECIPE, seed=0, checkpoint=path)
    assert fit(Scaled(1.0), X, Y, RECIPE, seed=0, checkpoint=path).steps == 9


def test_another_buffer_outside_the_state_dict_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    start(Scaled(1.0, buffer=True, used=False), path)
    with pytest.raises(InputError, match="belongs to another run: model initial weights is"):
        fit(Scaled(2.0, buffer=True, used=False), X, Y, RECIPE, seed=0, checkpoint=path)


MLP = {"in_features": 6, "widths": (5, 5), "out_features": 3}
CCT = {"dim": 8, "depth": 1, "heads": 2, "image_size": 12, "classes": 3}


@pytest.mark.parametrize(
    ("name", "options", "change"),
    [
        ("mlp", MLP, {"residual": True}),
        ("cct", CCT, {"heads": 4}),
        ("cct", CCT, {"renormalize_stream": True}),
    ],
)
def test_options_that_change_no_weight_are_told_apart(
    name: str, options: dict[str, Any], change: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "run.safetensors"
    x = X if name == "mlp" else IMAGES
    start(build(name, seed=0, **options), path, x)
    with pytest.raises(InputError, match=r"belongs to another run: .*model structure is"):
        fit(build(name, seed=0, **options | change), x, Y, RECIPE, seed=0, checkpoint=path)


def test_other_frozen_modules_are_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    path = tmp_path / "run.safetensors"
    start(model, path)
    model[1].eval()
    with pytest.raises(InputError, match=r"model modules in evaluation mode is \[\] there and \['1'\] here"):
        fit(model, X, Y, RECIPE, seed=0, checkpoint=path)


def test_a_model_that_always_draws_can_be_resumed(tmp_path: Path) -> None:
    class Noisy(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + torch.randn_like(x))

    path = tmp_path / "run.safetensors"
    start(Noisy(1.0), path)
    torch.rand(5)
    resumed = fit(Noisy(1.0), X, Y, RECIPE, seed=0, checkpoint=path).params
    whole = fit(Noisy(1.0), X, Y, RECIPE, seed=0).params
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_outputs_are_equal_up_to_rounding_of_the_largest(dtype: torch.dtype) -> None:
    outputs = torch.tensor([[1e-6, 1000.0]], dtype=torch.float64)
    eps = torch.finfo(dtype).eps
    for change, expected in ((50, 0), (200, 1)):
        # Compared with the same values in double precision, which the types at hand need not have.
        moved = Identity({}, outputs + torch.tensor([[change * eps * 1000, 0.0]]))
        assert len(differences(moved, Identity({}, outputs.to(dtype)))) == expected


def test_outputs_that_are_not_finite_equal_themselves_only() -> None:
    odd = Identity({}, torch.tensor([float("nan"), float("inf"), 1.0]))
    assert differences(odd, odd) == []
    assert len(differences(Identity({}, torch.tensor([float("nan"), float("inf"), 2.0])), odd)) == 1
