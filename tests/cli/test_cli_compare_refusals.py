"""``coset compare``: what does not fit is refused in one line, before anything long is computed, and nothing stays."""

from pathlib import Path

import numpy as np
import pytest
import torch

from coset.models import MLP

MODEL = ["--model", "mlp", "--option", "in_features=64", "--option", "widths=[4]"]
B = ["--model-b", "mlp", "--option-b", "in_features=64", "--option-b", "widths=[5]"]


@pytest.fixture
def files(tmp_path):
    for name, widths in (("a.pt", [4]), ("b.pt", [4]), ("wide.pt", [5])):
        torch.save(dict(MLP(64, widths, 10).state_dict()), tmp_path / name)
    (tmp_path / "text").write_text("hello, world")
    (tmp_path / "text.npy").write_text("hello, world")
    (tmp_path / "text.npz").write_text("hello, world")
    np.save(tmp_path / "short.npy", np.zeros((9, 63)))
    np.save(tmp_path / "flat.npy", np.zeros(9))
    np.save(tmp_path / "nan.npy", np.full((9, 64), np.nan))
    np.save(tmp_path / "whole.npy", np.zeros((9, 64), dtype=np.int64))
    np.save(tmp_path / "still.npy", np.ones((9, 64)))
    np.save(tmp_path / "pickled.npy", np.array([{}]), allow_pickle=True)
    np.savez(tmp_path / "many.npz", p=np.zeros((9, 64)), q=np.zeros((9, 64)))
    (tmp_path / "half.npz").write_bytes((tmp_path / "many.npz").read_bytes()[:900])
    (tmp_path / "out.csv").mkdir()


def command(*more, a="a.pt", b="b.pt", data="digits"):
    return ["compare", a, b, *MODEL, "--data", data, *more]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (command(b="gone.pt"), "gone.pt does not exist; expected a file of weights"),
        (command(b="text"), "text is neither a safetensors nor a PyTorch file"),
        (command(b="wide.pt"), "wide.pt does not fit the model mlp: 'layers.0.weight' is (5, 64) where (4, 64)"),
        (command(*B), "b.pt does not fit the model mlp: 'layers.0.weight' is (4, 64) where (5, 64)"),
        (
            command("--option-b", "widths=[5]"),
            "--option-b and --layers-b say what is different in B; they need --model",
        ),
        (command("--layers-b", "layers.0"), "--option-b and --layers-b say what is different in B; they need --model"),
        (command("--layers", "layers.9"), "'layers.9' is no layer of MLP; near it are"),
        (command("--layers", "relu*"), "no layer that is called matches 'relu*'; there are layers.0, norms.0, act"),
        (command("--layers", "layers.0,"), "--layers is 'layers.0,'; expected names of layers separated by commas"),
        (
            command(*B, "--layers", "layers.*", "--layers-b", "layers.0", b="wide.pt"),
            "2 layers of A and 1 of B are named (layers.0, layers.1; layers.0); expected pairs",
        ),
        (command(data="numbers"), "dataset is 'numbers', expected one of"),
        (command(data="gone.npy"), "--data gone.npy does not exist; expected a NumPy file, or a name from"),
        (command(data="text.npy"), "--data text.npy is no whole NumPy file of plain numbers"),
        (command(data="text.npz"), "--data text.npz is no whole NumPy file of plain numbers"),
        (command(data="half.npz"), "--data half.npz is no whole NumPy file of plain numbers"),
        (command(data="pickled.npy"), "--data pickled.npy is no whole NumPy file of plain numbers"),
        (command(data="many.npz"), "--data many.npz holds p, q; expected an array called x_test or x"),
        (command(data="short.npy"), "--data short.npy has shape (9, 63); the model takes inputs of shape (64,)"),
        (command(data="flat.npy"), "--data flat.npy has shape (9,); expected examples on axis 0"),
        (command(data="nan.npy"), "--data nan.npy holds NaN or infinite values"),
        (
            command(data="whole.npy"),
            "--data whole.npy holds int64; the model takes numbers in floating point, or bytes",
        ),
        (command("--mean", "0.5", "--std", "1", data="still.npy"), "--mean has 1 numbers; still.npy has 64 channels"),
        (command(data="breast-cancer"), "--data breast-cancer has inputs of shape (30,); the model takes (64,)"),
        (command("--mean", "0.5"), "--mean and --std belong together; one of them is missing"),
        (command("--split", "middle"), "--split is 'middle', expected train or test"),
        (command("--limit", 3), "--limit is 3; expected a whole number of at least 4"),
        (command("--draws", 0), "--draws is 0; expected a whole number of at least 1"),
        (command("--seed", -1), "seed is -1, expected an integer from 0 to 2^63 - 1"),
        (command("--symmetry", "gone.json"), "gone.json does not exist; expected a symmetry"),
        (command("--out", "figure.png"), "--out is figure.png; expected a stem, to which .png, .svg, .json, .csv are"),
        (command("--out", "out"), "out.csv is a folder; expected a file to write"),
        (command("--out", "a.pt/x"), "out must be a folder, found the file a.pt"),
        (["compare", "a.pt", "b.pt", *MODEL], "Missing option '--data'"),
        (["compare", "a.pt", *MODEL, "--data", "digits"], "Missing argument 'B'"),
    ],
)
def test_bad_input_gets_one_line_and_leaves_nothing(here, files, monkeypatch, arguments, message):
    monkeypatch.setattr("coset.symmetry.discover", lambda *a, **k: pytest.fail("looked for a symmetry"))
    before = sorted(Path().rglob("*"))
    code, out, err = here(*arguments)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert message in err
    assert sorted(Path().rglob("*")) == before


def test_what_shows_itself_in_the_features_is_refused_and_leaves_nothing(here, files):
    before = sorted(Path().rglob("*"))
    code, out, err = here(*command("--out", "new/x", data="still.npy"))
    assert (code, out) == (2, "")
    assert "of A has features that do not tell the examples apart" in err
    assert sorted(Path().rglob("*")) == before


def test_an_interruption_leaves_nothing(here, files, monkeypatch):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    before = sorted(Path().rglob("*"))
    monkeypatch.setattr("coset.figures.render", stop)
    arguments = command("--limit", 20, "--draws", 5, "--out", "new/deep/x")
    assert here(*arguments) == (130, "", "coset: interrupted\n")
    assert sorted(Path().rglob("*")) == before
