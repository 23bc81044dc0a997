"""``coset align``: files in, files out."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from aligned_files import align, metadata, model, network, shuffled
from safetensors.torch import load_file, save_file

import coset
from coset import Element
from coset.models import MLP, build

MINE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed = nn.Embedding(7, width)
        self.inner = nn.Linear(width, 5)
        self.outer = nn.Linear(5, width)
        self.head = nn.Linear(width, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        h = self.embed(x)
        return self.head(h + self.outer(torch.relu(self.inner(h))))

def make(width=4):
    return Net(width)
"""


# What comes out -----------------------------------------------------------------------------------------------------


def test_the_file_holds_what_the_method_found_and_how(here, ab, methods):
    a, b = ab
    code, out, err = here(*align("--seed", 3, "--gauge", "normalized", "--element", "new/g.safetensors"))
    assert (code, err) == (0, "")
    sym = coset.discover(model().eval(), torch.randn(2, 6))
    g = Element.load("new/g.safetensors")
    assert g == shuffled(sym, a, b, seed=3, gauge="normalized").element
    found, expected = load_file("out.safetensors"), sym.act(g, b)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    told = metadata("out.safetensors")
    assert told["coset.version"] == coset.__version__
    assert told["coset.command"] == "align"
    assert told["coset.method"] == "shuffled"
    assert json.loads(told["coset.settings"]) == {"gauge": "normalized"}
    assert told["coset.seed"] == "3"
    digests = [hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in ("a.safetensors", "b.pt")]
    assert json.loads(told["coset.inputs"]) == ["a.safetensors", "b.pt"]
    assert json.loads(told["coset.inputs.sha256"]) == digests
    assert told["coset.symmetry"] == sym.fingerprint
    assert (told["coset.objective.before"], told["coset.objective.after"]) == ("1.5", "2.5")
    assert " of 9 units moved, 2 families scaled" in told["coset.done"]
    assert json.loads(told["coset.notes"]) == ["a note"]
    assert told["format"] == "pt"
    moved = {name: int((p != torch.arange(len(p))).sum()) for name, p in g.permutations.items()}
    for name, count in moved.items():
        row = next(line.split() for line in out.splitlines() if line.startswith(name))
        assert row[1:3] == [str(len(g.permutations[name])), str(count)]
    assert "objective 1.5 → 2.5 in 2 steps (cost 0.25 s, assignment 0.50 s)" in out
    assert "scaled besides: layers.0, layers.1" in out
    assert "note: a note" in out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_network_moved_along_its_orbit_comes_back(here, tmp_path, dtype):
    """B = g·A on disk, with permutations alone: aligned on the weights it is A again, bit by bit."""
    a = network(1, dtype)
    sym = coset.discover(model().eval(), torch.randn(2, 6))
    g = sym.restrict(scales=False, signs=False).random(torch.Generator().manual_seed(5))
    save_file(a, tmp_path / "a.safetensors")
    torch.save(sym.act(sym.element(g.permutations), a), tmp_path / "b.pt")
    code, out, err = here(*align("--element", "back", "--json", method="weights"))
    assert code == 0, err
    found = load_file("out.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in a.items())
    back = Element.load("back").permutations
    undone = sym.inverse(sym.element(g.permutations)).permutations
    assert all(torch.equal(back[name], p) for name, p in undone.items())
    assert [row["after"] for row in json.loads(out)["classes"]] == pytest.approx([1, 1])


def test_scales_come_back_as_well(here, tmp_path):
    """B = g·A with scales: the weights agree with A to rounding only if scales are matched, too."""
    a = network(1, torch.float64)
    sym = coset.discover(model().eval(), torch.randn(2, 6))
    save_file(a, tmp_path / "a.safetensors")
    torch.save(sym.act(sym.random(torch.Generator().manual_seed(5)), a), tmp_path / "b.pt")
    code, _, err = here(*align("--gauge", "normalized", "--scales", method="weights"))
    assert code == 0, err
    found = load_file("out.safetensors")
    for name, tensor in a.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-9, atol=1e-9)


