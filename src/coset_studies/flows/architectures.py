"""Flows over networks that are no perceptrons: a CNN with batch norm, a transformer of two layers."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from coset.alignment import renormalize
from coset.canonical import canonicalize
from coset.data import Dataset, Split
from coset.flow import (
    GENERATORS,
    Flow,
    FlowRecipe,
    Solver,
    cheap_samples,
    fit_flow,
    fitted_gaussian,
    measure_zoo,
    score_against,
)
from coset.running import outputs_of_stack
from coset.study import Claim, Context, Estimate, Findings, Results, Scalar, Table, study
from coset.symmetry import Symmetry
from coset_studies.flows._zoos import (
    Networks,
    Stack,
    chosen,
    counted,
    difference_of_shares,
    in_the_span,
    in_turn,
    joined,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RAW, PERMUTED, WHOLE = "as trained", "permutations", "whole group"
FRAMES = (RAW, PERMUTED, WHOLE)
CNN, TRANSFORMER = "CNN", "transformer"
FIELDS: Mapping[str, str] = {"flow": "none", "flow, PCA": "pca"}
"""Name of a flow → the projection of what its field, a perceptron, reads."""
FLOW, NOISE, GAUSSIAN, PRINCIPAL, INTERPOLATION = "flow, PCA", "noise", "gaussian", "principal", "interpolation"
OTHERS, SPAN = "held-out networks", "held-out networks, in the span"


@dataclass(frozen=True)
class Case:
    """One architecture: the last ``held_out`` networks of the ``zoo`` are seen by no generator.

    Networks are measured on the first ``validated`` examples of the test part, and ``bar`` is the accuracy of
    performant ones. ``compared``: training examples on which activations are aligned where matrices act, or with which
    statistics of batch norms are measured again.
    """

    zoo: Networks
    held_out: int
    validated: int
    bar: float
    compared: int


@dataclass(frozen=True)
class Config:
    """``samples`` of each generator; ``steps`` of training by flow; ``soup``: so many networks are averaged; ``frames``
    in which ``generators`` work; novelty and claims are of that of the whole group.
    """

    cases: Mapping[str, Case]
    samples: int
    steps: Mapping[str, int]
    soup: int = 16
    frames: tuple[str, ...] = FRAMES
    generators: tuple[str, ...] = tuple(GENERATORS)
    batch_size: int = 64
    solver: Solver = Solver(steps=20)  # noqa: RUF009


_GREY = "coset_studies.metanet._cnn:GreyCNN"
_ADAM = {"optimizer": "adam", "learning_rate": 1e-2, "epochs": 2, "batch_size": 64, "schedule": "cosine"}
_ADAMW = {
    "optimizer": "adamw",
    "learning_rate": 1e-2,
    "batch_size": 16,
    "epochs": 1,
    "schedule": "triangular",
    "peak": 0.1,
    "clip": 1.0,
    "weight_decay": 0.1,
}
_TEXT = {"vocabulary": 65, "context": 32, "dim": 16, "depth": 2, "heads": 2, "mlp_ratio": 2}
QUICK = Config(
    {
        CNN: Case(
            Networks(_GREY, {"width": 2, "norm": "batch", "padding": 1}, {"name": "digits", "subset": 64}, _ADAM, 6),
            held_out=2,
            validated=8,
            bar=0.1,
            compared=8,
        ),
        TRANSFORMER: Case(
            Networks(
                "transformer",
                {**_TEXT, "vocabulary": 12, "context": 4, "dim": 4, "depth": 1, "mlp_ratio": 1},
                {"name": "digits-text", "window": 4, "subset": 64},
                _ADAMW,
                5,
            ),
            held_out=2,
            validated=4,
            bar=0.1,
            compared=8,
        ),
    },
    samples=3,
    steps=dict.fromkeys(FIELDS, 1),
    soup=2,
    frames=(RAW, WHOLE),
    generators=(NOISE, "midpoint", PRINCIPAL),
    batch_size=3,
    solver=Solver("euler", 1),
)
SMALL = Config(
    {
        CNN: Case(
            Networks(
                _GREY,
                {"width": 24, "norm": "batch", "padding": 1},
                {"name": "fashion-mnist", "subset": 4000},
                _ADAM,
                96,
            ),
            held_out=16,
            validated=500,
            bar=0.65,
            compared=500,
        ),
        TRANSFORMER: Case(
            Networks(
                "transformer",
                _TEXT,
                {"name": "tinyshakespeare", "window": 32, "subset": 8000},
                _ADAMW,
                96,
            ),
            held_out=16,
            validated=200,
            bar=0.27,
            compared=64,
        ),
    },
    samples=32,
    steps={"flow": 200, "flow, PCA": 1200},
)


@dataclass(frozen=True)
class Setting:
    """An architecture with its networks, as a run meets it."""

    case: Case
    context: Context
    model: nn.Module
    sym: Symmetry
    data: Dataset
    stack: Stack
    unseen: Stack


def opened(context: Context, case: Case) -> Setting:
    """Networks trained or found, and their symmetry."""
    everything = case.zoo.trained(context).last
    model, sym = case.zoo.built()
    options = {name: value for name, value in case.zoo.data.items() if name == "window"}
    data = context.data(str(case.zoo.data["name"]), **options)
    count = counted(everything) - case.held_out
    return Setting(
        case,
        context,
        model,
        sym,
        data,
        chosen(everything, slice(0, count)),
        chosen(everything, slice(count, None)),
    )


def framed(setting: Setting, frame: str) -> tuple[Stack, dict[str, Any]]:
    """Networks, and the options of ``fit_flow`` for them.

    Over a group with matrices networks are aligned on activations first, which takes a third of the time of weights.
    """
    if frame == RAW:
        return setting.stack, {"sym": setting.sym, "order": "given"}
    if frame == PERMUTED:
        return setting.stack, {"sym": setting.sym.monomial, "order": "aligned"}
    if not setting.sym.continuous:
        return setting.stack, {"sym": setting.sym, "order": "aligned", "geometry": "normalized"}
    return whole(setting, setting.stack), {"sym": setting.sym, "order": "given"}


def whole(setting: Setting, networks: Stack) -> Stack:
    """Networks without translations and scales, brought to the first of the zoo by the whole group, on activations."""
    first = chosen(setting.stack, torch.tensor(0))
    inputs = setting.data.train.x[: setting.case.compared]
    form = canonicalize(setting.sym, dict(networks), first, "activations", model=setting.model, data=inputs)
    return form.params


def generated(config: Config, setting: Setting, frame: str) -> tuple[Flow, Stack, dict[str, Stack]]:
    """The first flow of a frame, the networks in it, and the samples of all generators, made of the same rows."""
    stack, options = framed(setting, frame)
    flows: dict[str, Flow] = {}
    found: dict[str, Stack] = {}
    for name, projection in FIELDS.items():
        steps = config.steps[name]
        recipe = FlowRecipe(steps=steps, batch_size=config.batch_size, every=min(50, steps))
        flows[name] = fit_flow(
            stack, recipe, projection=projection, solver=config.solver, seed=setting.context.seed, show=False, **options
        ).posterior
        found[name] = flows[name].sample(config.samples, setting.context.generator(f"{frame} {name}"))
    one = flows["flow"].frame
    rows = one.rows(stack)
    soup = {"soup": {"count": config.soup}} if "soup" in config.generators else {}
    cheap = cheap_samples(
        {"rows": rows}, config.samples, seed=setting.context.seed, generators=config.generators, options=soup
    )
    found |= {name: one.networks(drawn["rows"]) for name, drawn in cheap.items()}
    return flows["flow"], one.networks(rows), found


def refreshed(setting: Setting, networks: Stack) -> Stack:
    """Networks whose batch norms have the statistics of training images."""
    inputs = setting.data.train.x[: setting.case.compared]
    done: list[Stack] = []
    for number in range(counted(networks)):
        one = chosen(networks, torch.tensor(number))
        params = renormalize(setting.sym, setting.model, one, [one], method="refresh", data=inputs, show=False).params
        done.append({name: tensor[None] for name, tensor in params.items()})
    return joined(done)


def scored(config: Config, setting: Setting, frame: str) -> tuple[list[list[Scalar]], float]:
    """A row for each generator, and which part of Gaussian draws of weights themselves has a negative variance.

    Novelty is told in the frame of the whole group, where distances are within the frame: aligning every pair would
    take minutes, and finds no larger ones.
    """
    part = setting.data.test
    test = Split(part.x[: setting.case.validated], part.y[: setting.case.validated])
    flow, here, sets = generated(config, setting, frame)
    plain: list[Scalar] = [None] * 6
    rows: list[list[Scalar]] = [[frame, "the zoo", *measured(setting.model, test, here), *plain]]
    if frame != WHOLE:
        return rows + [[frame, name, *measured(setting.model, test, one), *plain] for name, one in sets.items()], 0.0
    sets[OTHERS] = whole(setting, setting.unseen) if setting.sym.continuous else flow.canonical(setting.unseen)
    sets[SPAN] = in_the_span(flow, here, sets[OTHERS])
    zoo = measure_zoo(setting.model, setting.sym.restrict([]), here, (test.x, test.y), points=16, show=False)
    for name, networks in sets.items():
        scores = score_against(zoo, networks, bar=setting.case.bar, permutations=20, show=False)
        again = None
        if flow.frame.offsets:
            again = measured(setting.model, test, refreshed(setting, networks))[0]
        share = float(scores.novel.double().mean())
        new: list[Scalar] = [scores.novel_and_performant, *scores.interval, share, scores.distance_ratio]
        rows.append([frame, name, *measured(setting.model, test, networks), *new, again])
    drawn = fitted_gaussian(here).sample(config.samples, setting.context.generator(f"{frame} variances"))
    negative = torch.zeros(config.samples, dtype=torch.bool)
    for name, offset in flow.frame.offsets.items():
        negative |= (drawn[name] + offset < 0).flatten(1).any(1)
    return rows, float(negative.double().mean())


def measured(model: nn.Module, part: Split, networks: Stack) -> tuple[float, float, float]:
    """The mean accuracy of networks on classes or tokens, its standard error, and the mean loss in nats."""
    outputs = outputs_of_stack(model, networks, part.x)
    right = (outputs.argmax(-1) == part.y).double().flatten(1).mean(1)
    losses = nn.functional.cross_entropy(outputs.movedim(-1, 1).double(), part.y.expand(outputs.shape[:-1]))
    return float(right.mean()), float(right.std() / len(right) ** 0.5), float(losses)


_COLUMNS = (
    "architecture", "frame", "generator", "accuracy", "error", "loss",
    "novel and performant", "from", "to", "novel", "distance ratio", "accuracy, refreshed",
)  # fmt: skip


def _values(results: Results, architecture: str, generator: str, *columns: str) -> list[float] | None:
    where: dict[str, Scalar] = {"architecture": architecture, "frame": WHOLE, "generator": generator}
    cells = [results.tables["generators"].cell(column, where) for column in columns]
    return None if any(cell is None for cell in cells) else [float(str(cell)) for cell in cells]


def gained(results: Results, architecture: str, other: str) -> Estimate | None:
    """Mean accuracy of samples of the flow less that of another generator."""
    ours, theirs = (_values(results, architecture, name, "accuracy", "error") for name in (FLOW, other))
    if ours is None or theirs is None:
        return None
    value, half = ours[0] - theirs[0], 1.96 * (ours[1] ** 2 + theirs[1] ** 2) ** 0.5
    return Estimate(value, value - half, value + half)


def novel(results: Results, architecture: str, other: str) -> Estimate | None:
    """Share of novel and performant samples of the flow less that of another generator."""
    ours, theirs = ({"architecture": architecture, "frame": WHOLE, "generator": name} for name in (FLOW, other))
    return difference_of_shares(results.tables["generators"], ours, theirs)


_NORMAL = "95 %, normal approximation over samples of one flow."
_NEWCOMBE = "95 %, Newcombe's interval over samples of one flow."


def claims_on(architecture: str) -> list[Claim]:
    """The claims on one architecture, in the frame of its whole group; thresholds were set before the run."""
    gains = {
        GAUSSIAN: "A flow has learned more of the networks than the deviation of every weight.",
        PRINCIPAL: "A flow has learned more of the networks than their covariance.",
        INTERPOLATION: "A flow makes better networks than lines between two of those that it saw.",
    }
    return [
        *(
            Claim(
                paper=paper,
                source="the cheap generators that a flow has to beat",
                statistic=f"{architecture}: accuracy of samples, flow (PCA) less {other}",
                direction="above", threshold=0.0,
                reason="Any gain counts; set before the run.", interval=_NORMAL,
                estimate=lambda r, other=other: gained(r, architecture, other),  # type: ignore[misc]
            )
            for other, paper in gains.items()
        ),
        Claim(
            paper="A flow gives networks that are new and good, which noise on a network does not.",
            source="the cheap generators that a flow has to beat",
            statistic=f"{architecture}: novel and performant samples, flow (PCA) less noise",
            direction="above", threshold=0.0,
            reason="Noise of a tenth of the deviations leaves networks where they are; set before the run.",
            interval=_NEWCOMBE, estimate=lambda r: novel(r, architecture, NOISE),
        ),
    ]  # fmt: skip


TEXT = """
Flows were fitted to {CNN networks} CNNs of three convolutions with batch norm and to {transformer networks}
transformers of two layers, by the same call. Their field is a perceptron, on all weights or on principal components of
them (PCA).

