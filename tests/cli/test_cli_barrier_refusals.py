"""``coset barrier``: what does not fit is refused in one line, before anything is computed, and nothing stays."""

import functools

import pytest
import refusals
import torch
from refusals import check_refused

from coset.distribution import MeanField, Mixture, Samples, save_distribution
from coset.models import MLP


def network(seed, widths=(4,), outputs=10):
    generator = torch.Generator().manual_seed(seed)
    state = MLP(64, widths, outputs).state_dict()
    return {name: torch.randn(tensor.shape, generator=generator) for name, tensor in state.items()}


def posterior(mean):
    return MeanField(mean, {name: torch.full_like(tensor, 0.1) for name, tensor in mean.items()})


@pytest.fixture
def files(tmp_path):
    """Networks a and b, posteriors q0 and q1, and what is not like them."""
    a, b = network(1), network(2)
    q0, q1 = posterior(a), posterior(b)
    torch.save(a, tmp_path / "a.pt")
    torch.save(b, tmp_path / "b.pt")
    torch.save({**a, "layers.0.bias": a["layers.0.bias"] * float("nan")}, tmp_path / "nan.pt")
    save_distribution(q0, tmp_path / "q0")
    save_distribution(q1, tmp_path / "q1")
    save_distribution(posterior(network(3, (5,))), tmp_path / "wide-q")
    save_distribution(posterior({name: tensor.double() for name, tensor in b.items()}), tmp_path / "double-q")
    draws = Samples({name: torch.stack([a[name], b[name]])[None] for name in a})
    save_distribution(draws, tmp_path / "draws")
    save_distribution(Mixture((q0, q1), torch.tensor([0.5, 0.5])), tmp_path / "mixed")
    whole = (tmp_path / "q1").read_bytes()
    (tmp_path / "half").write_bytes(whole[: len(whole) // 2])


command = functools.partial(refusals.command, "barrier")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (command(a="q0", b="half"), "half is not a whole safetensors file"),
        (command(b="nan.pt"), "'layers.0.bias' of nan.pt has 4 of 4 entries that are NaN or infinite"),
        (command(b="q1"), "a.pt is a network and q1 a posterior of class MeanField; expected two of one kind"),
        (command(a="draws", b="q1"), "draws is a posterior of class Samples and q1 a posterior of class MeanField"),
        (command(a="q0", b="wide-q"), "wide-q does not fit the model mlp: 'layers.0.weight' is (5, 64) where (4, 64)"),
        (
            command("--strip-prefix", "module.", a="q0", b="q1"),
            "--strip-prefix is 'module.' and q0 a distribution, read as it is",
        ),
        (command("--option", "norm=batch", a="q0", b="q1"), "q0 does not fit the model mlp: it lacks "),
        (command(a="q0", b="double-q"), "no path from q0 to double-q: 'layers.0.weight' has dtype torch.float32 in"),
        (command(a="draws", b="draws"), "a Samples cannot be aligned; measure it as it is with --no-align"),
        (command("--no-align", a="mixed", b="mixed"), "no path from mixed to mixed: q0 is a Mixture and q1 a Mixture"),
        (
            command("--no-align", "--renormalize", "refresh", a="draws", b="draws"),
            "--renormalize refresh is for networks and mean-field posteriors",
        ),
        (command("--path", "great"), "--path is 'great'; expected one of geodesic, mixture"),
        (
            command("--path", "mixture", "--renormalize", "refresh"),
            "--renormalize refresh is for averages of A and B; --path mixture has none",
        ),
        (command("--renormalize", "pray"), "--renormalize is 'pray'; expected one of none, refresh"),
        (command("--method", "magic"), "--method is 'magic'; expected one of"),
        (command("--setting", "magic=1"), "the method weights has no setting 'magic'"),
        (
            command("--no-align", "--scales"),
            "with --no-align there is no alignment that could have the setting 'scales'",
        ),
        (command("--tolerance", 0), "--tolerance is 0.0; expected a number > 0"),
        (command("--tolerance", "nan"), "--tolerance is nan; expected a number > 0"),
        (command("--points", 1), "--points is 1; expected a whole number of at least 2"),
        (command("--samples", 0), "--samples is 0; expected a whole number of at least 1"),
        (command("--limit", 0), "--limit is 0; expected a whole number of at least 1"),
        (command("--likelihood", "good"), "--likelihood is 'good'; expected categorical, bernoulli, learned-noise, or"),
        (command("--likelihood", "-1"), "--likelihood is '-1'; expected categorical"),
        (command("--likelihood", 0.1), "--likelihood 0.1 is for regression; --data digits is for classification"),
        (
            command("--likelihood", "bernoulli"),
            "--data digits does not suit the model mlp: the model's outputs have shape (2, 10); the Bernoulli",
        ),
    ],
)
def test_bad_input_gets_one_line_and_leaves_nothing(here, files, monkeypatch, arguments, message):
    check_refused(here, monkeypatch, arguments, message)


def test_labels_the_model_does_not_have_are_refused(here, files):
    for name in ("a", "b"):
        torch.save(network(1, outputs=3), f"{name}.pt")
    code, out, err = here(*command("--option", "out_features=3"))
    assert (code, out) == (2, "")
    told = "the train part has labels from 0 to 9; the model has 3 classes"
    assert err == f"coset: --data digits does not suit the model mlp: {told}\n"
