"""How long alignment takes against the width: posteriors, and points."""

import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coset.alignment import align
from coset.distribution import Delta, MeanField
from coset.study import Claim, Context, Estimate, Findings, Results, Scalar, Table, study
from coset.study.images import Images, load_images
from coset_studies.rossi._mlps import DATA, INFERENCE, LAYERS, Layers
from coset_studies.rossi._pairs import Inference, Pair, pair_of
from coset_studies.rossi.width import WIDTHS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEXT = """
At width {widest} aligning two posteriors takes {posteriors_512:.2f} s, aligning their means as points
{points_512:.2f} s (medians of five, with the relaxation that is the default). Single runs scatter by more than the
two differ, so that five of them cannot tell which takes longer.

The paper's "less than a minute in most cases" is no claim here: it holds of networks up to a width of 2,048 there,
and at the widths of this run the slowest alignment of all takes {slowest:.1f} s. From 256 to 512 units the time is
more than doubled.
"""


@dataclass(frozen=True)
class Config:
    """``depth`` hidden layers of each of ``widths``; every alignment is timed ``repeat`` times."""

    images: Images
    depth: int
    widths: tuple[int, ...]
    inference: Inference
    repeat: int = 5


def _ratio(results: Results) -> Estimate | None:
    """Of the widest network: medians, and the ratios of the least to the most and the other way round."""
    _, median, least, most, other, other_least, other_most = (
        float(str(cell)) for cell in results.tables["seconds"].rows[-1]
    )
    return Estimate(median / other, least / other_most, most / other_least)


@study(
    name="rossi-timings",
    title="Time of alignment against the width",
    reference="Rossi et al. 2023, fig. A14 (MLP)",
    paper="""
    In most cases alignment takes less than a minute; for wide networks that of posteriors takes longer than that of
    points.
    """,
    presets={
        preset: Config(DATA[preset], len(LAYERS[preset].widths), widths, INFERENCE[preset])
        for preset, widths in WIDTHS.items()
    },
    claims=[
        Claim(
            paper="For wide networks alignment of posteriors takes longer than that of points.",
            source="fig. A14",
            statistic="time for posteriors over that for points in the widest network",
            direction="above",
            threshold=1.0,
            reason="Longer is a matter of sign.",
            interval="""
            The value is that of the medians; the interval goes from the least time of the one over the most of the
            other to the most over the least.
            """,
            possible=(0.0, math.inf),
            estimate=_ratio,
        )
    ],
    text={"small": TEXT},
    tables={"seconds": "Seconds of one alignment: median, least and most."},
)
def run(config: Config, context: Context) -> Findings:
    """The pairs of the study of widths, and their means as points."""
    data = load_images(context, config.images)
    found: dict[int, dict[str, list[float]]] = {}
    with context.progress("widths", len(config.widths)) as bar:
        for width in config.widths:
            pair = pair_of(context, data, Layers((width,) * config.depth), config.inference)
            found[width] = _timed(pair, config.repeat, context.seed)
            bar.advance(note=f"width {width}")
    medians = {width: {label: statistics.median(times) for label, times in one.items()} for width, one in found.items()}
    widest = medians[config.widths[-1]]
    slowest = max(max(times) for one in found.values() for times in one.values())
    numbers: dict[str, Scalar] = {"widest": config.widths[-1], "slowest": slowest}
    numbers |= {f"{label}_{width}": value for width, one in medians.items() for label, value in one.items()}
    numbers["ratio"] = widest["posteriors"] / widest["points"]
    return Findings(
        numbers,
        {"seconds": _table(found)},
        figure=lambda: _figure(found),
        caption="Seconds to align two posteriors, and two points, of an MLP; every run a dot, lines through medians.",
    )


def _timed(pair: Pair, repeat: int, seed: int) -> dict[str, list[float]]:
    assert isinstance(pair.first, MeanField)
    cases: dict[str, tuple[Any, Any]] = {
        "posteriors": (pair.first, pair.second),
        "points": (Delta(pair.first.mean), Delta(pair.second.mean)),
    }
    times: dict[str, list[float]] = {label: [] for label in cases}
    # In turns: what else the machine does then falls on both.
    for _ in range(repeat):
        for label, (first, second) in cases.items():
            begin = time.perf_counter()
            align(pair.sym, first, second, seed=seed, show=False)
            times[label].append(time.perf_counter() - begin)
    return times


def _table(found: Mapping[int, Mapping[str, list[float]]]) -> Table:
    rows: list[list[Scalar]] = []
    for width, one in found.items():
        row: list[Scalar] = [width]
        for times in one.values():
            row += [statistics.median(times), min(times), max(times)]
        rows.append(row)
    columns = ("width", "posteriors, s", "least", "most", "points, s", "least", "most")
    return Table(columns, rows)


def _figure(found: Mapping[int, Mapping[str, list[float]]]) -> "Figure":
    from coset.figures import BLUE, ORANGE, new_figure

    figure = new_figure(4.4, 3.2)
    axes = figure.subplots()
    for label, colour, marker, stroke in (("posteriors", BLUE, "o", "-"), ("points", ORANGE, "s", "--")):
        medians = [statistics.median(one[label]) for one in found.values()]
        axes.plot(list(found), medians, color=colour, ls=stroke, marker=marker, label=label)
        for width, one in found.items():
            axes.plot([width] * len(one[label]), one[label], ".", color=colour, alpha=0.4, ms=4)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(list(found), [str(width) for width in found])
    axes.minorticks_off()
    axes.set_xlabel("width")
    axes.set_ylabel("seconds")
    axes.legend()
    return figure
