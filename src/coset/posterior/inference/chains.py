"""Many chains of weights side by side: where they begin, which of their states are kept, and the density they see."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from coset._checks import check_choice, check_count, is_number
from coset._files.sealed import checksum
from coset.distribution.samples import Samples
from coset.errors import InputError
from coset.posterior.fit import Control, Fit, device_stream, run_rounds
from coset.posterior.inference.acceleration import Accelerator
from coset.posterior.inference.starting import Start, draws_in, fresh_weights, weights_of
from coset.posterior.problem import Problem
from coset.train.randomness import stream_seed

LogDensity = Callable[[Tensor], tuple[Tensor, Tensor]]
"""States of all chains (C, D) to values of an unnormalised log-density (C,) and gradients (C, D)."""

ROUNDS = 50
"""About as many records has the trace of a long run."""


@dataclass(frozen=True)
class Plan:
    """``cycles`` times: ``burn_in`` iterations that are thrown away, then ``draws``/``cycles`` kept every ``thin``."""

    burn_in: int
    draws: int
    thin: int = 1
    cycles: int = 1

    def __post_init__(self) -> None:
        for name in ("draws", "thin", "cycles"):
            check_count(name, getattr(self, name))
        check_count("burn_in", self.burn_in, 0)

    @property
    def length(self) -> int:
        """Iterations of one cycle."""
        return self.burn_in + self.draws // self.cycles * self.thin

    def burning(self, iteration: int) -> bool:
        """Whether an iteration belongs to the burn-in of its cycle."""
        return iteration % self.length < self.burn_in

    def kept(self, iteration: int) -> int | None:
        """The number of the draw that the state after an iteration is, or None."""
        cycle, within = divmod(iteration, self.length)
        after = within - self.burn_in + 1
        if after <= 0 or after % self.thin:
            return None
        return cycle * (self.draws // self.cycles) + after // self.thin - 1

    def spans(self) -> list[range]:
        """The iterations of each round: about ``ROUNDS`` rounds in all, none across the end of a burn-in or cycle."""
        size = max(1, -(-self.length * self.cycles // ROUNDS))
        spans = []
        for begin in range(0, self.cycles * self.length, self.length):
            for low, high in ((begin, begin + self.burn_in), (begin + self.burn_in, begin + self.length)):
                spans += [range(at, min(at + size, high)) for at in range(low, high, size)]
        return spans

    def drawn(self, rounds: int) -> int:
        """How many draws there are after that many rounds."""
        return sum(self.kept(iteration) is not None for span in self.spans()[:rounds] for iteration in span)


class Chains(ABC):
    """Chains (C, D) that move together; ``state`` holds all that changes, draws (C, draws, D) among it."""

    purpose: ClassVar[str]
    """Of the streams that random numbers come from."""

    def __init__(self, start: Tensor, plan: Plan, accelerator: Accelerator | None = None) -> None:
        check_states(start)
        self.plan, self.spans = plan, plan.spans()
        self.accelerator = accelerator or Accelerator(None, 0)
        self.state: dict[str, Tensor] = {
            "way": self.accelerator.state,
            "position": start.detach().clone(),
            "draws": start.new_zeros(len(start), plan.draws, start.shape[1]),
        }

    @abstractmethod
    def advance(self, span: range, generator: torch.Generator) -> Mapping[str, float]:
        """The iterations of one round; what is to be told of them, the log_joint first."""

    def records(self, seed: int) -> list[Mapping[str, float]]:
        """Those of all rounds, one after the other."""
        return [self.round(number, seed) for number in range(len(self.spans))]

    def round(self, number: int, seed: int) -> Mapping[str, float]:
        """One round by its number."""
        generator = device_stream(self.purpose, seed, number, self.state["position"])
        with self.accelerator.running():
            return self.advance(self.spans[number], generator)

    def keep(self, iteration: int) -> None:
        """Put the state after an iteration among the draws, if the plan has it there."""
        kept = self.plan.kept(iteration)
        if kept is not None:
            self.state["draws"][:, kept].copy_(self.state["position"])

    def fit(
        self, method: str, problem: Problem, control: Control, settings: Mapping[str, Any], temperature: float = 1.0
    ) -> Fit[Samples]:
        """A run of all rounds; ``temperature``: by what the log_joint of the records was divided."""
        position = self.state["position"]
        start = f"checksum {checksum(position):08x} of {len(position)} chains"
        told = {"plan": repr(self.plan), "start": start, **settings}

        def advance(number: int, before: Mapping[str, float] | None) -> Mapping[str, float]:
            record = self.round(number, control.seed)
            return {**record, "log_joint": record["log_joint"] * temperature / problem.count}

        trace, seconds = run_rounds(method, problem, told, self.state, len(self.spans), advance, control)
        notes = self.accelerator.notes
        drawn, draws = self.plan.drawn(len(trace)), self.state["draws"]
        if not drawn:
            notes += ("the run was ended in its burn-in: the only draw is the last state of each chain",)
            draws = self.state["position"].unsqueeze(1)
        elif drawn < self.plan.draws:
            notes += (f"the run was ended after {drawn} of {self.plan.draws} draws",)
            draws = draws[:, :drawn]
        return Fit(samples_of(problem, draws), trace, method, seconds, notes)


def check_states(start: Tensor) -> None:
    """Raise unless ``start`` holds states (C, D) of chains."""
    if start.ndim != 2 or not start.numel() or not start.is_floating_point():
        raise InputError(f"start has shape {tuple(start.shape)} and type {start.dtype}; expected numbers (chains, D)")
    if not bool(start.isfinite().all()):
        raise InputError("start has values that are NaN or infinite")


@dataclass(frozen=True, eq=False)
class Target:
    """A log-density of states as ``function(states, *data)``: what it reads is given, so its graph fits other data."""

    function: Callable[..., tuple[Tensor, Tensor]]
    data: tuple[Tensor, ...] = ()

    def __call__(self, states: Tensor) -> tuple[Tensor, Tensor]:
        return self.function(states, *self.data)


def as_target(density: LogDensity) -> Target:
    """A log-density of any kind as one of these."""
    return density if isinstance(density, Target) else Target(density)


def joint_density(problem: Problem, rows: int | None = None) -> Target:
    """(log p(Y|θ) + log p(θ))/T of all chains on the whole data set, ``rows`` of it at a time to bound memory."""
    size = problem.count if rows is None else rows
    parts = (*torch.split(problem.x, size), *torch.split(problem.y, size))

    def density(flats: Tensor, *parts: Tensor) -> tuple[Tensor, Tensor]:
        half = len(parts) // 2
        values, gradients = torch.zeros_like(flats[:, 0]), torch.zeros_like(flats)
        for x, y in zip(parts[:half], parts[half:], strict=True):
            # A part's log_joint counts its points N/M times, and the prior once: the weighted mean is the whole.
            share = x.shape[0] / problem.count / problem.temperature
            value, gradient = problem.log_joints(flats, x, y)
            if half == 1 and share == 1:
                return value, gradient
            values, gradients = values + share * value, gradients + share * gradient
        return values, gradients

    return Target(density, parts)


def require_batching(problem: Problem) -> None:
    """Raise unless the network runs with many weights at once, and can be differentiated."""
    x, y = problem.x[:2], problem.y[:2]
    start = problem.start.detach().clone().requires_grad_()
    with torch.enable_grad():
        outputs = problem.outputs(start, x)
    if not outputs.requires_grad:
        raise InputError(
            "model is not differentiable: its outputs do not depend on its trained parameters by operations that have "
            "a gradient; expected some that do"
        )
    # If this fails the fault is not the batching's, and the error is the network's own.
    torch.func.grad(problem.log_joint)(problem.start, x, y)
    try:
        problem.log_joints(problem.start.expand(2, -1), x, y)
    except (RuntimeError, ValueError, TypeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InputError(
            f"model cannot be run with the weights of many chains at once (torch.func.vmap: {reason}); expected one "
            f"without operations in place and without control flow that depends on the data"
        ) from error


def require_density(problem: Problem, density: LogDensity, begin: Tensor) -> None:
    """Raise unless log-density and gradient are finite where every chain begins; names the parameters that are not."""
    values, gradients = density(begin)
    bad = ~(values.isfinite() & gradients.isfinite().all(-1))
    if not bool(bad.any()):
        return
    chain = int(bad.nonzero()[0])
    names = [name for name, part in problem.layout.views(gradients[chain]).items() if not bool(part.isfinite().all())]
    told = ", ".join(f"'{name}'" for name in names) or "no parameter"
    raise InputError(
        f"the log-density where chain {chain} begins is {float(values[chain])}, and its gradient is NaN or infinite "
        f"for {told}; expected finite numbers: start or spread says where chains begin"
    )


def _reinitialized(problem: Problem, chain: int, seed: int) -> Tensor:
    return fresh_weights(problem, stream_seed("initial", seed, chain), "spread: 'prior' or a number")


def _prior_draw(problem: Problem, chain: int, seed: int) -> Tensor:
    moments = problem.prior_moments()
    if moments is None:
        raise InputError(
            f"spread is 'prior' and the prior is a {type(problem.prior).__name__}; drawing from it needs a Gaussian "
            f"prior: expected 'initial' or a number"
        )
    mean, std = moments
    noise = torch.empty_like(mean).normal_(generator=device_stream("initial", seed, chain, mean))
    return mean + std * noise


SPREADS: dict[str, Callable[[Problem, int, int], Tensor]] = {"initial": _reinitialized, "prior": _prior_draw}
"""Where chains other than the first begin, by name."""


def starts(problem: Problem, start: Start | Samples | None, spread: str | float, chains: int, seed: int) -> Tensor:
    """Where the chains begin, (chains, D).

    ``start`` with a leading axis of the chains, or as many draws (an ensemble, say), says it. Else the first chain
    begins at ``start`` (None: the model's weights), and the others as ``spread`` says: "initial": see
    ``fresh_weights``; "prior": drawn from a Gaussian prior; a number s: from N(first, s²), 0 for all at one place.
    """
    many = draws_in(start)
    if many is not None:
        first = problem.layout.flatten(many.flat).to(problem.start)
    else:
        first = problem.start if start is None else problem.layout.flatten(weights_of(start, "start")).to(problem.start)
    if first.ndim > 1:
        if first.shape[:-1] != (chains,):
            raise InputError(f"start has the leading axes {tuple(first.shape[:-1])}; expected ({chains},), the chains")
        found = first.clone()
    elif is_number(spread) and spread >= 0:
        found = first.repeat(chains, 1)
        found[1:] += spread * torch.empty_like(found[1:]).normal_(generator=device_stream("initial", seed, 0, found))
    else:
        begun = SPREADS[check_choice("spread", spread, SPREADS, otherwise=", or a number ≥ 0")]
        found = torch.stack([first, *(begun(problem, chain, seed) for chain in range(1, chains))])
    check_states(found)
    return found


def samples_of(problem: Problem, draws: Tensor) -> Samples:
    """States (chains, draws, D) as a distribution, with what was not inferred repeated beside them."""
    lead = draws.shape[:2]
    fixed = problem.layout.fixed
    return Samples(
        {
            name: tensor.expand(*lead, *tensor.shape) if name in fixed else tensor
            for name, tensor in problem.layout.whole(draws).items()
        }
    )
