"""``coset zoo``: a specification becomes a folder, and mistakes one line."""

import json
from pathlib import Path

SPEC = """
model = "mlp"
seeds = 3
[options]
in_features = 30
out_features = 2
widths = [4]
[data]
name = "breast-cancer"
subset = 64
[recipe]
epochs = 2
batch_size = 32
learning_rate = 0.01
"""


def test_from_a_specification_to_files(here):
    Path("spec.toml").write_text(SPEC)
    code, out, err = here("zoo", "train", "spec.toml", "-o", "zoo")
    assert (code, err) == (0, "")
    assert "3 can be used" in out
    for command in (
        ("evaluate", "zoo", "--part", "test"),
        ("align", "zoo", "-o", "aligned"),
        ("canonicalize", "zoo", "-o", "canonical"),
        ("export", "zoo", "-o", "stack.npz"),
        ("import", "stack.npz", "-o", "again", "--model", "mlp", "--option", "in_features=30", "--option", "widths=[4]",
         "--option", "out_features=2"),
    ):  # fmt: skip
        code, _, err = here("zoo", *command)
        assert (code, err) == (0, ""), command
    code, out, _ = here("zoo", "info", "canonical", "--json")
    told = json.loads(out)
    assert code == 0
    assert told["usable"] == 3
    assert told["made"]["by"] == "canonicalize"
    assert [row["seed"] for row in told["rows"]] == [0, 1, 2]


def test_mistakes_are_one_line(here):
    Path("spec.toml").write_text(SPEC.replace("epochs", "epoch"))
    for command, said in {
        ("train", "spec.toml", "-o", "zoo"): "spec.toml: recipe has no key 'epoch'; did you mean 'epochs'?",
        ("train", "none.toml", "-o", "zoo"): "none.toml cannot be read",
        ("info", "."): "is not a zoo: it has no zoo.json",
        ("import", "spec.toml", "-o", "zoo", "--model", "mlp"): "neither a folder of checkpoints nor",
    }.items():
        code, out, err = here("zoo", *command)
        assert (code, out) == (2, "")
        assert said in err
        assert err.count("\n") == 1
        assert not Path("zoo").exists()
