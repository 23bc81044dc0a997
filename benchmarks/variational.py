"""A step of mean-field variational inference against a deterministic step with torch's fused Adam."""

import torch
import torch.nn.functional as F

from benchmarks.measure import Ratio, ratio
from coset.models import MLP
from coset.posterior.inference.flat_optimizer import FlatOptimizer
from coset.posterior.inference.negative_elbo import NegativeELBO
from coset.posterior.problem import pose
from coset.train import Recipe


def run(small: bool) -> list[Ratio]:
    """One sample a step, as in training: with mirrored noise, the default, and with fresh noise in every step."""
    case = (64, [32], 64) if small else (784, [512, 512, 512], 500)
    return [_step(*case, mirrored, steps=4, repeat=2 if small else 21) for mirrored in (True, False)]


def _step(inputs: int, widths: list[int], batch: int, mirrored: bool, *, steps: int, repeat: int) -> Ratio:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, inputs, generator=generator)
    y = torch.randint(0, 10, (batch,), generator=generator)
    network = MLP(inputs, widths, 10)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)
    problem = pose(MLP(inputs, widths, 10), (x, y), "categorical", 0.05)
    start = torch.stack([problem.start, torch.full_like(problem.start, -4.6)])
    recipe = Recipe(epochs=1, batch_size=batch, learning_rate=1e-3, optimizer="adam")
    flat = FlatOptimizer(start, recipe, 1)
    objective = NegativeELBO(problem, 1, "closed", antithetic=mirrored)

    def plain() -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(network(x), y).backward()
            optimizer.step()

    def variational() -> None:
        for _ in range(steps):
            objective.write_gradient(flat.state["values"], x, y, generator, flat.gradient)
            flat.step(0)

    noise = "mirrored" if mirrored else "fresh"
    label = f"variational, one step, {noise} noise: MLP {'-'.join(map(str, (inputs, *widths, 10)))}, batch {batch}"
    return ratio(label, variational, "deterministic step, fused Adam", plain, bound=1.4, repeat=repeat)