The flow on principal components learned something: in both architectures its samples are more accurate than draws of a
Gaussian, on weights or on components. It did not learn enough to be of use. Samples of CNNs have an accuracy of
{generators[CNN, whole group, flow, PCA][accuracy]:.2f} and of transformers of
{generators[transformer, whole group, flow, PCA][accuracy]:.2f}, interpolations
{generators[CNN, whole group, interpolation][accuracy]:.2f} and
{generators[transformer, whole group, interpolation][accuracy]:.2f}, held-out networks
{generators[CNN, whole group, held-out networks][accuracy]:.2f} and
{generators[transformer, whole group, held-out networks][accuracy]:.2f}. No generator gave a network that is both novel
and performant, so that the claims on these cannot tell; of the held-out networks
{generators[CNN, whole group, held-out networks][novel and performant]:.0%} and
{generators[transformer, whole group, held-out networks][novel and performant]:.0%} are. Noise on a network stays beside
it, accurate and never novel.

How far a straight line goes bounds what is linear in the networks. Halfway between two transformers the loss falls with
the group: {generators[transformer, as trained, midpoint][loss]:.2f} nats as trained,
{generators[transformer, permutations, midpoint][loss]:.2f} modulo permutations and
{generators[transformer, whole group, midpoint][loss]:.2f} modulo the whole group, where the networks have
{generators[transformer, whole group, the zoo][loss]:.2f}. Halfway between two CNNs permutations help most
({generators[CNN, permutations, midpoint][accuracy]:.2f}, as trained
{generators[CNN, as trained, midpoint][accuracy]:.2f}); canonical weights do worse
({generators[CNN, whole group, midpoint][accuracy]:.2f}) because statistics of batch norms do not fit, and are at
{generators[CNN, whole group, midpoint][accuracy, refreshed]:.2f} once these are measured again.

