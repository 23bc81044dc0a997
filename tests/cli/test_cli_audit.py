"""``coset audit``: a reader from a file, on checkpoints and on zoos; and what it refuses."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch

from coset.errors import InputError
from coset.metanet import audit
from coset.zoo import open_zoo, train_zoo

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metanet.md"

READERS = """
import torch

def norms(params):
    return params["layers.0.weight"].norm(dim=1).sort().values

def positive(params):
    return bool(params["layers.0.weight"][0, 0] > 0)

def batched(stack):
    return stack["layers.0.weight"].sum((1, 2))

def odd(params):
    return None

number = 3
"""

SPEC = {
    "model": "mlp",
    "options": {"in_features": 30, "out_features": 2, "widths": [3]},
    "data": {"name": "breast-cancer", "subset": 32},
    "recipe": {"epochs": 1, "batch_size": 32, "learning_rate": 0.01},
    "seeds": 3,
}
QUICK = ["--draws", "2", "--budget", "4"]


@pytest.fixture
def readers(here):
    Path("readers.py").write_text(READERS)
    return here


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    return train_zoo(SPEC, tmp_path_factory.mktemp("zoo") / "zoo", show=False)


def save(name="a.pt", seed=0):
    from coset.models import build

    torch.save(dict(build("mlp", seed=seed, in_features=4, widths=[3], out_features=2).state_dict()), name)


MODEL = ["--model", "mlp", "--option", "in_features=4", "--option", "widths=[3]", "--option", "out_features=2"]


def test_files(readers):
    save("a.pt", 0)
    save("b.pt", 1)
    readers("discover", "mlp", *MODEL[2:], "-o", "sym.json")
    command = ["audit", "readers.py:norms", "a.pt", "b.pt", *MODEL, "--symmetry", "sym.json", *QUICK]
    code, out, err = readers(*command)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "readers.py:norms"
    assert out.splitlines()[-1] == "invariant under: permutations"
    assert re.search(r"^scales +changes ", out, re.MULTILINE)
    code, out, err = readers(*command, "--json", "--kinds", "permutations, all")
    told = json.loads(out)
    assert (code, err) == (0, "")
    assert {kind: one["verdict"] for kind, one in told["kinds"].items()} == {
        "permutations": "invariant", "all": "changes",
    }  # fmt: skip
    assert [Path(one["file"]).name for one in told["inputs"]] == ["a.pt", "b.pt"]
    code, out, _ = readers(*[part.replace("norms", "positive") for part in command], "--json")
    assert json.loads(out)["output"] == "labels"


def test_a_zoo(readers, zoo):
    code, out, err = readers("audit", "readers.py:batched", zoo.folder, "--batch", *QUICK, "--json", "--seed", "3")
    assert (code, err) == (0, "")
    told = json.loads(out)
    same = audit(
        lambda params: params["layers.0.weight"].sum(), zoo.symmetry(), zoo, draws=2, budget=4, seed=3, show=False
    )
    assert told["networks"] == 3
    assert told["kinds"]["scales"]["typical"] == pytest.approx(same["scales"].typical, rel=1e-5)
    code, out, _ = readers("audit", "readers.py:norms", zoo.folder, "--limit", "2", *QUICK, "--json")
    assert (code, json.loads(out)["networks"]) == (0, 2)


def test_zoos_of_which_nothing_can_be_read(zoo):
    sym = zoo.symmetry()
    calls = iter([0.1, float("nan")])
    with pytest.raises(InputError, match=r"gives nan for network 1 of .*zoo; expected finite numbers"):
        audit(lambda params: next(calls), sym, zoo, show=False)
    empty = open_zoo(zoo.folder)
    empty.content["members"].clear()
    empty.content["groups"].clear()
    with pytest.raises(InputError, match=r"no network of .*zoo was asked for, or none can be used"):
        audit(lambda params: 1.0, sym, empty, show=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["norms", "a.pt", *MODEL], "reader 'norms': expected 'module.path:name' or 'path/to/file.py:name'"),
        (["none.py:norms", "a.pt", *MODEL], "reader 'none.py:norms': there is no file 'none.py'"),
        (["readers.py:other", "a.pt", *MODEL], "reader 'readers.py:other': readers.py has no attribute 'other'"),
        (["readers.py:number", "a.pt", *MODEL], "'number' is int, expected a function of parameters"),
        (["readers.py:norms", "none.pt", *MODEL], "none.pt does not exist"),
        (["readers.py:norms", "a.pt"], "a.pt is no folder of a zoo; say with --model which network its weights are of"),
        (["readers.py:norms", ".", "a.pt", *MODEL], ". is a folder, beside others; expected files of weights, or one"),
        (["readers.py:norms", "."], ". is not a zoo: it has no zoo.json"),
        (["readers.py:norms", ".", "--option", "x=1"], "--option and --input say which model it is; they need --model"),
        (["readers.py:norms", ".", "--key", "x"], "--key is 'x' and . a folder of a zoo; expected no --key"),
        (["readers.py:norms", "a.pt", *MODEL, "--limit", "2"], "--limit is 2, and takes networks of a zoo"),
        (["readers.py:norms", "a.pt", *MODEL, "--draws", "0"], "--draws is 0; expected a whole number of at least 1"),
    ],
)
def test_mistakes_are_one_line(readers, monkeypatch, arguments, message):
    monkeypatch.setattr("coset.symmetry.discover", lambda *a, **k: pytest.fail("looked for a symmetry"))
    save()
    code, out, err = readers("audit", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_readers_that_give_nothing_are_one_line(readers):
    save()
    readers("discover", "mlp", *MODEL[2:], "-o", "sym.json")
    code, out, err = readers("audit", "readers.py:odd", "a.pt", *MODEL, "--symmetry", "sym.json")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "the reader gives NoneType for network 0" in err


def test_the_page_runs_as_printed(here, zoo):
    """The commands of the page, with its file of readers, on a smaller zoo."""
    text = PAGE.read_text(encoding="utf-8")
    section = text[text.index("## Auditing a reader") :]
    Path("readers.py").write_text(re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0])
    shutil.copytree(zoo.folder, "cancer-zoo")
    commands = [
        line
        for block in re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
        for line in block.replace("\\\n", " ").splitlines()
    ]
    assert [shlex.split(command)[:2] for command in commands] == [["coset", "audit"]] * 2
    for command in commands:
        code, out, err = here(*shlex.split(command)[1:])
        assert (code, err) == (0, ""), command
        assert "permutations" in out
