"""Commands on networks that read text: the whole group or permutations alone, and windows as data."""

import json

import pytest
import torch
from refusals import check_refused
from safetensors.torch import load_file, save_file

import coset
from coset.models import build, example_input

OPTIONS = {"dim": 8, "heads": 2, "depth": 1, "mlp_ratio": 1, "context": 12, "vocabulary": 5}
MODEL = ["--model", "transformer", *(part for item in OPTIONS.items() for part in ("--option", "{}={}".format(*item)))]


@pytest.fixture
def turned(tmp_path):
    """A network and an equivalent one on disk, its stream and its heads mixed; the model of both."""
    model = build("transformer", seed=0, **OPTIONS).double().eval()
    generator = torch.Generator().manual_seed(0)
    params = {
        name: tensor + 0.3 * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
        for name, tensor in model.state_dict().items()
    }
    sym = coset.discover(model, example_input(model))
    moved = sym.act(sym.random(generator), params)
    save_file(params, tmp_path / "a.safetensors")
    save_file({name: tensor.contiguous() for name, tensor in moved.items()}, tmp_path / "b.safetensors")
    model.load_state_dict(params)
    return model


def outputs(model, file):
    return torch.func.functional_call(model, load_file(file), (example_input(model, seed=1),))


def test_over_the_whole_group_a_network_merges_with_its_equal(here, turned):
    expected = turned(example_input(turned, seed=1))
    command = ["merge", "a.safetensors", "b.safetensors", *MODEL, "--gauge", "normalized"]
    code, _, err = here(*command, "-o", "whole.safetensors")
    assert (code, err) == (0, "")
    torch.testing.assert_close(outputs(turned, "whole.safetensors"), expected, rtol=1e-5, atol=1e-5)
    code, out, _ = here(*command, "--no-continuous", "--json", "-o", "permuted.safetensors")
    assert code == 0
    assert json.loads(out)["settings"] == {"gauge": "normalized", "continuous": False}
    assert (outputs(turned, "permuted.safetensors") - expected).abs().max() > 0.1


def test_windows_are_as_long_as_the_inputs_of_the_model(here, turned):
    code, out, err = here(
        *("align", "a.safetensors", "b.safetensors", *MODEL, "--method", "ste", "--data", "digits-text"),
        *("--limit", 8, "--setting", "steps=2", "--setting", "batch_size=4", "--setting", "examples=4"),
        *("--json", "-o", "out.safetensors"),
    )
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told["data"].startswith("digits-text, train part, at most 8")
    # What is aligned is the same function, and begins with the match on the weights.
    expected = turned(example_input(turned, seed=1))
    torch.testing.assert_close(outputs(turned, "out.safetensors"), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--data", "digits"], "--data digits gives one tensor of numbers as input; the model takes others"),
        (
            ["--data", "digits-text", "--mean", "0", "--std", "1"],
            "--data digits-text is a text, which is not normalized; leave --mean and --std out",
        ),
    ],
)
def test_data_of_another_kind_are_refused(here, monkeypatch, turned, more, message):
    command = ["align", "a.safetensors", "b.safetensors", *MODEL, "--method", "ste", "-o", "out.safetensors", *more]
    check_refused(here, monkeypatch, command, message)


def test_a_network_of_numbers_reads_no_text(here, monkeypatch, tmp_path):
    options = {"in_features": 12, "widths": [3], "out_features": 5}
    params = build("mlp", seed=0, **options).state_dict()
    save_file(params, tmp_path / "a.safetensors")
    model = ["--model", "mlp", *(part for item in options.items() for part in ("--option", "{}={}".format(*item)))]
    command = ["align", "a.safetensors", "a.safetensors", *model, "--method", "activations", "--data", "digits-text"]
    message = "--data digits-text gives one tensor of tokens (N, T) as input; the model takes others"
    check_refused(here, monkeypatch, [*command, "-o", "out.safetensors"], message)
