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
