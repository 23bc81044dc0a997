"""Chains of microcanonical Langevin dynamics without a Metropolis test; the equations: ``microcanonical``."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coset._checks import check_choice, check_positive
from coset.errors import InputError
from coset.posterior.inference.acceleration import Accelerator
from coset.posterior.inference.chains import Chains, Plan, Target
from coset.posterior.inference.hamiltonian import MASSES
from coset.posterior.inference.mclmc_tuning import (
    AUTOCORRELATION,
    KEPT,
    SETTLING,
    SPREADING,
    WATCHED,
    StepSize,
    effective_steps,
)
from coset.posterior.inference.microcanonical import (
    INTEGRATORS,
    directions,
    langevin_of,
    minibatch_of,
    refreshment,
)
from coset.train import DivergenceError

Batches = Callable[[int], tuple[Tensor, ...]]
"""What the log-density reads in a step, by its number: a minibatch."""

LENGTHS = ("autocorrelation", "spread")

LOOK = 4
"""On minibatches, one step in so many of the warm-up measures the energy error: it takes two more gradients."""

MEASURE = 4
"""One step in so many counts for the spread of a chain: neighbours are nearly equal."""

NOISE_BLOCK = 32
"""Steps whose noise is drawn at once."""


@dataclass(frozen=True)
class Motion:
    """Settings of the dynamics.

    ``step_size`` ε, or None to learn one whose E[ΔE²]/D is ``energy_error``. ``length`` L, over which a velocity is
    forgotten: a number; "spread": √(Σ variances) of a chain; "autocorrelation": from that on 0.4 ε times the steps
    between effectively independent states. ``mass`` "diagonal" measures every weight by its own deviation.
    """

    step_size: float | None = None
    length: float | str = "autocorrelation"
    energy_error: float = 5e-4
    mass: str = "identity"
    integrator: str = "leapfrog"

    def __post_init__(self) -> None:
        if self.step_size is not None:
            check_positive("step_size", self.step_size)
        if isinstance(self.length, str):
            check_choice("length", self.length, LENGTHS, otherwise=", or a number > 0")
        else:
            check_positive("length", self.length)
        check_positive("energy_error", self.energy_error)
        check_choice("mass", self.mass, MASSES)
        check_choice("integrator", self.integrator, INTEGRATORS)

    def check(self, plan: Plan) -> None:
        """Raise unless there is a warm-up for what is to be learned."""
        learns = self.step_size is None or isinstance(self.length, str) or self.mass != "identity"
        if learns and plan.burn_in < 20:
            raise InputError(
                f"warmup is {plan.burn_in}; step size, length and mass are learned there: expected 20 steps or "
                f"more, or "
                f"numbers for step_size and length, and mass='identity'"
            )


class Microcanonical(Chains):
    """Chains (C, D) that share step size, length and scale. All three are constant after the warm-up.

    But for broken steps: a step after which some chain's energy is not finite leaves that chain in its place with a new
    direction, is counted, and makes the step size smaller, whenever it happens.
    """

    purpose = "mclmc"

    def __init__(
        self,
        target: Target,
        start: Tensor,
        plan: Plan,
        motion: Motion,
        accelerator: Accelerator | None = None,
        batches: Batches | None = None,
    ) -> None:
        super().__init__(start, plan, accelerator)
        if start.shape[1] < 2:
            raise InputError("there is one weight; microcanonical dynamics expects two or more: fit_hmc takes one")
        motion.check(plan)
        self.target, self.motion, self.batches = target, motion, batches
        self._known = (math.nan, math.nan)
        self._as_tensors = (start.new_zeros(()), start.new_zeros(()))
        whole = batches is None
        self.step = langevin_of(target.function, motion.integrator) if whole else minibatch_of(target.function)
        chains, size = start.shape
        # As it is written: a checkpoint that is read later may say how the run goes.
        value, gradient = target.function(self.state["position"], *self._data(0))
        if not bool((value.isfinite() & gradient.isfinite().all(-1)).all()):
            raise InputError("the log-density where chains begin, or its gradient, is not finite")
        first = motion.step_size or math.sqrt(size) / 4
        given = motion.length if not isinstance(motion.length, str) else math.sqrt(size)
        self.state |= {
            "velocity": torch.zeros_like(start),
            "value": value.clone(),
            "gradient": gradient.clone(),
            "scale": torch.ones_like(start[0]),
            "tuning": torch.tensor([first, 0.0, 0.0, math.inf], dtype=torch.float64),
            "length": torch.tensor(float(given), dtype=torch.float64),
            "moments": torch.zeros(chains, 3, size, dtype=torch.float64, device=start.device),
            "watched": start.new_zeros(chains, min(KEPT, plan.burn_in), min(WATCHED, size)),
            "seen": torch.zeros((), dtype=torch.int64),
            "broken": torch.zeros(chains, dtype=torch.int64, device=start.device),
        }

    @property
    def settled(self) -> int:
        """The step of the warm-up from which on the spread of the chains is measured."""
        return int(SETTLING * self.plan.burn_in)

    @property
    def spread(self) -> int:
        """The step from which on the spread is known, and autocorrelations are measured."""
        return int(SPREADING * self.plan.burn_in)

    def _data(self, iteration: int) -> tuple[Tensor, ...]:
        return self.target.data if self.batches is None else self.batches(iteration)

    def _density(self, iteration: int, position: Tensor) -> tuple[Tensor, Tensor]:
        data = self._data(iteration)
        function = self.accelerator.ready("density", self.target.function, (position, *data))
        value, gradient = function(position, *data)
        return value, gradient

    def advance(self, span: range, generator: torch.Generator) -> Mapping[str, float]:
        """The steps of one round: the log-density's mean, sizes, energy errors, broken steps."""
        state = self.state
        if span.start == 0:
            state["velocity"].copy_(directions(state["position"], generator))
        tuning = StepSize.read(state["tuning"])
        values, squares, broken, noise = [], [], 0, state["position"]
        for number, iteration in enumerate(span):
            if number % NOISE_BLOCK == 0:
                block = min(NOISE_BLOCK, len(span) - number)
                noise = torch.empty(block, *state["position"].shape, dtype=noise.dtype, device=noise.device)
                noise.normal_(generator=generator)
            burning = self.plan.burning(iteration)
            before = state["position"] if self._looks(iteration) else None
            error = self._take(iteration, tuning.size, noise[number % NOISE_BLOCK])
            if before is not None:
                error = self._minibatch_error(iteration, before, error)
            values.append(state["value"])
            square = float(error.square().mean()) / state["position"].shape[1]
            if math.isnan(square):
                failed = error.isnan()
                broken += int(failed.sum())
                state["broken"] += failed
                if self.motion.step_size is None or not burning:
                    tuning.broken()
            elif self.batches is None or before is not None:
                squares.append(square)
                if burning and self.motion.step_size is None:
                    tuning.learn(square, self.motion.energy_error)
            if burning:
                tuning = self._learn(iteration, tuning)
            self.keep(iteration)
            if tuning.size < 1e-12:
                raise DivergenceError(
                    f"mclmc: the step size fell below 1e-12 in step {iteration + 1}, for the energy was not "
                    f"finite after "
                    f"{int(state['broken'].sum())} steps; other starts or a stronger prior may help"
                )
        tuning.write(state["tuning"])
        return {
            "log_joint": float(torch.stack(values).double().mean()),
            "step_size": tuning.size,
            "length": float(state["length"]),
            "energy_error": sum(squares) / len(squares) if squares else 0.0,
            "broken": float(broken),
            "burn_in": float(self.plan.burning(span.start)),
        }

    def _take(self, iteration: int, size: float, noise: Tensor) -> Tensor:
        """One step of all chains; ΔE (C,), NaN where it is broken."""
        state, data = self.state, self._data(iteration)
        inputs = (
            state["position"], state["velocity"], state["value"], state["gradient"], state["scale"],
            *self._sizes(size, float(state["length"])), noise, *data,
        )  # fmt: skip
        # Four outputs are the state of the chains, the last one the error. Nothing is copied: they are new tensors.
        *moved, error = self.accelerator.ready("step", self.step, inputs)(*inputs)
        state |= dict(zip(("position", "velocity", "value", "gradient"), moved, strict=True))
        return error

    def _sizes(self, size: float, length: float) -> tuple[Tensor, Tensor]:
        """ε and the share of a velocity that is drawn anew, as tensors."""
        if self._known != (size, length):
            like = self.state["position"]
            share = refreshment(size, length, like.shape[1])
            one, other = (torch.tensor(value, dtype=like.dtype, device=like.device) for value in (size, share))
            self._known, self._as_tensors = (size, length), (one, other)
        return self._as_tensors

    def _looks(self, iteration: int) -> bool:
        """Whether a step on a minibatch measures its energy error."""
        learns = self.batches is not None and self.motion.step_size is None
        return learns and self.plan.burning(iteration) and iteration % LOOK == 0

    def _minibatch_error(self, iteration: int, before: Tensor, error: Tensor) -> Tensor:
        """ΔE (C,) of the last step for the density of its own minibatch; ``error``: ΔK."""
        first, _ = self._density(iteration, before)
        last, _ = self._density(iteration, self.state["position"])
        return error - (last - first)

    def _learn(self, iteration: int, tuning: StepSize) -> StepSize:
        """Spread and autocorrelations, in their parts of the warm-up; the step size in the units of the scale."""
        state = self.state
        if self.settled <= iteration < self.spread:
            if (iteration - self.settled) % MEASURE == 0:
                self._measure()
            if iteration == self.spread - 1:
                tuning = self._use_spread(tuning)
        elif iteration >= self.spread and self.motion.length == "autocorrelation":
            every = max(1, -(-(self.plan.burn_in - self.spread) // KEPT))
            after = iteration - self.spread
            if after % every == 0 and int(state["seen"]) < state["watched"].shape[1]:
                state["watched"][:, int(state["seen"])] = state["position"][:, self._columns()]
                state["seen"] += 1
            if iteration == self.plan.burn_in - 1 and int(state["seen"]) >= 10:
                steps = every * effective_steps(state["watched"][:, : int(state["seen"])])
                state["length"].fill_(AUTOCORRELATION * tuning.size * steps)
        return tuning

    def _columns(self) -> Tensor:
        """Coordinates that are watched, spread evenly over the weights."""
        size, watched = self.state["position"].shape[1], self.state["watched"].shape[2]
        return torch.arange(watched, device=self.state["position"].device) * size // watched

    def _measure(self) -> None:
        """Take the states into running moments of each chain (Welford 1962)."""
        count, mean, squares = self.state["moments"].unbind(1)
        away = self.state["position"] - mean
        count += 1
        mean += away / count
        squares += away * (self.state["position"] - mean)

    def _use_spread(self, tuning: StepSize) -> StepSize:
        """Scale and length from the variances within the chains, drawn towards 10⁻³ as by 5 further draws."""
        state = self.state
        counts, _, squares = state["moments"].unbind(1)
        variances = ((squares + 5e-3) / (counts + 5)).mean(0)
        whole = math.sqrt(float(variances.sum()))
        size = math.sqrt(len(variances))
        if self.motion.mass == "diagonal":
            state["scale"].copy_(variances.sqrt())
            tuning = tuning.rescaled(size / whole) if self.motion.step_size is None else tuning
        if isinstance(self.motion.length, str):
            state["length"].fill_(size if self.motion.mass == "diagonal" else whole)
        return tuning
