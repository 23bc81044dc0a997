"""Tensors that are taken apart and put together again, and tensors that a model writes into itself."""

import pytest
import torch
import torch.nn.functional as F
from groups import found_group, group
from probes import Function
from torch import nn

from coset.symmetry import discover

X = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
TWO = {"a": (5, 4), "b": (3, 10), "c": (5, 4)}
ONE = {"a": (5, 4), "b": (3, 5)}


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        # Stacked, then flattened: one behind the other, as by cat.
        (lambda x, a, b, c: torch.stack([F.relu(x @ a.T), F.relu(x @ c.T)], 1).flatten(1) @ b.T, TWO, "5 5"),
        (lambda x, a, b, c: F.relu(torch.stack([x @ a.T, x @ c.T], 1)).reshape(3, 10) @ b.T, TWO, "5 5"),
        (lambda x, a, b, c: F.relu(torch.stack([x @ a.T, x @ c.T])).transpose(0, 1).flatten(1) @ b.T, TWO, "5 5"),
        # Taken apart again, each with its own reader.
        (lambda x, a, b, c: _each_read(*F.relu(torch.stack([x @ a.T, x @ c.T])), b), TWO, "5 5"),
        # Stacked behind their units and flattened, they take turns.
        (lambda x, a, b, c: torch.stack([F.relu(x @ a.T), F.relu(x @ c.T)], 2).flatten(1) @ b.T, TWO, "5 5"),
        (lambda x, a, b, c: F.relu(torch.stack([x @ a.T, x @ c.T], -1)).reshape(3, 10) @ b.T, TWO, "5 5"),
        (lambda x, a, b, c: F.relu(_in_turns(x @ a.T, x @ c.T)) @ b.T + x.sum(), TWO, "5 5"),
        # Read as one tensor they share their units, in turns, too, if something else tells pairs apart.
        (lambda x, a, b, c: F.relu(torch.stack([x @ a.T, x @ c.T], 1)).sum(1) @ b[:, :5].T, TWO, "5"),
        (lambda x, a, b, c: _in_turns(x @ a.T, x @ c.T).reshape(3, 5, 2).relu().sum(2) @ b[:, :5].T, TWO, "5"),
        (lambda x, a, b, c: _in_turns(x @ a.T, x @ c.T).relu()[:, 2:] @ b[:, 2:].T, TWO, "4"),
        # A cut through a pair of which each position stands twice: nothing is left.
        (lambda x, a, b, c: _in_turns(x @ a.T, x @ c.T).repeat_interleave(2, 1).relu()[:, 2:] @ b.repeat(1, 2)[:, 2:].T,
         TWO, ""),
        # Slices that are only joined again.
        (lambda x, a, b: _rejoined(F.relu(x @ a.T)) @ b.T, ONE, "5"),
        (lambda x, a, b: torch.cat(F.relu(x @ a.T).chunk(2, 1), 1) @ b.T, ONE, "5"),
        (lambda x, a, b: torch.cat(F.relu(x @ a.T).split([1, 2, 2], 1), 1) @ b.T, ONE, "5"),
        # In another order, or read elsewhere, too, the parts are units of their own.
        (lambda x, a, b: torch.cat(F.relu(x @ a.T).split([3, 2], 1)[::-1], 1) @ b.T, ONE, "3 2"),
        (lambda x, a, b: _also_read(F.relu(x @ a.T)) @ b.T, ONE, "3 2"),
    ],
)  # fmt: skip
def test_parts(function, shapes, expected):
    torch.manual_seed(0)
    model = Function(function, shapes).double()
    sym = discover(model, X, strict=True)
    assert bool(sym.pinned) == (not expected)
    assert found_group(sym).classes == group(expected, scales=0, signs=0).classes


