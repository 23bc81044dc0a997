"""``coset barrier``: what the library finds between two files of weights or posteriors, as tables, JSON and figures."""

import hashlib
import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from written_figures import read_figure

import coset
from coset.data import load
from coset.distribution import Delta, Gaussian, MeanField, save_distribution
from coset.landscape import barrier, geodesic, linear, loss, mixture, predictive_on
from coset.models import MLP, build
from coset.symmetry import Symmetry
from coset.train import Recipe, fit

MODEL = ["--model", "mlp", "--option", "in_features=64", "--option", "widths=[8]"]


def net():
    return MLP(64, [8], 10).eval()


def network(seed, make=net):
    generator = torch.Generator().manual_seed(seed)
    state = make().state_dict()
    return {
        name: 0.5 * torch.randn(t.shape, generator=generator).abs() if t.is_floating_point() else t.clone()
        for name, t in state.items()
    }


@pytest.fixture(scope="module")
def trained():
    """Two networks, trained a little: between networks that know nothing there is no barrier."""
    train = digits()["train"]
    recipe = Recipe(epochs=10, batch_size=64, learning_rate=1e-2, optimizer="adam", schedule="linear")
    models = [build("mlp", seed=seed, in_features=64, widths=[8]) for seed in (0, 1)]
    return [dict(fit(model, train.x, train.y, recipe, seed=0, show=False).params) for model in models]


def posterior(mean):
    return MeanField(mean, {name: torch.full_like(tensor, 0.1) for name, tensor in mean.items()})


@pytest.fixture(scope="module")
def symmetry():
    return coset.discover(net(), torch.randn(2, 64), verify=False)


@pytest.fixture
def ends(trained, symmetry, tmp_path):
    """a.pt and b.pt, networks; q0 and q1, posteriors around them; sym.json, the symmetry of their model."""
    a, b = trained
    torch.save(a, tmp_path / "a.pt")
    torch.save({"epoch": 3, "state_dict": b}, tmp_path / "b.pt")
    symmetry.save(tmp_path / "sym.json")
    for number in (0, 1):
        save_distribution(posterior(trained[number]), tmp_path / f"q{number}.safetensors")
    return a, b


def command(*more, a="a.pt", b="b.pt", data="digits"):
    return ["barrier", a, b, *MODEL, "--data", data, *more]


