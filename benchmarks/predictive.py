"""The predictive of a mean-field posterior: a large network against plain passes, small ones against a loop."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from benchmarks.measure import Ratio, ratio
from coset.distribution import MeanField
from coset.models import MLP
from coset.posterior.prediction._predictive import predictive

CHUNK = 1000
"""Points at a time, in both: the fastest of 500, 1000, 2000, 5000 and 10,000 for the plain passes."""

Reference = Callable[[nn.Module, MeanField, Tensor, int], object]


def run(small: bool) -> list[Ratio]:
    """Sampling the weights is part of the predictive and of the loop, not of the forward passes."""
    if small:
        return [_against(_passes, [20, 16, 3], points=50, samples=8, bound=1.1, repeat=2)]
    return [
        _against(_passes, [784, 512, 512, 512, 10], points=10_000, samples=128, bound=1.1, repeat=3),
        _against(_loop, [64, 32, 32, 10], points=500, samples=128, bound=1.1, repeat=15),
        _against(_loop, [1, 50, 50, 2], points=100, samples=128, bound=1.0, repeat=15),
    ]


def _against(reference: Reference, sizes: list[int], *, points: int, samples: int, bound: float, repeat: int) -> Ratio:
    generator = torch.Generator().manual_seed(0)
    inputs, *widths, classes = sizes
    x = torch.randn(points, inputs, generator=generator)
    y = torch.randint(0, classes, (points,), generator=generator)
    model = MLP(inputs, widths, classes).eval()
    mean = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    q = MeanField(mean, {name: torch.full_like(tensor, 0.01) for name, tensor in mean.items()})
    return ratio(
        f"predictive, {samples} draws: MLP {'-'.join(map(str, sizes))}, {points} points",
        lambda: predictive(model, q, x, samples=samples, y=y, show=False),
        f"{samples} forward passes" if reference is _passes else "plain loop over the draws",
        lambda: reference(model, q, x, samples),
        bound=bound,
        repeat=repeat,
    )


@torch.inference_mode()
def _passes(model: nn.Module, q: MeanField, x: Tensor, count: int) -> None:
    for _ in range(count):
        for part in torch.split(x, CHUNK):
            model(part)


@torch.inference_mode()
def _loop(model: nn.Module, q: MeanField, x: Tensor, count: int) -> Tensor:
    """What one would write down: draw, run, average the probabilities; no targets, no errors, no entropies."""
    generator = torch.Generator().manual_seed(0)
    total = torch.zeros(())
    for _ in range(count):
        weights = {name: tensor[0] for name, tensor in q.sample(1, generator).items()}
        total = total + functional_call(model, weights, (x,)).softmax(-1)
    return total / count
