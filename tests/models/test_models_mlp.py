"""Multilayer perceptrons: shapes and counts by hand, outputs by formula."""

import pytest
import torch
from torch import nn

from coset.errors import InputError
from coset.models import MLP, ResidualMLP, describe, example_input


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def test_default_is_the_mnist_network_of_rossi_et_al() -> None:
    model = MLP()
    assert _shapes(model) == {
        "layers.0.weight": (512, 784),
        "layers.0.bias": (512,),
        "layers.1.weight": (512, 512),
        "layers.1.bias": (512,),
        "layers.2.weight": (512, 512),
        "layers.2.bias": (512,),
        "layers.3.weight": (10, 512),
        "layers.3.bias": (10,),
    }
    # 784·512 + 512 + 2·(512·512 + 512) + 512·10 + 10
    assert describe(model).parameters == 401_920 + 2 * 262_656 + 5_130 == 932_362


def test_depth_and_width_are_widths() -> None:
    assert _shapes(MLP(5, depth=2, width=7, out_features=3)) == _shapes(MLP(5, (7, 7), 3))
    assert (
        _shapes(MLP(5, (), 3))
        == _shapes(MLP(5, depth=0, out_features=3))
        == {
            "layers.0.weight": (3, 5),
            "layers.0.bias": (3,),
        }
    )


def test_norm_and_bias_options() -> None:
    assert list(_shapes(MLP(5, (4,), 2, bias=False, norm="batch"))) == [
        "layers.0.weight",
        "layers.1.weight",
        "norms.0.weight",
        "norms.0.bias",
    ]


def test_output_is_the_formula_on_flattened_input() -> None:
    model = MLP(6, (5, 4), 3, activation="tanh", norm="layer").double()
    x = torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    h = x.reshape(2, 6)
    for layer, norm in zip(model.layers, model.norms, strict=False):
        h = torch.tanh(norm(h @ layer.weight.T + layer.bias))
    torch.testing.assert_close(model(x), h @ model.layers[2].weight.T + model.layers[2].bias)


def test_residual_adds_every_hidden_layer_but_the_first() -> None:
    model = MLP(6, (5, 5, 5), 3, residual=True).double()
    x = example_input(model)
    first, second, third, last = model.layers
    h = torch.relu(first(x))
    h = h + torch.relu(second(h))
    h = h + torch.relu(third(h))
    torch.testing.assert_close(model(x), last(h))


def test_residual_mlp_has_two_layer_blocks() -> None:
    model = ResidualMLP(6, 3, blocks=2)
    assert _shapes(model)["blocks.1.expand.weight"] == (50, 30)
    assert _shapes(model)["blocks.1.contract.weight"] == (30, 50)
    # stem 6·30 + 30, two blocks of 30·50 + 50 + 50·30 + 30, fc 30·3 + 3
    assert describe(model).parameters == 210 + 2 * 3_080 + 93
    x = example_input(model)
    h = model.stem(x)
    for block in model.blocks:
        h = h + block.contract(torch.relu(block.expand(h)))
    torch.testing.assert_close(model(x), model.fc(h))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"widths": (3, 0)}, r"widths\[1\] must be an integer of at least 1, found 0"),
        ({"widths": 3}, r"widths must be a sequence of integers, found 3"),
        ({"widths": (3,), "depth": 2}, r"give either widths or depth and width"),
        ({"width": -1}, r"width must be an integer of at least 1, found -1"),
        ({"depth": 1.5}, r"depth must be an integer of at least 0, found 1.5"),
        ({"in_features": True}, r"in_features must be an integer of at least 1, found True"),
        ({"norm": "frn"}, r"norm must be one of batch, layer, none; found 'frn'"),
        ({"activation": "rleu"}, r"activation must be one of"),
        ({"widths": (3, 4), "residual": True}, r"residual=True needs .* equal width, found widths \(3, 4\)"),
        ({"depth": 0, "residual": True}, r"residual=True needs one or more hidden layers"),
        ({"residual": "no"}, r"residual must be True or False, found 'no'"),
        ({"bias": 0}, r"bias must be True or False, found 0"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        MLP(**options)


def test_bad_options_of_the_residual_mlp_are_named() -> None:
    with pytest.raises(InputError, match=r"bias must be True or False, found 'no'"):
        ResidualMLP(bias="no")  # type: ignore[arg-type]
