"""The training loop against a bare loop over the same batches with torch's own optimizer."""

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.measure import Ratio, ratio
from coset.models import MLP
from coset.train import Recipe, fit


def run(small: bool) -> list[Ratio]:
    """An epoch of a small and of a large MLP."""
    cases = [(64, [32], 64, 1024)] if small else [(64, [256, 256], 64, 16384), (784, [512, 512, 512], 128, 12800)]
    return [_epoch(*case, repeat=2 if small else 7) for case in cases]


def _epoch(inputs: int, widths: list[int], batch: int, examples: int, *, repeat: int) -> Ratio:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(examples, inputs, generator=generator)
    y = torch.randint(0, 10, (examples,), generator=generator)
    model = MLP(inputs, widths, 10)
    recipe = Recipe(epochs=1, batch_size=batch, learning_rate=1e-3, optimizer="adam")

    def bare() -> nn.Module:
        copy = MLP(inputs, widths, 10)
        optimizer = torch.optim.Adam(copy.parameters(), lr=1e-3, fused=True)
        for index in torch.randperm(examples, generator=generator).split(batch):
            loss = F.cross_entropy(copy(x[index]), y[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return copy

    label = f"fit, one epoch: MLP {'-'.join(map(str, (inputs, *widths, 10)))}, batch {batch}"
    return ratio(
        label,
        lambda: fit(model, x, y, recipe, seed=0, show=False),
        "bare loop, fused Adam",
        bare,
        bound=1.1,
        repeat=repeat,
    )
