"""Conditional flow matching: fields learn the velocities of paths from a source to networks (thesis, section 3.2.2)."""

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Any

import torch
from torch import Tensor, nn

from coset._checks import check_choice, check_count, check_positive, is_number
from coset._files.sealed import checksum
from coset.errors import InputError
from coset.flow._couplings import COUPLINGS
from coset.flow._fields import FlowField
from coset.flow._paths import TIMES, Path, draw_times, remaining
from coset.flow._sources import Source
from coset.posterior.fit import Callback, Control, Trace, recorded_rounds, require_finite_losses
from coset.posterior.inference.flat_optimizer import FlatOptimizer, optimization
from coset.symmetry import Symmetry
from coset.train.randomness import seed_global_state, stream, stream_seed

PREDICTIONS = ("velocity", "end")
"""What the loss compares: v with u, or x̂₁ = x_t + (1−t)·v with x₁, on spheres in the space around them."""


@dataclass(frozen=True, kw_only=True)
class FlowRecipe:
    """How a field is trained.

    ``steps`` of ``batch_size`` pairs; ``coupling``: a name in ``COUPLINGS``; ``times``: "uniform" or "beta" (1, 2);
    ``sigma``: noise of the paths; ``prediction``: "velocity" or "end"; ``ema``: the decay of the average of the weights
    of the field that a flow has, 0 for the last ones; ``clip``: the largest norm of the whole gradient; ``untold``: the
    share of conditions that are left out, for classifier-free guidance; ``weight_decay``: of the optimizer;
    ``balance`` p: squared errors along a direction of the baseline in which the networks have the variance λ are
    weighed by λ^(−p). It changes how fast directions are learned, and not the field that is sought: with 0 all
    coordinates count alike, with 1 all directions. ``every``: so many steps are one record of the trace;
    ``learning_rate`` rises over ``warmup`` records and follows ``schedule``, as in ``coset.train``.
    """

    steps: int = 2000
    batch_size: int = 64
    learning_rate: float = 1e-3
    coupling: str = "independent"
    times: str = "uniform"
    sigma: float = 0.0
    prediction: str = "velocity"
    ema: float = 0.999
    optimizer: str = "adam"
    schedule: str = "cosine"
    warmup: int = 0
    clip: float | None = 1.0
    untold: float = 0.1
    weight_decay: float = 0.0
    balance: float = 0.0
    every: int = 50

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "every"):
            check_count(name, getattr(self, name))
        check_choice("coupling", self.coupling, COUPLINGS)
        check_choice("times", self.times, TIMES)
        check_choice("prediction", self.prediction, PREDICTIONS)
        check_positive("sigma", self.sigma, zero=True)
        check_positive("weight_decay", self.weight_decay, zero=True)
        check_positive("balance", self.balance, zero=True)
        for name in ("ema", "untold"):
            if not is_number(value := getattr(self, name)) or not 0 <= value < 1:
                raise InputError(f"{name} is {value!r}; expected a number from 0 to below 1")
        if self.clip is not None:
            check_positive("clip", self.clip)


