"""The table of architectures in the documentation is complete, and its rows are what its command finds."""

from pathlib import Path

import pytest
import torch
from torch import nn

from coset import discover

ROOT = Path(__file__).parents[2]
QUICK = ("ViT", "GPT-2")


@pytest.fixture
def fuzz(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "error")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import fuzz.architectures.check
    import fuzz.architectures.table

    return fuzz


def _page(fuzz):
    return fuzz.architectures.table.PAGE.read_text(encoding="utf-8")


def test_every_architecture_has_a_sound_row_and_nothing_else_has(fuzz):
    table = fuzz.architectures.table
    rows = table.read(_page(fuzz))
    assert list(rows) == list(fuzz.architectures.ARCHITECTURES)
    for name, line in rows.items():
        cells = table.cells(line)
        refused = cells["pinned, and why"].startswith("refused: ")
        assert "fails: " not in line, line
        assert refused or float(cells["largest change"]) <= fuzz.architectures.check.TOLERANCE, name


def test_the_table_holds_as_many_architectures_as_it_promises(fuzz):
    """Of each library, those that are not refused."""
    table = fuzz.architectures.table
    from fuzz.architectures.diffusion import DIFFUSION

    found = [name for name, line in table.read(_page(fuzz)).items() if table.cells(line)["classes"] != "–"]
    assert len([name for name in found if name not in DIFFUSION]) >= 40
    assert len([name for name in found if name in DIFFUSION]) >= 5


@pytest.mark.parametrize("name", QUICK)
def test_the_row_in_the_documentation_is_what_is_found(fuzz, name):
    pytest.importorskip("transformers")
    table = fuzz.architectures.table
    finding = fuzz.architectures.check.check(fuzz.architectures.ARCHITECTURES[name])
    assert finding.sound
    found, told = table.cells(table.row(name, finding)), table.cells(table.read(_page(fuzz))[name])
    for column in table.COLUMNS:
        if column not in table.TIMED:
            assert found[column] == told[column], column


def test_a_wrong_group_is_unsound(fuzz):
    """The symmetry of a tanh network, claimed of one with ReLU: signs change its outputs."""
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    wrong = discover(nn.Sequential(model[0], nn.Tanh(), model[2]).eval(), torch.zeros(2, 3))
    generator = torch.Generator().manual_seed(0)
    given = [{"input": torch.randn(4, 3, generator=generator)}]
    check, twin = fuzz.architectures.check, model.double()
    params = check.general_position(twin, generator)
    assert check.largest_change(twin, params, wrong, given, generator) > 0.01
    right = wrong.restrict(signs=False)
    assert check.largest_change(twin, params, right, given, generator) <= check.TOLERANCE


class _Branches(nn.Module):
    """Two branches, of which the second is heard above a threshold only."""

    def __init__(self, threshold):
        super().__init__()
        self.threshold = threshold
        self.low, self.high, self.out = nn.Linear(3, 5), nn.Linear(3, 5), nn.Linear(10, 2)

    def forward(self, input):
        heard = self.high(input).tanh() * (input[:, :1] > self.threshold)
        return self.out(torch.cat([self.low(input).tanh(), heard], 1))


@pytest.mark.parametrize(("threshold", "silent"), [(-9.0, ()), (9.0, ("high",))])
def test_a_class_that_no_output_notices_is_told(fuzz, threshold, silent):
    generator = torch.Generator().manual_seed(0)
    input = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    sym = discover(_Branches(-9.0).double().eval(), input)
    check, twin = fuzz.architectures.check, _Branches(threshold).double().eval()
    params = check.general_position(twin, generator)
    assert check.unnoticed(twin, params, sym, {"input": input}, generator) == silent


def test_rows_are_written_between_their_marks_and_read_again(fuzz):
    table = fuzz.architectures.table
    page = f"before\n\n{table.BEGIN}\nold\n{table.END}\n\nafter\n"
    rows = {"A": table.row("A", fuzz.architectures.check.Finding(7, 0.5, refused="refused: no | way"))}
    text = table.written(page, rows)
    assert text.replace(table.render(rows), "old") == page
    assert list(table.read(text)) == ["A"]
    assert table.cells(table.read(text)["A"])["pinned, and why"] == "refused: no \\| way"
