"""``coset compare``: what the library finds between layers of two files of weights, as a table, JSON and a figure."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from written_figures import read_figure

import coset
from coset.data import load
from coset.models import MLP
from coset.represent import cka, features, procrustes
from coset.symmetry import Symmetry

MODEL = ["--model", "mlp", "--option", "in_features=64", "--option", "widths=[8,6]"]
LAYERS = ["activations.0", "activations.1", "layers.2"]


def net(seed, widths=(8, 6)):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return MLP(64, list(widths), 10).eval()


@pytest.fixture(scope="module")
def symmetry():
    return coset.discover(net(0), torch.randn(2, 64), verify=False)


@pytest.fixture
def files(tmp_path, symmetry):
    """a.pt and b.pt, networks; moved.pt, a of other weights; wide.pt, of another model; sym.json, their symmetry."""
    a, b = (dict(net(seed).state_dict()) for seed in (0, 1))
    torch.save(a, tmp_path / "a.pt")
    torch.save({"epoch": 3, "state_dict": b}, tmp_path / "b.pt")
    torch.save(symmetry.act(symmetry.random(torch.Generator().manual_seed(0)), a), tmp_path / "moved.pt")
    torch.save(dict(net(2, (9, 6)).state_dict()), tmp_path / "wide.pt")
    symmetry.save(tmp_path / "sym.json")
    return a, b


def command(*more, a="a.pt", b="b.pt", data="digits"):
    return ["compare", a, b, *MODEL, "--data", data, "--symmetry", "sym.json", "--draws", 20, *more]


def told(here, *arguments):
    code, out, err = here(*arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def inputs(limit, seed=0):
    """Test inputs as the command chooses them."""
    part = load("digits", flatten=True).test
    return part.x[torch.randperm(len(part), generator=torch.Generator().manual_seed(seed))[:limit]]


def test_the_numbers_are_those_of_the_library(here, files):
    found = told(here, *command("--limit", 50, "--seed", 3))
    assert found["data"] == {"name": "digits", "part": "test", "examples": 50, "mean": None, "std": None}
    assert [row["layer"] for row in found["layers"]] == [[name, name] for name in LAYERS]
    assert [row["group"][0] for row in found["layers"]] == ["SR(8)", "SR(6)", "fixed(10)"]
    assert [row["invariant"][0] for row in found["layers"]] == ["own only", "own only", "all"]
    assert [row["orthogonal measures invariant"] for row in found["layers"]] == [False, False, True]
    x, y = (features(net(0), inputs(50, 3), LAYERS, params=params) for params in files)
    for row, name in zip(found["layers"], LAYERS, strict=True):
        own = "trivial" if name == "layers.2" else "permutation"
        for way, group in (("own", own), ("orthogonal", "orthogonal")):
            assert row["cka"][way]["value"] == pytest.approx(cka(x[name], y[name], group=group), abs=1e-9)
            expected = procrustes(x[name], y[name], group=group).similarity
            assert row["procrustes"][way]["value"] == pytest.approx(expected, abs=1e-9)
            for measure in ("cka", "procrustes"):
                assert row[measure][way]["low"] < row[measure][way]["value"] < row[measure][way]["high"]
    crossed = found["cka"]["orthogonal"]
    assert crossed["similarity"][0][1] == pytest.approx(cka(x[LAYERS[0]], y[LAYERS[1]]), abs=1e-9)


def test_networks_of_one_orbit_are_the_same_modulo_their_groups_and_not_modulo_rotations(here, files):
    found = told(here, *command("--limit", 40, b="moved.pt"))
    for row in found["layers"]:
        for measure in ("cka", "procrustes"):
            assert row[measure]["own"]["value"] == pytest.approx(1, abs=1e-5)
            if not row["orthogonal measures invariant"]:
                assert row[measure]["orthogonal"]["value"] < 0.999


def test_the_table_tells_group_advice_and_numbers(here, files):
    arguments = command("--limit", 40)
    found = told(here, *arguments)
    code, out, err = here(*arguments)
    assert (code, err) == (0, "")
    lines = {line.split()[0]: line for line in out.splitlines() if line.split()}
    for row in found["layers"]:
        line = lines[row["layer"][0]]
        for measure in ("cka", "procrustes"):
            for one in row[measure].values():
                assert f"{one['value']:.3f} [{one['low']:.3f}, {one['high']:.3f}]" in line
        assert row["group"][0] in line
        assert line.count("*") == (0 if row["orthogonal measures invariant"] else 2)
    assert "own only: units have scales of their own, which orthogonal measures notice" in out
    assert "all: nothing acts on the units" in out
    assert "*: different for networks with the same function" in out
    assert "kernels of CKA: own group: max (linear at layers.2); O(C): linear" in out
    assert [row["kernel"] for row in found["layers"]] == ["max", "max", "sum"]
    assert not list(Path().glob("*.png"))


def test_figure_and_numbers_are_written(here, files):
    code, out, err = here(*command("--limit", 40, "--out", "new/layers.1"))
    assert (code, err) == (0, "")
    content, rows = read_figure(out, "new/layers.1")
    assert content["inputs"][0]["sha256"] == hashlib.sha256(Path("a.pt").read_bytes()).hexdigest()
    assert [(row["layer of A"], row["layer of B"]) for row in rows] == [(x, y) for x in LAYERS for y in LAYERS]
    assert float(rows[1]["CKA, own"]) == content["cka"]["own"]["similarity"][0][1]
    assert rows[1]["Procrustes, own"] == ""
    assert [row["CKA, own, kernel"] for row in rows] == ["max"] * 8 + ["sum"]
    assert float(rows[4]["Procrustes, own, low"]) == content["layers"][1]["procrustes"]["own"]["low"]
    again = told(here, *command("--limit", 40))
    assert {**again, "files": None} == {**content, "files": None}


def test_inputs_come_from_files_as_well(here, files):
    x = inputs(40)
    np.save("x.npy", x.numpy())
    np.savez("both.npz", x_train=np.zeros((3, 64)), x_test=x.numpy(), y_test=np.zeros(3))
    np.savez("one.npz", pictures=x.numpy().reshape(-1, 1, 8, 8))
    expected = told(here, *command("--limit", 40))["layers"]
    for name in ("x.npy", "both.npz", "one.npz"):
        found = told(here, *command("--limit", 10000, data=name))
        assert found["data"]["examples"] == len(x)
        assert found["layers"][0]["cka"]["own"]["value"] == pytest.approx(expected[0]["cka"]["own"]["value"], abs=1e-6)
    pixels = np.arange(40 * 64, dtype=np.uint8).reshape(40, 1, 8, 8)
    np.save("bytes.npy", pixels)
    np.save("wide.npy", (pixels / 255 - 0.5) / 0.25)
    more = ["--mean", 0.5, "--std", 0.25]
    left, right = (
        told(here, *command(*more[:count], data=name)) for name, count in (("bytes.npy", 4), ("wide.npy", 0))
    )
    for way in ("own", "orthogonal"):
        values = [found["layers"][1]["cka"][way]["value"] for found in (left, right)]
        assert values[0] == pytest.approx(values[1], abs=1e-6)


def test_networks_of_different_models(here, files):
    other = ["--model-b", "mlp", "--option-b", "in_features=64", "--option-b", "widths=[9,6]"]
    found = told(here, *command("--limit", 40, *other, b="wide.pt"))
    assert [row["group"] for row in found["layers"]][:2] == [["SR(8)", "SR(9)"], ["SR(6)", "SR(6)"]]
    assert found["layers"][0]["procrustes"]["own"] is not None
    more = ["--layers", "activations.1,layers.2", "--layers-b", "activations.?"]
    code, out, err = here(*command("--limit", 40, *other, *more, b="wide.pt"))
    assert (code, err) == (0, "")
    assert "layers.2 | activations.1" in out
    assert "–" in out


def test_layers_are_named_or_matched(here, files):
    found = told(here, *command("--limit", 40, "--layers", "layers.0, activations.*"))
    assert [row["layer"][0] for row in found["layers"]] == ["layers.0", "activations.0", "activations.1"]
    assert found["layers"][0]["group"] == ["SR(8)", "SR(8)"]


def test_the_symmetry_is_discovered_where_none_is_given(here, files):
    arguments = [word for word in command("--limit", 40) if word not in ("--symmetry", "sym.json")]
    assert [row["group"][0] for row in told(here, *arguments)["layers"]] == ["SR(8)", "SR(6)", "fixed(10)"]
    assert Symmetry.load("sym.json")


def test_trained_networks(here, checkpoint_folder, data_folder, monkeypatch):
    monkeypatch.setenv("COSET_DATA", str(data_folder))
    names = [checkpoint_folder / f"tiny10-seed{seed}.safetensors" for seed in (0, 1)]
    arguments = ["--model", "tiny10", "--data", "cifar10-slice", "--limit", 40, "--draws", 50]
    rows = told(here, "compare", *names, *arguments, "--layers", "bn1,relu1,relu8,fc")["layers"]
    assert [row["group"][0] for row in rows] == ["SR(16)", "SR(16)", "SR(64)", "fixed(10)"]
    for row in rows[:3]:
        assert row["cka"]["own"]["value"] < row["cka"]["orthogonal"]["value"]