@pytest.mark.parametrize(
    ("function", "shapes", "note"),
    [
        (lambda x, a, b: (x @ a.T).prod(1, keepdim=True) @ b[:, :1].T, ONE, "scales and signs of single units"),
        # Products of what belongs to inputs leave nothing out.
        (lambda x, a, b: (x @ a.T).prod(0) @ b.T, ONE, None),
        (
            lambda x, a, b, c: (
                torch.stack([x @ a.T, x @ c.T], 1).reshape(3, 2, 5, 1).transpose(1, 2).expand(3, 5, 2, 3).reshape(3, 30)
                @ b.repeat(1, 3).T
            ),
            TWO,
            None,
        ),
        (lambda x, a, b, c: torch.stack([x @ a.T, x @ c.T], 2).flatten(1) @ b.T, TWO, None),
        (lambda x, a, b, c: torch.stack([x @ a.T, x @ c.T], 1).flatten(1) @ b.T, TWO, None),
        (lambda x, a, b, c: torch.stack([x @ a.T, x @ c.T], 2).sum(2) @ b[:, :5].T, TWO, None),
    ],
)
def test_what_is_not_looked_for_is_told(function, shapes, note):
    torch.manual_seed(0)
    sym = discover(Function(function, shapes).double(), X)
    told = [line for line in sym.notes if "share one permutation" in line or "not looked for" in line]
    assert (len(told) == 1 and note in told[0]) if note else not told


def _in_turns(one, two):
    return torch.stack([one, two], 2).flatten(1)


def _each_read(one, two, readers):
    return one @ readers[:, :5].T + two @ readers[:, 5:].T


def _rejoined(h):
    return torch.cat([h[:, :1], h[:, 1:]], 1)


def _also_read(h):
    head, tail = h.split([3, 2], 1)
    return torch.cat([head, tail], 1) * (1 + head.sum(1, keepdim=True).tanh())


def test_inputs_and_parameters_that_are_joined():
    """Neither is a part of anything: a token of class before the others, an input beside itself."""

    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.first, self.last = nn.Parameter(torch.randn(1, 1, 5)), nn.Linear(4, 5), nn.Linear(5, 2)

        def forward(self, x):
            words = torch.cat([self.token.expand(x.shape[0], 1, 5), self.first(torch.cat([x, x], 1)[:, :3])], 1)
            return self.last(torch.relu(words))

    torch.manual_seed(0)
    sym = discover(Tokens().double(), torch.randn(2, 3, 4, dtype=torch.float64))
    assert found_group(sym) == group("5", scales=5, signs=0)
    both = Function(lambda x, a, b: torch.cat([x, x], 1) @ torch.cat([a, b]), {"a": (4, 3), "b": (4, 3)}).double()
    assert found_group(discover(both, X)) == group("", scales=0, signs=0)


class RunningMean(nn.Module):
    """Activations divided by a running mean of their sizes, which every call moves on."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 2)
        self.register_buffer("size", torch.rand(5) + 1)

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        self.size.mul_(0.9).add_(0.1 * hidden.mean(0))
        return self.last(hidden / self.size)


def test_a_buffer_that_forward_writes_to_is_no_output():
    torch.manual_seed(0)
    model = RunningMean().double()
    before = model.size.clone()
    sym = discover(model, X)
    assert torch.equal(model.size, before)
    # Units permute with their mean; a scale of theirs goes into it, and none is left for those who read the quotient.
    assert found_group(sym) == group("5", scales=5, signs=0)
    g = sym.random(torch.Generator().manual_seed(0))
    moved = RunningMean().double()
    moved.load_state_dict(sym.act(g, model.state_dict()))
    for _ in range(3):  # from call to call both go on in step
        assert torch.allclose(moved(X), model(X), rtol=1e-12)
    assert torch.allclose(moved.size, sym.act(g, dict(model.state_dict()))["size"], rtol=1e-12)


def test_a_buffer_that_is_kept_fixed_pins_what_it_meets():
    torch.manual_seed(0)
    sym = discover(RunningMean().double(), X, fixed_buffers=True)
    assert found_group(sym) == group("", scales=0, signs=0)
    assert "axis 0: fixed, 5 positions (a constant)" in sym.explain("first.weight")
