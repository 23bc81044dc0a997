"""Stochastic gradient Langevin dynamics, with and without momentum, of many chains at once.

One step, for the log-density log p, step size η, friction α, temperature T and a fixed positive diagonal G:

    v ← (1 − α) v + η G ∇log p̂(θ) + √(2αηT G − η² V̂) ξ,   ξ ~ N(0, I)
    θ ← θ + v

This is SGHMC (Chen et al. 2014, eq. 15: unit mass, v of variance ηT, β̂ = ηV̂/2), where V̂ is an estimate of the
variance of an entry of the stochastic gradient ∇log p̂; with α = 1 it is SGLD (Welling and Teh 2011). As η → 0 the
law of the chain goes to p^{1/T}: the drift is not tempered, the noise is, so that a step size means the same at every
temperature and T = 0 is gradient descent with momentum 1 − α. The gradient is a sum over the data set: a learning
rate ℓ of the mean loss over N points is η = ℓ/N.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coset._checks import check_choice, check_positive
from coset.errors import InputError
from coset.posterior.inference.acceleration import Accelerator
from coset.posterior.inference.chains import Chains, Plan
from coset.train import DivergenceError

ADVICE = "a smaller step_size may help"

Gradient = Callable[[int, Tensor], tuple[Tensor, Tensor]]
"""Iteration and states (C, D) to estimates of an untempered log-density (C,) and of its gradient (C, D)."""

DECAY, DAMPING = 0.99, 0.1


@dataclass(frozen=True)
class Method:
    """``momentum``: friction may be below 1. ``cyclical``: step sizes fall in cycles, whose burn-in has no noise."""

    momentum: bool
    cyclical: bool


METHODS: dict[str, Method] = {
    "sgld": Method(momentum=False, cyclical=False),
    "sghmc": Method(momentum=True, cyclical=False),
    "csgld": Method(momentum=False, cyclical=True),
    "csghmc": Method(momentum=True, cyclical=True),
}
"""Stochastic gradient samplers by name."""


def _rms(second: Tensor, weight: float) -> Tensor:
    """G ∝ 1/(r + λ r̄), r the root of the mean squared gradient, r̄ its mean over entries; mean 1 for each chain."""
    root = (second / weight).sqrt()
    damped = root + DAMPING * root.mean(-1, keepdim=True)
    inverse = torch.where(damped > 0, damped, torch.ones_like(damped)).reciprocal()
    return inverse / inverse.mean(-1, keepdim=True)


PRECONDITIONERS: dict[str, Callable[[Tensor, float], Tensor] | None] = {"identity": None, "rms": _rms}
"""G by name, from a running sum of squared gradients (C, D) and the sum of its weights; None is G = I."""


@dataclass(frozen=True)
class Dynamics:
    """The settings of the samplers, see the module; ``friction`` None is 1 without momentum and 0.1 with it.

    ``preconditioner``: "identity", or "rms": entries whose gradients were small take larger steps (Li et al. 2016).
    It learns in the burn-in and is constant after it, so that it needs no correction.
    """

    method: str
    step_size: float
    friction: float | None = None
    temperature: float = 1.0
    noise_estimate: float = 0.0
    preconditioner: str = "identity"

    def __post_init__(self) -> None:
        check_choice("method", self.method, METHODS)
        check_choice("preconditioner", self.preconditioner, PRECONDITIONERS)
        check_positive("step_size", self.step_size)
        check_positive("temperature", self.temperature)
        check_positive("noise_estimate", self.noise_estimate, zero=True)
        if self.friction is not None:
            check_positive("friction", self.friction)
            if not METHODS[self.method].momentum:
                raise InputError(f"friction is {self.friction!r}; {self.method!r} has no momentum: expected None")
            if self.friction > 1:
                raise InputError(f"friction is {self.friction!r}; expected a number in (0, 1]")
        if self.noise_estimate and self.preconditioner != "identity":
            raise InputError(
                f"noise_estimate is {self.noise_estimate!r} and preconditioner is {self.preconditioner!r}; expected 0, "
                f"or 'identity'"
            )
        most = 2 * self.alpha * self.temperature / self.step_size
        if self.noise_estimate > most:
            raise InputError(
                f"noise_estimate is {self.noise_estimate!r}; with this step_size, friction and temperature the noise "
                f"that is added vanishes at {most:.6g}: expected at most that, or a smaller step_size"
            )

    @property
    def alpha(self) -> float:
        """The friction α."""
        if self.friction is not None:
            return float(self.friction)
        return 0.1 if METHODS[self.method].momentum else 1.0

    def rate(self, iteration: int, plan: Plan) -> float:
        """η: constant, or in each cycle of K steps ½η₀(1 + cos(πk/K)) (Zhang et al. 2020, eq. 1)."""
        if not METHODS[self.method].cyclical:
            return self.step_size
        return self.step_size / 2 * (1 + math.cos(math.pi * (iteration % plan.length) / plan.length))

    def heat(self, iteration: int, plan: Plan) -> float:
        """T, or 0 in the burn-in of a cyclical method: there the chain looks for a mode."""
        return 0.0 if METHODS[self.method].cyclical and plan.burning(iteration) else self.temperature


class Langevin(Chains):
    """Chains that move by the dynamics."""

    purpose = "noise"

    def __init__(
        self,
        gradient: Gradient,
        start: Tensor,
        plan: Plan,
        dynamics: Dynamics,
        accelerator: Accelerator | None = None,
    ) -> None:
        super().__init__(start, plan, accelerator)
        _check_plan(plan, dynamics)
        self.gradient, self.dynamics = gradient, dynamics
        self.rule = PRECONDITIONERS[dynamics.preconditioner]
        self.state["velocity"] = torch.zeros_like(start)
        self.state["last"] = torch.full((), math.nan, dtype=torch.float64)
        if self.rule is not None:
            self.state["second"] = torch.zeros_like(start)
            self.state["weight"] = torch.zeros((), dtype=torch.float64)
        self.noise = torch.empty_like(start)

    def advance(self, span: range, generator: torch.Generator) -> Mapping[str, float]:
        """The iterations of one round; the log-density's mean over them and the chains."""
        values = []
        for iteration in span:
            value, gradient = self.gradient(iteration, self.state["position"])
            values.append(value.detach().mean())
            self._step(iteration, gradient.detach(), generator)
            self.keep(iteration)
        joint = _finite(torch.stack(values), span, self.state)
        self.state["last"].copy_(joint[-1])
        return {"log_joint": float(joint.mean()), "step_size": self.dynamics.rate(span[-1], self.plan)}

    def _step(self, iteration: int, gradient: Tensor, generator: torch.Generator) -> None:
        dynamics = self.dynamics
        rate, heat, alpha = dynamics.rate(iteration, self.plan), dynamics.heat(iteration, self.plan), dynamics.alpha
        scale = self._preconditioner(gradient, self.plan.burning(iteration))
        position, velocity = self.state["position"], self.state["velocity"]
        velocity.mul_(1 - alpha)
        velocity.add_(gradient if scale is None else gradient * scale, alpha=rate)
        if heat > 0:
            self.noise.normal_(generator=generator)
            added, own = 2 * alpha * rate * heat, rate**2 * dynamics.noise_estimate
            if scale is None:
                velocity.add_(self.noise, alpha=math.sqrt(added - own))
            else:
                velocity.addcmul_(self.noise, (added * scale).sqrt())
        position.add_(velocity)

    def _preconditioner(self, gradient: Tensor, burning: bool) -> Tensor | None:
        if self.rule is None:
            return None
        second, weight = self.state["second"], self.state["weight"]
        if burning:
            second.mul_(DECAY).addcmul_(gradient, gradient, value=1 - DECAY)
            weight.mul_(DECAY).add_(1 - DECAY)
        return self.rule(second, float(weight))


