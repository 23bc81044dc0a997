"""Networks to renormalise, and hooks that see what their modules compute."""

from functools import partial

import torch
from torch import nn
from torch.func import functional_call

from architectures import randomized
from coset.alignment.averages import mean
from coset.models import MLP, ResidualMLP
from coset.symmetry import discover

WEIGHTS = [0.3, 0.7]


def generator(seed):
    return torch.Generator().manual_seed(seed)


def setting(model, shape, count=40, symmetry=None):
    """A model in float64, its symmetry, two networks, their average and inputs."""
    model = model.double().eval()
    x = torch.randn(count, *shape, generator=generator(9), dtype=torch.float64)
    sym = symmetry or discover(model, x[:2])
    a, b = (randomized(model, generator(seed)) for seed in range(2))
    return model, sym, a, b, mean([a, b], WEIGHTS), x


def outputs(model, params, x, kinds, *, read=False):
    """Module → what it gives (or reads), as (values, channels), seen by hooks."""
    seen = {}

    def hook(name, module, args, output):
        values = args[0] if read else output
        values = values if isinstance(module, nn.Linear) else values.movedim(1, -1)
        seen[name] = values.reshape(-1, values.shape[-1])

    handles = [
        module.register_forward_hook(partial(hook, name))
        for name, module in model.named_modules()
        if isinstance(module, kinds)
    ]
    functional_call(model, dict(params), (x,))
    for handle in handles:
        handle.remove()
    return {name: values.detach() for name, values in seen.items()}


LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


class Unusual(nn.Module):
    """A grouped transposed convolution, a convolution in one dimension, a linear map over positions."""

    def __init__(self):
        super().__init__()
        self.lift = nn.Conv2d(2, 4, 3)
        self.up = nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2)
        self.line = nn.Conv1d(6, 5, 3, padding=1)
        self.mix = nn.Linear(5, 7)
        self.fc = nn.Linear(7, 3)

    def forward(self, x):
        x = torch.relu(self.up(torch.relu(self.lift(x))))
        x = torch.relu(self.line(x.flatten(2))).mT
        return self.fc(torch.relu(self.mix(x)).mean(1))


MODELS = {
    "mlp": (lambda: MLP(4, [6, 5, 3], 2), (4,)),
    "residual mlp": (lambda: ResidualMLP(4, 2, width=3, inner=5), (4,)),
    "unusual": (Unusual, (2, 5, 5)),
}


def assert_repaired(model, ends, params, x, done, tolerance):
    before = [outputs(model, end, x, LINEAR) for end in ends]
    after = outputs(model, params, x, LINEAR)
    assert done
    for weight in done:
        name = weight.removesuffix(".weight")
        for measure in (lambda y: y.mean(0), lambda y: y.std(0, correction=0)):
            wanted = sum(share * measure(end[name]) for share, end in zip(WEIGHTS, before, strict=True))
            torch.testing.assert_close(measure(after[name]), wanted, rtol=tolerance, atol=tolerance)


class Normed(nn.Module):
    """Batch norms behind a convolution, a linear map and on a residual stream."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 6, bias=False)
        self.stream = nn.BatchNorm1d(6)
        self.inner = nn.Linear(6, 6)
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        h = self.fc(torch.relu(self.bn(self.conv(x))).mean((-2, -1)))
        h = h + self.inner(torch.relu(self.stream(h)))
        return self.out(torch.relu(h))
