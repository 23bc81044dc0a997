"""How long alignment takes against the width: posteriors, and points."""

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coset.alignment import align
from coset.distribution import Delta, MeanField
from coset.study import Context, Findings, Scalar, Table, study
from coset.study.images import Images, load_images
from coset_studies.rossi._mlps import DATA, INFERENCE, LAYERS, Layers
from coset_studies.rossi._pairs import Inference, Pair, pair_of
from coset_studies.rossi.width import WIDTHS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MINUTE = 60.0


@dataclass(frozen=True)
class Config:
    """``depth`` hidden layers of each of ``widths``; every alignment is timed ``repeat`` times."""

    images: Images
    depth: int
    widths: tuple[int, ...]
    inference: Inference
    repeat: int = 5


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
    outcome = f"""
    At width {{widest}} aligning posteriors takes {widest["posteriors"]:.2f} s, aligning their means as points
    {widest["points"]:.2f} s, {{ratio:.2f}} times as long for posteriors (medians of {config.repeat}, with the
    relaxation that is the default). {_verdict(slowest, widest)}
    """
    return Findings(
        numbers=numbers,
        tables={"seconds": _table(found)},
        outcome=outcome,
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


def _verdict(slowest: float, widest: Mapping[str, float]) -> str:
    first = "As in the paper, it" if slowest < MINUTE else "Unlike in most cases of the paper, it"
    longer = widest["posteriors"] > widest["points"]
    second = "as there" if longer else "unlike there"
    return (
        f"{first} takes {slowest:.2g} s at most; posteriors take {'longer' if longer else 'no longer'} than points in "
        f"the widest network, {second}."
    )


def _table(found: Mapping[int, Mapping[str, list[float]]]) -> Table:
    rows: list[list[Scalar]] = []
    for width, one in found.items():
        row: list[Scalar] = [width]
        for times in one.values():
            row += [statistics.median(times), min(times), max(times)]
        rows.append(row)
    columns = ("width", "posteriors, s", "least", "most", "points, s", "least", "most")
    return Table(columns, rows, "Seconds of one alignment: median, least and most.")


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
