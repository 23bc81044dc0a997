"""The command line as a user meets it: a process of its own, its output, its exit code."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from coset.cli import main
from coset.store import Store


def coset(*arguments, cwd=None, **environment):
    """Run ``coset`` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "coset.cli", *map(str, arguments)],
        capture_output=True, text=True, cwd=cwd, env={**os.environ, "OMP_NUM_THREADS": "1", **environment}, check=False,
    )  # fmt: skip


def test_help_teaches_and_does_not_wait_for_torch():
    result = coset("--help")
    assert result.returncode == 0
    for command in ("demo", "discover", "align", "merge", "barrier", "study", "store", "data", "version"):
        assert command in result.stdout
    probe = "import sys, coset.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0


def test_waiting_threads_are_passive_before_torch_is_imported():
    probe = "import os, coset.cli; print(os.environ['OMP_WAIT_POLICY'])"
    environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "passive"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frobnicate"], "coset: No such command 'frobnicate'."),
        (
            ["study", "run", "nothing"],
            "coset: there is no study 'nothing'; there are: barriers-of-samples, ",
        ),
        (["study", "run", "group-orders", "--preset", "huge"], "coset: the study group-orders has no preset 'huge'"),
        (["study", "run", "group-orders", "--seed", "x"], "coset: Invalid value for '--seed'"),
        (["study", "run", "group-orders", "--device", "abacus"], "coset: the device 'abacus' cannot be used"),
        (
            ["study", "show", "group-orders"],
            "coset study run group-orders --preset quick --seed 0 --out coset-study",
        ),
        (["data", "fetch", "nothing"], "coset: dataset is 'nothing'; expected one of digits"),
        (["study", "run", "group-orders", "--device", "meta"], "coset: the device 'meta' cannot be used"),
        (
            ["study", "run", "group-orders", "--seed", "-1"],
            "coset: seed must be an integer from 0 to 2^63 - 1, found -1",
        ),
        (["store", "prune", "--keep", "-1"], "coset: keep"),
        (["store", "prune", "--older-than", "nan"], "coset: --older-than is nan, expected a number of days"),
        (["store", "prune", "--older-than", "1e30"], "coset: --older-than is 1e+30, expected a number of days"),
        (["store", "prune", "--older-than=-1"], "coset: older_than must be 0 or more"),
        (["demo", "--sed", "1"], "coset: No such option"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(here, arguments, message):
    code, out, err = here(*arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert len(err.splitlines()) == 1


def test_version(here):
    from coset import __version__

    code, out, _ = here("version")
    assert code == 0
    assert out.startswith(f"coset {__version__} torch ")
    assert json.loads(here("version", "--json")[1])["coset"] == __version__


@pytest.mark.parametrize("arguments", [[], ["study"], ["data"]])
def test_a_bare_command_prints_its_help(here, arguments):
    code, out, err = here(*arguments)
    assert code == 0
    assert out.lstrip().startswith("Usage: ")
    assert len(out.splitlines()) > 5
    assert err == ""


def test_discover(here, tmp_path):
    code, out, _ = here("discover", "mlp", "--option", "widths=[4,3]", "--option", "activation=tanh")
    assert code == 0
    assert "layers.0  4     4!" in out
    shown = here("discover", "mlp", "--option", "widths=[4]", "--input", "2,784", "--json", "-o", "sym.json")
    from coset import Symmetry

    assert Symmetry.from_json(shown[1]) == Symmetry.load("sym.json")
    lines = ["from torch import nn", "def make(width=3):"]
    lines.append("    return nn.Sequential(nn.Embedding(5, width), nn.Linear(width, 2))")
    (tmp_path / "mine.py").write_text("\n".join(lines))
    code, out, _ = here("discover", "mine.py:make", "--option", "width=6", "--input", "i:2,7:5")
    assert code == 0
    assert "6!" in out
    code, _, err = here("discover", "mine.py:make", "--input", "2,7")
    assert code == 2
    assert err.startswith("coset: Sequential cannot be called with these example inputs: ")
    assert here("discover", "mlp", "--option", "widths=[4]", "--draw", "net.svg")[0] == 0
    assert (tmp_path / "net.svg").read_text().startswith("<svg")
    code, _, err = here("discover", "mlp", "--draw", "net.pdf")
    assert code == 2
    assert "expected a file that ends in .svg or .dot" in err
    assert here("discover", "mlp", "--option", "width")[0] == 2
    assert here("discover", "mlp", "--input", "2,x")[0] == 2


def test_a_wrong_shape_is_one_line_and_a_terminal_without_greek_gets_one():
    """In a process of its own: what torch logs goes past the streams of this one."""
    done = coset("discover", "mlp", "--input", "2,5", PYTHONIOENCODING="ascii")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_an_interruption_is_one_line(here, monkeypatch):
    import coset.demo

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(coset.demo, "run_demo", stop)
    assert here("demo") == (130, "", "coset: interrupted\n")


def test_terminals_without_greek(monkeypatch):
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="ascii") for _ in range(2))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with pytest.raises(SystemExit) as stop:
        main(["discover", "mlp", "--option", "widths=[2]"])
    for stream in (out, err):
        stream.flush()
    assert not stop.value.code
    assert b"?" in out.buffer.getvalue()
    assert b"Traceback" not in err.buffer.getvalue()


