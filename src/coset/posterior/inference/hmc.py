"""Hamiltonian Monte Carlo over the weights of a network, with gradients of all data (Neal 2011)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from coset._checks import check_count
from coset.distribution.samples import Samples
from coset.errors import InputError
from coset.posterior.fit import Callback, Control, Fit, Trace
from coset.posterior.inference.acceleration import Accelerator, Compile, check_compile
from coset.posterior.inference.chains import (
    LogDensity,
    Plan,
    joint_density,
    require_batching,
    require_density,
    starts,
)
from coset.posterior.inference.hamiltonian import Hamiltonian, Trajectories
from coset.posterior.inference.starting import Start, points_of
from coset.posterior.likelihoods import Likelihood
from coset.posterior.problem import Data, PriorLike, pose

STUCK = 0.1
"""A chain with a lower acceptance is spoken of."""

GUESSED_STEPS = 30
"""Leapfrog steps of a trajectory, where a length is given or looked for."""


def fit_hmc(
    model: nn.Module,
    data: Data,
    *,
    draws: int,
    warmup: int,
    leapfrog_steps: int | None = None,
    length: float | None = None,
    jitter: float = 0.5,
    max_steps: int = 1000,
    chains: int = 4,
    thin: int = 1,
    target_accept: float = 0.8,
    step_size: float | None = None,
    mass: str = "identity",
    rows: int | None = None,
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
    """Draws from p_T(θ|Y) ∝ (p(Y|θ)p(θ))^{1/T} by Hamiltonian dynamics and a Metropolis test of every trajectory.

    All chains move together. After ``warmup`` iterations, which adapt step size and, with ``mass="diagonal"``, mass,
    ``draws`` states of each are kept, every ``thin`` iterations. A trajectory has ``leapfrog_steps`` steps or takes the
    time ``length``, ± ``jitter``; by default the warm-up looks for a length, too: see ``path_lengths``. ``rows``:
    points of the data taken at once, to bound memory; by default all. ``compile``: see ``acceleration.choose``. Chains
    begin as ``start`` and ``spread`` say (``chains.starts``). The trace has the log_joint per data point, acceptance
    (mean, and of the worst chain), step size, steps, trajectories ``cut`` at ``max_steps``, and divergences:
    trajectories whose energy went off by more than 1000.
    """
    problem = pose(model, data, likelihood, prior, temperature, points_of(start))
    check_count("chains", chains)
    if rows is not None:
        check_count("rows", rows)
    trajectories = Trajectories(leapfrog_steps, length, jitter, max_steps, target_accept, step_size, mass)
    plan = _checked_plan(draws, warmup, thin, trajectories)
    control = Control(seed, checkpoint, checkpoint_seconds, callback, show)
    require_batching(problem)
    begin = starts(problem, start, spread, chains, seed)
    density = joint_density(problem, rows)
    require_density(problem, density, begin)
    accelerator = Accelerator(check_compile(compile), (warmup + draws * thin) * (leapfrog_steps or GUESSED_STEPS))
    sampler = Hamiltonian(density, begin, plan, trajectories, accelerator)
    settings = {"trajectories": repr(trajectories), "rows": rows, "compile": compile}
    fit = sampler.fit("hmc", problem, control, settings, problem.temperature)
    return replace(fit, notes=fit.notes + trajectory_warnings(fit.trace, sampler))


def sample_hmc(
    density: LogDensity, start: Tensor, *, draws: int, warmup: int, thin: int = 1, seed: int = 0, **how: Any
) -> tuple[Tensor, Trace]:
    """The same for any log-density of states (C, D), with settings of ``Trajectories``: draws (C, draws, D), trace."""
    trajectories = Trajectories(**how)
    sampler = Hamiltonian(density, start, _checked_plan(draws, warmup, thin, trajectories), trajectories)
    records = sampler.records(seed)
    return sampler.state["draws"], Trace(records)


def trajectory_warnings(trace: Trace, sampler: Hamiltonian) -> tuple[str, ...]:
    """What the user should know of the sampling after the warm-up."""
    sampling = [record for record in trace if not record["burn_in"]]
    done = sampler.spans[: len(trace)]
    iterations = sum(len(span) for span in done if not sampler.plan.burning(span.start))
    notes = []
    if divergences := sum(record["divergences"] for record in sampling):
        notes.append(f"{divergences:.0f} trajectories diverged after the warm-up; a higher target_accept may help")
    if cut := sum(record["cut"] for record in sampling):
        notes.append(f"{cut:.0f} trajectories were cut at max_steps={sampler.trajectories.max_steps}")
    if sampling:
        accept, chain = (sampler.state["accepted"] / iterations).min(0)
        if accept < STUCK:
            notes.append(f"chain {int(chain)} hardly moved: its mean acceptance after the warm-up is {accept:.2g}")
    return tuple(notes)


def _checked_plan(draws: int, warmup: int, thin: int, trajectories: Trajectories) -> Plan:
    check_count("warmup", warmup, 0)
    if not warmup and trajectories.step_size is None:
        raise InputError("warmup is 0 and step_size is None; expected a warm-up to adapt the step size in, or the step")
    if not warmup and trajectories.adaptive:
        raise InputError(
            "warmup is 0, and neither leapfrog_steps nor length is given; expected a warm-up to find a length "
            "in, or one "
            "of both"
        )
    return Plan(warmup, draws, thin)
