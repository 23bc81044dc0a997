"""The predictive of a mean-field posterior against as many plain forward passes; small networks against a loop."""

import torch
from torch import Tensor, nn

from benchmarks.measure import Ratio, ratio
from coset.distribution import MeanField
from coset.models import MLP
from coset.posterior.predictive import predictive

CHUNK = 1000
"""Points at a time, in both: the fastest of 500, 1000, 2000, 5000 and 10,000 for the plain passes."""


def run(small: bool) -> list[Ratio]:
    """Sampling the weights is part of the predictive, not of the forward passes."""
    if small:
        return [_against_passes(20, [16], 3, points=50, samples=8, repeat=2, bound=1.1)]
    return [
        _against_passes(784, [512, 512, 512], 10, points=10_000, samples=128, repeat=5, bound=1.1),
        _against_passes(64, [32, 32], 10, points=500, samples=128, repeat=15, bound=2.0),
    ]


def _against_passes(
    inputs: int, widths: list[int], classes: int, *, points: int, samples: int, repeat: int, bound: float
) -> Ratio:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(points, inputs, generator=generator)
    y = torch.randint(0, classes, (points,), generator=generator)
    model = MLP(inputs, widths, classes).eval()
    mean = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    q = MeanField(mean, {name: torch.full_like(tensor, 0.01) for name, tensor in mean.items()})
    return ratio(
        f"predictive, {samples} draws: MLP {'-'.join(map(str, (inputs, *widths, classes)))}, {points} points",
        lambda: predictive(model, q, x, samples=samples, y=y, show=False),
        f"{samples} forward passes",
        lambda: _passes(model, x, samples),
        bound=bound,
        repeat=repeat,
    )


@torch.inference_mode()
def _passes(model: nn.Module, x: Tensor, count: int) -> None:
    for _ in range(count):
        for part in torch.split(x, CHUNK):
            model(part)
