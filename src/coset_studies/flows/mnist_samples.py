"""Perceptrons for handwritten digits, sampled by flows: fields, averages, another task and another width."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from coset.data import Split
from coset.flow import Flow, cheap_samples, measure_zoo, score_against
from coset.study import Claim, Context, Estimate, Findings, Results, Table, study
from coset_studies.flows._mnist_config import (
    ALONE,
    FIRST,
    GUIDED,
    INTERPOLATION,
    OTHERS,
    QUICK,
    SHARP,
    SMALL,
    Config,
    told,
)
from coset_studies.flows._mnist_parts import (
    GUIDED_COLUMNS,
    by_the_task,
    of_averages,
    of_disturbed,
    of_fewer,
    of_guidance,
    of_likelihood,
    of_memory,
    of_starts,
    of_width,
    to_the_first,
)
from coset_studies.flows._sampled import SCORED, difference_of_shares, of_rows, scored, within
from coset_studies.flows._stored_flows import stored_flow
from coset_studies.flows._zoos import Stack, chosen, counted, in_turn

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_REASON = (
    "The best published value; set before the run. Settings of flows were explored on the same zoo and its last 5,000 "
    "training images, those of guidance on the first 2,000 test images."
)


def _claim(
    paper: str, statistic: str, direction: str, threshold: float, published: float | None, estimate: Any, **told: str
) -> Claim:
    return Claim(
        paper=paper, source="Erdogan 2025, MNIST MLP 784-10-10; the thesis, chapter 3", statistic=statistic,
        direction=direction, threshold=threshold, published=published,
        reason=told.get("reason", _REASON),
        interval=told.get("interval", "1.96 standard errors over samples."), estimate=estimate,
    )  # fmt: skip


def _groups(results: Results) -> Estimate | None:
    table = results.tables["averages"]
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    values = [float(str(row["accuracy"])) for row in rows if row["flow"] == FIRST and row["networks"] == row["most"]]
    return within(values) if values else None


def _behind(results: Results, name: str) -> Estimate | None:
    found = of_rows(results, "generators", "accuracy", "standard error", generator=name)
    zoo = results.numbers.get("zoo accuracy")
    if found is None or zoo is None:
        return None
    return Estimate(*(float(str(zoo)) - value for value in (found.value, found.high, found.low)))


CLAIMS = [
    _claim(
        "A sample of a flow has an accuracy of .737 to .786.",
        f"test accuracy of one sample of the flow {FIRST!r}", "above", 0.79, 0.786,
        lambda r: of_rows(r, "generators", "accuracy", "standard error", generator=FIRST),
    ),
    _claim(
        "A sample of a flow has an accuracy of .737 to .786.",
        f"test accuracy of one sample of {SHARP!r}", "above", 0.79, 0.786,
        lambda r: of_rows(r, "generators", "accuracy", "standard error", generator=SHARP),
    ),
    _claim(
        "A sample of a flow has an accuracy of .737 to .786.",
        f"test accuracy of one sample of the flow {GUIDED!r} by the loss on training data", "above", 0.79, 0.786,
        lambda r: of_rows(r, "generators", "accuracy", "standard error", generator=GUIDED),
    ),
    _claim(
        "Averages of 64 samples have .877 to .94.",
        f"test accuracy of the averaged predictions of 64 samples of the flow {FIRST!r}", "above", 0.93, 0.94, _groups,
        interval="From the least to the greatest of disjoint groups of samples.",
        reason="Averages of the zoo itself are not much higher; set before the run.",
    ),
    *(
        _claim(
            "Optimised networks have .933, samples at the best .786.",
            f"test accuracy of the zoo less that of one sample of {name!r}", "below", 0.03, 0.147,
            lambda r, name=name: _behind(r, name),
            reason="Three points are a fifth of the published distance; set before the run.",
        )
        for name in (FIRST, SHARP)
    ),
    *(
        _claim(
            "A flow gives networks that are new and good.",
            f"share of novel and performant samples, {one!r} less {other}", "above", 0.0, None,
            lambda r, one=one, other=other: difference_of_shares(r, "generators", "novel and performant", one, other),
            reason="A generator that interpolation matches has learned nothing of use; set before the run.",
            interval="95 %, normal approximation over samples.",
        )
        for one in (FIRST, SHARP)
        for other in (INTERPOLATION, "principal", "soup")
    ),
    _claim(
        "A flow gives networks that are new and good.",
        f"share of novel and performant samples, the flow {GUIDED!r} less interpolation", "above", 0.0, None,
        lambda r: difference_of_shares(r, "generators", "novel and performant", GUIDED, INTERPOLATION),
        reason="A generator that interpolation matches has learned nothing of use; set before the run.",
        interval="95 %, normal approximation over samples.",
    ),
    _claim(
        "A flow gives networks that are new and good.",
        f"share of novel and performant samples, the flow {GUIDED!r} less {ALONE}", "above", 0.0, None,
        lambda r: difference_of_shares(r, "generators", "novel and performant", GUIDED, ALONE),
        reason="What guidance does without the field is no merit of the flow; set when an earlier run was known.",
        interval="95 %, normal approximation over samples.",
    ),
    _claim(
        "Guided by the loss on Fashion-MNIST, samples of a flow over MNIST networks have .724 to .754 there.",
        "Fashion-MNIST test accuracy of guided samples, at the strength with the least training loss", "above", 0.76,
        0.754, lambda r: of_rows(r, "guided", "test accuracy", "standard error", chosen=True),
    ),
    _claim(
        "A flow over width 10 samples networks of width 32 with an accuracy of .203 to .890.",
        f"test accuracy of one sample of width 32 of the flow {FIRST!r}", "above", 0.89, 0.89,
        lambda r: of_rows(
            r, "width", "accuracy", "standard error", networks=f"width {r.numbers['width']}", scale="as sampled"
        ),
    ),
]  # fmt: skip

TEXT = """
Flows are fitted to {networks} networks, {held out} more are held out; the zoo has a test accuracy of {zoo accuracy:.4f}
and a loss of {zoo loss:.3f}. Performant is a network with a test accuracy of {bar} or more. Starts on Fashion-MNIST are
to reach a loss of {reach}. "c" is the contrast with which samples are drawn, "τ" the temperature; without either they
are draws of the flow.

