"""``coset merge``: the average of files is a file of the same architecture, with the names and types of the first."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from refusals import check_refused
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import coset
from coset.models import MLP

MODEL = ["--model", "mlp", "--option", "in_features=6", "--option", "widths=[5,4]", "--option", "out_features=3"]


def model():
    return MLP(6, [5, 4], 3).eval()


def network(seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    state = model().state_dict()
    return {name: torch.randn(tensor.shape, generator=generator).to(dtype) for name, tensor in state.items()}


@pytest.fixture
def three(tmp_path):
    """Three networks on disk, in the folder where ``here`` runs."""
    networks = [network(seed) for seed in range(3)]
    for params, name in zip(networks, "abc", strict=True):
        save_file(params, tmp_path / f"{name}.safetensors")
    return networks


def merge(*more, files=("a.safetensors", "b.safetensors", "c.safetensors"), out="out.safetensors"):
    return ["merge", *files, *MODEL, "-o", out, *more]


def metadata(path):
    with safe_open(path, "pt") as file:
        return file.metadata()


@pytest.mark.parametrize(("weights", "shares"), [(None, [1 / 3] * 3), ("2,1,1", [0.5, 0.25, 0.25])])
def test_without_alignment_it_is_the_weighted_mean(here, three, weights, shares):
    more = ["--weights", weights] if weights else []
    code, out, err = here(*merge("--no-align", "--seed", 3, *more))
    assert (code, err) == (0, "")
    found = load_file("out.safetensors")
    assert found.keys() == three[0].keys()
    for name, tensor in found.items():
        expected = sum(share * params[name].double() for share, params in zip(shares, three, strict=True))
        torch.testing.assert_close(tensor.double(), expected, rtol=0, atol=1e-6)
    told = metadata("out.safetensors")
    assert told["coset.command"] == "merge"
    assert told["coset.version"] == coset.__version__
    assert json.loads(told["coset.weights"]) == pytest.approx(shares)
    assert (told["coset.method"], told["coset.average"], told["coset.renormalize"]) == ("none", "mean", "none")
    assert told["coset.seed"] == "3"
    digests = [hashlib.sha256(Path(f"{name}.safetensors").read_bytes()).hexdigest() for name in "abc"]
    assert json.loads(told["coset.inputs.sha256"]) == digests
    assert f"{shares[0]:.4g}" in out
    told = json.loads(here(*merge("--no-align", "--json", *more))[1])
    assert told["weights"] == pytest.approx(shares)
    assert told["inputs"] == ["a.safetensors", "b.safetensors", "c.safetensors"]


def test_copies_moved_by_symmetries_merge_to_the_network_itself(here, three, tmp_path):
    """g·A and h·A are the same network as A: aligned, their mean is A; as they are, it is not."""
    sym = coset.discover(model(), torch.randn(2, 6))
    permuting = sym.restrict(scales=False, signs=False)
    for name, seed in (("b", 1), ("c", 2)):
        g = sym.element(permuting.random(torch.Generator().manual_seed(seed)).permutations)
        save_file(sym.act(g, three[0]), tmp_path / f"{name}.safetensors")
    code, _, err = here(*merge())
    assert code == 0, err
    found = load_file("out.safetensors")
    for name, tensor in three[0].items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-6)
    assert here(*merge("--no-align", out="plain"))[0] == 0
    assert not torch.allclose(load_file("plain")["layers.0.weight"], three[0]["layers.0.weight"], atol=0.1)


def test_names_and_types_are_those_of_the_first(here, tmp_path):
    a, b = network(1, torch.float16), network(2)
    save_file({f"module.{name}": tensor for name, tensor in a.items()}, tmp_path / "a.safetensors")
    torch.save(b, tmp_path / "b.pt")
    code, _, err = here(*merge("--no-align", "--strip-prefix", "module.", files=("a.safetensors", "b.pt")))
    assert code == 0, err
    for name, tensor in load_file("out.safetensors").items():
        plain = name.removeprefix("module.")
        assert name != plain
        assert torch.equal(tensor, ((a[plain].double() + b[plain].double()) / 2).half())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (merge(files=["a.safetensors"]), "there is one network to merge, a.safetensors; expected two or more"),
        (merge("--weights", "1,2"), "weights has 2 entries; expected one for each of the 3 networks"),
        (merge("--weights", "1,x,2"), "--weights takes numbers separated by commas, found '1,x,2'"),
        (merge("--weights", "0,0,0"), "expected finite numbers with a positive sum"),
        (merge("--average", "median"), "--average is 'median'; expected one of mean, spherical"),
        (merge("--average", "ties"), "--average ties needs --base, the network from which the others began"),
        (merge("--base", "a.safetensors"), "--average mean takes no --base"),
        (merge("--density", "0.5"), "average 'mean' has no options"),
        (
            merge("--average", "ties", "--base", "a.safetensors", "--density", "2"),
            "density is 2.0; expected more than 0",
        ),
        (merge("--renormalize", "pray"), "--renormalize is 'pray'; expected one of none, refresh"),
        (merge("--method", "magic"), "--method is 'magic'; expected one of"),
        (merge("--renormalize", "repair"), "--renormalize repair measures units on inputs: say on which with --data"),
        (
            merge("--data", "inputs.npy", "--no-align"),
            "neither the alignment nor --renormalize none looks at data; leave --data out",
        ),
        (merge("--no-align", "--method", "magic"), "--method is 'magic'; expected one of"),
        (merge("--no-align", "--scales"), "with --no-align there is no alignment that could have the setting 'scales'"),
        (merge("--setting", "magic=1"), "the method weights for more than two networks has no setting 'magic'"),
        (merge(out="c.safetensors"), "c.safetensors would overwrite c.safetensors"),
        (merge("--option", "norm=batch"), "a.safetensors does not fit the model mlp: it lacks "),
        (["merge", *MODEL, "-o", "out"], "Missing argument 'A B [C …]'"),
    ],
)
def test_bad_arguments_get_one_line_and_leave_nothing(here, three, monkeypatch, arguments, message):
    check_refused(here, monkeypatch, arguments, message)


def test_networks_of_other_shapes_are_refused(here, three, tmp_path):
    save_file(MLP(6, [5, 5], 3).state_dict(), tmp_path / "c.safetensors")
    code, _, err = here(*merge())
    assert code == 2
    assert "c.safetensors does not fit the model mlp: 'layers.1.weight' is (5, 5) where (4, 5) is expected" in err
    assert not Path("out.safetensors").exists()


@pytest.mark.parametrize("renormalize", ["repair", "data-free"])
def test_renormalisation_and_alignment_get_model_and_data(here, tmp_path, renormalize):
    """What is written is what the library finds with the same data."""
    from coset.alignment.merging._merge import merge as merge_networks

    net = MLP(64, [8], 10).eval()
    networks = []
    for seed in (1, 2):
        generator = torch.Generator().manual_seed(seed)
        networks.append({n: torch.randn(t.shape, generator=generator) for n, t in net.state_dict().items()})
        torch.save(networks[-1], tmp_path / f"{seed}.pt")
    arguments = ["--model", "mlp", "--option", "in_features=64", "--option", "widths=[8]", "-o", "out"]
    more = ["--method", "activations", "--renormalize", renormalize, "--data", "digits", "--split", "test"]
    code, _, err = here("merge", "1.pt", "2.pt", *arguments, *more)
    assert code == 0, err
    x = coset.data.load("digits", flatten=True).test.x
    sym = coset.discover(net, x[:2])
    expected = merge_networks(sym, networks, method="activations", renormalize=renormalize, model=net, data=x)
    found = load_file("out")
    for name, tensor in expected.params.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-4)
    plain = merge_networks(sym, networks, align=False)
    assert not torch.allclose(found["layers.0.weight"], plain.params["layers.0.weight"], atol=0.1)


def test_the_seed_reaches_the_noise(here, three):
    found = []
    for seed in (1, 1, 2):
        code, _, err = here(*merge("--no-align", "--renormalize", "data-free", "--seed", seed, out=f"{len(found)}"))
        assert code == 0, err
        found.append(load_file(f"{len(found)}")["layers.0.weight"])
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


DIGITS = ["--model", "mlp", "--option", "in_features=64", "--option", "widths=[5]", "--option", "out_features=10"]


@pytest.fixture
def digits(tmp_path):
    """Three networks for digits on disk."""
    networks = []
    for seed, name in enumerate("abc"):
        generator = torch.Generator().manual_seed(seed)
        state = MLP(64, [5], 10).state_dict()
        networks.append({key: torch.randn(t.shape, generator=generator) for key, t in state.items()})
        save_file(networks[-1], tmp_path / f"{name}.safetensors")
    return networks


def test_with_labels_it_says_what_all_are_worth(here, digits):
    arguments = ["a.safetensors", "b.safetensors", *DIGITS, "--data", "digits"]
    code, out, _ = here("merge", *arguments, "-o", "out.safetensors", "--json")
    assert code == 0
    rows = {row["network"]: row for row in json.loads(out)["worth"]}
    split = coset.data.load("digits", flatten=True).test
    mean = {name: (digits[0][name] + digits[1][name]) / 2 for name in digits[0]}
    model = MLP(64, [5], 10)
    networks = {"a.safetensors": digits[0], "b.safetensors": digits[1], "plain average": mean}
    networks["merged"] = load_file("out.safetensors")
    assert rows.keys() == networks.keys()
    for name, params in networks.items():
        outputs = torch.func.functional_call(model, params, (split.x,))
        loss = torch.nn.functional.cross_entropy(outputs, split.y)
        assert rows[name]["loss"] == pytest.approx(float(loss), rel=1e-5)
        assert rows[name]["accuracy"] == pytest.approx(float((outputs.argmax(-1) == split.y).double().mean()))
    code, out, _ = here("evaluate", *arguments, "--json")
    assert (code, json.loads(out)["networks"]) == (0, [rows["a.safetensors"], rows["b.safetensors"]])
    code, out, _ = here("evaluate", *arguments)
    assert "accuracy" in out
    assert "b.safetensors" in out


def test_task_vectors_of_files(here, digits):
    arguments = ["a.safetensors", "b.safetensors", *DIGITS, "--base", "c.safetensors", "--no-align"]
    code, _, err = here("merge", *arguments, "--average", "task-arithmetic", "--scale", "2", "-o", "out.safetensors")
    assert (code, err) == (0, "")
    a, b, base = digits
    for name, tensor in load_file("out.safetensors").items():
        torch.testing.assert_close(tensor, a[name] + b[name] - base[name], rtol=1e-6, atol=1e-6)
    assert metadata("out.safetensors")["coset.base"] == "c.safetensors"


def test_data_without_labels_cannot_be_evaluated(here, digits):
    code, _, err = here("evaluate", "a.safetensors", *DIGITS, "--data", "inputs.npy")
    assert (code, err) == (
        2,
        "coset: --data inputs.npy has inputs alone; expected a name from `coset data list`, with targets\n",
    )
