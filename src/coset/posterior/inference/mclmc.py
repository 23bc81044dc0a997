"""Microcanonical Langevin Monte Carlo over the weights of a network (Robnik et al. 2023; Robnik and Seljak 2024)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coset._checks import check_count
from coset.distribution.samples import Samples
from coset.errors import InputError
from coset.posterior.fit import Callback, Control, Fit, Trace
from coset.posterior.inference.acceleration import Accelerator, Compile, check_compile
from coset.posterior.inference.adjusted import AdjustedMicrocanonical
from coset.posterior.inference.chains import (
    Chains,
    LogDensity,
    Plan,
    Target,
    as_target,
    joint_density,
    require_batching,
    require_density,
    starts,
)
from coset.posterior.inference.hamiltonian import Trajectories
from coset.posterior.inference.hmc import GUESSED_STEPS, trajectory_warnings
from coset.posterior.inference.mclmc_chains import Batches, Microcanonical, Motion
from coset.posterior.inference.sgmcmc import batches_of
from coset.posterior.inference.starting import Start, points_of
from coset.posterior.likelihoods import Likelihood
from coset.posterior.problem import Data, PriorLike, Problem, pose


def fit_mclmc(
    model: nn.Module,
    data: Data,
    *,
    draws: int,
    warmup: int,
    adjusted: bool = False,
    chains: int = 4,
    thin: int | None = None,
    step_size: float | None = None,
    length: float | str | None = None,
    energy_error: float = 5e-4,
    target_accept: float = 0.9,
    jitter: float = 0.5,
    max_steps: int = 1000,
    mass: str = "identity",
    integrator: str = "leapfrog",
    batch_size: int | None = None,
    own_batches: bool = False,
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
    """Draws from p_T(θ|Y) ∝ (p(Y|θ)p(θ))^{1/T} by microcanonical Langevin dynamics; equations: ``microcanonical``.

    All chains move together. After ``warmup`` iterations, which learn step size, ``length`` and with
    ``mass="diagonal"`` the scale of every weight, ``draws`` states of each are kept, every ``thin`` iterations.

    Not adjusted, an iteration is one step of the integrator, ``thin`` is 10 by default, and draws are biased by the
    step size: ``energy_error`` E[ΔE²]/D bounds that; see ``mclmc_chains.Motion`` for ``length``. With ``batch_size``
    steps see minibatches, as in ``fit_sgmcmc``, whose noise adds to the bias. Steps after which the energy is not
    finite are undone, counted, and make the step size smaller; notes tell of them.

    ``adjusted``: an iteration is a trajectory of many steps and a Metropolis test, ``thin`` is 1, and draws are exact
    in the limit. ``length`` is that of a trajectory ± ``jitter``, by default found in the warm-up; the step size aims
    at ``target_accept``.

    ``rows``: points of the data taken at once, to bound memory. ``compile``: see ``acceleration.choose``. Chains begin
    as ``start`` and ``spread`` say (``chains.starts``).
    """
    problem = pose(model, data, likelihood, prior, temperature, points_of(start))
    check_count("chains", chains)
    for name, value in (("rows", rows), ("batch_size", batch_size)):
        if value is not None:
            check_count(name, value)
    if batch_size is not None and (adjusted or rows is not None):
        raise InputError(
            f"batch_size is {batch_size} and {'adjusted is True' if adjusted else f'rows is {rows}'}; "
            f"{'a Metropolis test needs all the data' if adjusted else 'a minibatch is taken at once'}: expected "
            f"one of "
            f"both"
        )
    control = Control(seed, checkpoint, checkpoint_seconds, callback, show)
    plan = _plan(draws, warmup, thin, adjusted)
    how = _how(adjusted, step_size, length, energy_error, target_accept, jitter, max_steps, mass, integrator)
    require_batching(problem)
    begin = starts(problem, start, spread, chains, seed)
    accelerator = Accelerator(check_compile(compile), plan.length * (GUESSED_STEPS if adjusted else 1))
    target, batches = joint_density(problem, rows), None
    require_density(problem, target, begin)
    if batch_size is not None and batch_size < problem.count:
        target, batches = _on_minibatches(problem, batch_size, own_batches, seed, chains)
    sampler = _sampler(target, begin, plan, how, integrator, accelerator, batches)
    settings = {
        "how": repr(how), "integrator": integrator, "rows": rows, "batch_size": batch_size,
        "own_batches": own_batches, "compile": compile,
    }  # fmt: skip
    fit = sampler.fit("mclmc", problem, control, settings, problem.temperature)
    return replace(fit, notes=fit.notes + _warnings(fit.trace, sampler))


def sample_mclmc(
    density: LogDensity,
    start: Tensor,
    *,
    draws: int,
    warmup: int,
    thin: int | None = None,
    adjusted: bool = False,
    integrator: str = "leapfrog",
    seed: int = 0,
    **how: Any,
) -> tuple[Tensor, Trace]:
    """The same for any log-density of states (C, D): draws (C, draws, D) and trace.

    ``how``: settings of ``Motion``, or with ``adjusted`` of ``Trajectories``.
    """
    plan = _plan(draws, warmup, thin, adjusted)
    settings = Trajectories(**how) if adjusted else Motion(integrator=integrator, **how)
    sampler = _sampler(as_target(density), start, plan, settings, integrator, None, None)
    records = sampler.records(seed)
    return sampler.state["draws"], Trace(records)


def _plan(draws: int, warmup: int, thin: int | None, adjusted: bool) -> Plan:
    check_count("warmup", warmup, 0)
    return Plan(warmup, draws, (1 if adjusted else 10) if thin is None else thin)


def _how(
    adjusted: bool,
    step_size: float | None,
    length: float | str | None,
    energy_error: float,
    target_accept: float,
    jitter: float,
    max_steps: int,
    mass: str,
    integrator: str,
) -> Motion | Trajectories:
    """The settings of the form that is asked for."""
    if not adjusted:
        return Motion(step_size, length or "autocorrelation", energy_error, mass, integrator)
    if isinstance(length, str):
        raise InputError(f"length is {length!r} and adjusted is True; expected a number, or None to find one")
    return Trajectories(None, length, jitter, max_steps, target_accept, step_size, mass)


def _sampler(
    target: Target,
    begin: Tensor,
    plan: Plan,
    how: Motion | Trajectories,
    integrator: str,
    accelerator: Accelerator | None,
    batches: Batches | None,
) -> Microcanonical | AdjustedMicrocanonical:
    if isinstance(how, Motion):
        return Microcanonical(target, begin, plan, how, accelerator, batches)
    if not plan.burn_in and (how.step_size is None or how.adaptive):
        raise InputError("warmup is 0; expected a warm-up to adapt step size and length in, or numbers for both")
    return AdjustedMicrocanonical(target, begin, plan, how, accelerator, integrator)


def _on_minibatches(problem: Problem, batch_size: int, own: bool, seed: int, chains: int) -> tuple[Target, Batches]:
    """The density as a function of a minibatch, and the minibatch of every step."""
    batch = batches_of(problem, batch_size, own, seed)

    def density(flats: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = problem.log_joints(flats, x, y, own=own)
        return value / problem.temperature, gradient / problem.temperature

    return Target(density), lambda iteration: batch(iteration, chains)


def _warnings(trace: Trace, sampler: Chains) -> tuple[str, ...]:
    """What the user should know of the sampling after the warm-up."""
    if isinstance(sampler, AdjustedMicrocanonical):
        return trajectory_warnings(trace, sampler)
    sampling = sum(record["broken"] for record in trace if not record["burn_in"])
    whole = int(torch.as_tensor(sampler.state["broken"]).sum())
    if not whole:
        return ()
    return (
        f"{whole} steps were undone, {sampling:.0f} of them after the warm-up, as the energy after them was not "
        f"finite; "
        f"each made the step size smaller",
    )
