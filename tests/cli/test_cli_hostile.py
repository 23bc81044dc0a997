"""Files and arguments that are made to break things: one line on stderr, exit code 2, nothing left behind."""

import gzip
import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from aligned_files import MLP_OPTIONS, align
from safetensors.torch import save_file

from coset.symmetry import Element, Symmetry

FACTORIES = """
import os, sys
from torch import nn

def raises(): raise KeyError("a\\nb")
def exits(): sys.exit(0)
def exits_loudly(): sys.exit("bye")
def divides(): return 1 / 0
def recurs(): return recurs()
def large(): return nn.Linear(10**9, 10**9)
def odd():
    model = nn.Linear(2, 2)
    model.input_shape = "ab"
    return model
def huge():
    model = nn.Linear(2, 2)
    model.input_shape = (10**9, 10**9)
    return model
"""


def refused(here, *arguments, message):
    before = sorted(Path().rglob("*"))
    code, out, err = here(*arguments)
    assert (code, out, len(err.splitlines())) == (2, "", 1), err
    assert message in err
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("raises", "the model nets.py:raises could not be built: KeyError: 'a\\nb'"),
        ("exits", "the model nets.py:exits could not be built: SystemExit: 0"),
        ("exits_loudly", "could not be built: SystemExit: bye"),
        ("divides", "could not be built: ZeroDivisionError: division by zero"),
        ("recurs", "could not be built: RecursionError: maximum recursion depth exceeded"),
        ("large", "could not be built: RuntimeError: "),
        ("odd", "could not be built: TypeError: "),
        ("huge", "could not be built: RuntimeError: "),
    ],
)
def test_factories_that_do_anything_but_return_a_model(here, factory, message):
    Path("nets.py").write_text(FACTORIES)
    refused(here, "discover", f"nets.py:{factory}", message=message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--input", "1000000000,1000000000"],
            "--input 1000000000,1000000000 is too large; expected at most 268,435,456",
        ),
        (["--input", f"2,{10**40}"], "is too large; expected at most 268,435,456 entries"),
        (["--input", f"i:2,3:{10**30}"], "--input takes a shape such as 2,3,32,32"),
        (["--input", "9" * 5000], "--input takes a shape such as 2,3,32,32 or i:2,16:1000, found '9999"),
        (["--option", "widths=" + "[" * 100_000], "--option widths cannot be read as JSON: maximum recursion depth"),
        (["--option", "widths=" + "9" * 5000], "--option widths cannot be read as JSON: Exceeds the limit"),
        (["--option", "widths=[1000000000,1000000000]"], "the model mlp could not be built: RuntimeError: "),
    ],
)
def test_absurd_arguments(here, arguments, message):
    refused(here, "discover", "mlp", *arguments, message=message)


@pytest.mark.parametrize("name", ["x.PTH", "new/x.ckpt", "x.npz", "x.bin"])
def test_weights_are_not_written_under_the_name_of_another_format(here, ab, methods, name):
    message = f"--out is {name}, but what is written is safetensors; expected a name as x.safetensors"
    refused(here, *align(out=name), message=message)
    refused(here, "merge", "a.safetensors", "b.pt", *MLP_OPTIONS, "-o", name, message=message)
    refused(here, *align("--element", name), message=f"--element is {name}, but what is written is safetensors")


def test_the_element_is_written_for_its_symmetry(here, ab, methods):
    here("discover", "mlp", *MLP_OPTIONS[2:], "-o", "sym.json")
    assert here(*align("--element", "g"))[0] == 0
    sym = Symmetry.load("sym.json")
    assert Element.load("g", sym) == Element.load("g")
    content = json.loads(_metadata("g")["coset.element"])
    assert content["symmetry"] == sym.fingerprint


def _metadata(path: str) -> dict[str, str]:
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return file.metadata()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "sym.json is not JSON: maximum recursion depth"),
        ('{"format": ' + "[" * 400 + "]" * 400 + "}", "sym.json is nested more than 100 levels deep"),
        ('{"format": "coset.symmetry", "version": 1, "classes": {}, "families": {}, "parameters": {"w": {"shape": [1],'
         ' "axes": ["' + "a[" * 50_000 + '"]}}, "notes": [], "pinned": []}', "w: an axis is nested too deeply"),
        ("9" * 5000, "sym.json is not JSON: Exceeds the limit"),
    ],
)  # fmt: skip
def test_symmetries_nested_absurdly(here, ab, methods, text, message):
    Path("sym.json").write_text(text)
    refused(here, *align("--symmetry", "sym.json"), message=message)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_links_that_lead_to_themselves_and_pipes(here, ab, methods):
    Path("loop").symlink_to("loop")
    Path("in").symlink_to("out")
    Path("out").symlink_to("in")
    os.mkfifo("pipe")
    refused(here, *align(a="loop"), message="loop does not exist; expected a file of weights")
    refused(
        here,
        *align(out="loop/x.safetensors"),
        message="loop/x.safetensors cannot be written: Too many levels of symbolic links",
    )
    refused(here, *align(a="pipe"), message="pipe is not a regular file")
    refused(here, *align("--symmetry", "pipe"), message="pipe does not exist")
    refused(here, "store", "prune", "--store", "pipe", message="the store root must be a folder")
    refused(here, "study", "show", "group-orders", "--out", "loop", message="has no results in loop")
    refused(here, *align(out="in"), message="in cannot be written: Too many levels of symbolic links")
    refused(here, *align("--element", "x" * 300), message="cannot be written: File name too long")
    refused(here, "discover", "mlp", "-o", "loop", message="loop cannot be written: Too many levels of symbolic links")


