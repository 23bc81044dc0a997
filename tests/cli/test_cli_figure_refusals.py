"""What ``coset barrier`` and ``coset compare`` refuse alike: files, model, data, and where figures are written."""

from pathlib import Path

import pytest
import torch
from refusals import MODEL, check_refused, command

from coset.models import MLP

COMMANDS = ("barrier", "compare")


@pytest.fixture
def files(tmp_path):
    for name, widths in (("a.pt", [4]), ("b.pt", [4]), ("wide.pt", [5])):
        torch.save(dict(MLP(64, widths, 10).state_dict()), tmp_path / name)
    (tmp_path / "zip-half.pt").write_bytes((tmp_path / "b.pt").read_bytes()[:500])
    (tmp_path / "text").write_text("hello, world")
    (tmp_path / "out.csv").mkdir()


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    ("changed", "more", "message"),
    [
        ({"b": "gone.pt"}, [], "gone.pt does not exist; expected a file of weights"),
        ({"b": "text"}, [], "text is neither a safetensors nor a PyTorch file"),
        ({"b": "zip-half.pt"}, [], "zip-half.pt is damaged or not a PyTorch file"),
        ({"b": "wide.pt"}, [], "wide.pt does not fit the model mlp: 'layers.0.weight' is (5, 64) where (4, 64)"),
        ({}, ["--option", "norm=batch"], "a.pt does not fit the model mlp: it lacks "),
        ({"data": "numbers"}, [], "dataset is 'numbers'; expected one of"),
        ({"data": "breast-cancer"}, [], "--data breast-cancer has inputs of shape (30,); the model takes (64,)"),
        ({}, ["--mean", "0.5"], "--mean and --std belong together; one of them is missing"),
        ({}, ["--seed", -1], "seed is -1, expected an integer from 0 to 2^63 - 1"),
        ({}, ["--symmetry", "gone.json"], "gone.json does not exist; expected a symmetry"),
        ({}, ["--out", "figure.png"], "--out is figure.png; expected a stem, to which .png, .svg, .json, .csv are"),
        ({}, ["--out", "out"], "out.csv is a folder; expected a file to write"),
        ({}, ["--out", "a.pt/x"], "out must be a folder, found the file a.pt"),
        ({}, ["--out", "/proc/coset/x"], "/proc/coset cannot be written to"),
    ],
)
def test_what_both_commands_refuse(here, files, monkeypatch, name, changed, more, message):
    check_refused(here, monkeypatch, command(name, *more, **changed), message)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.pt", "b.pt", *MODEL], "Missing option '--data'"),
        (["a.pt", *MODEL, "--data", "digits"], "Missing argument 'B'"),
    ],
)
def test_what_is_missing_is_named(here, files, monkeypatch, name, arguments, message):
    check_refused(here, monkeypatch, [name, *arguments], message)


QUICKLY = {"barrier": ["--no-align", "--points", 3], "compare": ["--draws", 5]}


@pytest.mark.parametrize("name", COMMANDS)
def test_an_interruption_leaves_nothing(here, files, monkeypatch, name):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    before = sorted(Path().rglob("*"))
    monkeypatch.setattr("coset.figures.render", stop)
    arguments = command(name, *QUICKLY[name], "--limit", 20, "--out", "new/deep/x")
    assert here(*arguments) == (130, "", "coset: interrupted\n")
    assert sorted(Path().rglob("*")) == before
