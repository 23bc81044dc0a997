"""Estimates of I(g; ω) and of its gradient at equal time, against exact values."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from coset.distribution import MeanField
from coset.posterior.symmetrized import SymmetrizedELBO
from coset.posterior.symmetrized.orbit import Drawn, Orbit, orbit
from coset.posterior.symmetrized.units import unknowns
from coset.symmetry import Symmetry

_ENTRIES = 2**21
"""So many numbers are held at once."""
CALIBRATIONS = 3
"""So often the time of an estimate is taken before it is given its draws."""
PIECES = 4
"""In so many pieces at least draws are taken, for the variance between them."""


class Estimator(NamedTuple):
    """Where permutations come from, and what gradients follow."""

    proposal: str
    gradient: str = "bound"

    def objective(self, problem: "Problem", K: int) -> SymmetrizedELBO:
        """For one draw of ω with K permutations."""
        return SymmetrizedELBO(problem.sym, K, proposal=self.proposal, gradient=self.gradient)


ESTIMATORS = {name: Estimator(name) for name in ("uniform", "transpositions", "distance", "sequential", "exact")} | {
    f"{name}-path": Estimator(name, "path") for name in ("uniform", "sequential", "exact")
}


@dataclass(frozen=True, eq=False)
class Problem:
    """A posterior as vectors: ``values`` (2, D) are means and logarithms of deviations, in float64."""

    sym: Symmetry
    orbit: Orbit
    values: Tensor

    @property
    def log_order(self) -> float:
        """log |G|."""
        return self.orbit.log_order


@dataclass(frozen=True, eq=False)
class Estimated:
    """I in nats, and ∂I/∂(μ, ρ) (2, D), ρ = log σ.

    ``spread`` and ``gradient_spread``: variances of both (of the gradient the sum over its entries) over draws of ω.
    """

    information: float
    gradient: Tensor
    spread: float
    gradient_spread: float


@dataclass(frozen=True)
class Errors:
    """Of several estimates: mean squared errors of I and of its gradient, the bias and deviation of I.

    ``draws`` of ω with ``K`` permutations each take ``seconds``.
    """

    estimator: str
    K: int
    draws: int
    seconds: float
    bias: float
    deviation: float
    information: float
    gradient: float


def problem_of(sym: Symmetry, q: MeanField) -> Problem:
    """The vectors of q, and how the permutations move them."""
    over = unknowns(q)
    return Problem(sym, orbit(sym, over.names, over.like), torch.stack([over.mean, over.std.log()]))


def estimate(problem: Problem, estimator: str, K: int, draws: int, generator: torch.Generator) -> Estimated:
    """I and its reparametrised gradient by so many draws of ω, with K permutations for each."""
    objective = ESTIMATORS[estimator].objective(problem, K)
    gains, gradient = [], torch.zeros_like(problem.values)
    squares = 0.0
    size = max(1, min(-(-draws // PIECES), _ENTRIES // _entries(problem, objective.proposal, K)))
    for start in range(0, draws, size):
        count = min(size, draws - start)
        leaves = problem.values.clone().requires_grad_()
        mean, std = leaves[0], leaves[1].exp()
        noise = torch.randn(count, len(mean), generator=generator, dtype=torch.float64)
        found = objective.added(Drawn(problem.orbit, mean + std * noise.to(mean), mean, std), generator)
        (part,) = torch.autograd.grad(found.sum(), leaves)
        gradient += part
        squares += float(part.square().sum()) / count
        gains.append(found.detach())
    values = torch.cat(gains)
    spread = float(values.var()) / draws if draws > 1 else math.inf
    # With sums s_p over pieces of n_p draws, Σ ‖s_p‖²/n_p − ‖Σ s_p‖²/n is (P − 1) times the variance of one draw.
    pieces = len(gains)
    off = (squares - float(gradient.square().sum()) / draws) / (pieces - 1) / draws if pieces > 1 else math.inf
    return Estimated(float(values.mean()), gradient / draws, spread, off)


def seconds_per_draw(
    problem: Problem, estimator: str, K: int, generator: torch.Generator, least: float = 0.05
) -> float:
    """What one draw of ω takes, by processor time: of so many at once that they take ``least`` seconds, or of 4096.

    The least of several: the first ones, or a busy machine, take longer.
    """
    draws = 2
    while True:
        taken = min(_seconds(problem, estimator, K, draws, generator) for _ in range(CALIBRATIONS))
        if taken > least or draws >= 4096:
            return taken / draws
        draws *= 4


def _seconds(problem: Problem, estimator: str, K: int, draws: int, generator: torch.Generator) -> float:
    begun = time.process_time()
    estimate(problem, estimator, K, draws, generator)
    return time.process_time() - begun


def errors(
    problem: Problem, truth: Estimated, estimator: str, K: int, budget: float, repeats: int, generator: torch.Generator
) -> Errors:
    """Of ``repeats`` estimates that take ``budget`` seconds each."""
    draws = max(2, round(budget / seconds_per_draw(problem, estimator, K, generator, min(0.05, budget))))
    begun = time.process_time()
    found = [estimate(problem, estimator, K, draws, generator) for _ in range(repeats)]
    seconds = (time.process_time() - begun) / repeats
    values = torch.tensor([one.information for one in found], dtype=torch.float64)
    off = [float((one.gradient - truth.gradient).square().sum()) for one in found]
    return Errors(
        estimator,
        K,
        draws,
        seconds,
        bias=float(values.mean()) - truth.information,
        deviation=float(values.std()),
        information=float((values - truth.information).square().mean()),
        gradient=sum(off) / len(off),
    )


@dataclass(frozen=True)
class AtSameDraws:
    """What permutations alone add to the error: estimates at some fixed draws of ω, against the exact sums at these.

    Mean squared errors of the mean over the draws, of I and of its gradient; ``seconds`` for one draw.
    """

    estimator: str
    K: int
    seconds: float
    information: float
    gradient: float


def at_same_draws(
    problem: Problem, estimator: str, grid: Sequence[int], draws: int, repeats: int, seed: int
) -> list[AtSameDraws]:
    """For each K, by ``repeats`` of all permutations at the same ``draws`` of ω."""
    noise = torch.randn(
        draws, problem.values.shape[1], generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    truth, slope = _at(problem, "exact", 1, noise, torch.Generator())
    generator = torch.Generator().manual_seed(seed)
    found = []
    for K in grid:
        begun = time.process_time()
        each = [_at(problem, estimator, K, noise, generator) for _ in range(repeats)]
        seconds = (time.process_time() - begun) / repeats / draws
        off = [(value - truth) ** 2 for value, _ in each]
        along = [float((gradient - slope).square().sum()) for _, gradient in each]
        found.append(AtSameDraws(estimator, K, seconds, sum(off) / repeats, sum(along) / repeats))
    return found


def _at(problem: Problem, estimator: str, K: int, noise: Tensor, generator: torch.Generator) -> tuple[float, Tensor]:
    """The mean of −log z and its gradient at μ + σε for each row of ``noise``."""
    objective = ESTIMATORS[estimator].objective(problem, K)
    size = max(1, _ENTRIES // _entries(problem, objective.proposal, K))
    total, gradient = 0.0, torch.zeros_like(problem.values)
    for some in torch.split(noise, size):
        leaves = problem.values.clone().requires_grad_()
        mean, std = leaves[0], leaves[1].exp()
        found = objective.added(Drawn(problem.orbit, mean + std * some.to(mean), mean, std), generator)
        gradient += torch.autograd.grad(found.sum(), leaves)[0]
        total += float(found.detach().sum())
    return total / len(noise), gradient / len(noise)


def at_equal_time(uniform: Sequence[AtSameDraws], other: AtSameDraws) -> AtSameDraws:
    """Of uniform permutations the fewest that take as long as the other estimator, or the most there are."""
    slower = [one for one in uniform if one.seconds >= other.seconds]
    return min(slower, key=lambda one: one.K) if slower else max(uniform, key=lambda one: one.K)


def best(found: Sequence[Errors], of: str) -> Errors:
    """The one with the smallest mean squared error of "information" or "gradient"."""
    return min(found, key=lambda one: float(getattr(one, of)))


def _entries(problem: Problem, proposal: str, K: int) -> int:
    """About how many numbers one draw of ω takes."""
    units = max(shape[-1] for shape in problem.orbit.classes.values())
    per_permutation = units if proposal in ("uniform", "transpositions", "distance") else 2 * units**2
    return problem.values.shape[1] + (K + units**2) * per_permutation
