"""A step of symmetrized variational inference against a step of plain mean-field inference."""

import torch
from torch import Tensor

from benchmarks.measure import Ratio, ratio
from coset.models import MLP
from coset.posterior.inference.flat_optimizer import FlatOptimizer
from coset.posterior.inference.negative_elbo import EntropyTerm, NegativeELBO
from coset.posterior.problem import Problem, pose
from coset.posterior.symmetrized import SymmetrizedELBO
from coset.posterior.symmetrized.fitting import Gain
from coset.symmetry import discover
from coset.train import Recipe

OVERLAPPING = (0.02, -1.0)
"""Factor of the means and logarithm of the deviations of a posterior whose equivalent modes overlap."""
APART = (1.0, -4.6)


def run(small: bool) -> list[Ratio]:
    """K = 20 permutations, for modes that are apart, as in training on MNIST, and for ones that overlap."""
    shape, batch = ((64, 8), 20) if small else ((784, 30), 100)
    repeat = 2 if small else 31
    return [
        _step(shape, batch, state, f"modes that {where}", repeat=repeat)
        for where, state in (("are apart", APART), ("overlap", OVERLAPPING))
    ]


def _step(shape: tuple[int, int], batch: int, state: tuple[float, float], where: str, *, repeat: int) -> Ratio:
    inputs, units = shape
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, inputs, generator=generator)
    y = torch.randint(0, 10, (batch,), generator=generator)
    model = MLP(inputs, [units], 10).eval()
    problem = pose(model, (x, y), "categorical", 1.0)
    values = torch.stack([state[0] * problem.start, torch.full_like(problem.start, state[1])])
    gain = Gain(SymmetrizedELBO(discover(model, x[:2]), 20), problem)
    plain, symmetrized = (_Steps(problem, values, x, y, term) for term in (None, gain))
    label = f"symmetrized, one step, K = 20: MLP {inputs}-{units}-10, batch {batch}, {where}"
    return ratio(label, symmetrized, "plain mean-field step", plain, bound=2.0, repeat=repeat)


class _Steps:
    """Sixteen steps from where the last ones ended, at a rate of nearly nothing, so that the posterior stays."""

    def __init__(self, problem: Problem, values: Tensor, x: Tensor, y: Tensor, term: EntropyTerm | None) -> None:
        recipe = Recipe(epochs=1, batch_size=len(x), learning_rate=1e-9, optimizer="adam")
        self.flat = FlatOptimizer(values, recipe, 1)
        self.objective = NegativeELBO(problem, 1, "closed", term=term)
        self.generator = torch.Generator().manual_seed(0)
        self.batch = (x, y)

    def __call__(self) -> None:
        self.objective.begin(0, 0)
        for _ in range(16):
            self.objective.write_gradient(self.flat.state["values"], *self.batch, self.generator, self.flat.gradient)
            self.flat.step(0)
