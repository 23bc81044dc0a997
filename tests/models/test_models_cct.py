"""The Compact Convolutional Transformer: counts by hand, attention against torch, positions by formula."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from coset.errors import InputError
from coset.models import CCT, SelfAttention, describe, example_input
from coset.models._cct import StochasticDepth, sinusoids

SMALL = {"dim": 8, "depth": 2, "heads": 2, "image_size": 12}


def test_layers_and_count_of_cct_6_3x1() -> None:
    rows = {layer.name: layer.parameters for layer in describe(CCT()).layers}
    block = {
        "norm1": 2 * 256,
        "attention.qkv": 256 * 768,
        "attention.projection": 256 * 256 + 256,
        "norm2": 2 * 256,
        "expand": 256 * 512 + 512,
        "contract": 512 * 256 + 256,
    }
    assert rows == {
        "": 0,  # the positions are a buffer
        "tokenizer.convolutions.0": 9 * 3 * 256,
        **{f"blocks.{i}.{name}": count for i in range(6) for name, count in block.items()},
        "norm": 2 * 256,
        "pool": 256 + 1,
        "fc": 256 * 10 + 10,
    }
    assert describe(CCT()).parameters == 6_912 + 6 * 526_336 + 512 + 257 + 2_570 == 3_168_267


@pytest.mark.parametrize(
    ("options", "tokens"),
    [({}, 256), ({"convolutions": 2}, 64), ({"image_size": 28}, 196), ({"kernel": 7, "convolutions": 2}, 4)],
)
def test_tokens_follow_from_the_tokenizer(options: dict[str, int], tokens: int) -> None:
    # 32 → 16; 32 → 16 → 8; 28 → 14; 32 → 16 → 8, 8 → 4 → 2
    model = CCT(dim=8, depth=1, heads=2, **options)
    assert model.positions.shape == (tokens, 8)
    assert model.tokenizer(example_input(model)).shape == (2, tokens, 8)


def test_tokenizer_has_64_channels_between_its_convolutions() -> None:
    shapes = [tuple(conv.weight.shape) for conv in CCT(**SMALL, convolutions=3).tokenizer.convolutions]
    assert shapes == [(64, 3, 3, 3), (64, 64, 3, 3), (8, 64, 3, 3)]


def test_attention_is_scaled_dot_product_attention() -> None:
    attention = SelfAttention(12, heads=3).double()
    x = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    heads = [(x @ w.T).reshape(2, 5, 3, 4).transpose(1, 2) for w in attention.qkv.weight.split(12)]
    mixed = F.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(2, 5, 12)
    expected = mixed @ attention.projection.weight.T + attention.projection.bias
    torch.testing.assert_close(attention(x), expected, rtol=1e-12, atol=1e-12)


def test_attention_is_multihead_attention_of_torch() -> None:
    attention = SelfAttention(12, heads=3).double()
    reference = nn.MultiheadAttention(12, 3, batch_first=True).double()
    nn.init.zeros_(reference.in_proj_bias)
    reference.in_proj_weight.data = attention.qkv.weight.data
    reference.out_proj.load_state_dict(attention.projection.state_dict())
    x = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(attention(x), reference(x, x, x)[0], rtol=1e-12, atol=1e-12)


def test_positions_are_sines_and_cosines() -> None:
    found = sinusoids(7, 6)
    for t in range(7):
        for i in range(6):
            angle = t / 10000 ** (2 * (i // 2) / 6)
            expected = math.sin(angle) if i % 2 == 0 else math.cos(angle)
            assert found[t, i].item() == pytest.approx(expected, abs=1e-5)


def test_positions_are_a_buffer_or_a_parameter() -> None:
    assert "positions" in dict(CCT(**SMALL).named_buffers())
    assert "positions" in dict(CCT(**SMALL, positions="learnable").named_parameters())


@pytest.mark.parametrize("renormalize", [False, True])
def test_forward_is_its_formula(renormalize: bool) -> None:
    torch.manual_seed(0)
    model = CCT(**SMALL, renormalize_stream=renormalize).double().eval()
    for parameter in model.parameters():
        # Away from the start, where norms are the identity and biases zero.
        parameter.data += 0.3 * torch.randn_like(parameter)
    image = example_input(model)
    x = F.max_pool2d(torch.relu(F.conv2d(image, model.tokenizer.convolutions[0].weight, padding=1)), 3, 2, 1)
    x = x.permute(0, 2, 3, 1).reshape(2, 36, 8) + model.positions
    for block in model.blocks:
        x = x + block.attention(block.norm1(x))
        normalized = block.norm2(x)
        update = block.contract(F.gelu(block.expand(normalized)))
        x = update + (normalized if renormalize else x)
    x = model.norm(x)
    shares = torch.softmax(x @ model.pool.weight[0] + model.pool.bias, dim=1)
    pooled = torch.einsum("nt,ntd->nd", shares, x)
    torch.testing.assert_close(model(image), model.fc(pooled), rtol=1e-10, atol=1e-12)


def test_published_rates_act_in_training_only() -> None:
    model = CCT(**SMALL)
    assert [block.stochastic_depth.rate for block in model.blocks] == pytest.approx([0.0, 0.1])
    assert [block.attention.dropout.p for block in model.blocks] == [0.1, 0.1]
    assert model.dropout.p == 0.0
    x = example_input(model)
    model.train()
    torch.manual_seed(0)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


@pytest.mark.parametrize(("depth", "rates"), [(1, [0.0]), (2, [0.0, 0.3]), (4, [0.0, 0.1, 0.2, 0.3])])
def test_stochastic_depth_grows_linearly_with_the_block(depth: int, rates: list[float]) -> None:
    model = CCT(**SMALL | {"depth": depth}, stochastic_depth=0.3)
    assert [block.stochastic_depth.rate for block in model.blocks] == pytest.approx(rates, rel=1e-12)


def test_stochastic_depth_drops_whole_samples_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    layer = StochasticDepth(0.25).train()
    kept = layer(torch.ones(4000, 3, 2))
    per_sample = kept[:, 0, 0]
    assert torch.equal(kept, per_sample.view(-1, 1, 1).expand_as(kept))
    assert set(per_sample.tolist()) == {0.0, per_sample.max().item()}
    assert per_sample.max().item() == pytest.approx(4 / 3)
    # Four standard deviations of a binomial share.
    assert (per_sample > 0).float().mean().item() == pytest.approx(0.75, abs=4 * math.sqrt(0.75 * 0.25 / 4000))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 10, "heads": 4}, r"dim must be a multiple of heads, found dim=10 and heads=4"),
        ({"kernel": 4}, r"kernel must be odd, found 4"),
        ({"positions": "rotary"}, r"positions must be one of sine, learnable; found 'rotary'"),
        ({"dropout": 1.0}, r"dropout must be a number in \[0, 1\), found 1.0"),
        ({"stochastic_depth": -0.1}, r"stochastic_depth must be a number in \[0, 1\), found -0.1"),
        ({"depth": 0}, r"depth must be an integer of at least 1, found 0"),
        ({"activation": "rleu"}, r"activation must be one of"),
        ({"renormalize_stream": "no"}, r"renormalize_stream must be True or False, found 'no'"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        CCT(**{**SMALL, **options})
