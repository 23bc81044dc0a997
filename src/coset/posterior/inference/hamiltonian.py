"""Hamiltonian Monte Carlo on any log-density, with batched chains that share step size and mass.

In the warm-up the step size is adapted by dual averaging, and a diagonal mass from pooled draws. Both write to tensors
of the state in place, so that a checkpoint holds them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coset._checks import check_choice, check_count, check_positive
from coset.errors import InputError
from coset.posterior.inference.chains import Chains, LogDensity, Plan

SHRINKAGE, STEPS_AHEAD, DECAY = 0.05, 10, 0.75
"""γ, t₀ and κ of Hoffman and Gelman (2014)."""


def fresh_averaging(step_size: float) -> Tensor:
    """The state of dual averaging (5,) float64: log ε, its average, the mean error, the count, the point of attraction.

    Steps are drawn towards 10 times the first one: long trajectories are cheap to try.
    """
    log_step = math.log(step_size)
    return torch.tensor([log_step, log_step, 0.0, 0.0, math.log(10) + log_step], dtype=torch.float64)


def update_averaging(state: Tensor, accept: float, target: float) -> None:
    """One iteration with acceptance ``accept`` (Hoffman and Gelman 2014, eq. 6 and algorithm 5)."""
    _, average, error, count, centre = state.tolist()
    count += 1
    share = 1 / (count + STEPS_AHEAD)
    error = (1 - share) * error + share * (target - accept)
    log_step = centre - math.sqrt(count) / SHRINKAGE * error
    weight = count**-DECAY
    average = weight * log_step + (1 - weight) * average
    state.copy_(torch.tensor([log_step, average, error, count, centre], dtype=torch.float64))


def current_step(state: Tensor) -> float:
    """ε to explore with in the warm-up."""
    return math.exp(float(state[0]))


def average_step(state: Tensor) -> float:
    """ε to sample with after it."""
    return math.exp(float(state[1]))


def mass_windows(warmup: int) -> list[range]:
    """The iterations whose draws make a mass each: windows of 25, 50, 100, …, between 15 % and 90 % of the warm-up.

    As in Stan the last window takes what is left over; a warm-up too short for one window has none.
    """
    low, high, size = int(0.15 * warmup), int(0.9 * warmup), 25
    windows = []
    while low + size <= high:
        end = low + size if low + size + 2 * size <= high else high
        windows.append(range(low, end))
        low, size = end, 2 * size
    return windows


def fresh_moments(like: Tensor) -> Tensor:
    """Running moments of vectors (D,): rows (count, mean, sum of squared deviations), (3, D) float64."""
    return torch.zeros(3, like.shape[-1], dtype=torch.float64, device=like.device)


def update_moments(moments: Tensor, positions: Tensor) -> None:
    """Take in the states of all chains (C, D) (Chan et al. 1983)."""
    count, mean, squares = moments.unbind()
    states = positions.double()
    fresh, own = len(states), states.mean(0)
    shift = own - mean
    total = count + fresh
    squares += (states - own).square().sum(0) + shift.square() * count * fresh / total
    mean += shift * fresh / total
    count += fresh


def inverse_mass_of(moments: Tensor) -> Tensor:
    """M⁻¹ (D,): the variances, drawn towards 10⁻³ as by 5 further draws, as in Stan."""
    count, _, squares = moments.unbind()
    variance = squares / (count - 1).clamp(min=1)
    return (count * variance + 5e-3) / (count + 5)


@dataclass(frozen=True, eq=False)
class Phase:
    """Positions and momenta (C, D), with the log-density (C,) and its gradient (C, D) at the positions."""

    position: Tensor
    momentum: Tensor
    value: Tensor
    gradient: Tensor


def energy(phase: Phase, inverse_mass: Tensor) -> Tensor:
    """H = −log p(θ) + ½ rᵀM⁻¹r of every chain (C,), in float64; M⁻¹ is a diagonal (D,)."""
    kinetic = (phase.momentum.double().square() * inverse_mass).sum(-1) / 2
    return kinetic - phase.value.double()


def leapfrog(density: LogDensity, phase: Phase, inverse_mass: Tensor, step_size: float, steps: int) -> Phase:
    """``steps`` of r ← r + ½ε∇log p(θ), θ ← θ + εM⁻¹r, r ← r + ½ε∇log p(θ): reversible, of unit Jacobian."""
    position, value, gradient = phase.position, phase.value, phase.gradient
    momentum = phase.momentum + step_size / 2 * gradient
    drift = step_size * inverse_mass.to(position.dtype)
    for number in range(steps):
        position = position + drift * momentum
        value, gradient = density(position)
        # Two half kicks in a row are one.
        momentum = momentum + (step_size if number < steps - 1 else step_size / 2) * gradient
    return Phase(position, momentum, value, gradient)


DIVERGENT = 1000.0
"""An energy error beyond this is a divergence, as in Stan."""

MASSES = ("identity", "diagonal")


@dataclass(frozen=True)
class Trajectories:
    """How long a trajectory is, and what is adapted.

    ``length``: in units of time, so that the number of steps follows from the step size; or ``leapfrog_steps``, that
    number itself. Each is multiplied by a u ~ U[1 − ``jitter``, 1 + ``jitter``], one for all chains in an iteration,
    lest trajectories close on themselves. No trajectory has more than ``max_steps`` steps. ``step_size``: the first
    one, or None to look for it. ``mass``: "identity", or "diagonal": M⁻¹ = the variances of all chains' draws.
    """

    leapfrog_steps: int | None = None
    length: float | None = None
    jitter: float = 0.5
    max_steps: int = 1000
    target_accept: float = 0.8
    step_size: float | None = None
    mass: str = "identity"

    def __post_init__(self) -> None:
        if (self.leapfrog_steps is None) == (self.length is None):
            raise InputError(
                f"leapfrog_steps is {self.leapfrog_steps!r} and length is {self.length!r}; expected one of both"
            )
        if self.leapfrog_steps is not None:
            check_count("leapfrog_steps", self.leapfrog_steps)
        if self.length is not None:
            check_positive("length", self.length)
        if self.step_size is not None:
            check_positive("step_size", self.step_size)
        check_positive("jitter", self.jitter, zero=True)
        check_positive("target_accept", self.target_accept)
        check_count("max_steps", self.max_steps)
        if self.jitter >= 1:
            raise InputError(f"jitter is {self.jitter!r}; expected a number in [0, 1)")
        if self.target_accept >= 1:
            raise InputError(f"target_accept is {self.target_accept!r}; expected a number in (0, 1)")
        check_choice("mass", self.mass, MASSES)

    def steps(self, factor: float, step_size: float) -> int:
        """The leapfrog steps of a trajectory ``factor`` times as long as usual, before the limit."""
        if self.leapfrog_steps is not None:
            return max(1, round(factor * self.leapfrog_steps))
        assert self.length is not None
        return max(1, math.ceil(factor * self.length / step_size))


class Hamiltonian(Chains):
    """Chains of a log-density.

    The step size is shared: dual averaging sees the mean acceptance probability of the chains (Hoffman and Gelman
    2014), and restarts whenever the mass changes. After the burn-in both are constant, and every chain has the density
    as its invariant law.
    """

    purpose = "hmc"

    def __init__(self, density: LogDensity, start: Tensor, plan: Plan, trajectories: Trajectories) -> None:
        super().__init__(start, plan)
        self.density, self.trajectories = density, trajectories
        value, gradient = density(self.state["position"])
        bad = ~(value.isfinite() & gradient.isfinite().all(-1))
        if bool(bad.any()):
            chain = int(bad.nonzero()[0])
            raise InputError(f"the log-density where chain {chain} begins, or its gradient, is not finite")
        self.state |= {
            "value": value.clone(),
            "gradient": gradient.clone(),
            "inverse_mass": torch.ones(start.shape[1], dtype=torch.float64, device=start.device),
            "averaging": torch.zeros(5, dtype=torch.float64),
            "moments": fresh_moments(start),
            "accepted": torch.zeros(len(start), dtype=torch.float64, device=start.device),
        }
        self.windows = mass_windows(plan.burn_in) if trajectories.mass == "diagonal" else []

    def advance(self, span: range, generator: torch.Generator) -> Mapping[str, float]:
        """The iterations of one round: means of log-density and acceptance, that of the worst chain, divergences."""
        state, plan = self.state, self.plan
        if span.start == 0:
            first = self.trajectories.step_size
            state["averaging"].copy_(fresh_averaging(self._first_step(generator) if first is None else first))
        accepts, values, used = [], [], 0
        divergences = cut = 0
        for iteration in span:
            burning = plan.burning(iteration)
            step = current_step(state["averaging"]) if burning else average_step(state["averaging"])
            wanted = self._steps(step, generator)
            steps = min(wanted, self.trajectories.max_steps)
            used, cut = used + steps, cut + (steps < wanted)
            accept, divergent = self._transition(step, steps, generator)
            accepts.append(accept)
            values.append(state["value"].double().mean())
            divergences += divergent
            if burning:
                self._adapt(iteration, float(accept.mean()))
            else:
                state["accepted"] += accept
            self.keep(iteration)
        accepted = torch.stack(accepts).mean(0)
        return {
            "log_joint": float(torch.stack(values).mean()),
            "accept": float(accepted.mean()),
            "lowest_accept": float(accepted.min()),
            "step_size": step,
            "leapfrog_steps": used / len(span),
            "cut": float(cut),
            "divergences": float(divergences),
            "burn_in": float(burning),
        }

    def _steps(self, step: float, generator: torch.Generator) -> int:
        uniform = float(torch.rand((), dtype=torch.float64, generator=generator, device=generator.device))
        return self.trajectories.steps(1 + self.trajectories.jitter * (2 * uniform - 1), step)

    def _momentum(self, generator: torch.Generator) -> Tensor:
        position = self.state["position"]
        noise = torch.empty_like(position).normal_(generator=generator)
        return noise * self.state["inverse_mass"].rsqrt().to(position.dtype)

    def _propose(self, step: float, steps: int, generator: torch.Generator) -> tuple[Phase, Tensor]:
        """The end of a trajectory with fresh momenta, and the loss of energy (C,) along it, −∞ where not finite."""
        state = self.state
        begin = Phase(state["position"], self._momentum(generator), state["value"], state["gradient"])
        end = leapfrog(self.density, begin, state["inverse_mass"], step, steps)
        lost = energy(begin, state["inverse_mass"]) - energy(end, state["inverse_mass"])
        usable = lost.isfinite() & end.gradient.isfinite().all(-1)
        return end, torch.where(usable, lost, torch.full_like(lost, -math.inf))

    def _transition(self, step: float, steps: int, generator: torch.Generator) -> tuple[Tensor, int]:
        """One Metropolis step of every chain; acceptance probabilities (C,) and the number of divergences."""
        end, lost = self._propose(step, steps, generator)
        uniform = torch.empty_like(lost).uniform_(generator=generator)
        taken = uniform.log() < lost
        for name, tensor in (("position", end.position), ("value", end.value), ("gradient", end.gradient)):
            mask = taken.view(-1, *[1] * (tensor.ndim - 1))
            self.state[name].copy_(torch.where(mask, tensor, self.state[name]))
        return lost.clamp(max=0).exp(), int((lost < -DIVERGENT).sum())

    def _adapt(self, iteration: int, accept: float) -> None:
        state = self.state
        update_averaging(state["averaging"], accept, self.trajectories.target_accept)
        for window in self.windows:
            if iteration in window:
                update_moments(state["moments"], state["position"])
                if iteration == window[-1]:
                    state["inverse_mass"].copy_(inverse_mass_of(state["moments"]))
                    state["moments"].zero_()
                    state["averaging"].copy_(fresh_averaging(current_step(state["averaging"])))

    def _first_step(self, generator: torch.Generator) -> float:
        """A step whose single leapfrog step is accepted about half of the time, by doubling and halving from D^(−1/4).

        After Hoffman and Gelman (2014), algorithm 4, with the mean over the chains; their positions stay.
        """
        step = float(self.state["position"].shape[1] ** -0.25)
        direction = 0
        for _ in range(100):
            _, lost = self._propose(step, 1, generator)
            turn = 1 if float(lost.clamp(max=0).exp().mean()) > 0.5 else -1
            if direction == -turn:
                return step
            direction = turn
            step *= 2.0**turn
        raise InputError(
            f"no step size between {step:.3g} and 1 is fit to begin with; expected step_size, a number > 0"
        )