def train_field(
    field: FlowField,
    rows: Tensor,
    path: Path,
    source: Source,
    sym: Symmetry | None,
    recipe: FlowRecipe,
    *,
    conditions: Tensor | None = None,
    held_out: Tensor | None = None,
    held_out_conditions: Tensor | None = None,
    seed: int = 0,
    checkpoint: FilePath | str | None = None,
    checkpoint_seconds: float = 5.0,
    callback: Callback | None = None,
    show: bool | None = None,
    told: Mapping[str, Any] | None = None,
) -> tuple[FlowField, Trace, float]:
    """A copy of ``field`` that minimises E‖v(t, x_t) − u_t(x_t | x₀, x₁)‖² (3.9), per coordinate; its trace; seconds.

    ``rows`` (N, D): data on the path's space. ``held_out``: rows on which the same loss is recorded as "held out",
    always at the same times and draws. ``told``: what else tells this run from others, for checkpoints.
    """
    if len(rows) < recipe.batch_size:
        raise InputError(
            f"there are {len(rows)} networks and batch_size is {recipe.batch_size}; expected at least a batch of them"
        )
    own = copy.deepcopy(field).to(rows)
    rounds, warmup = -(-recipe.steps // recipe.every), recipe.warmup * recipe.every
    # An epoch of this descent is a step, so that its schedule ends with the last one.
    descent = optimization(
        recipe.steps, recipe.batch_size, recipe.learning_rate, recipe.optimizer, 0.0, recipe.schedule, warmup
    )
    descent = replace(descent, weight_decay=recipe.weight_decay)
    parameters = [p for p in own.parameters() if p.requires_grad]
    if not parameters:
        raise InputError("the field has no parameters; expected a network that can be trained")
    flat = FlatOptimizer(torch.cat([p.detach().reshape(-1) for p in parameters]), descent, 1)
    _become_views(parameters, flat)
    average = flat.state["values"].clone()
    buffers = {f"buffer {name}": tensor for name, tensor in own.named_buffers()}
    matching = _Matching(own, rows, path, source, sym, recipe, conditions, seed)

    def steps(number: int) -> Iterator[Tensor]:
        for step in range(number * recipe.every, min((number + 1) * recipe.every, recipe.steps)):
            flat.gradient.zero_()
            loss = matching.loss(step)
            loss.backward()  # type: ignore[no-untyped-call]
            if recipe.clip is not None:
                flat.gradient.mul_((recipe.clip / flat.gradient.norm().clamp_min(1e-30)).clamp_max(1.0))
            flat.step(step)
            # The average is not held back by its start: at step k it looks back k/10 steps at the most.
            average.lerp_(flat.state["values"], 1 - min(recipe.ema, (1 + step) / (10 + step)))
            yield loss.detach()

    def advance(number: int, before: Mapping[str, float] | None) -> Mapping[str, float]:
        # A network of the user's own may drop out, or draw otherwise from the global state.
        seed_global_state(stream_seed("field of a flow", seed, number), rows.device)
        own.train()
        losses = torch.stack(list(steps(number)))
        require_finite_losses(
            losses, None if before is None else before["loss"], number, "a lower learning_rate may help"
        )
        record = {"loss": float(losses.double().mean())}
        if held_out is not None:
            record["held out"] = matching.measured(held_out, held_out_conditions)
        return record

    identity = {
        "method": "flow",
        "seed": seed,
        **{f"recipe {name}": value for name, value in vars(recipe).items()},
        "rows": f"checksum {checksum(rows):08x}",
        "start": _sum(flat.state["values"], *buffers.values()),
        "source": f"{type(source).__name__} {_sum(*source.tensors())}",
        "conditions": _sum(*(part for part in (conditions, held_out_conditions) if part is not None)),
        "held out": _sum(*(part for part in (held_out,) if part is not None)),
        "symmetry": None if sym is None else sym.fingerprint,
        "field": re.sub(r" at 0x[0-9a-fA-F]+", "", repr(field)),
        **(told or {}),
    }
    control = Control(seed, checkpoint, checkpoint_seconds, callback, show)
    state = {**flat.state, "average": average, **buffers}
    trace, seconds = recorded_rounds("flow", identity, rows.device, state, rounds, advance, control)
    return _finished(own, parameters, average if recipe.ema else flat.state["values"]), trace, seconds


class _Matching:
    """The loss of a step: everything that is random in it depends on the seed and its number only."""

    def __init__(
        self,
        field: FlowField,
        rows: Tensor,
        path: Path,
        source: Source,
        sym: Symmetry | None,
        recipe: FlowRecipe,
        conditions: Tensor | None,
        seed: int,
    ) -> None:
        self.field, self.rows, self.path, self.source = field, rows, path, source.to(rows)
        self.sym, self.recipe, self.conditions, self.seed = sym, recipe, conditions, seed

    def loss(self, step: int) -> Tensor:
        generator = stream("flow matching", self.seed, step)
        chosen = torch.randperm(len(self.rows), generator=generator)[: self.recipe.batch_size]
        chosen = chosen.to(self.rows.device)
        condition = None if self.conditions is None else self.conditions[chosen]
        told = None
        if condition is not None:
            told = (torch.rand(len(chosen), generator=generator) >= self.recipe.untold).to(self.rows.device)
        return self._of(self.rows[chosen], condition, told, generator)

    def measured(self, rows: Tensor, conditions: Tensor | None) -> float:
        """The loss on given rows, at times and draws that are always the same."""
        generator = stream("flow matching, held out", self.seed, 0)
        self.field.eval()
        parts = torch.split(torch.arange(len(rows), device=rows.device), self.recipe.batch_size)
        with torch.no_grad():
            total = 0.0
            for part in parts:
                condition = None if conditions is None else conditions[part]
                total += float(self._of(rows[part], condition, None, generator)) * len(part)
        return total / len(rows)

    def _of(self, x1: Tensor, condition: Tensor | None, told: Tensor | None, generator: torch.Generator) -> Tensor:
        x0 = self.source.sample(len(x1), generator)
        if self.recipe.coupling == "optimal-transport" and condition is not None:
            # Pairs exchange networks, not conditions: these go along.
            raise InputError(
                "coupling is 'optimal-transport' and there are conditions; expected 'independent' or 'orbit'"
            )
        x1 = COUPLINGS[self.recipe.coupling](self.path.space, self.sym, x0, x1)
        t = draw_times(self.recipe.times, len(x1), x1, generator)
        place, target = self.path.between(x0, x1, t, generator)
        said: Tensor = self.field(t, place, condition, told)
        if self.recipe.prediction == "end":
            missed = place + remaining(t)[:, None] * said - x1
        else:
            missed = self.path.space.tangent(place, said) - target
        return self.field.baseline.balanced(missed, self.recipe.balance).square().mean()


def _become_views(parameters: list[nn.Parameter], flat: FlatOptimizer) -> None:
    """Parameters and their gradients as views of the flat tensors that the optimizer steps on."""
    values, gradient = flat.state["values"], flat.gradient
    start = 0
    for parameter in parameters:
        stop = start + parameter.numel()
        parameter.data = values[start:stop].view_as(parameter)
        parameter.grad = gradient[start:stop].view_as(parameter)
        start = stop


def _sum(*tensors: Tensor) -> str:
    """The checksum of tensors, one after the other."""
    total = 0
    for tensor in tensors:
        total = checksum(tensor, total)
    return f"checksum {total:08x}"


def _finished(own: FlowField, parameters: list[nn.Parameter], values: Tensor) -> FlowField:
    """The field with these values, in memory of its own, in evaluation mode."""
    start = 0
    for parameter in parameters:
        stop = start + parameter.numel()
        parameter.data = values[start:stop].clone().view_as(parameter)
        parameter.grad = None
        start = stop
    return own.eval()
