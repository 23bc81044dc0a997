"""Networks sampled by flows, beside those of cheap generators: the small MLP of the thesis' final form."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from coset.data import Dataset, Split
from coset.flow import (
    GENERATORS,
    GEOMETRIES,
    Flow,
    FlowRecipe,
    MeasuredZoo,
    NetworkLoss,
    SampleScores,
    Solver,
    cheap_samples,
    fit_flow,
    fitted_gaussian,
    integrate,
    measure_zoo,
    noisy_networks,
    per_weight,
    score_against,
    task_loss,
)
from coset.running import outputs_of_stack
from coset.study import Claim, Context, Estimate, Findings, Results, Scalar, Table, study
from coset.symmetry import Symmetry
from coset_studies.flows._zoos import Networks, Stack, chosen, counted, difference_of_shares, in_the_span, in_turn

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Way:
    """What is done with permutations: ``order``, ``coupling``, ``projection`` and ``field`` of ``fit_flow``; so many
    ``times`` as many steps. Slow ones are fitted ``once``.
    """

    order: str = "aligned"
    coupling: str = "independent"
    projection: str = "none"
    field: str = "mlp"
    times: int = 1
    once: bool = False


WAYS: Mapping[str, Way] = {
    "as trained": Way("given"),
    "aligned": Way(),
    "aligned, OT": Way(coupling="optimal-transport"),
    "orbits": Way("given", "orbit"),
    "aligned, PCA": Way(projection="pca"),
    "orbits, longer": Way("given", "orbit", times=4, once=True),
    "as trained, units": Way("given", field="units"),
    "orbits, units": Way("given", "orbit", field="units"),
    "orbits, relational": Way("given", "orbit", field="relational", once=True),
}
KINDS: tuple[tuple[str, str], ...] = (
    *product(GEOMETRIES, ("as trained", "aligned", "aligned, OT", "orbits")),
    *product(("euclidean",), ("aligned, PCA", "orbits, longer", "as trained, units", "orbits, relational")),
    *product(("euclidean", "geometric"), ("orbits, units",)),
)
"""Geometry and what is done with permutations, of each flow."""

FLOW, NEAREST = "geometric, aligned", "euclidean, aligned, PCA"
INTERPOLATION, PRINCIPAL = "interpolation", "principal"
OTHERS = "held-out networks"


@dataclass(frozen=True)
class Config:
    """``zoo``: of which the last ``held_out`` networks are seen by no generator. ``fits``: flows of each kind, with
    different seeds, and ``samples`` of each, ``scored`` of one. ``steps``: of training; ``bar``: the test accuracy of
    performant networks.
    ``grids``: numbers of Euler steps; ``guidance``: the strength of the loss on training data; ``strengths``: others.
    ``fields``: options of fields by name. ``longer``: networks that are trained on, with snapshots on the way.
    ``kinds`` of flows and ``generators`` beside them.
    """

    zoo: Networks
    held_out: int
    fits: int
    samples: int
    scored: int
    steps: int
    bar: float
    longer: Networks
    grids: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    guidance: float = 0.1
    strengths: tuple[float, ...] = (0.1, 1.0, 10.0)
    fields: Mapping[str, Mapping[str, int]] = field(
        default_factory=lambda: {
            "mlp": {"hidden": 256},
            "units": {"channels": 64, "layers": 2},
            "relational": {"channels": 32, "layers": 2},
        }
    )
    kinds: tuple[tuple[str, str], ...] = KINDS
    generators: tuple[str, ...] = tuple(GENERATORS)
    batch_size: int = 64
    solver: Solver = Solver()  # noqa: RUF009


_OPTIONS = {"in_features": 30, "widths": [16, 16], "out_features": 2}
_RECIPE = {"optimizer": "adam", "learning_rate": 1e-3, "batch_size": 32, "epochs": 20}
QUICK = Config(
    Networks(
        "mlp",
        {**_OPTIONS, "widths": [4, 3]},
        {"name": "breast-cancer", "subset": 100},
        {**_RECIPE, "learning_rate": 1e-2, "epochs": 3},
        12,
    ),
    held_out=3,
    fits=1,
    samples=4,
    scored=3,
    steps=2,
    bar=0.5,
    longer=Networks(
        "mlp",
        {**_OPTIONS, "widths": [4, 3]},
        {"name": "breast-cancer", "subset": 100},
        {**_RECIPE, "epochs": 2},
        2,
        (1,),
    ),
    grids=(1, 2),
    strengths=(0.1,),
    fields={
        "mlp": {"hidden": 8, "layers": 1},
        "units": {"channels": 8, "layers": 1},
        "relational": {"channels": 4, "layers": 1, "heads": 2},
    },
    kinds=(
        ("euclidean", "aligned, PCA"),
        ("normalized", "aligned, OT"),
        ("geometric", "aligned"),
        ("euclidean", "orbits"),
        ("geometric", "orbits, units"),
        ("euclidean", "orbits, relational"),
    ),
    generators=(INTERPOLATION, PRINCIPAL),
    batch_size=4,
    solver=Solver(steps=1),
)
SMALL = Config(
    Networks("mlp", _OPTIONS, {"name": "breast-cancer"}, _RECIPE, 300),
    held_out=100,
    fits=2,
    samples=128,
    scored=64,
    steps=1000,
    bar=0.96,
    longer=Networks(
        "mlp", _OPTIONS, {"name": "breast-cancer"}, {**_RECIPE, "epochs": 160}, 20, (5, 10, 20, 40, 80), "shared"
    ),
)

_COLUMNS = (
    "geometry", "permutations", "fit", "train accuracy", "train loss", "test accuracy", "test loss",
    "train loss, guided", "test loss, guided",
)  # fmt: skip


def fitted(config: Config, sym: Symmetry, stack: Stack, geometry: str, way: str, seed: int) -> Flow:
    """One flow of a kind."""
    own = WAYS[way]
    plain = own.field == "mlp"
    recipe = FlowRecipe(
        steps=own.times * config.steps,
        batch_size=config.batch_size // 2 if own.field == "relational" else config.batch_size,
        learning_rate=1e-3 if plain else 2e-3,
        coupling=own.coupling,
        every=min(50, config.steps),
    )
    return fit_flow(
        stack,
        recipe,
        sym=sym,
        geometry=geometry,
        order=own.order,
        field=own.field,
        field_options=config.fields[own.field],
        projection=own.projection,
        seed=seed,
        solver=config.solver,
        show=False,
    ).posterior


def measured(model: nn.Module, part: Split, networks: Stack) -> tuple[float, float]:
    """Mean accuracy and loss of networks on a part of the data."""
    outputs = outputs_of_stack(model, networks, part.x)
    losses = task_loss(model, (part.x, part.y))(networks)
    right = (outputs.argmax(-1) == part.y).double().mean(1)
    return float(right.mean()), float(losses.double().mean())


def _generator(context: Context, name: str, seed: int) -> torch.Generator:
    return context.generator(f"{name} {seed}")


def _over_fits(results: Results, column: str, first: tuple[str, str], second: tuple[str, str]) -> Estimate | None:
    """The difference of two kinds of flows, first less second: the mean over fits, from the least to the greatest."""
    table = results.tables["flows"]
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]

    def values(kind: tuple[str, str]) -> list[float]:
        return [float(str(row[column])) for row in rows if (row["geometry"], row["permutations"]) == kind]

    ours, theirs = values(first), values(second)
    if not ours or not theirs:
        return None
    pairs = [a - b for a, b in zip(ours, theirs, strict=True)]
    return Estimate(sum(pairs) / len(pairs), min(pairs), max(pairs))


def _novel(results: Results, first: str, second: str) -> Estimate | None:
    """Share of novel and performant samples of one generator less that of another."""
    table = results.tables["generators"]
    return difference_of_shares(table, {"generator": first}, {"generator": second})


def _of_fits(results: Results, column: str, kind: tuple[str, str]) -> Estimate | None:
    """The mean over fits of one kind of flow, from the least to the greatest."""
    table = results.tables["flows"]
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    values = [float(str(row[column])) for row in rows if (row["geometry"], row["permutations"]) == kind]
    return Estimate(sum(values) / len(values), min(values), max(values)) if values else None


_NEWCOMBE = "95 %, Newcombe's interval over samples of one flow."
_SEEDS = "From the least to the greatest of flows fitted with different seeds."
CLAIMS = [
    Claim(
        paper="Aligning networks before a Euclidean flow learns them lowers the loss of samples from 0.101 to 0.070.",
        source="Erdogan 2025, breast-cancer MLP",
        statistic="test loss of Euclidean samples, aligned less as trained, nats",
        direction="below", threshold=0.0, published=-0.031,
        reason="Any gain counts; set before the run.", interval=_SEEDS,
        estimate=lambda r: _over_fits(r, "test loss", ("euclidean", "aligned"), ("euclidean", "as trained")),
    ),
    Claim(
        paper="Optimal transport within batches lowers it further, to 0.053.",
        source="Erdogan 2025, breast-cancer MLP",
        statistic="test loss of aligned Euclidean samples, with less without optimal transport, nats",
        direction="below", threshold=0.0, published=-0.017,
        reason="Any gain counts; set before the run.", interval=_SEEDS,
        estimate=lambda r: _over_fits(r, "test loss", ("euclidean", "aligned, OT"), ("euclidean", "aligned")),
    ),
    Claim(
        paper="Flows on spheres make better networks than Euclidean ones: losses 0.018 and 0.070, aligned.",
        source="Erdogan 2025, breast-cancer MLP",
        statistic="test loss of aligned samples, geometric less Euclidean, nats",
        direction="below", threshold=0.0, published=-0.052,
        reason="Any gain counts; set before the run.", interval=_SEEDS,
        estimate=lambda r: _over_fits(r, "test loss", ("geometric", "aligned"), ("euclidean", "aligned")),
    ),
    Claim(
        paper="A flow gives networks that are new and good.",
        source="anchors of the field: interpolation of two aligned networks is the baseline that counts",
        statistic="share of novel and performant samples, geometric aligned flow less interpolation",
        direction="above", threshold=0.0,
        reason="A generator that interpolation matches has learned nothing of use; set before the run.",
        interval=_NEWCOMBE,
        estimate=lambda r: _novel(r, FLOW, INTERPOLATION),
    ),
    Claim(
        paper="A flow gives networks that are new and good.",
        source="anchors of the field: interpolation of two aligned networks is the baseline that counts",
        statistic="share of novel and performant samples, Euclidean flow on principal components less interpolation",
        direction="above", threshold=0.0,
        reason="A generator that interpolation matches has learned nothing of use; set before the run.",
        interval=_NEWCOMBE,
        estimate=lambda r: _novel(r, NEAREST, INTERPOLATION),
    ),
    Claim(
        paper="A flow has learned more of the networks than their covariance.",
        source="the cheap generators that a flow has to beat",
        statistic="share of novel and performant samples, Euclidean flow on principal components less the Gaussian on "
        "these",
        direction="above", threshold=0.0,
        reason="The flow begins as this Gaussian, so that its training has to earn its place; tries on other networks "
        "did not show it. Set before the run.",
        interval=_NEWCOMBE,
        estimate=lambda r: _novel(r, NEAREST, PRINCIPAL),
    ),
    Claim(
        paper="Pairs of one orbit are learned by a field that moves with permutations, and not by one that does not.",
        source="trap of flows over weights: the orbit of a source draw is anywhere",
        statistic="test loss of Euclidean samples with orbit couplings, field of units less perceptron, nats",
        direction="below", threshold=0.0,
        reason="Any gain counts; a try on other networks gave 0.8. Set before the run.", interval=_SEEDS,
        estimate=lambda r: _over_fits(r, "test loss", ("euclidean", "orbits, units"), ("euclidean", "orbits")),
    ),
    Claim(
        paper="Samples of the aligned geometric flow have a loss of .018.",
        source="Erdogan 2025, breast-cancer MLP; an aim",
        statistic="train loss of samples of the aligned geometric flow, nats",
        direction="below", threshold=0.018, published=0.018,
        reason="The published value, on the data that networks were trained on, since it is not said on which. The "
        "networks themselves have 0.04. Set before the run.", interval=_SEEDS,
        estimate=lambda r: _of_fits(r, "train loss", ("geometric", "aligned")),
    ),
    Claim(
        paper="They have an accuracy of .993.",
        source="Erdogan 2025, breast-cancer MLP; an aim",
        statistic="train accuracy of samples of the aligned geometric flow",
        direction="above", threshold=0.99, published=0.993,
        reason="The published value, rounded, on the data that networks were trained on. These have .990. Set "
        "before the run.", interval=_SEEDS,
        estimate=lambda r: _of_fits(r, "train accuracy", ("geometric", "aligned")),
    ),
]  # fmt: skip


TEXT = """
Flows were fitted to {networks} networks; {held out} more were held out, with which weights and functions are compared.
The published numbers do not say of which data they are. The zoo has an accuracy of {zoo train accuracy:.3f} and
{zoo train loss:.3f} nats on its training data, {zoo test accuracy:.3f} and {zoo test loss:.3f} on the held-out split.

