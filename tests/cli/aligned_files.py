"""Small networks in files, the command that aligns them, and methods of alignment whose results are known."""

import torch
from safetensors import safe_open

from coset.alignment import Alignment
from coset.alignment._agreement import agreement
from coset.models import MLP

MLP_OPTIONS = ["--model", "mlp", "--option", "in_features=6", "--option", "widths=[5,4]", "--option", "out_features=3"]


def shuffled(sym, reference, other, *, seed=0, gauge="given"):
    """A method whose result is known: some element, moved by it."""
    g = sym.restrict(scales=gauge == "normalized").random(torch.Generator().manual_seed(seed))
    g = sym.element(g.permutations, g.scales, g.signs)
    aligned = sym.act(g, other)
    before, after = agreement(sym, reference, other), agreement(sym, reference, aligned)
    times = {"cost": 0.25, "assignment": 0.5}
    return Alignment(sym, "shuffled", g, aligned, 2.5, (1.5, 2.0, 2.5), after, before, times, notes=("a note",))


def looking(sym, reference, other, *, model, data, seed=0):
    """A method that runs the networks: its objective is the sum of A's outputs on the data."""
    with torch.no_grad():
        total = float(torch.func.functional_call(model, reference, (data[0],)).sum())
    same = agreement(sym, reference, other)
    return Alignment(sym, "looking", sym.identity(), dict(other), total, (total,), same, same, {"all": 0.0})


def model():
    return MLP(6, [5, 4], 3)


def network(seed, dtype=torch.float32, make=model):
    """Random weights in general position."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(tensor.shape, generator=generator).to(dtype) if tensor.is_floating_point() else tensor.clone()
        for name, tensor in make().state_dict().items()
    }


def metadata(path):
    with safe_open(path, "pt") as file:
        return file.metadata()


def align(*more, a="a.safetensors", b="b.pt", out="out.safetensors", method="shuffled"):
    return ["align", a, b, *MLP_OPTIONS, "--method", method, "-o", out, *more]
