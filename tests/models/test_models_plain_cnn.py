"""Myrtle CNN and Tiny10: shapes and counts by hand, and the published Tiny10 weights."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from coset.errors import InputError
from coset.models import MyrtleCNN, Tiny10, describe, example_input


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def _sizes(model: nn.Module, names: list[str]) -> list[tuple[int, ...]]:
    """The shapes, without batch, of the outputs of the named layers."""
    sizes: list[tuple[int, ...]] = []
    hooks = [
        model.get_submodule(name).register_forward_hook(lambda _m, _i, output: sizes.append(tuple(output.shape[1:])))
        for name in names
    ]
    model(example_input(model))
    for hook in hooks:
        hook.remove()
    return sizes


def test_myrtle_layers_with_batch_norm() -> None:
    model = MyrtleCNN()
    norms = {f"norm{i}.{name}": (c,) for i, c in enumerate((64, 128, 256, 512), 1) for name in ("weight", "bias")}
    assert _shapes(model) == {
        "conv1.weight": (64, 3, 3, 3),
        "conv2.weight": (128, 64, 3, 3),
        "conv3.weight": (256, 128, 3, 3),
        "conv4.weight": (512, 256, 3, 3),
        **norms,
        "fc.weight": (10, 512),
        "fc.bias": (10,),
    }
    # convolutions 9·(3·64 + 64·128 + 128·256 + 256·512), norms 2·(64 + 128 + 256 + 512), fc 512·10 + 10
    assert describe(model).parameters == 1_550_016 + 1_920 + 5_130 == 1_557_066


def test_myrtle_sizes_follow_the_pooling() -> None:
    names = ["activation1", "activation2", "pool2", "pool3", "pool4", "pool"]
    expected = [(4, 32, 32), (8, 32, 32), (8, 16, 16), (16, 8, 8), (32, 4, 4), (32, 1, 1)]
    assert _sizes(MyrtleCNN(width=4), names) == expected


def test_myrtle_without_norm_has_convolution_biases() -> None:
    model = MyrtleCNN(norm="none")
    assert _shapes(model)["conv3.bias"] == (256,)
    assert not any(name.startswith("norm") for name in model.state_dict())
    assert describe(model).parameters == 1_550_016 + (64 + 128 + 256 + 512) + 5_130 == 1_556_106


def test_myrtle_of_constant_width() -> None:
    model = MyrtleCNN(constant=True)
    assert [_shapes(model)[f"conv{i}.weight"][0] for i in (1, 2, 3, 4)] == [512] * 4
    # 9·3·512 + 3·9·512·512, norms 4·2·512, fc 5130
    assert describe(model).parameters == 13_824 + 7_077_888 + 4_096 + 5_130 == 7_100_938


@pytest.mark.parametrize("width", [1, 6])
def test_width_is_the_width_of_a_constant_myrtle(width: int) -> None:
    shapes = _shapes(MyrtleCNN(constant=True, width=width))
    assert [shapes[f"conv{i}.weight"] for i in (1, 2, 3, 4)] == [(width, 3, 3, 3), *[(width, width, 3, 3)] * 3]
    assert shapes["fc.weight"] == (10, width)


def test_myrtle_is_conv_norm_activation_pool() -> None:
    model = MyrtleCNN(width=2, activation="leaky_relu:0.3").double().eval()
    x = h = example_input(model)
    for index in (1, 2, 3, 4):
        conv, norm = model.get_submodule(f"conv{index}"), model.get_submodule(f"norm{index}")
        h = nn.functional.leaky_relu(norm(conv(h)), 0.3)
        h = h if index == 1 else nn.functional.max_pool2d(h, 2)
    torch.testing.assert_close(model(x), model.fc(h.amax((2, 3))))


def test_myrtle_keeps_a_shared_activation_at_every_place() -> None:
    shared = nn.Softplus()
    torch.manual_seed(0)
    one = MyrtleCNN(width=2, activation=lambda: shared).eval()
    torch.manual_seed(0)
    other = MyrtleCNN(width=2, activation="softplus").eval()
    x = example_input(one)
    assert torch.equal(one(x), other(x))


def test_myrtle_bad_options_are_named() -> None:
    with pytest.raises(InputError, match=r"width must be an integer of at least 1, found 0"):
        MyrtleCNN(width=0)
    with pytest.raises(InputError, match=r"constant must be True or False, found 'no'"):
        MyrtleCNN(constant="no")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"norm must be one of batch, frn, layer, none; found 'instance'"):
        MyrtleCNN(norm="instance")


def test_tiny10_layers() -> None:
    model = Tiny10()
    rows = {layer.name: layer.parameters for layer in describe(model).layers}
    # kernel² · in · out + out
    assert {name: count for name, count in rows.items() if not name.startswith("bn")} == {
        "conv1": 9 * 3 * 16 + 16,
        "conv2": 9 * 16 * 16 + 16,
        "conv3": 9 * 16 * 32 + 32,
        "conv4": 9 * 32 * 32 + 32,
        "conv5": 9 * 32 * 32 + 32,
        "conv6": 9 * 32 * 64 + 64,
        "conv7": 9 * 64 * 64 + 64,
        "conv8": 64 * 64 + 64,
        "fc": 64 * 10 + 10,
    }
    assert [rows[f"bn{i}"] for i in range(1, 9)] == [32, 32, 64, 64, 64, 128, 128, 128]
    assert describe(model).parameters == 86_778
    sides = [size[1] for size in _sizes(model, [f"conv{i}" for i in range(1, 9)])]
    assert sides == [30, 28, 13, 11, 9, 4, 2, 2]


@pytest.mark.parametrize(("seed", "right"), [(0, 873), (1, 877), (2, 871), (3, 869)])
def test_tiny10_runs_the_published_weights(seed: int, right: int, checkpoint_folder: Path, data_folder: Path) -> None:
    model = Tiny10()
    model.load_state_dict(load_file(checkpoint_folder / f"tiny10-seed{seed}.safetensors"), strict=True)
    slice_ = np.load(data_folder / "cifar10-slice.npz")
    mean = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
    deviation = torch.tensor([0.2023, 0.1994, 0.2010]).view(3, 1, 1)
    x = (torch.from_numpy(slice_["x_test"]) / 255 - mean) / deviation
    with torch.no_grad():
        found = model.eval()(x).argmax(1)
    correct = int((found == torch.from_numpy(slice_["y_test"])).sum())
    # Of 1,000 images; on all 10,000 of the test set these networks have 86.3 to 86.6 percent. Two images may turn on
    # rounding.
    assert abs(correct - right) <= 2
