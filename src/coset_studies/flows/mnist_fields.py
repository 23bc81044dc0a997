"""Four fields beside each other: perceptrons for digits as networks of the principal components of their inputs."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from coset.alignment import align_stack
from coset.data import Split
from coset.flow import FlowRecipe, Solver, cheap_samples, fit_flow
from coset.models import build, example_input
from coset.study import Claim, Context, Estimate, Findings, Results, Scalar, Table, study
from coset.symmetry import Symmetry, discover
from coset_studies.flows._mnist_config import QUICK as QUICK_SAMPLES
from coset_studies.flows._mnist_config import SMALL as SMALL_SAMPLES
from coset_studies.flows._sampled import accuracies, averaged, mean_and_error, of_rows, second_moments
from coset_studies.flows._zoos import Networks, Stack, chosen, counted, in_turn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UNITS, RELATIONAL, PNA, PERCEPTRON, PRINCIPAL = "units", "relational", "PNA", "MLP, aligned", "principal"


@dataclass(frozen=True)
class Field:
    """Settings of ``fit_flow`` and of its recipe."""

    options: Mapping[str, Any]
    recipe: Mapping[str, Any]


@dataclass(frozen=True)
class Config:
    """``zoo``: its last ``held_out`` networks are not learned. Networks read so many principal ``components`` of
    images; every field has ``steps`` of ``batch_size`` networks. ``samples`` of each flow, of which ``average`` are
    averaged; Euler steps of midpoints: ``solved``.
    """

    zoo: Networks
    held_out: int
    components: int
    fields: Mapping[str, Field]
    steps: int
    batch_size: int
    samples: int
    average: int
    solved: int = 20


def _fields(
    units: Mapping[str, int | float], readers: Mapping[str, int], hidden: int, components: int
) -> dict[str, Field]:
    free = {"order": "given"}
    return {
        UNITS: Field(
            {**free, "field": "units", "field_options": units, "source": "units"},
            {"learning_rate": 2e-3, "optimizer": "adamw", "weight_decay": 0.1, "warmup": 1, "ema": 0.998},
        ),
        RELATIONAL: Field(
            {**free, "field": "relational", "field_options": readers}, {"learning_rate": 3e-3, "warmup": 1, "ema": 0.99}
        ),
        PNA: Field(
            {**free, "field": "pna", "field_options": readers}, {"learning_rate": 3e-3, "warmup": 1, "ema": 0.99}
        ),
        PERCEPTRON: Field(
            {"order": "aligned", "field": "mlp", "field_options": {"hidden": hidden}, "projection": "pca",
             "components": components},
            {"learning_rate": 1e-3},
        ),
    }  # fmt: skip


QUICK = Config(
    replace(QUICK_SAMPLES.zoo, count=12),
    held_out=3,
    components=6,
    fields=_fields({"channels": 8, "layers": 1, "heads": 2}, {"channels": 4, "layers": 1}, 8, 5),
    steps=2,
    batch_size=4,
    samples=4,
    average=2,
    solved=2,
)
SMALL = Config(
    SMALL_SAMPLES.zoo,
    held_out=100,
    components=64,
    fields=_fields({"channels": 128, "layers": 4, "heads": 4, "dropout": 0.1}, {"channels": 16, "layers": 3}, 512, 300),
    steps=1000,
    batch_size=32,
    samples=128,
    average=64,
)


def _above(one: str, other: str) -> Claim:
    def estimate(results: Results) -> Estimate | None:
        both = [of_rows(results, "fields", "accuracy", "standard error", field=name) for name in (one, other)]
        if both[0] is None or both[1] is None:
            return None
        value = both[0].value - both[1].value
        error = sum((found.high - found.value) ** 2 for found in both if found is not None) ** 0.5
        return Estimate(value, value - error, value + error)

    return Claim(
        paper="Fields that move with permutations of units learn from networks in any order.",
        source="Erdogan 2025; the thesis, chapter 3",
        statistic=f"test accuracy of one sample of the field {one!r}, less that of {other!r}",
        direction="above", threshold=0.0, reason="As good as what it is compared with is no merit; set before the run.",
        interval="1.96 standard errors over samples of both.", estimate=estimate,
    )  # fmt: skip


CLAIMS = [_above(one, other) for one in (UNITS, RELATIONAL, PNA) for other in (PERCEPTRON, PRINCIPAL)]

TEXT = """
{networks} networks, of which a twentieth is held out of training, read {components} principal components of images in
place of all pixels, so that they have {weights} weights; networks that no flow has seen have a test accuracy of
{reduced:.4f} then, and {whole:.4f} with all pixels. Weights are nearly what a unit answers to inputs of variance 1,
so that networks are aligned by what they answer. {steps} steps of {batch size} networks for every field.
"""


@study(
    name="flows-mnist-fields",
    title="Four fields beside each other",
    reference="Erdogan 2025, Geometric flow models over neural network weights; the thesis, chapter 3",
    paper="""
    Flows over MLPs 784-10-10 have a relational transformer as field: a sample has an accuracy of .737 to .786. It reads
    every weight as an edge, and is trained for hours of a large GPU.
    """,
    presets={"quick": QUICK, "small": SMALL, "paper": replace(SMALL, steps=20_000)},
    claims=CLAIMS,
    text={"small": TEXT},
)
def run(config: Config, context: Context) -> Findings:
    """The same networks, steps and batches for every field."""
    everything = config.zoo.trained(context).last
    model, _ = config.zoo.built()
    data = context.data(str(config.zoo.data["name"]), flatten=True)
    basis = components(data.train.x[:20_000], config.components)
    count = counted(everything) - config.held_out
    small, sym = reduced(config.zoo.options, config.components)
    stack = turned(chosen(everything, slice(0, count)), basis)
    some = turned(chosen(everything, slice(count, None)), basis)
    part = Split(data.test.x @ basis.to(data.test.x), data.test.y)
    weights = sum(tensor[0].numel() for tensor in stack.values())
    rows: list[list[Scalar]] = []
    held: dict[str, Tensor] = {}

    def fit(name: str) -> None:
        began = time.process_time()
        flow, record = _fitted(config, name, sym, stack, context.seed)
        seconds = (time.process_time() - began) / config.steps
        drawn = flow.sample(config.samples, context.generator(f"samples {name}"))
        held[name] = accuracies(small, part, drawn)
        size = sum(p.numel() for p in flow.field.parameters())
        rows.append(
            [name, *mean_and_error(held[name]), averaged(small, part, drawn, config.average)[0], size, seconds, *record]
        )

    in_turn(context, "fields", list(config.fields), fit)
    aligned = dict(align_stack(sym, chosen(stack, torch.tensor(0)), stack, show=False).aligned)
    cheap = cheap_samples(aligned, config.samples, seed=context.seed, options={"soup": {"count": min(16, count)}})
    for name, drawn in {**cheap, "held-out networks": some}.items():
        held[name] = accuracies(small, part, drawn)
        most = min(config.average, counted(drawn))
        rows.append([name, *mean_and_error(held[name]), averaged(small, part, drawn, most)[0], None, None, None, None])
    whole = accuracies(model, data.test, chosen(everything, slice(count, None)))
    return Findings(
        numbers={
            "networks": count, "components": config.components, "weights": weights, "steps": config.steps,
            "batch size": config.batch_size, "samples": config.samples,
            "whole": float(whole.mean()), "reduced": float(held["held-out networks"].mean()),
        },
        tables={"fields": Table(_COLUMNS, rows, _TABLE)},
        figure=lambda: _figure(held),
        caption="Test accuracy of samples and of cheap generators, all of networks that read principal components.",
    )  # fmt: skip


def components(x: Tensor, count: int) -> Tensor:
    """The first principal directions of inputs about 0, (D, count), with lengths so that inputs have variance 1."""
    values, vectors = torch.linalg.eigh(second_moments(x))
    found: Tensor = vectors.flip(1)[:, :count] / values.flip(0)[:count].clamp_min(1e-12).sqrt()
    return found


def turned(stack: Stack, basis: Tensor) -> dict[str, Tensor]:
    """Networks (N, …) that read xB in place of x: the first weights are those that are nearest on all inputs."""
    first = next(iter(stack))
    back = torch.linalg.pinv(basis.double()).T
    return {**stack, first: (stack[first].double() @ back).to(stack[first]).contiguous()}


def reduced(options: Mapping[str, Any], count: int) -> tuple[nn.Module, Symmetry]:
    """The architecture with so many inputs."""
    model = build("mlp", seed=0, **{**options, "in_features": count}).eval()
    return model, discover(model, example_input(model))


def _fitted(config: Config, name: str, sym: Symmetry, stack: Stack, seed: int) -> tuple[Any, list[Scalar]]:
    field = config.fields[name]
    recipe = FlowRecipe(
        steps=config.steps, batch_size=config.batch_size, every=max(1, config.steps // 10), **field.recipe
    )
    fit = fit_flow(
        stack, recipe, sym=sym, seed=seed, solver=Solver("midpoint", config.solved), validation=0.05, show=False,
        **field.options,
    )  # fmt: skip
    return fit.posterior, [fit.trace[0]["held out"], fit.trace[-1]["held out"]]


_COLUMNS = (
    "field", "accuracy", "standard error", "averaged", "parameters", "seconds a step", "held out, a tenth", "held out",
)  # fmt: skip
_TABLE = (
    "Accuracy on the test data; seconds of one core; losses of flow matching on networks that are not learned, after a "
    "tenth of the steps and at the end, each in the frame and from the source of its field, so that only those of one "
    "row are to be compared."
)


def _figure(held: Mapping[str, Tensor]) -> "Figure":
    from coset.figures import new_figure

    figure = new_figure(5.6, 2.6)
    panel = figure.subplots()
    for place, values in enumerate(held.values()):
        panel.plot(values[:60], [place] * len(values[:60]), ".", color=f"C{place % 10}", markersize=2.5, alpha=0.6)
        panel.plot([float(values.mean())], [place], "|", color="k", markersize=8)
    panel.set_yticks(range(len(held)), list(held), fontsize=7)
    panel.invert_yaxis()
    panel.set_xlabel("test accuracy")
    return figure
