"""Networks whose units turn, by half-turns or reflections, and some whose units do not."""

from functools import cache
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from coset.symmetry import discover
from discoveries import shared


class Sin(nn.Module):
    """sin as a module."""

    def forward(self, x):
        return torch.sin(x)


class Siren(nn.Module):
    """sin(ω·(Wx + b)), layer by layer; ω is a number."""

    def __init__(self, widths=(2, 5, 4, 1), omega=30.0, function=torch.sin):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.omega, self.function = omega, function

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = self.function(self.omega * layer(x))
        return self.layers[-1](x)


class Apart(nn.Module):
    """A bias that is added by itself, in front of a number; sin of the sum of two maps."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3, 5, bias=False), nn.Linear(3, 5, bias=False)
        self.shift, self.last = nn.Parameter(torch.randn(5)), nn.Linear(5, 2)

    def forward(self, x):
        return self.last(torch.sin(3.0 * (self.one(x) + self.two(x * x)) - 2.0 * self.shift + 0.5))


class Twice(nn.Module):
    """One network applied to two inputs."""

    def __init__(self, function=torch.sin):
        super().__init__()
        self.first, self.last, self.function = nn.Linear(3, 4), nn.Linear(4, 2), function

    def forward(self, x):
        one, two = (self.last(self.function(self.first(part))) for part in (x, x.flip(-1)))
        return one - two * two


class Recurrent(nn.Module):
    """h ← f(Uh + Wx + b), three times, from f(Wx + b)."""

    def __init__(self, function=torch.sin):
        super().__init__()
        self.write, self.turn, self.last = nn.Linear(3, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 2)
        self.function = function

    def forward(self, x):
        h = self.function(self.write(x))
        for _ in range(2):
            h = self.function(self.write(x) + self.turn(h))
        return self.last(h)


class Residual(nn.Module):
    """x + f(norm(x)) in front of another norm: the stream has a sign of its own, which biases of units share."""

    def __init__(self, function=torch.sin):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)
        self.up, self.down, self.function = nn.Linear(4, 5), nn.Linear(5, 4), function

    def forward(self, x):
        x = self.first(x)
        return self.last(F.layer_norm(x + self.down(self.function(self.up(self.norm(x)))), (4,)))


class Shifted(nn.Module):
    """(tanh + 1)/2 written out: the constant takes the sign away, and reflections give it back."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.last((torch.tanh(self.first(x)) + 1) / 2)


class Positive(nn.Module):
    """softplus(sin(·)) takes no sign: full turns are left."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(F.softplus(torch.sin(self.first(x))))


def mlp(function, bias=True):
    return nn.Sequential(nn.Linear(3, 5), function, nn.Linear(5, 4), function, nn.Linear(4, 2, bias=bias))


def convolutions(function, padding=0, pool=None):
    pool = nn.AvgPool2d(2) if pool is None else pool
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), function, nn.Conv2d(4, 3, 3, padding=padding), function, pool, nn.Flatten(),
        nn.Linear(12 if padding == 0 else 27, 2),
    )  # fmt: skip


def normed(function):
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), function, nn.BatchNorm1d(4), nn.Linear(4, 2, bias=False))


# Name → network, shape of its input, and the kinds of turns of its classes, counted by hand.
HALF, FULL, MIRROR = "half-turns", "full turns", "reflections"
TURNING = {
    "siren": (Siren, (6, 2), [HALF, HALF]),
    "cosine": (lambda: Siren(omega=2.0, function=torch.cos), (6, 2), [HALF, HALF]),
    "sin, convolutions with padding": (lambda: convolutions(Sin(), padding=1), (2, 2, 6, 6), [HALF, HALF]),
    "bias apart": (Apart, (6, 3), [HALF]),
    "sin twice": (Twice, (6, 3), [HALF]),
    "sin, recurrent": (Recurrent, (6, 3), [HALF]),
    "sin behind norms": (lambda: normed(Sin()), (6, 3), [HALF]),
    "sin in a residual block": (Residual, (6, 3), [HALF]),
    "no sign behind sin": (Positive, (6, 3), [FULL]),
    "sigmoid": (lambda: mlp(nn.Sigmoid()), (6, 3), [MIRROR, MIRROR]),
    "hardsigmoid": (lambda: mlp(nn.Hardsigmoid()), (6, 3), [MIRROR, MIRROR]),
    "relu6": (lambda: mlp(nn.ReLU6()), (6, 3), [MIRROR, MIRROR]),
    "clipped": (lambda: mlp(nn.Hardtanh(-1.0, 2.0)), (6, 3), [MIRROR, MIRROR]),
    "convolutions": (lambda: convolutions(nn.Sigmoid()), (2, 2, 6, 6), [MIRROR, MIRROR]),
    "relu6, convolutions": (lambda: convolutions(nn.ReLU6()), (2, 2, 6, 6), [MIRROR, MIRROR]),
    "sigmoid twice": (lambda: Twice(torch.sigmoid), (6, 3), [MIRROR]),
    "shifted tanh": (Shifted, (6, 3), [MIRROR]),
    "sigmoid behind norms": (lambda: normed(nn.Sigmoid()), (6, 3), [MIRROR]),
    # Broken: the last reader has no bias, zeros stand beside the units, signs do not pass.
    "no bias": (lambda: mlp(nn.Sigmoid(), bias=False), (6, 3), [MIRROR]),
    "padding": (lambda: convolutions(nn.Sigmoid(), padding=1), (2, 2, 6, 6), [MIRROR]),
    "max-pooling": (lambda: convolutions(nn.Sigmoid(), pool=nn.MaxPool2d(2)), (2, 2, 6, 6), [MIRROR]),
    "max-pooling of sin": (lambda: convolutions(Sin(), pool=nn.MaxPool2d(2)), (2, 2, 6, 6), [HALF, FULL]),
    # The state that is read has no bias of its own.
    "sigmoid, recurrent": (lambda: Recurrent(torch.sigmoid), (6, 3), []),
    "gelu": (lambda: mlp(nn.GELU()), (6, 3), []),
    "silu": (lambda: mlp(nn.SiLU()), (6, 3), []),
    "tanh": (lambda: mlp(nn.Tanh()), (6, 3), []),
    "hardtanh": (lambda: mlp(nn.Hardtanh()), (6, 3), []),
    "softplus": (lambda: mlp(nn.Softplus()), (6, 3), []),
}


@cache
def setting(name):
    """The network in float64 away from special values, its symmetry, its weights, and an input."""
    build, shape, _ = TURNING[name]
    torch.manual_seed(0)
    model = build().double().eval()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor += 0.3 * torch.randn_like(tensor)
        for tensor in model.buffers():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.3)
    x = torch.randn(shape, dtype=torch.float64)
    sym = shared(f"turning: {name}", model, lambda: discover(model, x))
    return model, sym, dict(model.state_dict()), x


def outputs(model, params, x):
    with torch.no_grad():
        return torch.func.functional_call(model, params, (x,))
