"""``coset align`` and ``coset merge`` over the whole group, for a model with a bottleneck that matrices may mix."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import coset
from coset.models import build

MINE = """
from torch import nn

def make():
    layers = [nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3), nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 4)]
    return nn.Sequential(*layers)
"""
MODEL = ["--model", "mine.py:make", "--input", "2,5"]


@pytest.fixture
def orbit(tmp_path):
    """Three networks of one function on disk."""
    (tmp_path / "mine.py").write_text(MINE)
    model = build(f"{tmp_path}/mine.py:make", seed=0).double().eval()
    sym = coset.discover(model, torch.randn(2, 5, dtype=torch.float64))
    a = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for seed, name in enumerate("abc"):
        g = sym.random(torch.Generator().manual_seed(seed))
        save_file(sym.act(g, a) if seed else a, tmp_path / f"{name}.safetensors")
    return model, a


def files(names):
    return [f"{name}.safetensors" for name in names]


def test_a_network_is_brought_back_by_matrices(here, orbit):
    code, out, err = here("align", *files("ab"), *MODEL, "-o", "out.safetensors", "--json")
    assert code == 0, err
    assert len(json.loads(out)["mixed"]) == 1
    for name, tensor in load_file("out.safetensors").items():
        torch.testing.assert_close(tensor, orbit[1][name], rtol=1e-5, atol=1e-5)
    code, out, _ = here("align", *files("ab"), *MODEL, "-o", "again.safetensors")
    assert code == 0
    assert "mixed besides: " in out


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_networks_of_one_orbit_merge_into_their_function(here, orbit, names):
    model, a = orbit
    code, _, err = here("merge", *files(names), *MODEL, "-o", "out.safetensors")
    assert code == 0, err
    x = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    outputs = [torch.func.functional_call(model, params, (x,)) for params in (load_file("out.safetensors"), a)]
    torch.testing.assert_close(*outputs, rtol=1e-6, atol=1e-6)


def test_one_end_is_written_so_one_end_moves(here, orbit):
    moving = ["--method", "ste", "--objective", "l2", "--setting", "both=true"]
    code, _, err = here("align", *files("ab"), *MODEL, "-o", "out.safetensors", *moving)
    assert code == 2
    assert "the setting both=true moves A, too, which is not written" in err