def _check_plan(plan: Plan, dynamics: Dynamics) -> None:
    """Raise unless the iterations suit the method."""
    if plan.cycles > 1 and not METHODS[dynamics.method].cyclical:
        raise InputError(f"cycles is {plan.cycles}; {dynamics.method!r} has one: expected 1, or 'csgld' or 'csghmc'")
    if plan.draws % plan.cycles:
        raise InputError(f"draws is {plan.draws}; expected a multiple of the {plan.cycles} cycles")
    if dynamics.preconditioner != "identity" and not plan.burn_in:
        raise InputError(f"burn_in is 0; the preconditioner {dynamics.preconditioner!r} learns there: expected ≥ 1")


def _finite(values: Tensor, span: range, state: Mapping[str, Tensor]) -> Tensor:
    """The values of a round's steps in float64; raises at the first that is not finite, or if weights are not."""
    values = values.double().cpu()
    bad = values.isfinite().logical_not().nonzero().flatten().tolist()
    if not bad and bool(state["position"].isfinite().all()):
        return values
    before = torch.cat([state["last"].view(1), values[: bad[0]] if bad else values])
    last = float(before[-1])
    known = "there was no finite value before" if math.isnan(last) else f"the last finite value was {last:.6g}"
    found = f"the log-density is {float(values[bad[0]])} in" if bad else "weights are not finite after"
    raise DivergenceError(f"{found} step {span[bad[0] if bad else -1] + 1}; {known}; {ADVICE}")