def test_data_commands(here):
    code, out, _ = here("data", "list")
    assert code == 0
    assert "missing; run: coset data fetch mnist" in out
    rows = json.loads(here("data", "list", "--json")[1])
    assert {row["name"]: row["found"] for row in rows}["digits"] == "scikit-learn"
    assert here("data", "check", "digits")[0] == 0
    code, out, _ = here("data", "check", "mnist", "--json")
    assert code == 1
    assert not json.loads(out)[0]["ok"]
    assert "comes with scikit-learn" in here("data", "fetch", "digits")[1]
    assert json.loads(here("data", "fetch", "digits", "breast-cancer", "--json")[1]) == [
        {"name": "digits", "files": []},
        {"name": "breast-cancer", "files": []},
    ]


def test_data_check_without_names_takes_what_is_incomplete(here, tmp_path, monkeypatch):
    folder = tmp_path / "mine" / "snelson"
    folder.mkdir(parents=True)
    (folder / "train_inputs.dat").write_text("1\n")
    assert "snelson" not in here("data", "check")[1]
    monkeypatch.setenv("COSET_DATA", str(tmp_path / "mine"))
    code, out, _ = here("data", "check")
    assert code == 1
    assert "incomplete; run: coset data fetch snelson" in out
    assert f"incomplete in {tmp_path / 'mine'}; run: coset data fetch snelson" in here("data", "list")[1]
    monkeypatch.delenv("COSET_DATA")
    assert here("data", "check", "--root", tmp_path / "mine")[0] == 1


def test_data_fetch_says_where_it_puts_things_and_takes_another_address(here):
    text = " ".join(here("data", "fetch", "--help")[1].split())
    assert "default: data in the user's cache" in text
    code, out, err = here("data", "fetch", "snelson", "--from", "http://127.0.0.1:1/there", "--json")
    assert (code, out) == (2, "")
    assert err.startswith("coset: http://127.0.0.1:1/there/SPGP_dist.zip: cannot be reached")
    code, _, err = here("data", "fetch", "snelson", "--from", "somewhere")
    assert code == 2
    assert "somewhere/SPGP_dist.zip: expected an address that starts with http" in err


def test_store_commands(here, tmp_path):
    import torch

    folder = tmp_path / "store"
    store = Store(folder)
    for number in range(3):
        store.put({"kind": "toy", "number": number}, {"w": torch.ones(2) * number})
    rows = json.loads(here("store", "list", "--store", folder, "--check", "--json")[1])
    assert [row["kind"] for row in rows] == ["toy"] * 3
    assert "3 entries" in here("store", "list", "--store", folder)[1]
    assert "would remove 2 entries" in here("store", "prune", "--store", folder, "--keep", 1, "--dry-run")[1]
    assert len(store.entries()) == 3
    assert json.loads(here("store", "prune", "--store", folder, "--keep", 1, "--json")[1])["entries"] == 2
    (left,) = store.entries()
    assert load_file(left.path)


