"""The parts of the study of sampled perceptrons: one table each."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from coset.alignment import align_stack
from coset.canonical import distances
from coset.data import Dataset, Split
from coset.flow import Flow, Solver, for_architecture, per_weight
from coset.models import build, example_input
from coset.study import Context, Scalar
from coset.symmetry import Symmetry, discover
from coset_studies.flows._mnist_config import ALONE, FIRST, GUIDED, OTHERS, Config
from coset_studies.flows._sampled import (
    accuracies,
    averaged,
    descended,
    disturbed,
    mean_and_error,
    on_batches,
    steps_to,
    tuned,
)
from coset_studies.flows._stored_flows import stored_flow
from coset_studies.flows._zoos import Stack, chosen


def by_the_task(config: Config, context: Context, model: nn.Module, part: Split, flow: Flow) -> dict[str, Stack]:
    """Samples that are guided by the loss that the networks were trained on, and what its gradient does alone."""
    draws = {name: context.generator(f"samples {FIRST}") for name in (GUIDED, ALONE)}
    losses = {name: on_batches(model, part, 256, context.generator("batches of the task")) for name in draws}
    solver = Solver("euler", config.guided)
    return {
        GUIDED: flow.sample(config.samples, draws[GUIDED], loss=losses[GUIDED], strength=config.task, solver=solver),
        ALONE: descended(flow, config.samples, draws[ALONE], losses[ALONE], config.task, config.guided),
    }


def to_the_first(sym: Symmetry, stack: Stack) -> dict[str, Tensor]:
    return dict(align_stack(sym, chosen(stack, torch.tensor(0)), stack, show=False).aligned)


def of_averages(config: Config, model: nn.Module, part: Split, sets: Mapping[str, Stack]) -> list[list[Scalar]]:
    rows: list[list[Scalar]] = []
    sizes = [2**k for k in range(config.average.bit_length())]
    for name, stack in sets.items():
        own = chosen(stack, slice(0, config.samples))
        for size in sizes:
            values = averaged(model, part, own, size)
            values = values if size == sizes[-1] else [sum(values) / len(values)]
            rows += [[name, size, sizes[-1], number, value] for number, value in enumerate(values)]
    return rows


GUIDED_COLUMNS = ("what", "strength", "train loss", "test accuracy", "standard error", "averaged", "chosen")


def of_guidance(config: Config, context: Context, model: nn.Module, flow: Flow) -> list[list[Scalar]]:
    """Samples that are guided by losses on batches of the other data; the strength is chosen by training losses."""
    data = context.data(str(config.other["name"]), flatten=True)
    rows: list[list[Scalar]] = []
    for strength in (0.0, *config.strengths):
        draws = context.generator("guided samples")
        loss = on_batches(model, data.train, 256, context.generator("guiding batches"))
        solver = Solver("euler", config.guided)
        drawn = flow.sample(config.few, draws, loss=loss if strength else None, strength=strength or 0.1, solver=solver)
        rows.append(["flow", strength, *_on(config, context, model, data, drawn)])
    best = min(rows, key=lambda row: float(str(row[2])))
    loss = on_batches(model, data.train, 256, context.generator("guiding batches"))
    strength = float(str(best[1])) or config.strengths[0]
    alone = descended(flow, config.few, context.generator("guided samples"), loss, strength, config.guided)
    rows.append([ALONE, strength, *_on(config, context, model, data, alone)])
    return [[*row, row is best] for row in rows]


def _on(config: Config, context: Context, model: nn.Module, data: Dataset, drawn: Stack) -> list[Scalar]:
    """Training loss, accuracy with its error, and that of averaged predictions."""
    held = float(on_batches(model, data.train, 2000, context.generator("losses"))(dict(drawn)).mean())
    values = accuracies(model, data.test, drawn)
    return [held, *mean_and_error(values), averaged(model, data.test, drawn, config.few)[0]]


def of_width(config: Config, context: Context, flow: Flow, part: Split) -> list[list[Scalar]]:
    """Networks of another width, as they are sampled, and with weights out that add up to as much as before."""
    options = {**config.zoo.options, "widths": [config.width]}
    model = build(config.zoo.model, seed=0, **options).eval()
    sym = discover(model, example_input(model))
    other = for_architecture(flow, sym, model.state_dict())
    draws = {
        f"width {config.width}": (1.0, 1.0),
        **{f"width {config.width}, c {c:g}, τ {tau:g}": (c, tau) for c, tau in config.settings[-2:]},
    }
    ratio = config.zoo.options["widths"][0] / config.width
    rows: list[list[Scalar]] = []
    for name, (contrast, temperature) in draws.items():
        wide = other.sample(config.few, context.generator("wide samples"), contrast=contrast, temperature=temperature)
        last = list(wide)[-2]
        for way, stack in (("as sampled", wide), ("weights out over the ratio", {**wide, last: wide[last] * ratio})):
            values = accuracies(model, part, stack)
            rows.append([name, way, *mean_and_error(values), averaged(model, part, stack, config.few)[0]])
    return rows


def of_starts(config: Config, context: Context, model: nn.Module, flow: Flow, stack: Stack) -> list[list[Scalar]]:
    """Steps on the other data from several starts, on the same batches."""
    data = context.data(str(config.other["name"]), flatten=True)
    loss = on_batches(model, data.train, 256, context.generator("guiding batches"))
    solver = Solver("euler", config.guided)
    starts = {
        "fresh (Kaiming)": config.zoo.untrained(context, config.few),
        "samples": flow.sample(config.few, context.generator("starts")),
        "guided samples": flow.sample(
            config.few, context.generator("starts"), loss=loss, strength=max(config.strengths), solver=solver
        ),
        "networks of the zoo": chosen(stack, slice(0, config.few)),
    }
    rows: list[list[Scalar]] = []
    for name, networks in starts.items():
        losses = tuned(model, data.train, networks, config.tuning, context.generator("tuning"), rate=1e-3, batch=100)
        ends = float(losses[0].mean()), float(losses[-20:].mean())
        rows.append([name, steps_to(losses, config.reach, 5), *ends])
    return rows


def of_disturbed(
    config: Config, context: Context, model: nn.Module, part: Split, flow: Flow, unseen: Stack
) -> list[list[Scalar]]:
    """Accuracy of held-out networks of which only some components are kept, or all are known with an error.

    What is not kept is drawn from the Gaussian of units: so much any flow that reads these components may reach. With
    the relative error e units are √(1−e²)·y + e·y′, y′ another draw of it.
    """
    rows: list[list[Scalar]] = []
    for kept in config.components:
        broken = disturbed(flow, unseen, context.generator("disturbed"), components=kept)
        rows.append(["components kept", kept, *mean_and_error(accuracies(model, part, broken))])
    for error in config.errors:
        broken = disturbed(flow, unseen, context.generator("disturbed"), relative=error)
        rows.append(["relative error", error, *mean_and_error(accuracies(model, part, broken))])
    return [["as trained", None, *mean_and_error(accuracies(model, part, unseen))], *rows]


def of_fewer(
    config: Config, context: Context, sym: Symmetry, model: nn.Module, part: Split, stack: Stack, inputs: Tensor
) -> list[list[Scalar]]:
    """The first flow of fewer networks, a tenth of them held out."""
    rows: list[list[Scalar]] = []
    kind = replace(config.kinds[FIRST], steps=config.fewer_steps)
    for count in config.fewer:
        batch = min(config.batch_size, count // 2)
        some = chosen(stack, slice(0, count))
        flow, last = stored_flow(
            context, config.zoo, kind, sym, some, config.fewer_steps, batch, inputs, validation=0.1
        )
        drawn = flow.sample(config.few, context.generator("samples of fewer"))
        values = accuracies(model, part, drawn)
        rows.append([count, config.fewer_steps, last["loss"], last["held out"], *mean_and_error(values)])
    return rows


def of_memory(config: Config, sym: Symmetry, stack: Stack, sets: Mapping[str, Stack]) -> list[list[Scalar]]:
    """Distances to the nearest of all training networks; of held-out networks, which no memory can know, too."""
    nearest = {
        name: distances(sym, chosen(own, slice(0, config.remembered)), stack, show=False).values.amin(1)
        for name, own in sets.items()
    }
    middle = nearest[OTHERS].median()
    return [
        [name, float(own.median()), float(own.min()), float((own < middle).double().mean())]
        for name, own in nearest.items()
    ]


def of_likelihood(config: Config, flows: Mapping[str, Flow], unseen: Stack) -> list[list[Scalar]]:
    """Log-likelihood of held-out networks per weight, in nats, of the flows that have one by weights."""
    some = chosen(unseen, slice(0, config.likelihoods))
    rows: list[list[Scalar]] = []
    for name, flow in flows.items():
        if flow.frame.geometry != "euclidean":
            continue
        space = flow.frame.space
        own = flow.canonical(some)
        begin = per_weight(flow.source.log_density(space.rows(own)), space.size)
        found = per_weight(flow.log_prob(own, trace="hutchinson", solver=Solver("midpoint", 20), seed=0), space.size)
        rows += [[name, *found], [f"{name}: its source", *begin]]
    return rows
