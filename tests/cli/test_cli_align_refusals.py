"""``coset align``: what does not fit is refused before anything is computed, and nothing half-written stays."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from aligned_files import MLP_OPTIONS, align, model
from torch import nn

import coset
from coset.models import MLP


def nan(params):
    return {**params, "layers.1.weight": params["layers.1.weight"] * float("nan")}


def without(params):
    return {name: tensor for name, tensor in params.items() if name != "layers.0.bias"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (nan, "'layers.1.weight' of c.pt has 20 of 20 entries that are NaN or infinite"),
        (without, "c.pt does not fit the model mlp: it lacks 'layers.0.bias'"),
        (lambda p: {**p, "x": torch.ones(1)}, "c.pt does not fit the model mlp: the model mlp does not have its 'x'"),
        (lambda p: {**p, "layers.0.bias": torch.ones(7)}, "'layers.0.bias' is (7,) where (5,) is expected"),
        (lambda p: nn.Linear(2, 2), "c.pt holds pickled code (it asks for torch.nn.modules.linear.Linear)"),
    ],
    ids=["nan", "missing", "unexpected", "shape", "code"],
)  # fmt: skip
@pytest.mark.parametrize("place", ["a", "b"])
def test_networks_that_do_not_fit_are_refused_by_name(here, ab, methods, change, message, place):
    torch.save(change(ab[0]), "c.pt")
    code, out, err = here(*align(**{place: "c.pt"}))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert message in err
    assert not Path("out.safetensors").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (align(a="gone.pt"), "gone.pt does not exist; expected a file of weights"),
        (align(a="."), ". is a folder without weights"),
        (align(out="a.safetensors"), "a.safetensors would overwrite a.safetensors; expected another file to write"),
        (align(out="x/../b.pt"), "b.pt would overwrite b.pt"),
        (align(out="."), ". is a folder; expected a file to write"),
        (align(out="b.pt/out"), "out must be a folder, found the file b.pt"),
        (align(out="/proc/coset/out"), "/proc/coset cannot be written to"),
        (align("--element", "out.safetensors"), "out.safetensors would overwrite out.safetensors"),
        (align("--element", "b.pt"), "b.pt would overwrite b.pt"),
        (align("--element", "."), ". is a folder"),
        (align(method="magic"), "--method is 'magic'; expected one of"),
        (align("--scales"), "the method shuffled has no setting 'scales'; it has gauge"),
        (align("--objective", "l2"), "the method shuffled has no setting 'objective'"),
        (align("--data", "digits"), "the method shuffled looks at weights only; leave --data out"),
        (align("--setting", "seed=3"), "the method shuffled has no setting 'seed'; it has gauge"),
        (align("--setting", "seed"), "--setting takes NAME=VALUE, found 'seed'"),
        (align("--seed", "-1"), "seed is -1, expected an integer from 0 to 2^63 - 1"),
        (align("--limit", 3), "--split, --limit, --mean and --std say which data are used; they need --data"),
        (align("--option", "colour=3"), "model 'mlp' has no option 'colour'"),
        (align("--input", "2,7"), "cannot be called with these example inputs"),
        (align("--symmetry", "gone.json"), "gone.json does not exist; expected a symmetry"),
        (align("--key", "model"), "a.safetensors is a safetensors file, which has no parts"),
        (["align", "a.safetensors", "b.pt", "--model", "mlp"], "Missing option '-o'"),
        (["align", "a.safetensors", *MLP_OPTIONS, "-o", "out"], "Missing argument 'B'"),
    ],
)
def test_bad_arguments_get_one_line_and_leave_nothing(here, ab, methods, arguments, message):
    before = sorted(Path().rglob("*"))
    code, out, err = here(*arguments)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert message in err
    assert sorted(Path().rglob("*")) == before


def test_a_symmetry_of_another_model_is_refused(here, ab, methods):
    coset.discover(MLP(6, [5, 5], 3).eval(), torch.randn(2, 6)).save("other.json")
    code, _, err = here(*align("--symmetry", "other.json"))
    assert code == 2
    assert (
        "other.json does not fit: 'layers.1.weight' of the model mlp has shape (4, 5); this symmetry expects (5, 5)"
        in err
    )
    assert not Path("out.safetensors").exists()


@pytest.mark.parametrize("command", ["align", "merge"])
def test_a_symmetry_of_another_function_is_refused(here, ab, methods, command):
    """The same shapes with tanh: its signs change what a network with ReLU computes."""
    tanh = MLP(6, [5, 4], 3, activation=nn.Tanh).eval()
    coset.discover(tanh, torch.randn(2, 6)).save("tanh.json")
    arguments = {
        "align": align("--symmetry", "tanh.json"),
        "merge": ["merge", "a.safetensors", "b.pt", *MLP_OPTIONS, "--symmetry", "tanh.json", "-o", "out.safetensors"],
    }
    before = sorted(Path().rglob("*"))
    code, out, err = here(*arguments[command])
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "tanh.json does not fit the model mlp: it is no symmetry of MLP: a random element of it changes" in err
    assert sorted(Path().rglob("*")) == before


def test_what_is_refused_is_refused_before_the_symmetry_is_sought(here, ab, methods, monkeypatch):
    monkeypatch.setattr("coset.symmetry.discover", lambda *a, **k: pytest.fail("looked for a symmetry"))
    torch.save(without(ab[0]), "c.pt")
    for arguments in (align(a="c.pt"), align(out="a.safetensors"), align("--data", "digits")):
        assert here(*arguments)[0] == 2


@pytest.mark.parametrize("stop", [KeyboardInterrupt, MemoryError])
def test_an_interruption_leaves_nothing(here, ab, methods, monkeypatch, stop):
    import coset._files.tensors as writing

    def half(tensors, target, texts):
        Path(target).write_bytes(b"half")
        raise stop

    before = sorted(Path().rglob("*"))
    monkeypatch.setattr(writing, "save_file", half)
    arguments = align("--element", "deep/g", out="new/out")
    if stop is KeyboardInterrupt:
        assert here(*arguments) == (130, "", "coset: interrupted\n")
    else:
        from coset.cli import main

        with pytest.raises(MemoryError):
            main([str(argument) for argument in arguments])
    assert sorted(Path().rglob("*")) == before


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_ctrl_c_while_it_computes_leaves_nothing(ab, tmp_path):
    probe = (
        # Where the tests run in the background, Ctrl-C is ignored, and children inherit that.
        "import signal, sys, time, coset.alignment\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def slow(sym, reference, other, *, seed=0):\n"
        "    print('computing', flush=True); time.sleep(60)\n"
        "coset.alignment.METHODS['slow'] = slow\n"
        "from coset.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    # From a file, because the discovery would take most of the time.
    coset.discover(model().eval(), torch.randn(2, 6)).save(tmp_path / "sym.json")
    arguments = align("--element", "g", "--symmetry", "sym.json", method="slow", out="new/out")
    before = sorted(tmp_path.rglob("*"))
    process = subprocess.Popen(
        [sys.executable, "-c", probe, *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "computing\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "coset: interrupted\n")
    assert sorted(tmp_path.rglob("*")) == before