def test_a_numpy_file_that_claims_more_than_it_holds(here):
    torch.save({"layers.0.weight": torch.zeros(4, 64)}, "a.pt")
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 64), }".ljust(117) + b"\n"
    Path("x.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(512))
    from coset.models import MLP

    for name in ("a.pt", "b.pt"):
        torch.save(dict(MLP(64, [4], 10).state_dict()), name)
    model = ["--model", "mlp", "--option", "in_features=64", "--option", "widths=[4]"]
    message = "--data x.npy: holds 512 bytes of values, expected 512000000000000 for float64"
    refused(here, "compare", "a.pt", "b.pt", *model, "--data", "x.npy", message=message)
    np.savez("x.npz", x=np.zeros((3, 64)))
    Path("x.npz").write_bytes(Path("x.npz").read_bytes().replace(b"(3, 64)", b"(9, 64)"))
    refused(here, "compare", "a.pt", "b.pt", *model, "--data", "x.npz", message="--data x.npz: not a sound .npz file")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "was written by another version of coset"),
        ({"times": {}}, "times has None as seconds, expected seconds"),
        ({"times": {"seconds": "long"}}, "times has 'long' as seconds, expected seconds"),
        ({"times": {"seconds": 1.0, "processor": []}}, "times has [] as processor, expected seconds"),
        ({"seed": "0"}, "seed is '0', expected int"),
        ({"study": "../x"}, "study is '../x', expected a name"),
        ({"title": None}, "title is None, expected str"),
        ({"config": [1]}, "config is [1], expected dict"),
        ({"numbers": {"n": [1]}}, "'n' is a list; findings hold numbers, texts, truth values and None"),
        ({"numbers": {"n": float("nan")}}, "'n' is nan; findings hold finite numbers"),
        ({"tables": {"t": {"columns": ["a"], "rows": [[1, 2]], "caption": ""}}}, "row 0 has 2 cells, expected 1"),
        ({"tables": {"t": {"columns": ["a"], "rows": ["x"], "caption": ""}}}, "has rows that are not lists"),
        ({"tables": {"t": {"columns": [1], "rows": [], "caption": ""}}}, "has no caption, columns and rows"),
        ({"tables": {"t": {"columns": "ab", "rows": []}}}, "the table 't' is {"),
        ({"more": 1}, "it has 'more'"),
    ],
)
def test_results_of_a_study_that_were_changed(here, change, message):
    content = {
        "schema": 1, "study": "group-orders", "title": "t", "reference": "r", "paper": "p", "outcome": "o",
        "caption": "c", "preset": "quick", "seed": 0, "device": "cpu", "config": {}, "numbers": {}, "tables": {},
        "versions": {}, "times": {"seconds": 1.0},
    }  # fmt: skip
    results = Path("out/group-orders/results.json")
    results.parent.mkdir(parents=True)
    show = ("study", "show", "group-orders", "--out", "out")
    results.write_text(json.dumps(content))
    assert here(*show)[0] == 0
    results.write_text(json.dumps({**content, **change}))
    refused(here, *show, message=message)
    results.write_text(json.dumps(content).replace('"t"', "[" * 100_000, 1))
    refused(here, *show, message="results.json does not hold the results of a study: it is not JSON")


def test_the_files_of_a_dataset_that_unpack_to_far_more(here, monkeypatch):
    monkeypatch.setattr("coset.data._plain.LARGEST", 1 << 20)
    folder = Path("data/mnist")
    folder.mkdir(parents=True)
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"):
        (folder / name).write_bytes(b"")
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(2_000_000)))
    code, out, err = here("data", "check", "mnist", "--root", "data", "--json")
    assert "holds more than 1048576 bytes" in out + err
    assert code != 0
    assert "Traceback" not in err


def test_a_sealed_header_of_a_gigabyte_is_not_believed(here, ab, methods):
    save_file({"w": torch.zeros(1)}, "a.safetensors")
    content = Path("a.safetensors").read_bytes()
    Path("a.safetensors").write_bytes(struct.pack("<Q", 10**12) + content[8:])
    refused(here, *align(), message="a.safetensors is not a whole safetensors file")
