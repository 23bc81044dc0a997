"""Entries that the example does not read stay fixed and are named: on a longer input they would be read."""

import pytest
import torch
import torch.nn.functional as F
from groups import found_group, group
from probes import Function
from torch import nn

from coset.symmetry import discover


def _assert_sound(model, sym, x):
    """Outputs on another input, before and after a random element."""
    generator = torch.Generator().manual_seed(3)
    moved = sym.act(sym.random(generator), model.state_dict())
    with torch.no_grad():
        before, after = model(x), torch.func.functional_call(model, moved, (x,))
    assert float((before - after).abs().max() / before.abs().max()) < 1e-10


class Positions(nn.Module):
    """A table of positions, a parameter or a buffer, of which as many rows are read as there are tokens."""

    def __init__(self, buffer=False):
        super().__init__()
        table = torch.randn(8, 6)
        if buffer:
            self.register_buffer("table", table)
        else:
            self.table = nn.Parameter(table)
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.last(torch.relu(self.first(x) + self.table[: x.shape[1]]))


def _tokens(length):
    return torch.randn(2, length, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize("buffer", [False, True])
def test_rows_of_a_table_behind_the_example(buffer):
    torch.manual_seed(0)
    model = Positions(buffer).double().eval()
    sym = discover(model, _tokens(5))
    assert found_group(sym) == group("6", scales=6, signs=0)
    assert sym.notes[0] == "rows 5-7 of 'table' are not read by the example; give a longer one"
    for length in (3, 5, 8):
        _assert_sound(model, sym, _tokens(length))
    longer = discover(model, _tokens(8))
    assert found_group(longer) == group("6", scales=6, signs=0)
    assert not any("not read" in note for note in longer.notes)


def test_the_middle_of_an_image_of_positions():
    """Cropped by two slices of a reshaped buffer, as in diffusion transformers."""

    class Cropped(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.randn(1, 36, 5))
            self.first, self.last = nn.Conv2d(3, 5, 1), nn.Linear(5, 2)

        def forward(self, x):
            side = x.shape[-1]
            edge = (6 - side) // 2
            table = self.table.reshape(1, 6, 6, 5)[:, edge : edge + side, edge : edge + side].reshape(1, side * side, 5)
            return self.last(torch.tanh(self.first(x).flatten(2).mT + table))

    torch.manual_seed(0)
    model = Cropped().double().eval()
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    sym = discover(model, x)
    assert found_group(sym) == group("5", scales=0, signs=5)
    _assert_sound(model, sym, torch.randn(2, 3, 6, 6, dtype=torch.float64))


@pytest.mark.parametrize(
    ("function", "shapes", "expected", "note"),
    [
        # Units that are cut off, behind an activation that would let them scale.
        (
            lambda x, a, b: F.relu(x @ a.T)[:, :3] @ b.T, {"a": (5, 4), "b": (2, 3)}, group("3", scales=3, signs=0),
            "rows 3-4 of 'a'",
        ),
        # Columns that only zeros meet, however dead other units may be.
        (
            lambda x, a, b: F.pad(F.relu(x @ a.T - 2), (0, 2)) @ b.T, {"a": (5, 4), "b": (2, 7)},
            group("5", scales=0, signs=0), "columns 5-6 of 'b'",
        ),
    ],
)  # fmt: skip
def test_units_that_nobody_reads(function, shapes, expected, note):
    torch.manual_seed(0)
    model = Function(function, shapes).double()
    sym = discover(model, torch.randn(3, 4, dtype=torch.float64))
    assert found_group(sym) == expected
    assert any(line.startswith(note) for line in sym.notes)
    for name in ("a", "b"):
        moved = sym.act(sym.random(torch.Generator().manual_seed(0)), dict(model.state_dict()))[name]
        told = [line for line in sym.notes if f"'{name}'" in line]
        if told:
            first, last = (int(n) for n in told[0].split()[1].split("-"))
            fixed = (slice(first, last + 1),) if told[0].startswith("rows") else (slice(None), slice(first, last + 1))
            assert torch.equal(moved[fixed], model.state_dict()[name][fixed])


def test_units_behind_a_batch_norm_that_nobody_reads():
    class Cut(nn.Module):
        def forward(self, x):
            return x[:, :3]

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), Cut(), nn.Linear(3, 2)).double().eval()
    sym = discover(model, torch.randn(3, 4, dtype=torch.float64))
    assert found_group(sym) == group("3", scales=6, signs=3)
    assert {line.split("'")[1] for line in sym.notes if "not read" in line} == {
        "0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("function", "classes"),
    [
        (lambda x, a, b: F.relu(x @ a.T - 1e6) @ b.T, "5"),  # dead on these inputs
        (lambda x, a, b: torch.where(x[:, :1] > 9, x @ a.T, 0.0) @ b.T, "5"),  # a branch that is not entered
        (lambda x, a, b: F.tanhshrink(x @ a.T) @ b.T, "5"),  # a difference that cancels if one is careless
        (lambda x, a, b: b[:, (x @ a.T).argmax(1)].T, "5"),  # no gradient at all
        (lambda x, a, b: (x @ a.T).amax(1, keepdim=True) * x[:, :3] @ b[:3, :3], "5"),  # a gradient for one unit
        (lambda x, a, b: torch.softmax(1e3 * (x @ a.T), 1) @ b.T, "5"),  # saturated
    ],
)
def test_what_is_read_but_not_felt_moves(function, classes):
    torch.manual_seed(0)
    model = Function(function, {"a": (5, 4), "b": (3, 5)}).double()
    sym = discover(model, torch.randn(3, 4, dtype=torch.float64))
    assert 5 in {sym.classes[name].size for name in sym.permuting}
    assert not any("of 'a'" in note for note in sym.notes)


@pytest.mark.parametrize(
    "make", [torch.zeros_like, torch.ones_like, lambda t: torch.full_like(t, 2.0), lambda t: t.new_zeros(t.shape)]
)
def test_a_shape_alone_is_not_read(make):
    """What is left of a table is only measured, for a padding of that length."""

    class Padded(Positions):
        def forward(self, x):
            length = x.shape[1]
            hidden = torch.relu(self.first(x) + self.table[:length])
            padding = make(self.table[length:]).expand(x.shape[0], -1, -1)
            return self.last(torch.cat([hidden, padding], 1)).sum(1)

    torch.manual_seed(0)
    model = Padded().double().eval()
    sym = discover(model, _tokens(5))
    assert any(line.startswith("rows 5-7 of 'table'") for line in sym.notes)
    for length in (5, 8):
        _assert_sound(model, sym, _tokens(length))


def test_numbers_that_shift_or_scale_all_alike_are_read():
    """Distances do not see a shift of all points, nor angles a scale: a power is neither."""
    torch.manual_seed(0)
    for function in (
        lambda x, p: torch.cdist(x.abs() ** p.abs(), x.abs() ** p.abs()) @ x,
        lambda x, p: F.normalize(x.abs() ** p.abs(), dim=-1) @ x.T,
    ):
        sym = discover(Function(function, {"p": (4,)}).double(), torch.randn(3, 4, dtype=torch.float64))
        assert not any("not read" in note or "no influence" in note for note in sym.notes)
