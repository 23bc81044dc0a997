"""A barrier along a path against the bare forward passes it takes."""

import torch
from torch import Tensor

from benchmarks.measure import Ratio, ratio
from coset.batches import BATCH_SIZE
from coset.landscape import barrier, linear, loss
from coset.models import MLP

BOUND = 1.15


def run(small: bool) -> list[Ratio]:
    """25 points between two MLPs, 10,000 inputs at each."""
    inputs, widths, count = (64, [32], 512) if small else (784, [512] * 3, 10_000)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, inputs, generator=generator)
    y = torch.randint(0, 10, (count,), generator=generator)
    model = MLP(inputs, widths, 10).eval()
    a = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    b = {name: _noise(tensor, generator) for name, tensor in a.items()}

    @torch.no_grad()
    def bare() -> object:
        return [model(batch) for _ in range(25) for batch in x.split(BATCH_SIZE)]

    label = f"barrier, 25 points: MLP {'-'.join(map(str, (inputs, *widths, 10)))}, {count} inputs"
    return [
        ratio(
            label,
            lambda: barrier(linear(a, b), loss(model, (x, y)), show=False),
            "its forward passes",
            bare,
            bound=BOUND,
            repeat=2 if small else 7,
        )
    ]


def _noise(tensor: Tensor, generator: torch.Generator) -> Tensor:
    return float(tensor.std(unbiased=False)) * torch.randn(tensor.shape, generator=generator)
