"""Residual networks: shapes and counts by hand, blocks by formula."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from coset.errors import InputError
from coset.models import BasicBlock, ResNet, ResNet18, ResNet20, ThresholdedLinear, describe, example_input


def _count(model: nn.Module) -> int:
    return describe(model).parameters


def _stages(first: int, widths: tuple[int, ...], blocks: int, per_norm: int) -> int:
    """Parameters of the stages by hand: convolutions, shortcuts and ``per_norm`` numbers per normalised channel."""
    total, before = 0, first
    for after in widths:
        total += 9 * before * after + (2 * blocks - 1) * 9 * after * after + 2 * blocks * per_norm * after
        total += before * after + per_norm * after if before != after else 0
        before = after
    return total


def test_resnet20_counts_by_stage() -> None:
    rows = describe(ResNet20()).layers
    parts = ("stem", "stages.0", "stages.1", "stages.2", "fc")
    by_part = {part: sum(row.parameters for row in rows if row.name.startswith(part)) for part in parts}
    assert by_part == {
        "stem": 9 * 3 * 16 + 2 * 16,
        "stages.0": 6 * 2_304 + 6 * 32,
        "stages.1": 4_608 + 5 * 9_216 + 6 * 64 + (512 + 64),
        "stages.2": 18_432 + 5 * 36_864 + 6 * 128 + (2_048 + 128),
        "fc": 650,
    }
    assert _count(ResNet20()) == 272_474


def test_resnet20_names_and_shapes_of_a_widening_block() -> None:
    state = ResNet20().state_dict()
    prefix = "stages.1.0."
    learned = {
        name.removeprefix(prefix): tuple(t.shape)
        for name, t in state.items()
        if name.startswith(prefix) and name.endswith(("weight", "bias"))
    }
    assert learned == {
        "conv1.weight": (32, 16, 3, 3),
        "norm1.weight": (32,),
        "norm1.bias": (32,),
        "conv2.weight": (32, 32, 3, 3),
        "norm2.weight": (32,),
        "norm2.bias": (32,),
        "shortcut.conv.weight": (32, 16, 1, 1),
        "shortcut.norm.weight": (32,),
        "shortcut.norm.bias": (32,),
    }
    assert [name for name in state if "shortcut.conv" in name] == [
        "stages.1.0.shortcut.conv.weight",
        "stages.2.0.shortcut.conv.weight",
    ]


@pytest.mark.parametrize("width", [1, 2, 4])
def test_width_scales_every_channel(width: int) -> None:
    model = ResNet20(width=width)
    assert model.get_parameter("stem.conv.weight").shape == (16 * width, 3, 3, 3)
    assert model.get_parameter("stages.2.2.conv2.weight").shape == (64 * width, 64 * width, 3, 3)
    widths = (16 * width, 32 * width, 64 * width)
    stem, fc = (27 + 2) * 16 * width, 64 * width * 10 + 10
    assert _count(model) == stem + _stages(16 * width, widths, blocks=3, per_norm=2) + fc


def test_fractional_width() -> None:
    assert ResNet20(width=0.5).get_parameter("stem.conv.weight").shape[0] == 8


def test_resnet18_of_three_and_of_four_stages() -> None:
    # 27·64 + 128, 2·(2·36864 + 256), ..., 256·10 + 10
    assert _count(ResNet18()) == 1_856 + 147_968 + 525_568 + 2_099_712 + 2_570 == 2_777_674
    # The usual CIFAR ResNet18, 11.17 million.
    assert _count(ResNet18(stages=(64, 128, 256, 512))) == 11_173_962


def test_named_networks_are_functions_with_the_options_that_make_sense() -> None:
    assert isinstance(ResNet20(), ResNet)
    assert isinstance(ResNet18(stages=(4,)), ResNet)
    for make, options in ((ResNet20, {"stages": (4,)}), (ResNet20, {"blocks": 1}), (ResNet18, {"blocks": 1})):
        with pytest.raises(TypeError, match=rf"{make.__name__}\(\) got an unexpected keyword argument"):
            make(**options)
    for make in (ResNet20, ResNet18):
        with pytest.raises(TypeError, match=rf"{make.__name__}\(\) takes 0 positional arguments but 1 was given"):
            make((16, 32))


def test_options_of_the_named_networks_reach_the_network() -> None:
    options = {
        "width": 0.25,
        "norm": "none",
        "activation": "tanh",
        "final_activation": False,
        "in_channels": 2,
        "classes": 3,
    }
    assert repr(ResNet20(**options)) == repr(ResNet((16, 32, 64), 3, **options))
    assert repr(ResNet18(**options)) == repr(ResNet((64, 128, 256), 2, **options))
    assert repr(ResNet18(stages=(8, 16), **options)) == repr(ResNet((8, 16), 2, **options))


def test_parameters_of_each_norm() -> None:
    convolutions = 272_474 - 2 * 784  # 784 channels are normalised in all
    assert 16 * 7 + 32 * 7 + 64 * 7 == 784
    assert _count(ResNet20(norm="layer")) == 272_474
    # One bias per channel of every convolution.
    assert _count(ResNet20(norm="none")) == convolutions + 784
    # γ and β per channel; one τ per channel after the stem and after both convolutions of every block.
    assert _count(ResNet20(norm="frn")) == 272_474 + 16 + 6 * (16 + 32 + 64)
    assert _count(ResNet20(norm="frn", final_activation=False)) == 272_474 + 16 + 3 * (16 + 32 + 64)


def test_only_networks_without_norm_have_convolution_biases() -> None:
    for norm in ("batch", "frn", "layer", "none"):
        convolutions = [m for m in ResNet((4, 8), 1, norm=norm).modules() if isinstance(m, nn.Conv2d)]
        assert all((m.bias is not None) == (norm == "none") for m in convolutions), norm


def test_block_is_its_formula() -> None:
    block = BasicBlock(3, 5, 2, activation="leaky_relu:0.2").double().eval()
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    inside = F.leaky_relu(block.norm1(F.conv2d(x, block.conv1.weight, stride=2, padding=1)), 0.2)
    branch = block.norm2(F.conv2d(inside, block.conv2.weight, padding=1))
    shortcut = block.shortcut.norm(F.conv2d(x, block.shortcut.conv.weight, stride=2))
    expected = F.leaky_relu(branch + shortcut, 0.2)
    assert expected.shape == (2, 5, 4, 4)
    torch.testing.assert_close(block(x), expected)


def test_frn_block_thresholds_inside_and_after_the_sum_but_not_before_it() -> None:
    block = BasicBlock(4, 4, 1, norm="frn").double()
    assert isinstance(block.activation1, ThresholdedLinear)
    assert isinstance(block.activation2, ThresholdedLinear)
    block.activation1.tau.data.fill_(0.1)
    block.activation2.tau.data.fill_(-0.2)
    x = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    inside = block.norm1(block.conv1(x)).clamp(min=0.1)
    torch.testing.assert_close(block(x), (x + block.norm2(block.conv2(inside))).clamp(min=-0.2))


def test_without_final_activation_the_stream_is_a_plain_sum() -> None:
    block = BasicBlock(4, 4, 1, final_activation=False).double().eval()
    x = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    update = block.norm2(block.conv2(torch.relu(block.norm1(block.conv1(x)))))
    torch.testing.assert_close(block(x), x + update)
    assert (block(x) < 0).any()


def test_features_are_pooled_over_eight_by_eight() -> None:
    model = ResNet20().eval()
    x = example_input(model)
    features = model.stages(model.stem(x))
    assert features.shape == (2, 64, 8, 8)
    pooled = F.avg_pool2d(features, 8).flatten(1)
    torch.testing.assert_close(model(x), model.fc(pooled))


def test_networks_without_norm_start_with_small_branches() -> None:
    torch.manual_seed(0)
    model = ResNet20(norm="none", width=2)
    for stage, channels in enumerate((32, 64, 128)):
        he = math.sqrt(2 / (9 * channels))
        block = model.get_submodule(f"stages.{stage}.1")
        # A deviation estimated from n normal numbers is off by its own part in √(2n): five of those at n = 9216.
        assert block.conv1.weight.std().item() == pytest.approx(he, rel=0.037)
        assert block.conv2.weight.std().item() == pytest.approx(he / 3, rel=0.037)
    x = example_input(model, batch=8)
    start = model.stem(x)
    end = model.stages(start)
    # Nine blocks add at most 2/9 each; without the scaling the ratio is in the hundreds.
    assert end.square().mean() < start.square().mean() * (1 + 2 / 9) ** 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0.3}, r"width must turn 16 channels into a whole number of at least 1; 16 × 0.3 = 4.8"),
        ({"width": 0}, r"width must turn 16 channels into a whole number of at least 1"),
        ({"width": "2"}, r"width must be a finite number, found '2'"),
        ({"norm": "group"}, r"norm must be one of batch, frn, layer, none; found 'group'"),
        ({"norm": "frn", "activation": "tanh"}, r"norm 'frn' brings its own activation"),
        ({"activation": "rleu"}, r"activation must be one of"),
        ({"stages": ()}, r"stages must name one or more stages"),
        ({"blocks": (1, 2)}, r"blocks one number for each; found stages=\(16, 32, 64\), blocks=\(1, 2\)"),
        ({"blocks": 0}, r"blocks\[0\] must be an integer of at least 1, found 0"),
        ({"final_activation": "no"}, r"final_activation must be True or False, found 'no'"),
        ({"classes": 0}, r"classes must be an integer of at least 1, found 0"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ResNet(**options)
