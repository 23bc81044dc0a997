"""What a discovered symmetry says of its axes, and that it keeps saying it after a round trip."""

import pytest
import torch
from torch import nn

import coset
from coset.errors import InputError
from coset.symmetry.discovery import elementwise
from coset.symmetry.discovery.rules import RULES


@pytest.fixture(scope="module")
def sym():
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.Softmax(-1), nn.Linear(4, 2))
    return coset.discover(model, torch.randn(2, 3))


def test_axes_are_explained_by_the_operations_they_pass(sym):
    assert "through linear in 0, relu in 1" in sym.explain("2.weight")
    assert "axis 1: fixed, 3 positions (an input of the model)" in sym.explain("0.weight")
    assert "axis 0: fixed, 2 positions (an output of the model)" in sym.explain("4.bias")


def test_the_explanation_survives_a_file(sym, tmp_path):
    sym.save(tmp_path / "sym.json")
    again = coset.Symmetry.load(tmp_path / "sym.json")
    assert again == sym
    assert again.explain("2.weight") == sym.explain("2.weight")


def test_a_wrong_rule_is_named_with_its_operations(monkeypatch):
    """Softmax treated as a function that lets every scale pass: verification names the class and its way."""

    def wrong(book, call):
        return elementwise.same_values(book, call)

    monkeypatch.setitem(RULES, "softmax", wrong)
    model = nn.Sequential(nn.Linear(3, 5), nn.Softmax(-1), nn.Linear(5, 2))
    with pytest.raises(
        InputError, match=r"class 'u0' \(on 0.weight, 0.bias, 2.weight\) does not preserve .* softmax in 1"
    ):
        coset.discover(model, torch.randn(2, 3))


def test_general_linear_maps_are_found_and_true():
    """Two linear maps in a row: W₁ → A W₁, b₁ → A b₁, W₂ → W₂ A⁻¹ for any invertible A."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    sym = coset.discover(model, torch.randn(2, 3, dtype=torch.float64))
    assert {name: item.kind for name, item in sym.continuous.items()} == {"u0": "general"}
    a = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    theta = dict(model.state_dict())
    moved = {**theta, "0.weight": a @ theta["0.weight"], "0.bias": a @ theta["0.bias"]}
    moved["1.weight"] = theta["1.weight"] @ torch.linalg.inv(a)
    found = sym.act(sym.element(matrices={"u0": a}), theta)
    for name, tensor in moved.items():
        torch.testing.assert_close(found[name], tensor)
    x = torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(torch.func.functional_call(model, moved, (x,)), model(x))


def test_heads_have_two_general_linear_groups_each():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    sym = coset.discover(layer, torch.randn(2, 5, 8))
    assert {name: (item.kind, sym.shape(name)) for name, item in sym.continuous.items()} == {
        "self_attn.inside": ("general", (2, 4)),
        "self_attn.inside.2": ("general", (2, 4)),
    }


def test_what_is_not_linear_is_not_mixed_by_all_matrices():
    for activation, kind in ((nn.ReLU(), None), (nn.BatchNorm1d(4), None), (nn.LayerNorm(4), "centred")):
        model = nn.Sequential(nn.Linear(3, 4, bias=False), activation, nn.Linear(4, 2)).eval()
        sym = coset.discover(model, torch.randn(2, 3))
        assert [item.kind for item in sym.continuous.values()] == ([kind] if kind else [])
        assert sym.notes == ()


def test_shifts_before_a_batch_norm_are_told():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3)).eval()
    (note,) = coset.discover(model, torch.randn(2, 3, 8, 8)).notes
    assert note.startswith("'0.bias' stands before a batch norm: any shift of it can be taken up by the running mean")
