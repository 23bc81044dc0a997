"""A barrier along a path, between points and between posteriors, against the bare forward passes it takes."""

import torch
from torch import Tensor

from benchmarks.measure import Ratio, ratio
from coset._batches import BATCH_SIZE
from coset.distribution import MeanField
from coset.landscape import barrier, geodesic, linear, loss, predictive_on
from coset.models import MLP
from coset.posterior.prediction._predictive import BATCH_SIZE as PREDICTIVE_BATCH

BOUND = 1.15


def run(small: bool) -> list[Ratio]:
    """10,000 inputs: 25 points between two MLPs, and 5 points between two posteriors with 16 draws at each."""
    inputs, widths, count = (64, [32], 512) if small else (784, [512] * 3, 10_000)
    taus, draws = 5, 4 if small else 16
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, inputs, generator=generator)
    y = torch.randint(0, 10, (count,), generator=generator)
    model = MLP(inputs, widths, 10).eval()
    a = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    b = {name: _noise(tensor, generator) for name, tensor in a.items()}

    @torch.no_grad()
    def bare() -> object:
        return [model(batch) for _ in range(25) for batch in x.split(BATCH_SIZE)]

    @torch.no_grad()
    def bare_draws() -> object:
        return [model(batch) for _ in range(taus * draws) for batch in x.split(PREDICTIVE_BATCH)]

    q0, q1 = (MeanField(mean, {name: torch.full_like(w, 0.01) for name, w in mean.items()}) for mean in (a, b))
    functionals = predictive_on(model, samples=draws, train=(x, y))
    network = f"MLP {'-'.join(map(str, (inputs, *widths, 10)))}, {count} inputs"
    return [
        ratio(
            f"barrier, 25 points: {network}",
            lambda: barrier(linear(a, b), loss(model, (x, y)), show=False),
            "its forward passes",
            bare,
            bound=BOUND,
            repeat=2 if small else 7,
        ),
        ratio(
            f"barrier, posteriors, {taus} points, {draws} draws: {network}",
            lambda: barrier(geodesic(q0, q1), functionals, points=taus, show=False),
            "its forward passes",
            bare_draws,
            bound=BOUND,
            repeat=2 if small else 5,
        ),
    ]


def _noise(tensor: Tensor, generator: torch.Generator) -> Tensor:
    return float(tensor.std(unbiased=False)) * torch.randn(tensor.shape, generator=generator)
