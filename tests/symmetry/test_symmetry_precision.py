"""Matrices on weights in half precision and of complex numbers, and networks in which products miss directions."""

import pytest
import torch
from torch import nn

from coset import align, discover
from mixing_networks import LanguageModel, outputs, setting


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def stream(dtype):
    torch.manual_seed(0)
    return LanguageModel(nn.RMSNorm).to(dtype).eval()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_in_half_precision_has_the_group_of_the_same_in_double(dtype):
    words = torch.randint(12, (2, 6), generator=generator())
    assert discover(stream(dtype), words) == discover(stream(torch.float64), words)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_matrices_act_on_half_precision_with_the_error_of_a_few_roundings(dtype):
    _, sym, theta, _ = setting("rms norm")
    half = {name: tensor.to(dtype) for name, tensor in theta.items()}
    g = sym.random(generator(3), spread=0.1)
    moved = sym.act(g, half)
    exact = sym.act(g, {name: tensor.double() for name, tensor in half.items()})
    for name, tensor in moved.items():
        assert tensor.dtype == dtype
        error = float((tensor.double() - exact[name]).abs().max() / exact[name].abs().max())
        # One rounding for scales and one for each of the two classes on a weight; the last two carry what was before.
        assert error < 8 * torch.finfo(dtype).eps, name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_networks_in_half_precision_are_aligned_without_a_change_of_function(dtype):
    _, sym, theta, _ = setting("rms norm")
    half = {name: tensor.to(dtype) for name, tensor in theta.items()}
    found = align(sym, half, sym.act(sym.random(generator(3), spread=0.1), half))
    back = sym.act(sym.inverse(found.element), {name: tensor.double() for name, tensor in found.params.items()})
    before = sym.act(sym.random(generator(3), spread=0.1), half)
    worst = max(
        float((back[name] - before[name].double()).abs().max() / before[name].double().abs().max()) for name in back
    )
    assert worst < 100 * torch.finfo(dtype).eps


class ComplexBottleneck(nn.Module):
    """Two complex maps with nothing between."""

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.randn(5, 3, dtype=torch.complex128))
        self.second = nn.Parameter(torch.randn(3, 4, dtype=torch.complex128))

    def forward(self, x):
        return torch.view_as_real(x.to(torch.complex128) @ self.first @ self.second)


def test_complex_weights_are_mixed_by_real_matrices():
    torch.manual_seed(0)
    model, x = ComplexBottleneck(), torch.randn(6, 5, dtype=torch.float64)
    sym = discover(model, x)
    theta = dict(model.state_dict())
    moved = sym.act(sym.random(generator()), theta)
    torch.testing.assert_close(outputs(model, moved, x), outputs(model, theta, x), rtol=1e-10, atol=1e-10)
    assert [item.kind for item in sym.continuous.values()] == ["general"]


def test_heads_whose_products_miss_directions_on_both_sides_are_permuted_with_a_note():
    model, sym, theta, x = setting("rms norm")
    flat = {name: tensor.clone() for name, tensor in theta.items()}
    for name in ("v", "o"):
        weight = flat[f"blocks.0.{name}.weight"]
        flat[f"blocks.0.{name}.weight"] = weight * 0
    flat["blocks.0.v.bias"] *= 0
    found = align(sym, flat, theta)
    assert any("rank" in note and "permutations and signs alone were matched" in note for note in found.notes)
    torch.testing.assert_close(outputs(model, found.params, x), outputs(model, theta, x), rtol=1e-9, atol=1e-9)


def test_a_stream_wider_than_all_that_is_written_to_it_keeps_its_function():
    torch.manual_seed(0)
    model = LanguageModel(nn.RMSNorm, d=16, words=3).double().eval()
    x = torch.randint(3, (2, 6), generator=generator())
    sym = discover(model, x)
    theta = {
        name: torch.randn(t.shape, generator=generator(2), dtype=t.dtype) for name, t in model.state_dict().items()
    }
    moved = sym.act(sym.random(generator(1)), theta)
    found = align(sym, theta, moved)
    torch.testing.assert_close(outputs(model, found.params, x), outputs(model, theta, x), rtol=1e-8, atol=1e-8)