def test_json_for_machines(here, ab, methods):
    code, out, _ = here(*align("--json", "--setting", "gauge=normalized"))
    assert code == 0
    told = json.loads(out)
    assert told["out"] == "out.safetensors"
    assert told["settings"] == {"gauge": "normalized"}
    assert told["objective"] == {"before": 1.5, "after": 2.5, "steps": 2}
    assert [row["units"] for row in told["classes"]] == [5, 4]
    assert all(-1 <= row["after"] <= 1 for row in told["classes"])
    assert told["seconds"] == {"cost": 0.25, "assignment": 0.5}


def test_the_same_run_writes_the_same_bytes_and_keeps_what_the_file_said(here, ab, methods, tmp_path):
    save_file(ab[1], tmp_path / "b.safetensors", {"recipe": "mine", "coset.seed": "99"})
    contents = []
    for _ in range(2):
        assert here(*align(b="b.safetensors"))[0] == 0
        contents.append(Path("out.safetensors").read_bytes())
    assert contents[0] == contents[1]
    told = metadata("out.safetensors")
    assert (told["recipe"], told["coset.seed"]) == ("mine", "0")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtype_and_names_are_kept(here, methods, tmp_path, dtype):
    """A permutation moves numbers and changes none: exact in every type."""
    a, b = network(1), network(2, dtype)
    torch.save(a, tmp_path / "a.pt")
    save_file({f"module.{name}": tensor for name, tensor in b.items()}, tmp_path / "b.safetensors")
    arguments = align(a="a.pt", b="b.safetensors")
    code, _, err = here(*arguments)
    assert code == 2
    assert "--strip-prefix module." in err
    code, _, err = here(*arguments, "--strip-prefix", "module.", "--element", "g")
    assert code == 0, err
    sym = coset.discover(model().eval(), torch.randn(2, 6))
    expected = sym.act(Element.load("g"), b)
    found = load_file("out.safetensors")
    assert {name: tensor.dtype for name, tensor in found.items()} == {f"module.{name}": dtype for name in b}
    assert all(torch.equal(found[f"module.{name}"], tensor) for name, tensor in expected.items())


