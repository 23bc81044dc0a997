"""What studies of sampled networks share: rows of scores, accuracies with their intervals, tuning on other data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from coset.data import Split
from coset.flow import Flow, FlowRecipe, SampleScores, Solver, fit_flow, task_loss
from coset.posterior import Fit
from coset.running import outputs_of_stack
from coset.study import Estimate, Results, Scalar
from coset.symmetry import Symmetry
from coset_studies.flows._zoos import Stack, counted


@dataclass(frozen=True)
class Kind:
    """One kind of flow: settings of ``fit_flow`` and of its recipe; ``steps``: None as many as the study's.

    ``by_inputs``: components of units are those of how the first layer answers to inputs.
    """

    options: Mapping[str, Any]
    recipe: Mapping[str, Any]
    steps: int | None = None
    solver: Solver = field(default_factory=lambda: Solver("midpoint", 20))
    by_inputs: bool = False

    def fit(
        self,
        sym: Symmetry,
        stack: Stack,
        steps: int,
        batch_size: int,
        seed: int,
        inputs: Tensor | None = None,
        **more: Any,
    ) -> Fit[Flow]:
        """One flow of this kind, with so many steps unless the kind has its own; ``inputs`` (N, D) of the networks."""
        number = self.steps or steps
        known = {"steps": number, "batch_size": batch_size, "every": max(1, number // 10)}
        recipe = FlowRecipe(**{**known, **self.recipe})
        options = {**self.options, **more}
        if self.by_inputs and inputs is not None:
            options["metric"] = {next(iter(stack)): second_moments(inputs)}
        return fit_flow(stack, recipe, sym=sym, seed=seed, solver=self.solver, show=False, **options)

    def fitted(
        self, sym: Symmetry, stack: Stack, steps: int, batch_size: int, seed: int, inputs: Tensor | None = None
    ) -> Flow:
        """The flow alone."""
        return self.fit(sym, stack, steps, batch_size, seed, inputs).posterior


def second_moments(inputs: Tensor) -> Tensor:
    """E[xxᵀ] of inputs (N, D)."""
    wide = inputs.double()
    return wide.T @ wide / len(wide)


def unit_kind(field_options: Mapping[str, Any], components: int, steps: int | None = None, **changes: Any) -> Kind:
    """A flow whose field has units as tokens, with orbit coupling unless changed."""
    options = {
        "order": "given", "field": "units", "field_options": field_options, "source": "units", "projection": "pca",
        "components": components,
    }  # fmt: skip
    recipe = {
        "coupling": "orbit", "learning_rate": 2e-3, "balance": 0.5, "optimizer": "adamw", "weight_decay": 0.1,
        "ema": 0.998, "warmup": 1,
    }  # fmt: skip
    by_inputs = bool(changes.pop("by_inputs", False))
    own = {name: value for name, value in changes.items() if name in options or name == "geometry"}
    others = {name: value for name, value in changes.items() if name not in own}
    return Kind({**options, **own}, {**recipe, **others}, steps, by_inputs=by_inputs)


def reader_kind(name: str, steps: int) -> Kind:
    """A flow whose field reads all weights as edges, for so few steps as its cost allows."""
    options = {"order": "given", "field": name, "field_options": {"channels": 16, "layers": 2}}
    return Kind(options, {"coupling": "orbit", "batch_size": 8, "ema": 0.9}, steps, Solver("midpoint", 5))


SCORED = (
    "generator", "accuracy", "standard error", "loss", "loss, factor refitted", "novel and performant", "performant",
    "novel", "memorised", "distance ratio", "JSD", "energy, weights", "energy, functions",
)  # fmt: skip


def scored(name: str, one: SampleScores) -> list[Scalar]:
    """The row of a generator under the columns ``SCORED``."""
    known = one.evaluation
    usable = known.measures[known.usable]
    return [
        name,
        float(usable.mean()),
        float(usable.std() / len(usable) ** 0.5),
        float(known.losses.nanmean()),
        None if known.refitted is None else float(known.refitted.nanmean()),
        one.novel_and_performant,
        float(one.performant.double().mean()),
        float(one.novel.double().mean()),
        float(one.memorised.double().mean()),
        one.distance_ratio,
        one.divergence,
        *(one.energy[part].value if part in one.energy else None for part in ("weights", "functions")),
    ]


def accuracies(model: nn.Module, part: Split, stack: Stack) -> Tensor:
    """Of every network on a part of the data, (N,)."""
    return (_outputs(model, part, stack).argmax(-1) == part.y).double().mean(1)


def averaged(model: nn.Module, part: Split, stack: Stack, count: int) -> list[float]:
    """Accuracies of averaged predictions of disjoint groups of ``count`` networks."""
    predictions = _outputs(model, part, stack).softmax(-1)
    groups = torch.split(predictions, count)
    return [float((group.mean(0).argmax(-1) == part.y).double().mean()) for group in groups if len(group) == count]


def _outputs(model: nn.Module, part: Split, stack: Stack) -> Tensor:
    return outputs_of_stack(model, stack, part.x, batch_size=1000)


def tuned(
    model: nn.Module, part: Split, stack: Stack, steps: int, generator: torch.Generator, *, rate: float, batch: int
) -> Tensor:
    """Losses of all networks on the batches of so many steps of Adam, each before its step, (steps, N)."""
    own = {name: tensor.detach().clone().requires_grad_() for name, tensor in stack.items()}
    optimizer = torch.optim.Adam(own.values(), lr=rate)
    found = []
    for _ in range(steps):
        chosen = torch.randint(len(part.x), (batch,), generator=generator)
        x, y = part.x[chosen], part.y[chosen]

        def loss(one: Mapping[str, Tensor], x: Tensor = x, y: Tensor = y) -> Tensor:
            return functional.cross_entropy(torch.func.functional_call(model, dict(one), (x,)), y)

        losses = torch.vmap(loss)(own)
        optimizer.zero_grad()
        losses.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        found.append(losses.detach())
    return torch.stack(found)


def steps_to(losses: Tensor, bar: float, over: int) -> int | None:
    """After how many steps the mean loss of all networks over the last ``over`` batches is below a bar."""
    means = losses.double().mean(1)
    windows = means.unfold(0, min(over, len(means)), 1).mean(1)
    below = (windows < bar).nonzero()
    return int(below[0]) + min(over, len(means)) if len(below) else None


def of_rows(results: Results, table: str, column: str, errors: str, **where: Scalar) -> Estimate | None:
    """A mean with 1.96 standard errors."""
    cells = [results.tables[table].cell(one, where) for one in (column, errors)]
    if any(cell is None for cell in cells):
        return None
    value, error = (float(str(cell)) for cell in cells)
    return Estimate(value, value - 1.96 * error, value + 1.96 * error)


def difference_of_shares(results: Results, table: str, column: str, one: str, other: str) -> Estimate | None:
    """The difference of two shares of samples, with the normal approximation of its interval."""
    cells = [results.tables[table].cell(column, {"generator": name}) for name in (one, other)]
    count = results.numbers.get("samples")
    if any(cell is None for cell in cells) or count is None:
        return None
    p, q = (float(str(cell)) for cell in cells)
    error = 1.96 * ((p * (1 - p) + q * (1 - q)) / float(str(count))) ** 0.5
    return Estimate(p - q, p - q - error, p - q + error)


def within(values: Sequence[float]) -> Estimate:
    """The mean of several values, from the least to the greatest."""
    return Estimate(sum(values) / len(values), min(values), max(values))


def mean_and_error(values: Tensor) -> tuple[float, float]:
    """The mean and its standard error."""
    return float(values.mean()), float(values.std() / counted({"values": values}) ** 0.5)


def descended(flow: Flow, count: int, generator: torch.Generator, loss: "Loss", strength: float, steps: int) -> Stack:
    """Draws of the source of a flow, and as many steps along −λ∇ℓ as guided samples take, without the field."""
    rows = flow.source.sample(count, generator)
    for _ in range(steps):
        leaves = rows.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(flow.frame.networks(leaves)).sum(), leaves)
        rows = rows - strength / steps * gradient
    return flow.frame.networks(rows)


def disturbed(
    flow: Flow, networks: Stack, generator: torch.Generator, *, components: int | None = None, relative: float = 0.0
) -> Stack:
    """Networks of which so many components of units are kept, or that have a relative error, by a Gaussian of units.

    The flow has units as tokens and a metric: y = nS, n standard normal where y is a draw of its source.
    """
    rows = flow.frame.rows(networks)
    other = flow.source.sample(len(rows), generator)
    baseline: Any = flow.field.baseline
    found, drawn = (baseline.units.split((one - baseline.m0) / baseline.s0) for one in (rows, other))
    for key in baseline.turned:
        kept = baseline.along(key, found[key])
        if components is not None:
            kept, own = kept.clone(), baseline.along(key, drawn[key])
            kept[..., components:] = own[..., components:]
            found[key] = drawn[key] - baseline.back(key, own) + baseline.back(key, kept)
        else:
            found[key] = (1 - relative**2) ** 0.5 * found[key] + relative * drawn[key]
    return flow.frame.networks(baseline.m0 + baseline.s0 * baseline.units.join(found))


Loss = Callable[[dict[str, Tensor]], Tensor]


def on_batches(model: nn.Module, part: Split, size: int, generator: torch.Generator) -> Loss:
    """The loss of networks on another random batch at every call."""

    def of(networks: dict[str, Tensor]) -> Tensor:
        chosen = torch.randint(len(part.x), (size,), generator=generator)
        found: Tensor = task_loss(model, (part.x[chosen], part.y[chosen]))(networks)
        return found

    return of
