"""Normalisation layers against their formulas, number by number in double precision."""

import math

import pytest
import torch
from torch import Tensor, nn

from coset.errors import InputError
from coset.models import ChannelLayerNorm, FilterResponseNorm, ThresholdedLinear
from coset.models._normalization import feature_norm, image_activation, image_norm


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def _randomize(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    module.double()
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return module


@torch.no_grad()
def test_frn_and_tlu_are_the_published_formula(x: Tensor) -> None:
    norm, unit = _randomize(FilterResponseNorm(3)), ThresholdedLinear(3).double()
    # A negative ε enters by its absolute value.
    norm.eps = torch.tensor([0.3, -0.2, 1e-6], dtype=torch.float64)
    # About half of the values of every channel lie on either side of its threshold.
    unit.tau.copy_(norm.bias + 0.05)
    normalized, thresholded = torch.empty_like(x), torch.empty_like(x)
    for n in range(2):
        for c in range(3):
            nu2 = sum(float(x[n, c, h, w]) ** 2 for h in range(4) for w in range(5)) / 20
            for h in range(4):
                for w in range(5):
                    scaled = float(x[n, c, h, w]) / math.sqrt(nu2 + abs(float(norm.eps[c])))
                    y = float(norm.weight[c]) * scaled + float(norm.bias[c])
                    normalized[n, c, h, w] = y
                    thresholded[n, c, h, w] = max(y, float(unit.tau[c]))
    torch.testing.assert_close(norm(x), normalized, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(unit(norm(x)), thresholded, rtol=1e-12, atol=1e-12)
    changed = (thresholded != normalized).sum((0, 2, 3))
    assert ((changed > 0) & (changed < 40)).all()


def test_frn_starts_as_published() -> None:
    norm, unit = FilterResponseNorm(3), ThresholdedLinear(3)
    shapes = {name: tuple(tensor.shape) for name, tensor in norm.state_dict().items()}
    assert shapes == {"weight": (3,), "bias": (3,), "eps": (3,)}
    assert norm.eps.tolist() == pytest.approx([1e-6] * 3)
    assert (norm.weight.tolist(), norm.bias.tolist(), unit.tau.tolist()) == ([1.0] * 3, [0.0] * 3, [0.0] * 3)
    assert [name for name, _ in norm.named_parameters()] == ["weight", "bias"]


def test_frn_moves_its_epsilon_with_a_scale_of_its_input(x: Tensor) -> None:
    norm = _randomize(FilterResponseNorm(3))
    norm.eps = torch.tensor([0.3, 0.2, 0.1], dtype=torch.float64)
    before = norm(x)
    scale = torch.tensor([2.0, 0.5, -3.0], dtype=torch.float64)
    norm.eps = norm.eps * scale**2
    norm.weight.data *= scale.sign()
    torch.testing.assert_close(norm(x * scale.view(-1, 1, 1)), before, rtol=1e-12, atol=1e-12)


def test_channel_layer_norm_is_layer_norm_of_each_position(x: Tensor) -> None:
    norm = _randomize(ChannelLayerNorm(3))
    reference = nn.LayerNorm(3).double()
    reference.load_state_dict(norm.state_dict())
    expected = reference(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    torch.testing.assert_close(norm(x), expected, rtol=1e-12, atol=1e-12)
    pixel = x[1, :, 2, 3]
    variance = (pixel - pixel.mean()).square().mean()
    by_hand = (pixel - pixel.mean()) / (variance + 1e-5).sqrt() * norm.weight + norm.bias
    torch.testing.assert_close(norm(x)[1, :, 2, 3], by_hand, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("norm", "kind"), [("batch", nn.BatchNorm2d), ("frn", FilterResponseNorm), ("layer", ChannelLayerNorm)]
)
def test_image_norm_by_name(norm: str, kind: type[nn.Module]) -> None:
    assert isinstance(image_norm(norm, 4), kind)


def test_threshold_takes_the_place_of_relu_with_frn_only() -> None:
    assert isinstance(image_activation("frn", "relu", 4), ThresholdedLinear)
    assert isinstance(image_activation("batch", "relu", 4), nn.ReLU)
    for relu in (nn.ReLU, nn.ReLU(), nn.ReLU(inplace=True)):
        assert isinstance(image_activation("frn", relu, 4), ThresholdedLinear)
    for other in ("tanh", nn.ReLU6, nn.ReLU6(), lambda: nn.ReLU()):
        with pytest.raises(InputError, match=r"norm 'frn' brings its own activation: activation must be a ReLU, found"):
            image_activation("frn", other, 4)


def test_unknown_norms_are_named() -> None:
    with pytest.raises(InputError, match=r"norm must be one of batch, frn, layer, none; found 'group'"):
        image_norm("group", 4)
    with pytest.raises(InputError, match=r"norm must be one of batch, layer, none; found 'frn'"):
        feature_norm("frn", 4)
    with pytest.raises(InputError, match=r"channels must be an integer of at least 1, found 0"):
        FilterResponseNorm(0)