def test_a_model_of_ones_own_with_tied_weights(here, methods, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    make = lambda: build(f"{tmp_path}/mine.py:make", seed=0, width=6)  # noqa: E731
    tied = {name: network(1, make=make)[name] for name in make().state_dict()}
    tied["head.weight"] = tied["embed.weight"]
    torch.save(tied, tmp_path / "a.pt")
    torch.save({name: tensor for name, tensor in tied.items() if name != "head.weight"}, tmp_path / "b.pt")
    arguments = ["--model", "mine.py:make", "--option", "width=6", "--method", "shuffled", "-o", "out"]
    code, _, err = here("align", "a.pt", "b.pt", *arguments)
    assert (code, len(err.splitlines())) == (2, 1)
    assert "the model mine.py:make has no attribute input_shape; give the shape of its inputs with --input" in err
    for first, second in (("b.pt", "a.pt"), ("a.pt", "b.pt")):
        code, _, err = here("align", first, second, *arguments, "--input", "i:2,4:7", "--seed", 1)
        assert code == 0, err
        found = load_file("out")
        assert found.keys() == torch.load(second).keys()
        if "head.weight" in found:
            assert torch.equal(found["head.weight"], found["embed.weight"])
        assert not torch.equal(found["embed.weight"], tied["embed.weight"])
        outputs = []
        for params in (found, tied):
            once = {name: tensor.double() for name, tensor in params.items() if name != "head.weight"}
            outputs.append(torch.func.functional_call(make().double(), once, (torch.arange(6)[None],)))
        torch.testing.assert_close(*outputs, rtol=1e-5, atol=1e-5)


def test_the_symmetry_may_come_from_a_file(here, ab, methods, tmp_path):
    sym = coset.discover(model().eval(), torch.randn(2, 6)).restrict(["layers.0"])
    sym.save(tmp_path / "sym.json")
    code, _, err = here(*align("--symmetry", "sym.json", "--element", "g"))
    assert code == 0, err
    assert list(Element.load("g").permutations) == ["layers.0"]
    assert metadata("out.safetensors")["coset.symmetry"] == sym.fingerprint
    content = Path("sym.json").read_text()
    assert "sym.json would overwrite sym.json" in here(*align("--symmetry", "sym.json", out="sym.json"))[2]
    assert Path("sym.json").read_text() == content


# Data ---------------------------------------------------------------------------------------------------------------


def digits_network(tmp_path, dtype=torch.float32):
    params = network(1, dtype, lambda: MLP(64, [5], 10))
    save_file(params, tmp_path / "d.safetensors")
    torch.save(params, tmp_path / "e.pt")
    return params


DIGITS = ["--model", "mlp", "--option", "in_features=64", "--option", "widths=[5]", "--method", "looking", "-o", "out"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_methods_that_look_at_data_get_it_in_the_shape_and_type_of_the_model(here, methods, tmp_path, dtype):
    params = digits_network(tmp_path, dtype)
    data = coset.data.load("digits", flatten=True, dtype=dtype)
    net = MLP(64, [5], 10).to(dtype)
    outputs = torch.func.functional_call(net, params, (data.test.x,))
    code, out, err = here("align", "d.safetensors", "e.pt", *DIGITS, "--data", "digits", "--split", "test", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert told["objective"]["after"] == pytest.approx(float(outputs.sum()), rel=1e-4)
    assert told["data"] == "digits, test part, all, normalized"
    plain = coset.data.load("digits", flatten=True, dtype=dtype, normalize=False).train
    chosen = torch.randperm(len(plain), generator=torch.Generator().manual_seed(4))[:50]
    outputs = torch.func.functional_call(net, params, ((plain.x[chosen] - 0.25) / 0.5,))
    more = ["--data", "digits", "--limit", 50, "--seed", 4, "--mean", "0.25", "--std", "0.5", "--json"]
    told = json.loads(here("align", "d.safetensors", "e.pt", *DIGITS, *more)[1])
    assert told["objective"]["after"] == pytest.approx(float(outputs.sum()), rel=1e-4)
    assert metadata("out")["coset.data"] == "digits, train part, at most 50, seed 4, mean 0.25, std 0.5"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "the method looking runs the networks on inputs: say on which with --data"),
        (["--data", "nothing"], "dataset is 'nothing'; expected one of digits"),
        (["--data", "breast-cancer"], "--data breast-cancer has inputs of shape (30,); the model takes (64,)"),
        (["--data", "mnist"], "--data mnist has inputs of shape (1, 28, 28); the model takes (64,)"),
        (["--data", "digits", "--split", "middle"], "--split is 'middle', expected train or test"),
        (["--data", "digits", "--limit", "0"], "Invalid value for '--limit'"),
        (["--data", "digits", "--mean", "0.1"], "--mean and --std belong together; one of them is missing"),
        (["--data", "digits", "--mean", "0.1", "--std", "0"], "expected as many of each, --std above 0"),
        (["--data", "digits", "--mean", "a", "--std", "1"], "--mean takes numbers separated by commas, found 'a'"),
        (["--data", "digits", "--mean", "nan", "--std", "1"], "--mean takes finite numbers, found 'nan'"),
        (["--data", "digits", "--mean", "0,0", "--std", "1,1"], "--mean has 2 numbers; digits has 1 channels"),
    ],
)
def test_data_that_do_not_fit_are_refused(here, methods, tmp_path, more, message):
    digits_network(tmp_path)
    code, out, err = here("align", "d.safetensors", "e.pt", *DIGITS, *more)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert message in err
    assert not Path("out").exists()


def test_help_shows_examples(here):
    code, out, _ = here("align", "--help")
    assert code == 0
    assert "  coset align a.safetensors b.safetensors --model resnet20 -o aligned.safetensors\n" in out
