"""Stochastic gradient Markov chain Monte Carlo: SGLD, SGHMC and their cyclical forms, with batched chains."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coset._checks import check_count
from coset.distribution.samples import Samples
from coset.posterior.fit import Callback, Control, Fit
from coset.posterior.inference.acceleration import Accelerator, Compile, check_compile
from coset.posterior.inference.chains import Plan, require_batching, starts
from coset.posterior.inference.langevin import Dynamics, Gradient, Langevin
from coset.posterior.inference.starting import Start, points_of
from coset.posterior.likelihoods import Likelihood
from coset.posterior.problem import Data, PriorLike, Problem, pose
from coset.train.randomness import stream


def fit_sgmcmc(
    model: nn.Module,
    data: Data,
    *,
    step_size: float,
    draws: int,
    burn_in: int,
    batch_size: int,
    method: str = "sghmc",
    chains: int = 4,
    thin: int = 1,
    cycles: int = 1,
    friction: float | None = None,
    noise_estimate: float = 0.0,
    preconditioner: str = "identity",
    own_batches: bool = False,
    compile: Compile = "auto",
    start: Start | Samples | None = None,
    spread: str | float = "initial",
    likelihood: Likelihood | str = "categorical",
    prior: PriorLike = 1.0,
    temperature: float = 1.0,
    seed: int = 0,
    checkpoint: Path | str | None = None,
    checkpoint_seconds: float = 5.0,
    callback: Callback | None = None,
    show: bool | None = None,
) -> Fit[Samples]:
    """Draws from p_T(θ|Y) ∝ (p(Y|θ)p(θ))^{1/T} by stochastic gradients; the equations are those of ``langevin``.

    ``method``: "sgld", "sghmc", and "csgld", "csghmc" with step sizes that fall along a cosine in each of ``cycles``
    cycles (Zhang et al. 2020). All chains move together: after ``burn_in`` steps ``draws`` states of each are kept,
    every ``thin`` steps; a cyclical method takes ``burn_in`` steps without noise at the beginning of each cycle and
    ``draws``/``cycles`` draws after them. A step sees ``batch_size`` points, the same for all chains, which is faster,
    or with ``own_batches`` others for each; each pass over the data is in a new order and leaves out what does not fill
    a batch. ``step_size`` is for sums over the data: a learning rate divided by N. The draws are biased by step size
    and by the gradient's noise, of which ``noise_estimate``, its variance, is subtracted from what is added. Chains
    begin as ``start`` and ``spread`` say (``chains.starts``). ``compile``: see ``acceleration.choose``. The trace has,
    per data point, the log_joint of the batches, as mean over the chains.
    """
    problem = pose(model, data, likelihood, prior, temperature, points_of(start))
    check_count("chains", chains)
    check_count("batch_size", batch_size)
    dynamics = Dynamics(method, step_size, friction, problem.temperature, noise_estimate, preconditioner)
    plan = Plan(burn_in, draws, thin, cycles)
    control = Control(seed, checkpoint, checkpoint_seconds, callback, show)
    require_batching(problem)
    begin = starts(problem, start, spread, chains, seed)
    accelerator = Accelerator(check_compile(compile), plan.length * plan.cycles)
    gradient = batch_gradient(problem, min(batch_size, problem.count), own_batches, seed, accelerator)
    settings = {
        "dynamics": repr(dynamics), "batch_size": batch_size, "own_batches": own_batches, "compile": compile
    }  # fmt: skip
    return Langevin(gradient, begin, plan, dynamics, accelerator).fit(method, problem, control, settings)


def sample_sgmcmc(
    gradient: Gradient,
    start: Tensor,
    *,
    draws: int,
    burn_in: int,
    thin: int = 1,
    cycles: int = 1,
    seed: int = 0,
    method: str = "sghmc",
    **how: Any,
) -> Tensor:
    """The same for any log-density, by ``gradient`` of iteration and states (C, D), with settings of ``Dynamics``."""
    sampler = Langevin(gradient, start, Plan(burn_in, draws, thin, cycles), Dynamics(method, **how))
    sampler.records(seed)
    return sampler.state["draws"]


def batch_gradient(
    problem: Problem, batch_size: int, own: bool, seed: int, accelerator: Accelerator | None = None
) -> Gradient:
    """The untempered log_joint of minibatches and its gradient; which points a step sees depends on its number only."""
    batches = batches_of(problem, batch_size, own, seed)

    def joints(flats: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return problem.log_joints(flats, x, y, own=own and batch_size < problem.count)

    def gradient(iteration: int, flats: Tensor) -> tuple[Tensor, Tensor]:
        x, y = batches(iteration, len(flats))
        function = joints if accelerator is None else accelerator.ready("joints", joints, (flats, x, y))
        value, slope = function(flats, x, y)
        return value, slope

    return gradient


def batches_of(problem: Problem, batch_size: int, own: bool, seed: int) -> Callable[[int, int], tuple[Tensor, Tensor]]:
    """Minibatches by the number of the step and the chains: (M, …), or with ``own`` (chains, M, …).

    Every pass over the data is in a new order and leaves out what does not fill a batch. All the data are one batch.
    """
    per_pass = problem.count // batch_size
    order: dict[int, Tensor] = {}

    def batch(iteration: int, chains: int) -> tuple[Tensor, Tensor]:
        if batch_size == problem.count:
            return problem.x, problem.y
        number, within = divmod(iteration, per_pass)
        if number not in order:
            order.clear()
            order[number] = _orders(problem, chains if own else 1, seed, number)
        rows = order[number][:, within * batch_size : (within + 1) * batch_size]
        if own:
            return problem.x[rows], problem.y[rows]
        return problem.x.index_select(0, rows[0]), problem.y.index_select(0, rows[0])

    return batch


def _orders(problem: Problem, count: int, seed: int, number: int) -> Tensor:
    """``count`` random orders of the data (count, N) for one pass."""
    generator = stream("order", seed, number)
    rows = [torch.randperm(problem.count, generator=generator, device="cpu") for _ in range(count)]
    return torch.stack(rows).to(problem.x.device)