def test_json_has_null_for_what_json_does_not_have(here, tmp_path):
    import torch

    info = {"loss": float("nan"), "losses": [1.0, float("inf"), [-float("inf")]]}
    Store(tmp_path / "store").put({"kind": "toy"}, {"w": torch.ones(2)}, info=info)
    out = here("store", "list", "--store", tmp_path / "store", "--json")[1]
    (row,) = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert row["info"] == {"loss": None, "losses": [1.0, None, [None]]}


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a folder that nobody can write to")
@pytest.mark.parametrize("command", [["study", "run", "group-orders"], ["demo"]])
def test_an_unwritable_out_gets_one_line(here, command):
    code, out, err = here(*command, "--out", "/proc/coset")
    assert (code, out) == (2, "")
    assert err == "coset: out /proc/coset cannot be written to: No such file or directory\n"


def test_study_commands(here):
    assert "godfrey-gelu-defect" in here("study", "list")[1]
    assert len(json.loads(here("study", "list", "--json")[1])) >= 2
    code, out, _ = here("study", "run", "godfrey-gelu-defect", "--out", "results")
    assert code == 0
    assert "0.1268 [0.1268, 0.1268]  holds" in out
    assert (Path("results") / "godfrey-gelu-defect" / "results.json").exists()
    shown = here("study", "show", "godfrey-gelu-defect", "--out", "results")
    assert shown[1] == out
    before = {path: path.read_bytes() for path in Path("results").rglob("*") if path.is_file()}
    assert here("study", "render", "godfrey-gelu-defect", "--out", "results")[1] == out
    assert {path: path.read_bytes() for path in Path("results").rglob("*") if path.is_file()} == before
    assert (
        json.loads(here("study", "show", "godfrey-gelu-defect", "--out", "results", "--json")[1])["preset"] == "quick"
    )


def test_a_closed_pipe_is_not_an_error():
    command = f"{sys.executable} -m coset.cli data list | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("dataset")
    assert done.stderr == ""


def test_the_demo(here):
    """The main job: outputs agree to rounding while weights differ; table, figure and numbers are there."""
    code, out, err = here("demo", "--out", "there")
    assert code == 0, err
    assert "its outputs differ from A's by" in out
    content = json.loads((Path("there") / "demo.json").read_text())
    a, moved, b, aligned = content["rows"]
    assert a["weight_distance"] == a["output_difference"] == 0
    assert moved["output_difference"] < 1e-12
    assert moved["weight_distance"] > 1
    assert moved["same_labels"] == 1
    assert b["output_difference"] > 1
    # Bringing B to A leaves its function and shortens the way; the barrier on it nearly goes.
    assert aligned["output_difference"] == pytest.approx(b["output_difference"], rel=1e-9)
    assert aligned["weight_distance"] < b["weight_distance"]
    assert min(a["test_accuracy"], b["test_accuracy"]) > 0.95
    # Averaging over a posterior costs no accuracy to speak of, and says better how sure it is.
    point, posterior = content["predictions"]
    assert point["accuracy"] == a["test_accuracy"]
    assert posterior["accuracy"] > point["accuracy"] - 0.01
    assert posterior["nll"] < point["nll"]
    # Barriers nearly go by alignment, for networks and for posteriors; those of posteriors are estimates.
    barriers = content["barriers"]
    expected = [("networks", "train"), ("networks", "test"), ("posteriors", "train"), ("posteriors", "test")]
    assert [(row["between"], row["images"]) for row in barriers] == expected
    for row in barriers:
        assert row["naive"] > 0.3
        assert 0 <= row["aligned"] < row["naive"] / 5
        drawn = row["between"] == "posteriors"
        assert (row["naive_error"] > 0, row["aligned_error"] > 0) == (drawn, drawn)
    # It ends in the table of them and the curve.
    table, _, curve = out.partition("Barriers: ")[2].partition("Log-likelihood of test images")
    for row in barriers[:2]:
        assert f"networks     {row['images']:<6}  {row['naive']:.3f}          {row['aligned']:.3f}\n" in table
    assert f"{barriers[3]['naive']:.3f} ± {barriers[3]['naive_error']:.3f}" in table
    assert "naive" in curve
    assert "aligned" in curve
    assert max(len(line) for line in curve.splitlines()[1:-1]) <= 72
    assert curve.splitlines()[-1] == "figure: there/demo.png"
    assert (Path("there") / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(here("demo", "--out", "there", "--json")[1]) == content


def test_the_demo_refuses_a_file_as_folder(here, tmp_path):
    (tmp_path / "file").write_text("x")
    code, _, err = here("demo", "--out", "file")
    assert code == 2
    assert "file" in err
    assert len(err.splitlines()) == 1