Aligned samples are better than samples of networks as trained, and geometric ones better than Euclidean ones, as
published. The size of the losses is not: a faithful sampler gives what the networks have, and 0.018 nats are less than
half of that.

Performant is a test accuracy of {bar} or more; novel is what is farther from every training network, modulo the group,
than half of these are from their nearest one. Of a Gaussian along principal components
{generators[principal][novel and performant]:.0%} of the draws are both, and of no flow as many. The geometric flow
gives its training networks back: {generators[geometric, aligned][memorised]:.0%} of its samples are nearer to one than
99 % of these are to each other. Interpolations and soups are good networks and none is novel.

This is the run of an earlier form of the study, with fewer flows and tables; what it did not measure the verdicts say.
"""


@study(
    name="flows-cancer-samples",
    title="Networks sampled by flows: a small MLP",
    reference="Erdogan 2025, Geometric flow models over neural network weights; the thesis, chapter 3",
    paper="""
    Samples of flows over the weights of MLPs 30-16-16-2 on the breast-cancer data have accuracies and losses of
    .998 and .101 (Euclidean), .998 and .070 (aligned), .993 and .053 (with optimal transport), .993 and .027
    (normalized), .992 and .019 (geometric), .993 and .018 (geometric, aligned); optimised networks .992 and .048.
    """,
    presets={"quick": QUICK, "small": SMALL, "paper": replace(SMALL, fits=5, steps=4000)},
    claims=CLAIMS,
    text={"small": TEXT},
    tables={
        "flows": """
    Mean accuracy and loss (nats) of samples, on the data that networks were trained on and on the held-out split.
    """,
        "generators": "On the held-out split; distances modulo permutations, signs and scales.",
        "solvers": "Means of samples by the number of Euler steps, from the same draws of the source.",
    },
    figure=lambda results: _figure(results),
    caption="""
    a: test loss of samples, one dot a fit; the line is the zoo. b: novel and performant samples of each generator. c:
    test loss by the number of Euler steps.
    """,
)
def run(config: Config, context: Context) -> Findings:
    """Flows of all kinds on one zoo, their samples on both parts of the data, and the honest scores."""
    everything = config.zoo.trained(context).last
    model, sym = config.zoo.built()
    data = context.data(str(config.zoo.data["name"]))
    count = config.zoo.count - config.held_out
    stack, unseen = chosen(everything, slice(0, count)), chosen(everything, slice(count, None))
    loss = task_loss(model, (data.train.x, data.train.y))
    rows: list[list[Scalar]] = []
    flows: dict[str, Flow] = {}
    kinds = [", ".join(kind) for kind in config.kinds]

    def kind(name: str) -> None:
        geometry, way = name.split(", ", 1)
        for seed in range(1 if WAYS[way].once else config.fits):
            flow = fitted(config, sym, stack, geometry, way, context.seed * 1000 + seed)
            flows.setdefault(name, flow)
            drawn = flow.sample(config.samples, _generator(context, name, seed))
            guided = flow.sample(config.samples, _generator(context, name, seed), loss=loss, strength=config.guidance)
            rows.append(
                [
                    geometry,
                    way,
                    seed,
                    *measured(model, data.train, drawn),
                    *measured(model, data.test, drawn),
                    measured(model, data.train, guided)[1],
                    measured(model, data.test, guided)[1],
                ]
            )

    in_turn(context, "flows", kinds, kind)
    zoo = measure_zoo(
        model,
        sym,
        stack,
        (data.test.x, data.test.y),
        held_out=unseen,
        calibration=(data.train.x, data.train.y),
        show=False,
    )
    scores, guided = _scores(config, context, model, data, stack, unseen, zoo, flows)
    solved = _solved(config, context, model, data, {n: f for n, f in flows.items() if n.endswith("aligned")})
    own = [measured(model, part, stack) for part in (data.train, data.test)]
    longer = _longer(config, context, model, data)
    likely = _likelihoods(context, stack, unseen, flows)
    tables = {
        "flows": Table(_COLUMNS, rows),
        "generators": Table(_SCORED, [_row(name, one) for name, one in scores.items()]),
        "distributions": Table(_DISTANCES, [_apart(name, one) for name, one in scores.items()]),
        "likelihoods": Table(("density", "of", *_LIKELY), likely),
        "guidance": Table(_GUIDED, guided),
        "training": Table(("epochs", *_PARTS), longer),
        "solvers": Table(("flow", "Euler steps", *_SOLVED), solved),
    }
    return Findings(
        numbers={
            "networks": count, "samples": config.samples, "scored": config.scored, "fits": config.fits,
            "bar": config.bar, "held out": config.held_out, "guidance": config.guidance,
            "strongest": max(config.strengths), "steps": config.steps,
            "zoo train accuracy": own[0][0], "zoo train loss": own[0][1],
            "zoo test accuracy": own[1][0], "zoo test loss": own[1][1],
            "least test loss": min(float(str(row[4])) for row in longer),
            "greatest test accuracy": max(float(str(row[3])) for row in longer),
        },
        tables=tables,
    )  # fmt: skip


def _scores(
    config: Config,
    context: Context,
    model: nn.Module,
    data: Dataset,
    stack: Stack,
    unseen: Stack,
    zoo: MeasuredZoo,
    flows: Mapping[str, Flow],
) -> tuple[dict[str, SampleScores], list[list[Scalar]]]:
    """Honest scores of flows and of cheap generators on aligned networks, and what guidance adds to one of each."""
    loss = task_loss(model, (data.train.x, data.train.y))
    best = flows[NEAREST]
    sets: dict[str, Stack] = {
        name: flow.sample(config.scored, _generator(context, f"scores {name}", 0))
        for name, flow in flows.items()
        if not name.endswith(("as trained", "orbits", "orbits, longer"))
    }
    aligned = best.canonical(stack)
    options: dict[str, dict[str, Any]] = {"soup": {"count": min(16, counted(stack))}}
    options = {name: one for name, one in options.items() if name in config.generators}
    sets |= cheap_samples(aligned, config.scored, seed=context.seed, generators=config.generators, options=options)
    sets[OTHERS] = unseen
    sets[f"{OTHERS}, in the span"] = in_the_span(best, aligned, best.canonical(unseen))

    def score(networks: Stack) -> SampleScores:
        return score_against(zoo, networks, bar=config.bar, show=False)

    scores = in_turn(context, "scores", list(sets), lambda name: score(sets[name]))
    guided: list[list[Scalar]] = []
    for strength in config.strengths:
        made = {
            NEAREST: best.sample(
                config.scored, _generator(context, f"scores {NEAREST}", 0), loss=loss, strength=strength
            ),
            _ALONE: descended(best, sets[PRINCIPAL], loss, strength),
        }
        for name, networks in made.items():
            found = score(networks)
            both = [number for part in (data.train, data.test) for number in measured(model, part, networks)]
            guided.append([name, strength, *both, found.novel_and_performant, float(found.novel.double().mean())])
    return scores, guided


def _likelihoods(context: Context, stack: Stack, unseen: Stack, flows: Mapping[str, Flow]) -> list[list[Scalar]]:
    """Mean log-likelihoods per weight of held-out networks, with their errors, by each measure of its own."""
    rows: list[list[Scalar]] = []
    for geometry, measure in (("euclidean", "by weights"), ("geometric", "by the volume of the spheres")):
        own = {name: flow for name, flow in flows.items() if name.startswith(f"{geometry}, aligned")}
        for name, flow in own.items():
            logs = flow.log_prob(flow.canonical(unseen), trace="hutchinson", probes=2, seed=context.seed)
            rows.append([measure, name, *per_weight(logs.detach(), flow.frame.space.size)])
    flow = flows[NEAREST]
    aligned, there = flow.canonical(stack), flow.canonical(unseen)
    for name, q in (("gaussian", fitted_gaussian(aligned)), ("noise", noisy_networks(aligned))):
        rows.append(["by weights", name, *per_weight(q.log_prob(there).double(), flow.frame.space.size)])
    return rows


def descended(flow: Flow, networks: Stack, loss: NetworkLoss, strength: float) -> Stack:
    """Networks after the gradient of a loss was followed alone, as long and as strongly as in a guided flow."""

    def downhill(t: Tensor, rows: Tensor) -> Tensor:
        with torch.enable_grad():
            leaves = rows.detach().clone().requires_grad_()
            (gradient,) = torch.autograd.grad(loss(flow.frame.networks(leaves)).sum(), leaves)
        return -strength * gradient

    start = flow.frame.back(networks)
    return flow.frame.networks(
        integrate(flow.frame.path_space, downhill, start, solver=flow.solver, differentiable=False)
    )


def _solved(
    config: Config, context: Context, model: nn.Module, data: Dataset, flows: Mapping[str, Flow]
) -> list[list[Scalar]]:
    """Losses by the number of steps that samples took, from the same draws of the source, guided or not."""
    loss = task_loss(model, (data.train.x, data.train.y))
    found: list[list[Scalar]] = []
    guides: tuple[dict[str, Any], ...] = ({}, {"loss": loss, "strength": config.guidance})
    with context.progress("solvers", len(flows) * len(config.grids)) as bar:
        for name, flow in flows.items():
            for steps in config.grids:
                numbers: list[Scalar] = []
                for guide in guides:
                    drawn = flow.sample(
                        config.samples, _generator(context, f"solver {name}", 0), solver=Solver("euler", steps), **guide
                    )
                    both = [measured(model, part, drawn) for part in (data.train, data.test)]
                    numbers += [both[0][1], both[1][0], both[1][1]]
                found.append([name, steps, *numbers])
                bar.advance(note=name)
    return found


def _longer(config: Config, context: Context, model: nn.Module, data: Dataset) -> list[list[Scalar]]:
    """Mean accuracies and losses of networks that are trained on, on both parts of the data."""
    zoo = config.longer.trained(context)
    epochs = [*config.longer.snapshots, config.longer.recipe["epochs"]]
    stacks = [*(zoo.snapshots[step] for step in sorted(zoo.snapshots)), zoo.last]
    return [
        [number, *(value for part in (data.train, data.test) for value in measured(model, part, stack))]
        for number, stack in zip(epochs, stacks, strict=True)
    ]


_SCORED = (
    "generator", "accuracy", "loss", "loss, factor refitted", "novel and performant", "from", "to", "novel",
    "memorised", "distance ratio", "JSD", "spread",
)  # fmt: skip
_DISTANCES = (
    "generator", "energy, weights", "energy, functions", "mean discrepancy, weights", "mean discrepancy, functions",
)  # fmt: skip


def _row(name: str, one: SampleScores) -> list[Scalar]:
    known = one.evaluation
    refitted = known.refitted
    return [
        name,
        float(known.measures.nanmean()),
        float(known.losses.nanmean()),
        None if refitted is None else float(refitted.nanmean()),
        one.novel_and_performant,
        *one.interval,
        float(one.novel.double().mean()),
        float(one.memorised.double().mean()),
        one.distance_ratio,
        one.divergence,
        one.spread,
    ]


def _apart(name: str, one: SampleScores) -> list[Scalar]:
    return [name, *(each[part].value for each in (one.energy, one.discrepancy) for part in ("weights", "functions"))]


_PARTS = ("train accuracy", "train loss", "test accuracy", "test loss")
_ALONE = f"{PRINCIPAL}, then the gradient alone"
_GUIDED = ("generator", "strength", *_PARTS, "novel and performant", "novel")
_SOLVED = (
    "train loss", "test accuracy", "test loss", "train loss, guided", "test accuracy, guided", "test loss, guided",
)  # fmt: skip
_LIKELY = ("nats per weight", "standard error")


def _figure(results: Results) -> "Figure":
    from coset.figures import label_panel, new_figure

    flows, generators, solvers = (
        [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        for table in (results.tables[name] for name in ("flows", "generators", "solvers"))
    )
    ways = [way for way in WAYS if any(row["permutations"] == way for row in flows)]
    figure = new_figure(7.6, 2.9)
    left, middle, right = figure.subplots(1, 3)
    colours = dict(zip(GEOMETRIES, ("C0", "C1", "C2"), strict=True))
    for row in flows:
        geometry = str(row["geometry"])
        place = ways.index(str(row["permutations"])) + 0.2 * (GEOMETRIES.index(geometry) - 1)
        left.plot(place, float(str(row["test loss"])), "o", color=colours[geometry], markersize=3)
    left.axhline(float(str(results.numbers["zoo test loss"])), color="0.6", linewidth=0.8)
    left.set_yscale("log")
    left.set_xticks(range(len(ways)), ways, fontsize=6, rotation=90)
    for geometry, colour in colours.items():
        left.plot([], [], "o", color=colour, markersize=3, label=geometry)
    left.legend(fontsize=6, frameon=False)
    label_panel(left, "a", "test loss, nats")
    names = [str(row["generator"]) for row in generators]
    shares = [float(str(row["novel and performant"])) for row in generators]
    middle.barh(range(len(names)), shares, color="C0", height=0.6)
    middle.set_yticks(range(len(names)), names, fontsize=6)
    middle.invert_yaxis()
    label_panel(middle, "b", "novel and performant")
    for name in dict.fromkeys(str(row["flow"]) for row in solvers):
        own = [row for row in solvers if row["flow"] == name]
        right.plot(
            [float(str(row["Euler steps"])) for row in own], [float(str(row["test loss"])) for row in own],
            "o-", markersize=2.5, linewidth=0.8, color=colours[name.split(", ")[0]],
        )  # fmt: skip
    right.set_xscale("log", base=2)
    right.set_xlabel("Euler steps")
    label_panel(right, "c", "test loss, nats")
    return figure