All generators work on the same rows, which hold log(variance + ε) for running variances: of Gaussian draws on the
variances themselves {negative:.0%} have a negative one. Over the whole group CNNs have canonical weights, and
transformers are aligned by matrices on activations. Performant means an accuracy of {CNN bar} for CNNs and of
{transformer bar}, that of a table of character pairs, for transformers. Each generator gave {samples} samples. A sample
is novel if it is farther from every training network than half of these are from their nearest one, within the frame.
"""


@study(
    name="flows-architectures",
    title="Networks sampled by flows: a CNN with batch norm and a transformer",
    reference="Erdogan 2025, Geometric flow models over neural network weights; the thesis, chapter 3",
    paper="""
    Flows over weights were shown on perceptrons. Nothing in the method asks for one: a symmetry says which networks are
    the same, and the same call fits a flow over the weights of any architecture.
    """,
    presets={"quick": QUICK, "small": SMALL, "paper": replace(SMALL, samples=256, steps=dict.fromkeys(FIELDS, 4000))},
    claims=[claim for name in (CNN, TRANSFORMER) for claim in claims_on(name)],
    text={"small": TEXT},
    tables={
        "generators": """
    Mean accuracy of samples with its standard error, and loss, on test examples. Novelty in the frame of the whole
    group only; refreshed: batch norms have the statistics of training images.
    """
    },
    figure=lambda results: _figure(results),
    caption="""
    Mean accuracy of the samples of every generator in three frames; lines: the zoo, and dotted the bar.
    """,
)
def run(config: Config, context: Context) -> Findings:
    """Two flows and all cheap generators, in three frames, on two architectures."""
    settings = {name: opened(context, case) for name, case in config.cases.items()}
    keys = [f"{name}, {frame}" for name, frame in product(config.cases, config.frames)]

    def score(key: str) -> tuple[list[list[Scalar]], float]:
        name, frame = key.split(", ")
        return scored(config, settings[name], frame)

    found = in_turn(context, "architectures and frames", keys, score)
    rows = [[key.split(", ")[0], *row] for key in keys for row in found[key][0]]
    numbers: dict[str, Scalar] = {"samples": config.samples, "negative": found[f"{CNN}, {WHOLE}"][1]}
    for name, setting in settings.items():
        numbers |= {f"{name} bar": setting.case.bar, f"{name} networks": counted(setting.stack)}
    return Findings(numbers=numbers, tables={"generators": Table(_COLUMNS, rows)})


def _figure(results: Results) -> "Figure":
    from coset.figures import label_panel, new_figure

    table = results.tables["generators"]
    figure = new_figure(7.6, 2.9)
    for panel, axes, name in zip("ab", figure.subplots(1, 2), (CNN, TRANSFORMER), strict=True):
        rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows if row[0] == name]
        names = list(dict.fromkeys(str(row["generator"]) for row in rows if row["generator"] != "the zoo"))
        for number, frame in enumerate(dict.fromkeys(str(row["frame"]) for row in rows)):
            own = [row for row in rows if row["frame"] == frame and row["generator"] != "the zoo"]
            places = [names.index(str(row["generator"])) + 0.2 * (number - 1) for row in own]
            values = [float(str(row["accuracy"])) for row in own]
            axes.plot(values, places, "o", markersize=3, color=f"C{number}", label=frame)
        axes.axvline(float(str(rows[0]["accuracy"])), color="0.6", linewidth=0.8)
        axes.axvline(float(str(results.numbers[f"{name} bar"])), color="0.6", linewidth=0.8, linestyle=":")
        axes.set_yticks(range(len(names)), names, fontsize=6)
        axes.invert_yaxis()
        axes.set_xlabel(f"accuracy, {name}")
        label_panel(axes, panel, "")
    figure.axes[0].legend(fontsize=6, frameon=False)
    return figure
