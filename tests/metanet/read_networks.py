"""Networks whose readers are audited, and readers of which it is known what they see."""

from functools import cache

import torch
from torch import nn

from coset.symmetry import Symmetry

SHAPE = (5, 6, 4, 3)


@cache
def setting(dtype=torch.float64):
    """A perceptron with scales in its first layer and signs in its second, its symmetry, and inputs."""
    a, b, c, d = SHAPE
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, c), nn.Tanh(), nn.Linear(c, d)).to(dtype)
    x = torch.randn(8, a, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    axes = {"0.weight": "h -", "0.bias": "h", "2.weight": "k /h", "2.bias": "k", "4.weight": "- /k"}
    return model, Symmetry.from_axes(axes, model, scales={"h": "positive", "k": "sign"}), x


def stack(count, seed=0, dtype=torch.float64):
    """Independent networks with a leading axis."""
    model, _, _ = setting()
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(count, *tensor.shape, generator=generator, dtype=dtype) * 0.7
        for name, tensor in model.state_dict().items()
    }


def logits(params):
    """What the network says of fixed inputs: invariant under everything."""
    model, _, x = setting(params["0.weight"].dtype)
    return torch.func.functional_call(model, params, (x,)).flatten()


def loss(params):
    """A number, invariant under everything."""
    return float(logits(params).square().mean())


def sorted_norms(params):
    """Norms of the rows of a layer in order: invariant under permutations and signs."""
    return params["0.weight"].norm(dim=1).sort().values


def moments(params):
    """Of every layer: invariant under permutations, not under scales."""
    found = [(params[name].mean(), params[name].abs().mean()) for name in ("0.weight", "2.weight", "4.weight")]
    return torch.stack([number for pair in found for number in pair])


def first_weight(params):
    return params["2.weight"][0, 0]


def gradient_step(params):
    """−0.1·∂loss/∂θ: equivariant under what is orthogonal, not under scales."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in params.items()}
    value = logits(leaves).square().mean()
    return dict(zip(leaves, (-0.1 * part for part in torch.autograd.grad(value, list(leaves.values()))), strict=True))
