"""Tensors that share memory move alike, whatever the names and shapes under which they stand."""

from itertools import pairwise

import pytest
import torch
from groups import found_group, group
from torch import nn

from coset.symmetry import discover
from coset.symmetry.discovery.ties import ties


class Network(nn.Module):
    """Three layers, of which some share memory."""

    def __init__(self, tie, sizes=(4, 5, 5, 4)):
        super().__init__()
        self.first, self.middle, self.last = (nn.Linear(a, b) for a, b in pairwise(sizes))
        self.double()
        tie(self)

    def forward(self, x):
        return self.last(torch.relu(self.middle(torch.relu(self.first(x)))))


def _transposed(model):
    model.last.weight.data = model.first.weight.data.t()


def _bias(model):
    model.middle.bias.data = model.first.bias.data


def _rows(model):
    """Both matrices are rows of one block of memory, five of ten, and share none."""
    block = torch.randn(10, 5, dtype=torch.float64)
    model.middle.weight.data = block[:5]
    model.last.weight.data = block[5:9]


def _columns(model):
    block = torch.randn(5, 9, dtype=torch.float64)
    model.first.weight.data, model.middle.weight.data = block[:, :4], block[:, 4:]


def _overlapping(model):
    block = torch.randn(45, dtype=torch.float64)
    model.middle.weight.data, model.last.weight.data = block[:25].view(5, 5), block[20:40].view(4, 5)


@pytest.mark.parametrize(
    ("tie", "expected"),
    [
        # W and Wᵀ at both ends: hidden units of both layers are the same, with scales s and 1/s.
        (_transposed, group("5", scales=5, signs=0)),
        # One bias for two layers: their units are the same, with one scale.
        (_bias, group("5", scales=5, signs=0)),
        (_rows, group("5 5", scales=10, signs=0)),
        (_columns, group("5 5", scales=10, signs=0)),
    ],
)
def test_shared_memory(tie, expected):
    torch.manual_seed(0)
    model = Network(tie)
    x = torch.randn(3, 4, dtype=torch.float64)
    sym = discover(model, x)
    assert found_group(sym) == expected
    assert not sym.pinned
    before = model(x)
    moved = sym.act(sym.random(torch.Generator().manual_seed(1)), model.state_dict())
    # Loading writes into the shared memory twice: both times the same.
    model.load_state_dict(moved)
    assert torch.allclose(model(x), before, rtol=1e-12, atol=1e-12)


def test_overlapping_views_are_pinned_and_said():
    torch.manual_seed(0)
    model = Network(_overlapping)
    sym = discover(model, torch.randn(3, 4, dtype=torch.float64))
    assert sym.pinned == ("shared memory: 'middle.weight' and 'last.weight' overlap in memory",)
    # Only the sizes that neither carries are free: rows of the first layer are columns of the middle one.
    assert found_group(sym) == group("", scales=0, signs=0)


def test_an_alias_that_the_function_does_not_use_moves_along():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)).double()
    model.register_parameter("copy", nn.Parameter(torch.empty(0)))
    model.copy.data = model[0].weight.data.t()
    sym = discover(model, torch.randn(3, 4, dtype=torch.float64))
    moved = sym.act(sym.random(torch.Generator().manual_seed(1)), model.state_dict())
    assert torch.allclose(moved["copy"], moved["0.weight"].t())


def test_what_counts_as_shared():
    block = torch.randn(6, 4)
    tensors = {
        "whole": block, "again": block.view(6, 4), "turned": block.t(), "half": block[:3], "even": block[:, ::2],
        "odd": block[:, 1::2], "other": block.clone(), "empty": block[:0],
    }  # fmt: skip
    found = {(tie.one, tie.two): tie.order for tie in ties(tensors)}
    assert found["whole", "again"] == (0, 1)
    assert found["whole", "turned"] == (1, 0)
    assert found["whole", "half"] is None
    assert found["whole", "even"] is None
    assert ("even", "odd") not in found
    assert not any("other" in pair or "empty" in pair for pair in found)


def test_copies_of_one_number_are_not_scaled_apart():
    class Gain(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 2)
            self.gain = nn.Parameter(torch.ones(1, dtype=torch.float64).expand(5))

        def forward(self, x):
            return self.last(torch.tanh(self.first(x)) * self.gain)

    torch.manual_seed(0)
    model = Gain()
    model.first.double(), model.last.double()
    sym = discover(model, torch.randn(3, 4, dtype=torch.float64))
    assert found_group(sym) == group("5", scales=1, signs=6)


def test_a_fixed_buffer_that_shares_memory_pins_its_partner():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 5, dtype=torch.float64), nn.Linear(5, 2, dtype=torch.float64)
            self.register_buffer("copy", self.first.weight.data)

        def forward(self, x):
            return self.last(torch.relu(self.first(x) + x @ self.copy.T))

    torch.manual_seed(0)
    sym = discover(Shared(), torch.randn(3, 4, dtype=torch.float64), fixed_buffers=["copy"])
    assert found_group(sym) == group("", scales=0, signs=0)
    assert any("share memory, and one is fixed" in line for line in sym.pinned)