def told(here, *arguments):
    code, out, err = here(*arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def digits(limit=None, seed=0):
    """Train and test parts, ``limit`` examples of each as the command chooses them."""
    data = load("digits", flatten=True)
    parts = {}
    for name, part in (("train", data.train), ("test", data.test)):
        order = torch.randperm(len(part), generator=torch.Generator().manual_seed(seed))
        parts[name] = part if limit is None else part.take(order[:limit])
    return parts


def test_between_networks_it_is_the_barrier_of_the_loss(here, ends):
    found = told(here, *command("--points", 5, "--limit", 100, "--seed", 3))
    assert (found["kind"], found["options"]) == ("network", ["in_features=64", "widths=[8]"])
    assert found["samples"] is None
    assert found["data"]["examples"] == {"train": 100, "test": 100}
    assert list(found["barriers"]) == ["naive", "aligned"]
    for part, examples in digits(100, 3).items():
        profile = barrier(linear(*ends), loss(net(), (examples.x, examples.y)), points=5)
        mine = found["barriers"]["naive"][f"{part} log-likelihood"]
        assert mine["barrier"] == pytest.approx(profile.barrier, rel=1e-5)
        assert mine["values"] == pytest.approx([-value for value in profile.values], rel=1e-5)


def test_a_permuted_copy_is_far_as_it_is_and_near_after_alignment(here, ends):
    sym = Symmetry.load("sym.json").restrict(scales=False)
    save_file(sym.act(sym.random(torch.Generator().manual_seed(0)), ends[0]), "moved.safetensors")
    found = told(here, *command(b="moved.safetensors"))["barriers"]
    for part in ("train", "test"):
        assert found["naive"][f"{part} log-likelihood"]["barrier"] > 0.1
        assert found["aligned"][f"{part} log-likelihood"]["barrier"] < 1e-6
        assert found["aligned"][f"{part} error"]["barrier"] < 1e-12


def test_between_posteriors_it_is_what_the_library_finds(here, ends):
    arguments = command("--points", 5, "--limit", 50, "--samples", 4, a="q0.safetensors", b="q1.safetensors")
    found = told(here, *arguments)
    assert (found["kind"], found["samples"]) == ("posterior of class MeanField", 4)
    q0, q1 = (posterior(mean) for mean in ends)
    sym = coset.discover(net(), torch.randn(2, 64))
    measures = predictive_on(net(), samples=4, **digits(50))
    for way, end in (("naive", q1), ("aligned", coset.align(sym, q0, q1).aligned)):
        expected = barrier(geodesic(q0, end), measures, points=5)
        for name, mine in found["barriers"][way].items():
            assert mine["values"] == pytest.approx(expected[name].values, rel=1e-6)
            if name.endswith("likelihood"):
                assert mine["barrier"] == pytest.approx(expected[name].barrier, rel=1e-5)
                assert mine["barrier_error"] == pytest.approx(expected[name].barrier_error, rel=1e-5)
    weighed = told(here, *arguments, "--path", "mixture", "--no-align")["barriers"]
    expected = barrier(mixture(q0, q1), measures, points=5)
    assert list(weighed) == ["naive"]
    for name, mine in weighed["naive"].items():
        assert mine["values"] == pytest.approx(expected[name].values, rel=1e-6)


def test_the_tables(here, ends):
    arguments = command("--points", 3, "--limit", 50, "--samples", 4, a="q0.safetensors", b="q1.safetensors")
    found = told(here, *arguments)["barriers"]
    code, out, err = here(*arguments)
    assert (code, err) == (0, "")
    nats, percent = out.partition("Error: barriers in points")[::2]
    for way, profiles in found.items():
        (row,) = re.findall(rf"^{way} .*$", nats, re.MULTILINE)
        (shares,) = re.findall(rf"^{way} .*$", percent, re.MULTILINE)
        for part in ("train", "test"):
            one, wrong = profiles[f"{part} log-likelihood"], profiles[f"{part} error"]
            ends_of = f"{one['values'][0]:.4f}", f"{one['values'][-1]:.4f}"
            for text in (f"{one['barrier']:.4f} ± {one['barrier_error']:.4f}", f"{one['argmax']:.3g}", *ends_of):
                assert text in row
            for text in (f"{100 * wrong['barrier']:.2f}", f"{100 * wrong['values'][0]:.2f} %"):
                assert text in shares
    assert "±" not in here(*command("--points", 3, "--limit", 50))[1]
    assert not Path("posteriors.png").exists()


def test_figure_and_numbers_are_written(here, ends):
    arguments = command("--points", 3, "--limit", 50, "--samples", 4, a="q0.safetensors", b="q1.safetensors")
    code, out, err = here(*arguments, "--out", "new/q.0")
    assert (code, err) == (0, "")
    content, rows = read_figure(out, "new/q.0")
    assert content["inputs"][1]["sha256"] == hashlib.sha256(Path("q1.safetensors").read_bytes()).hexdigest()
    assert [(row["way"], float(row["tau"])) for row in rows] == [
        (way, tau) for way in ("naive", "aligned") for tau in (0, 0.5, 1)
    ]
    profile = content["barriers"]["aligned"]["test log-likelihood"]
    assert [float(row["test log-likelihood"]) for row in rows[3:]] == profile["values"]
    assert [float(row["test log-likelihood, standard error"]) for row in rows[3:]] == profile["errors"]


def test_a_symmetry_of_another_function_is_refused(here, ends):
    """The same shapes with tanh."""
    coset.discover(MLP(64, [8], 10, activation=torch.nn.Tanh).eval(), torch.randn(2, 64)).save("tanh.json")
    code, out, err = here(*command("--symmetry", "tanh.json", "--points", 3, "--limit", 20))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "tanh.json does not fit the model mlp: it is no symmetry of MLP" in err


def test_posteriors_of_another_symmetry_are_refused(here, ends, symmetry, trained):
    """A file that says for which symmetry it was written is believed."""
    other = symmetry.restrict(scales=False)
    for number in (0, 1):
        save_distribution(posterior(trained[number]), f"q{number}.safetensors", sym=symmetry)
    other.save("other.json")
    more = ("--points", 3, "--limit", 20)
    q = {"a": "q0.safetensors", "b": "q1.safetensors"}
    assert here(*command("--symmetry", "sym.json", "--likelihood", "categorical", *more, **q))[0] == 0
    code, _, err = here(*command("--symmetry", "other.json", "--likelihood", "categorical", *more, **q))
    assert (code, len(err.splitlines())) == (2, 1)
    assert "q0.safetensors holds no distribution" in err


def test_one_way_is_enough_and_needs_no_symmetry_where_it_is_naive(here, ends, monkeypatch):
    assert list(told(here, *command("--align", "--points", 3, "--limit", 20))["barriers"]) == ["aligned"]
    monkeypatch.setattr("coset.symmetry.discover", lambda *a, **k: pytest.fail("looked for a symmetry"))
    assert list(told(here, *command("--no-align", "--points", 3, "--limit", 20))["barriers"]) == ["naive"]
    assert told(here, *command("--symmetry", "sym.json", "--points", 3, "--limit", 20))["alignment"]["moved"] > 0


def test_a_search_takes_fewer_points(here, ends):
    arguments = command("--limit", 50, "--no-align")
    searched = told(here, *arguments, "--tolerance", 0.05)["barriers"]["naive"]["train log-likelihood"]
    even = told(here, *arguments)["barriers"]["naive"]["train log-likelihood"]
    assert 9 < len(searched["taus"]) < 25
    assert searched["barrier"] == pytest.approx(even["barrier"], abs=0.05)


def test_statistics_of_batch_norm_are_computed_anew(here, tmp_path):
    from coset.alignment import renormalize

    def normed():
        return MLP(64, [8], 10, norm="batch").eval()

    pair = [network(seed, normed) for seed in (1, 2)]
    for name, params in zip(("a.pt", "b.pt"), pair, strict=True):
        torch.save(params, tmp_path / name)
    more = ["--option", "norm=batch", "--no-align", "--points", 3, "--limit", 100]
    found = told(here, *command(*more, "--renormalize", "refresh"))["barriers"]["naive"]
    sym = coset.discover(normed(), torch.randn(2, 64))
    train = digits(100)["train"]

    def refreshed(params, tau):
        shares = [1 - tau, tau]
        return renormalize(sym, normed(), params, pair, weights=shares, method="refresh", data=train.x).params

    expected = barrier(linear(*pair), loss(normed(), (train.x, train.y)), points=3, at=refreshed)
    assert found["train log-likelihood"]["values"] == pytest.approx([-value for value in expected.values], rel=1e-4)
    # Posteriors that are nearly points, around the same networks; running statistics are points in them.
    for number, mean in enumerate(pair):
        names = [name for name in mean if "running" not in name and mean[name].is_floating_point()]
        narrow = MeanField(mean, {name: torch.full_like(mean[name], 1e-6) for name in names})
        save_distribution(narrow, tmp_path / f"{number}.safetensors")
    drawn = command(*more, "--renormalize", "refresh", "--samples", 2, a="0.safetensors", b="1.safetensors")
    near = told(here, *drawn)["barriers"]["naive"]["train log-likelihood"]["values"]
    assert near == pytest.approx(found["train log-likelihood"]["values"], rel=1e-3)
    stale = told(here, *command(*more))["barriers"]["naive"]["train log-likelihood"]["values"]
    assert stale != pytest.approx(found["train log-likelihood"]["values"], rel=0.1)


def test_a_renormalisation_for_nothing_is_told(here, ends):
    found = told(here, *command("--renormalize", "refresh", "--points", 3, "--limit", 20))
    assert found["notes"] == ["renormalize='refresh' changed nothing: the network has no batch norm"]


def test_points_saved_as_distributions_are_networks(here, ends):
    save_distribution(Delta(ends[1]), "d.safetensors")
    arguments = ["--no-align", "--points", 3, "--limit", 20]
    plain, saved = (told(here, *command(*arguments, b=b)) for b in ("b.pt", "d.safetensors"))
    assert plain["barriers"] == saved["barriers"]


def test_dense_gaussians_have_a_geodesic(here, tmp_path):
    options = ["--model", "mlp", "--option", "in_features=64", "--option", "widths=[2]"]
    for number in (0, 1):
        mean = network(number, lambda: MLP(64, [2], 10))
        names = ("layers.1.bias",)
        save_distribution(Gaussian(mean, 0.01 * torch.eye(10), names), tmp_path / f"g{number}.safetensors")
    more = ["--data", "digits", "--points", 3, "--limit", 20, "--samples", 2]
    found = told(here, "barrier", "g0.safetensors", "g1.safetensors", *options, *more)
    assert found["kind"] == "posterior of class Gaussian"
    assert found["barriers"]["aligned"]["test log-likelihood"]["barrier_error"] is not None


def test_regression_has_no_error_rate(here, data_folder, monkeypatch):
    monkeypatch.setenv("COSET_DATA", str(data_folder))
    options = ["--model", "mlp", "--option", "in_features=1", "--option", "widths=[4]"]
    for number in (1, 2):
        torch.save(network(number, lambda: MLP(1, [4], 2)), f"{number}.pt")
    arguments = ["barrier", "1.pt", "2.pt", *options, "--data", "snelson", "--points", 3]
    found = told(here, *arguments, "--option", "out_features=2")
    assert list(found["barriers"]["naive"]) == ["train log-likelihood"]
    code, out, _ = here(*arguments, "--option", "out_features=2")
    assert code == 0
    assert "Error" not in out
    for number in (1, 2):
        torch.save(network(number, lambda: MLP(1, [4], 1)), f"{number}.pt")
    known = told(here, *arguments, "--option", "out_features=1", "--likelihood", 0.5)
    assert known["likelihood"] == "GaussianNoise(std=0.5)"
    for number in (1, 2):
        torch.save(network(number, lambda: MLP(1, [4], 10)), f"{number}.pt")
    code, out, err = here(*arguments, "--option", "out_features=10")
    assert (code, out) == (2, "")
    assert err == (
        "coset: --data snelson does not suit the model mlp: the train part has shape (200, 1); the model's outputs are "
        "for (N, 5)\n"
    )
