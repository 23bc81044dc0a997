"""Hamiltonian Monte Carlo on any log-density, with batched chains that share step size and mass.

In the warm-up the step size is adapted by dual averaging, and a diagonal mass from pooled draws (``adaptation``), the
length of trajectories by an ascent (``path_lengths``).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coset._checks import check_choice, check_count, check_positive
from coset.errors import InputError
from coset.posterior.inference.acceleration import Accelerator, Function
from coset.posterior.inference.adaptation import (
    SETTLING,
    average_step,
    current_step,
    fresh_averaging,
    fresh_moments,
    inverse_mass_of,
    mass_windows,
    update_averaging,
    update_moments,
)
from coset.posterior.inference.chains import Chains, LogDensity, Plan, as_target
from coset.posterior.inference.path_lengths import (
    FIRST_STEPS,
    average_length,
    current_length,
    fresh_path,
    slope_of,
    update_centre,
    update_path,
)


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


Ready = Callable[[str, Function, tuple[Tensor, ...]], Function]
"""How a function of tensors becomes a fast one; see ``Accelerator.ready``."""


def leap_of(density: Callable[..., tuple[Tensor, Tensor]]) -> Function:
    """θ ← θ + drift·r, r ← r + kick·∇log p(θ), as a function of tensors: (θ, r, drift (D,), kick (), *data)."""

    def leap(position: Tensor, momentum: Tensor, drift: Tensor, kick: Tensor, *data: Tensor) -> tuple[Tensor, ...]:
        position = position + drift * momentum
        value, gradient = density(position, *data)
        return position, momentum + kick * gradient, value, gradient

    return leap


def leapfrog(
    density: LogDensity, phase: Phase, inverse_mass: Tensor, step_size: float, steps: int, ready: Ready | None = None
) -> Phase:
    """``steps`` of r ← r + ½ε∇log p(θ), θ ← θ + εM⁻¹r, r ← r + ½ε∇log p(θ): reversible, of unit Jacobian."""
    target = as_target(density)
    position, value, gradient = phase.position, phase.value, phase.gradient
    kick = torch.tensor(step_size, dtype=position.dtype, device=position.device)
    half = kick / 2
    momentum = phase.momentum + half * gradient
    drift = (step_size * inverse_mass).to(position.dtype)
    leap = leap_of(target.function)
    if ready is not None:
        leap = ready("leap", leap, (position, momentum, drift, kick, *target.data))
    for number in range(steps):
        # Two half kicks in a row are one.
        last = half if number == steps - 1 else kick
        position, momentum, value, gradient = leap(position, momentum, drift, last, *target.data)
    return Phase(position, momentum, value, gradient)


DIVERGENT = 1000.0
"""An energy error beyond this is a divergence, as in Stan."""

MASSES = ("identity", "diagonal")


@dataclass(frozen=True)
class Trajectories:
    """How long a trajectory is, and what is adapted.

    ``length``: in units of time, so that the number of steps follows from the step size; or ``leapfrog_steps``, that
    number itself; of neither, the warm-up looks for a length, see ``path_lengths``. Each is multiplied by a u ~ U[1 −
    ``jitter``, 1 + ``jitter``], one for all chains in an iteration, lest trajectories close on themselves. No
    trajectory has more than ``max_steps`` steps. ``step_size``: the first one, or None to look for it. ``mass``:
    "identity", or "diagonal": M⁻¹ = the variances of all chains' draws.
    """

    leapfrog_steps: int | None = None
    length: float | None = None
    jitter: float = 0.5
    max_steps: int = 1000
    target_accept: float = 0.8
    step_size: float | None = None
    mass: str = "identity"

    def __post_init__(self) -> None:
        if self.leapfrog_steps is not None and self.length is not None:
            raise InputError(
                f"leapfrog_steps is {self.leapfrog_steps!r} and length is {self.length!r}; expected one of both, or "
                f"neither to adapt the length"
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

    @property
    def adaptive(self) -> bool:
        """Whether the length is found in the warm-up."""
        return self.leapfrog_steps is None and self.length is None

    def steps(self, factor: float, step_size: float, length: float | None = None) -> int:
        """The leapfrog steps of a trajectory ``factor`` times as long as usual, before the limit."""
        if self.leapfrog_steps is not None:
            return max(1, round(factor * self.leapfrog_steps))
        time = self.length if length is None else length
        assert time is not None
        return max(1, math.ceil(factor * time / step_size))


class Hamiltonian(Chains):
    """Chains of a log-density.

    The step size is shared: dual averaging sees the mean acceptance probability of the chains (Hoffman and Gelman
    2014), and restarts whenever the mass changes. After the burn-in both are constant, and every chain has the density
    as its invariant law.
    """

    purpose = "hmc"

    def __init__(
        self,
        density: LogDensity,
        start: Tensor,
        plan: Plan,
        trajectories: Trajectories,
        accelerator: Accelerator | None = None,
    ) -> None:
        super().__init__(start, plan, accelerator)
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
        if trajectories.adaptive:
            self.state |= {"path": torch.zeros(4, dtype=torch.float64), "centre": self.state["position"].clone()}
        self.windows = mass_windows(plan.burn_in) if trajectories.mass == "diagonal" else []

    def advance(self, span: range, generator: torch.Generator) -> Mapping[str, float]:
        """The iterations of one round: means of log-density and acceptance, that of the worst chain, divergences."""
        state, plan = self.state, self.plan
        if span.start == 0:
            first = self.trajectories.step_size
            state["averaging"].copy_(fresh_averaging(self._first_step(generator) if first is None else first))
            if self.trajectories.adaptive:
                state["path"].copy_(fresh_path(FIRST_STEPS * current_step(state["averaging"])))
        accepts, values, used = [], [], 0
        divergences = cut = 0
        for iteration in span:
            burning = plan.burning(iteration)
            step = current_step(state["averaging"]) if burning else average_step(state["averaging"])
            wanted = self._steps(step, burning, generator)
            steps = min(wanted, self.trajectories.max_steps)
            used, cut = used + steps, cut + (steps < wanted)
            accept, divergent = self._transition(step, steps, burning, generator)
            accepts.append(accept)
            values.append(state["value"].double().mean())
            divergences += divergent
            if burning:
                self._adapt(iteration, float(accept.mean()))
                if self.trajectories.adaptive and iteration < int(SETTLING * plan.burn_in):
                    # The first step sizes are far off, and a length made of them would take long to come back.
                    state["path"].copy_(fresh_path(FIRST_STEPS * current_step(state["averaging"])))
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

    def _steps(self, step: float, burning: bool, generator: torch.Generator) -> int:
        uniform = float(torch.rand((), dtype=torch.float64, generator=generator, device=generator.device))
        length = None
        if self.trajectories.adaptive:
            length = (current_length if burning else average_length)(self.state["path"])
        return self.trajectories.steps(1 + self.trajectories.jitter * (2 * uniform - 1), step, length)

    def _momentum(self, generator: torch.Generator) -> Tensor:
        position = self.state["position"]
        noise = torch.empty_like(position).normal_(generator=generator)
        return noise * self.state["inverse_mass"].rsqrt().to(position.dtype)

    def _propose(self, step: float, steps: int, generator: torch.Generator) -> tuple[Phase, Tensor, Tensor]:
        """The end of a trajectory with fresh momenta, the loss of energy (C,) along it, and dz/dt at its end (C, D).

        z: the weights in units of √M⁻¹. The loss is −∞ where the end is not finite.
        """
        state = self.state
        mass = state["inverse_mass"]
        begin = Phase(state["position"], self._momentum(generator), state["value"], state["gradient"])
        end = leapfrog(self.density, begin, mass, step, steps, self.accelerator.ready)
        lost = energy(begin, mass) - energy(end, mass)
        return end, lost, end.momentum * mass.sqrt().to(end.momentum.dtype)

    def _transition(self, step: float, steps: int, burning: bool, generator: torch.Generator) -> tuple[Tensor, int]:
        """One Metropolis step of every chain; acceptance probabilities (C,) and the number of divergences."""
        end, lost, flow = self._propose(step, steps, generator)
        lost = _usable(end, lost)
        uniform = torch.empty_like(lost).uniform_(generator=generator)
        taken = uniform.log() < lost
        accept = lost.clamp(max=0).exp()
        if burning and self.trajectories.adaptive:
            self._adapt_length(end, flow, accept, step * steps, step)
        for name, tensor in (("position", end.position), ("value", end.value), ("gradient", end.gradient)):
            mask = taken.view(-1, *[1] * (tensor.ndim - 1))
            self.state[name].copy_(torch.where(mask, tensor, self.state[name]))
        return accept, int((lost < -DIVERGENT).sum())

    def _adapt_length(self, end: Phase, flow: Tensor, accept: Tensor, time: float, step: float) -> None:
        state = self.state
        unit = state["inverse_mass"].rsqrt().to(flow.dtype)
        update_centre(state["centre"], state["position"], int(state["path"][3]))
        slope = slope_of(state["position"] * unit, end.position * unit, flow, state["centre"] * unit, accept, time)
        most = step * self.trajectories.max_steps / (1 + self.trajectories.jitter)
        update_path(state["path"], slope, most)

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
                    if self.trajectories.adaptive:
                        state["path"].copy_(fresh_path(current_length(state["path"])))

    def _first_step(self, generator: torch.Generator) -> float:
        """A step whose single leapfrog step is accepted about half of the time, by doubling and halving from D^(−1/4).

        After Hoffman and Gelman (2014), algorithm 4, with the mean over the chains; their positions stay.
        """
        step = float(self.state["position"].shape[1] ** -0.25)
        direction = 0
        for _ in range(100):
            end, lost, _ = self._propose(step, 1, generator)
            lost = _usable(end, lost)
            turn = 1 if float(lost.clamp(max=0).exp().mean()) > 0.5 else -1
            if direction == -turn:
                return step
            direction = turn
            step *= 2.0**turn
        raise InputError(
            f"no step size between {step:.3g} and 1 is fit to begin with; expected step_size, a number > 0"
        )


def _usable(end: Phase, lost: Tensor) -> Tensor:
    """The loss of energy (C,), −∞ where a trajectory ends at no numbers."""
    finite = lost.isfinite() & end.gradient.isfinite().all(-1)
    return torch.where(finite, lost, torch.full_like(lost, -math.inf))