Two things decide about a sample. The first are the coordinates: most of the variance of weights lies where images have
none, so that principal components of weights miss what a unit answers; components by inputs do not ("units, by
weights" beside "units, by inputs, orbits" and the last row of the table of fewer networks, all with {steps} steps). The
second is training: the flow "units, by inputs" has several times as many steps, and its samples are better for it; more
networks bring held-out losses down, too. Why a sample is no network of the zoo the table of what explains it says: the
components that the flow reads would do, and an error of a fifth of the deviations of units costs as much as the flow
lacks. Contrast and low temperature make up for most of that, and have a price: at a low temperature samples are nearer
to training networks than held-out networks are, at a high contrast they are farther and vary more. Without either they
are as far as held-out networks: this is not memory.

Averages of the zoo itself are hardly above those of the flow, and bound them. Guidance by the task is mostly what its
gradient does alone; on Fashion-MNIST the flow adds to it. Novelty is told by {compared} of the networks, so that most
copies with noise on them ("noise") pass for novel: their column is to be read with that in mind, and the table of
distances to all networks is the measure of memory.
"""


@study(
    name="flows-mnist",
    title="Perceptrons for MNIST, sampled by flows",
    reference="Erdogan 2025, Geometric flow models over neural network weights; the thesis, chapter 3",
    paper="""
    Samples of flows over MLPs 784-10-10 have MNIST accuracies of .737 (Euclidean), .753 (normalized) and .786
    (geometric, with optimal transport), optimised networks .933; averages of 64 samples .877 to .94. Guided by the loss
    on Fashion-MNIST samples have .754, .724 and .730 there; samples of width 32, without retraining, .826, .203, .890.
    """,
    presets={"quick": QUICK, "small": SMALL, "paper": replace(SMALL, steps=10_000)},
    claims=CLAIMS,
    text={"small": TEXT},
    figure=lambda results: _figure(results),
    caption="""
    a: test accuracy of samples, mean and deviation; the grey line is the zoo. b: novel and performant samples. c:
    accuracy of averaged predictions by the number of networks.
    """,
)
def run(config: Config, context: Context) -> Findings:
    """Flows with several fields on one zoo, and what the first of them does beyond its samples."""
    everything = config.zoo.trained(context).last
    model, sym = config.zoo.built()
    data = context.data(str(config.zoo.data["name"]), flatten=True)
    count = counted(everything) - config.held_out
    stack, unseen = chosen(everything, slice(0, count)), chosen(everything, slice(count, None))
    some = Split(data.train.x[:1000], data.train.y[:1000])
    inputs = data.train.x[:20_000]
    zoo = measure_zoo(
        model, sym, stack, (data.test.x, data.test.y), held_out=unseen, calibration=(some.x, some.y),
        compared=min(config.compared, count), seed=context.seed, show=False,
    )  # fmt: skip
    flows: dict[str, Flow] = {}
    sets: dict[str, Stack] = {}

    def fit(name: str) -> None:
        kind = config.kinds[name]
        flows[name], _ = stored_flow(context, config.zoo, kind, sym, stack, config.steps, config.batch_size, inputs)
        sets[name] = flows[name].sample(config.samples, context.generator(f"samples {name}"))

    in_turn(context, "flows", list(config.kinds), fit)
    for contrast, temperature in config.settings:
        sets[told(contrast, temperature)] = flows[FIRST].sample(
            config.samples, context.generator(f"samples {FIRST}"), contrast=contrast, temperature=temperature
        )
    sets |= by_the_task(config, context, model, data.train, flows[FIRST])
    aligned = to_the_first(sym, stack)
    options = {"soup": {"count": min(16, count)}}
    sets |= cheap_samples(aligned, config.samples, seed=context.seed, options=options)
    sets[OTHERS] = unseen
    scores = in_turn(
        context, "scores", list(sets), lambda name: score_against(zoo, sets[name], bar=config.bar, show=False)
    )
    averages = of_averages(
        config, model, data.test, {name: sets[name] for name in (*flows, SHARP, GUIDED)} | {"zoo": stack}
    )
    first = flows[FIRST]
    guided = of_guidance(config, context, model, first)
    wide = of_width(config, context, first, data.test)
    starts = of_starts(config, context, model, first, stack)
    explained = of_disturbed(config, context, model, data.test, first, unseen)
    fewer = of_fewer(config, context, sym, model, data.test, stack, inputs)
    likely = of_likelihood(config, flows, unseen)
    memory = of_memory(config, sym, stack, {FIRST: sets[FIRST], SHARP: sets[SHARP], OTHERS: unseen})
    generators = [scored(name, one) for name, one in scores.items()]
    return Findings(
        numbers={
            "compared": min(config.compared, count),
            "networks": count, "held out": config.held_out, "samples": config.samples, "bar": config.bar,
            "steps": config.steps, "zoo accuracy": float(zoo.evaluation.measures.mean()), "width": config.width,
            "zoo loss": float(zoo.evaluation.losses.mean()), "reach": config.reach,
        },
        tables={
            "generators": Table(SCORED, generators, _GENERATORS),
            "averages": Table(("flow", "networks", "most", "group", "accuracy"), averages, _AVERAGES),
            "guided": Table(GUIDED_COLUMNS, guided, _GUIDANCE),
            "width": Table(("networks", "scale", "accuracy", "standard error", "averaged"), wide, _WIDTH),
            "starts": Table(("start", "steps to the loss", "loss at first", "loss at last"), starts, _STARTS),
            "likelihood": Table(("flow", "nats per weight", "standard error"), likely, _LIKELY),
            "explained": Table(("networks", "amount", "accuracy", "standard error"), explained, _EXPLAINED),
            "fewer": Table(("networks", "steps", "loss", "held out", "accuracy", "standard error"), fewer, _FEWER),
            "memory": Table(("networks", "nearest", "least", "nearer than others"), memory, _MEMORY),
        },
    )  # fmt: skip


_GENERATORS = (
    "On the test data. Distances modulo permutations and scales. Cheap generators: on networks aligned to the first."
)
_AVERAGES = "Test accuracy of averaged predictions, the mean over groups, and each group of the most networks."
_GUIDANCE = "Samples guided by the loss on batches of Fashion-MNIST; chosen: the strength with the least training loss."
_WIDTH = "Networks of another width, without training."
_STARTS = "Adam on Fashion-MNIST, on the same batches from every start: steps until the mean loss of all is low enough."
_LIKELY = "Log-likelihood of held-out networks in nats per weight, by weights; in the frame of each flow."
_EXPLAINED = (
    "Held-out networks of which only so many components of units are kept, and all else is drawn from the Gaussian of "
    "units; or all of which has an error, relative to the deviations of units."
)
_FEWER = "The first flow by the number of networks, a tenth of which are held out; losses of flow matching."
_MEMORY = (
    "Distances modulo the group to the nearest of all training networks: median, least, and the share that is nearer "
    "than half of the held-out networks are."
)


def _figure(results: Results) -> "Figure":
    from coset.figures import label_panel, new_figure

    generators, averages = (results.tables[name].rows for name in ("generators", "averages"))
    samples, zoo = (float(str(results.numbers[name])) for name in ("samples", "zoo accuracy"))
    figure = new_figure(7.6, 3.6)
    left, middle, right = figure.subplots(1, 3)
    rows = [dict(zip(SCORED, row, strict=True)) for row in generators]
    names = [str(row["generator"]) for row in rows]
    own = [name for name in dict.fromkeys(str(row[0]) for row in averages) if name != "zoo"]
    # There are six colours; what comes after them has broken lines.
    looks = {name: (f"C{number % 6}", "-" if number < 6 else "--") for number, name in enumerate(own)}
    for place, row in enumerate(rows):
        value, spread = (float(str(row[column])) for column in ("accuracy", "standard error"))
        colour, line = looks.get(names[place], ("0.5", "-"))
        (_, _, (bar,)) = left.errorbar(
            [value], [place], xerr=[spread * samples**0.5], fmt="o", color=colour, markersize=2.5, linewidth=1
        )
        bar.set_linestyle(line)
    left.axvline(zoo, color="0.6", linewidth=0.8)
    left.set_yticks(range(len(names)), names, fontsize=6)
    left.invert_yaxis()
    label_panel(left, "a", "test accuracy")
    shares = [float(str(row["novel and performant"])) for row in rows]
    middle.barh(range(len(names)), shares, color="0.5", height=0.6)
    middle.set_yticks(range(len(names)), [""] * len(names))
    middle.set_ylim(left.get_ylim())
    label_panel(middle, "b", "novel and performant")
    for name in (*own, "zoo"):
        points = [row for row in averages if row[0] == name and row[3] == 0]
        colour, line = looks.get(name, ("0.6", "-"))
        right.plot([float(str(r[1])) for r in points], [float(str(r[4])) for r in points], line, marker="o",
                   markersize=2, linewidth=0.8, label=name, color=colour)  # fmt: skip
    right.set_xscale("log", base=2)
    right.set_ylim(0, 1)
    right.set_xlabel("networks")
    right.legend(fontsize=5, frameon=True, framealpha=0.9, edgecolor="none", loc="lower right")
    label_panel(right, "c", "accuracy, averaged")
    return figure
