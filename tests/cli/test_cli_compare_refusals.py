"""``coset compare``: what does not fit is refused in one line, before anything long is computed, and nothing stays."""

import functools
from pathlib import Path

import numpy as np
import pytest
import refusals
import torch
from refusals import check_refused

from coset.distribution import MeanField, save_distribution
from coset.models import MLP

B = ["--model-b", "mlp", "--option-b", "in_features=64", "--option-b", "widths=[5]"]


@pytest.fixture
def files(tmp_path):
    for name, widths in (("a.pt", [4]), ("b.pt", [4]), ("wide.pt", [5])):
        torch.save(dict(MLP(64, widths, 10).state_dict()), tmp_path / name)
    mean = {"layers.0.weight": torch.zeros(4, 64)}
    save_distribution(
        MeanField(mean, {name: torch.ones_like(tensor) for name, tensor in mean.items()}), tmp_path / "posterior"
    )
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


command = functools.partial(refusals.command, "compare")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (command(b="posterior"), "posterior is a distribution over weights; expected the weights of one network"),
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
        (command(data="gone.npy"), "--data gone.npy does not exist; expected a NumPy file, or a name from"),
        (command(data="text.npy"), "--data text.npy: not a sound .npy file"),
        (command(data="text.npz"), "--data text.npz: not a sound .npz file"),
        (command(data="half.npz"), "--data half.npz: not a sound .npz file"),
        (command(data="pickled.npy"), "--data pickled.npy: holds pickled objects, which are not read"),
        (command(data="many.npz"), "--data many.npz holds ['p', 'q']; expected an array called x_test or x"),
        (command(data="short.npy"), "--data short.npy has shape (9, 63); the model takes inputs of shape (64,)"),
        (command(data="flat.npy"), "--data flat.npy has shape (9,); expected examples on axis 0"),
        (command(data="nan.npy"), "--data nan.npy holds NaN or infinite values"),
        (
            command(data="whole.npy"),
            "--data whole.npy holds int64; the model takes numbers in floating point, or bytes",
        ),
        (command("--mean", "0.5", "--std", "1", data="still.npy"), "--mean has 1 numbers; still.npy has 64 channels"),
        (command("--split", "middle"), "--split is 'middle', expected train or test"),
        (command("--limit", 3), "--limit is 3; expected a whole number of at least 4"),
        (command("--draws", 0), "--draws is 0; expected a whole number of at least 1"),
    ],
)
def test_bad_input_gets_one_line_and_leaves_nothing(here, files, monkeypatch, arguments, message):
    check_refused(here, monkeypatch, arguments, message)


def test_what_shows_itself_in_the_features_is_refused_and_leaves_nothing(here, files):
    before = sorted(Path().rglob("*"))
    code, out, err = here(*command("--out", "new/x", data="still.npy"))
    assert (code, out) == (2, "")
    assert "of A has features that do not tell the examples apart" in err
    assert sorted(Path().rglob("*")) == before
