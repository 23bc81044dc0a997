"""``coset flow``: a zoo becomes a flow, a flow networks and numbers, and mistakes one line."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from refusals import check_refused
from safetensors.torch import load_file

from coset.data import load
from coset.flow import Solver, load_flow, log_prob_modulo, save_flow
from coset.models import build
from coset.train import evaluate
from coset.zoo import open_zoo, train_zoo

SPEC = {
    "model": "mlp",
    "options": {"in_features": 30, "out_features": 2, "widths": [3]},
    "data": {"name": "breast-cancer", "subset": 32},
    "recipe": {"epochs": 1, "batch_size": 32, "learning_rate": 0.01},
    "seeds": 12,
}
FIT = ["flow", "fit", "zoo", "-o", "flow.safetensors", "--steps", 4, "--batch-size", 8, "--setting", "every=2",
       "--field-option", "hidden=8", "--field-option", "layers=1"]  # fmt: skip
OUT = ["-o", "new/f.safetensors"]


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    return train_zoo(SPEC, tmp_path_factory.mktemp("zoo") / "zoo", show=False)


@pytest.fixture(scope="module")
def smooth(tmp_path_factory):
    """Networks without scales, and of other shapes."""
    options = {**SPEC["options"], "activation": "gelu", "widths": [4]}
    return train_zoo({**SPEC, "options": options, "seeds": 2}, tmp_path_factory.mktemp("zoo") / "smooth", show=False)


@pytest.fixture
def with_zoo(here, zoo, smooth):
    shutil.copytree(zoo.folder, "zoo")
    shutil.copytree(smooth.folder, "smooth")
    return here


@pytest.fixture
def fitted(with_zoo):
    """A flow on disk of which everything is quick."""
    assert with_zoo(*FIT)[0] == 0
    save_flow(replace(load_flow("flow.safetensors"), solver=Solver(steps=2)), "flow.safetensors")
    return with_zoo


def test_help_teaches(here):
    for command, words in {
        "fit": ("conditional flow matching", "coset flow fit zoo -o flow.safetensors --geometry geometric"),
        "sample": ("plain safetensors checkpoints", "coset zoo evaluate drawn --data breast-cancer"),
        "score": ("do not compare the one with the other", "--trace hutchinson"),
        "evaluate": ("what it has to beat", "--held-out others"),
    }.items():
        code, out, _ = here("flow", command, "--help")
        assert code == 0
        assert all(word in " ".join(out.split()) for word in words), command


def test_a_fit_is_told_and_goes_on_where_it_was_stopped(with_zoo):
    options = ["--checkpoint", "fit.part", "--validation", 0.25, "--condition", "last_train_loss", "--json"]
    code, out, err = with_zoo(*FIT, *options)
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert (told["networks"], told["coordinates"], told["geometry"]) == (12, 101, "euclidean")
    assert told["settings"]["steps"] == 4
    assert {name: len(values) for name, values in told["trace"].items()} == {
        "loss": 2, "held out": 2, "seconds": 2
    }  # fmt: skip
    first = Path("flow.safetensors").read_bytes()
    code, out, _ = with_zoo(*FIT, *options)
    assert json.loads(out)["trace"] == told["trace"]
    assert Path("flow.safetensors").read_bytes() == first
    code, out, _ = with_zoo("flow", "sample", "flow.safetensors", "-n", 2, "-o", "asked", "--condition", 0.6,
                            "--guidance", 2, "--steps", 2)  # fmt: skip
    assert (code, len(list(Path("asked").iterdir()))) == (0, 2)
    code, _, err = with_zoo(*FIT, "--checkpoint", "fit.part", "--seed", 1)
    assert (code, err.count("\n")) == (2, 1)
    assert "belongs to another run" in err
    assert Path("flow.safetensors").read_bytes() == first


def test_samples_are_checkpoints_of_the_architecture(fitted):
    code, out, err = fitted("flow", "sample", "flow.safetensors", "-n", 3, "-o", "samples", "--seed", 5)
    assert (code, err) == (0, "")
    assert "3 samples of Flow(euclidean, aligned" in out
    drawn = load_flow("flow.safetensors").sample(3, torch.Generator().manual_seed(5))
    files = sorted(Path("samples").iterdir())
    assert [file.name for file in files] == ["000000.safetensors", "000001.safetensors", "000002.safetensors"]
    for number, file in enumerate(files):
        params = load_file(file)
        build("mlp", seed=0, **SPEC["options"]).load_state_dict(params)
        assert all(torch.equal(params[name], tensor[number]) for name, tensor in drawn.items())


def test_samples_are_a_zoo_that_is_evaluated_like_any_other(fitted):
    command = ["flow", "sample", "flow.safetensors", "-n", 3, "-o", "drawn", "--zoo", "zoo", "--seed", 5, "--json"]
    code, out, err = fitted(*command)
    assert (code, err) == (0, "")
    assert json.loads(out) == {"folder": "drawn", "networks": 3, "files": [], "zoo": True}
    code, _, err = fitted("zoo", "evaluate", "drawn", "--data", "breast-cancer", "--part", "test")
    assert (code, err) == (0, "")
    made = open_zoo("drawn")
    assert made.content["made"] == {"by": "flow", "flow": "flow.safetensors", "seed": 5, "condition": None,
                                    "guidance": 1.0, "noise": 0.0}  # fmt: skip
    assert made.symmetry().fingerprint == open_zoo("zoo").symmetry().fingerprint
    test = load("breast-cancer").test
    for row in made.rows():
        known = evaluate(made.model(), test.x, test.y, params=made[row["index"]])
        assert row["test_loss"] == pytest.approx(known.loss, rel=1e-5)


def test_scores_are_densities_in_the_frame_of_the_flow(fitted):
    """A network and the same one with its units in another order have one density."""
    own = open_zoo("zoo")
    sym, params = own.symmetry(), own[3]
    finite = sym.restrict(scales=False)
    moved = finite.act(finite.random(torch.Generator().manual_seed(0)), params)
    torch.save(params, "a.pt")
    torch.save({name: tensor.clone() for name, tensor in moved.items()}, "b.pt")
    code, out, err = fitted("flow", "score", "flow.safetensors", "a.pt", "b.pt", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    flow = load_flow("flow.safetensors")
    placed = flow.canonical({name: tensor[None] for name, tensor in params.items()})
    expected = float(flow.log_prob(placed))
    assert [row["log_prob"] for row in told["networks"]] == [pytest.approx(expected, rel=1e-5)] * 2
    assert told["networks"][0]["per_weight"] == pytest.approx(expected / 101, rel=1e-5)
    assert told["density"] == "weights"
    code, out, _ = fitted("flow", "score", "flow.safetensors", "a.pt", "--modulo", 4, "--json", "--seed", 2)
    averaged = float(log_prob_modulo(sym, flow, placed, draws=4, seed=2))
    assert json.loads(out)["networks"][0]["log_prob"] == pytest.approx(averaged)
    code, out, _ = fitted("flow", "score", "flow.safetensors", "zoo", "--trace", "hutchinson", "--probes", 2)
    assert (code, len(out.splitlines())) == (0, 2 + 12 + 2)
    assert "mean per weight:" in out


def test_a_normalized_flow_is_not_scored(with_zoo):
    assert with_zoo(*FIT, "--geometry", "normalized", "--classifier")[0] == 0
    code, out, err = with_zoo("flow", "score", "flow.safetensors", "zoo")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "a normalized flow has no density" in err


def test_an_evaluation_has_the_cheap_generators_beside_the_flow(fitted):
    command = ["flow", "evaluate", "flow.safetensors", "zoo", "-n", 4, "--held-out", "zoo", "--seed", 3]
    some = ["--generator", "soup", "--generator", "gaussian"]
    code, out, err = fitted(*command, *some)
    assert (code, err) == (0, "")
    assert all(word in out for word in ("training networks", "flow", "soup", "gaussian", "log-likelihood"))
    assert "performant: accuracy at least" in out
    code, out, _ = fitted(*command, *some, "--bar", 0.25, "--json")
    told = json.loads(out)
    assert set(told["scores"]) == {"flow", "soup", "gaussian"}
    assert {one["bar"] for one in told["scores"].values()} == {0.25}
    assert told["scores"]["flow"]["samples"] == 4
    assert told["scores"]["soup"]["log-likelihood per weight"] is None
    best = told["scores"]["flow"]["novel and performant"]
    assert told["not_beaten"] == [n for n in ("soup", "gaussian") if told["scores"][n]["novel and performant"] >= best]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["fit", "none", *OUT], "none is not a zoo"),
        (["fit", "zoo", "-o", "f.pt"], "expected a name as f.safetensors"),
        (["fit", "zoo", *OUT], "there are 12 networks and batch_size is 64; expected at least a batch"),
        (["fit", "zoo", *OUT, "--setting", "color=3"], "--setting color is no setting of the recipe"),
        (["fit", "zoo", *OUT, "--geometry", "round"], "geometry is 'round'; expected one of euclidean"),
        (["fit", "zoo", *OUT, "--condition", "test_x"], "--condition test_x is no column of numbers"),
        (["fit", "zoo", *OUT, "--batch-size", "8", "--field-option", "wide=3"], "field_options do not fit"),
        (["fit", "smooth", *OUT, "--geometry", "geometric"], "the architecture has no scale symmetry"),
        (
            [
                "fit",
                "zoo",
                *OUT,
                "--batch-size",
                "8",
                "--learning-rate",
                "1e20",
                "--steps",
                "30",
                "--setting",
                "clip=null",
                "--setting",
                "schedule=constant",
                "--setting",
                "every=10",
            ],
            "the last finite value was",
        ),
        (["sample", "zoo/zoo.json", "-o", "out"], "flow zoo/zoo.json is not"),
        (["score", "zoo/zoo.json", "zoo"], "flow zoo/zoo.json is not"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(with_zoo, command, message):
    before = sorted(Path().rglob("*"))
    code, out, err = with_zoo("flow", *command)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert sorted(Path().rglob("*")) == before


def test_flows_refuse_what_does_not_fit_them(fitted, monkeypatch):
    build_other = build("mlp", seed=0, in_features=30, out_features=2, widths=[4])
    torch.save(dict(build_other.state_dict()), "other.pt")
    Path("full").mkdir()
    Path("full/here").touch()
    for command, message in (
        (["sample", "-n", 0, "-o", "out"], "--networks is 0"),
        (["sample", "-o", "full"], "full is not empty; expected a new folder"),
        (["sample", "-o", "out", "--condition", 0.5], "condition is given, and the flow was trained without"),
        (["sample", "-o", "out", "--steps", 0], "steps is 0; expected a whole number ≥ 1"),
        (["score", "other.pt"], "other.pt"),
        (["score", "zoo", "--trace", "guess"], "trace is 'guess'"),
        (["evaluate", "smooth"], "networks of smooth do not fit the flow"),
        (["evaluate", "zoo", "--held-out", "smooth"], "networks of smooth do not fit the flow"),
        (["score", "smooth"], "networks of smooth do not fit the flow"),
        (["evaluate", "zoo", "--generator", "luck"], "--generator is 'luck'"),
        (["evaluate", "zoo", "--part", "exam"], "part is 'exam'"),
    ):
        name, *more = command
        check_refused(fitted, monkeypatch, ["flow", name, "flow.safetensors", *more], message)
