"""The figure of the study of nearest equivalent modes: distances of networks, and of posteriors in deviations."""

from typing import TYPE_CHECKING

from coset.study import Results
from coset_studies._shared.reading import Record, records

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DEPTHS = {1: "one hidden layer", 2: "two hidden layers"}
STYLES = ("o-", "s--", "^:", "D-.")
"""Settings by marks and lines; the number of points by colour."""
CAPTION = """
(a) Distance to the nearest equivalent mode, mean and standard deviation over seeds, and the bounds for one hidden
layer; grey: 2, which no distance exceeds. (b) The likeliest exchange of two units under mean-field posteriors, in their
deviations, by training points and settings of the inference (bars: over seeds where there are several). Shaded: the
thresholds below which a mean field and a full covariance fit two equal Gaussians best from halfway.
"""


def draw(results: Results) -> "Figure":
    """Distances over ‖ω‖ with their bounds; the likeliest exchanges with the thresholds."""
    from coset.figures import label_panel, new_figure

    left, right = (figure := new_figure(10.0, 4.0)).subplots(1, 2)
    _draw_networks(left, results)
    _draw_posteriors(right, results)
    label_panel(left, "a", "The nearest equivalent mode")
    label_panel(right, "b", "The likeliest exchange under a mean field")
    for axes, label, table in ((left, "‖ω − g·ω‖ / ‖ω‖", "networks"), (right, "distance, σ", "posteriors")):
        ticks = sorted({row["units"] for row in records(results, table)})
        axes.set(xscale="log", yscale="log", xlabel="hidden units", ylabel=label)
        axes.set_xticks(ticks, list(map(str, ticks)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.tick_params(which="minor", labelbottom=False, labelleft=False)
    left.legend(loc="center right", bbox_to_anchor=(1.0, 0.62))
    right.legend()
    return figure


def _draw_networks(axes: "Axes", results: Results) -> None:
    from coset.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION

    one = records(results, "networks", **{"hidden layers": 1})
    for column, label, colour in (("2D/log|G|", "2D/log|G| (theorem 3.1)", VERMILION), ("2/√(n − 1)", None, GREEN)):
        axes.plot([r["units"] for r in one], [r[column] for r in one], "--", color=colour, label=label or column)
    axes.axhline(2, color=GREY, lw=1.0)
    for depth, colours in ((1, (ORANGE, BLUE)), (2, (PURPLE, SKY))):
        rows = records(results, "networks", **{"hidden layers": depth})
        for column, error, colour in zip(
            ("at initialisation", "trained"), ("± initialisation", "± trained"), colours, strict=True
        ):
            _bars(axes, rows, column, error, f"{DEPTHS[depth]}, {column}", colour)


def _draw_posteriors(axes: "Axes", results: Results) -> None:
    from coset.figures import PALETTE

    axes.axhspan(results.numbers["mean_field"], results.numbers["full"], color="#E8E8E8", lw=0)  # type: ignore[arg-type]
    rows = records(results, "posteriors")
    colours = dict(zip(dict.fromkeys(row["training points"] for row in rows), PALETTE, strict=False))
    styles = dict(zip(dict.fromkeys(row["inference"] for row in rows), STYLES, strict=False))
    for points, name in dict.fromkeys((row["training points"], row["inference"]) for row in rows):
        own = [row for row in rows if (row["training points"], row["inference"]) == (points, name)]
        _bars(axes, own, "distance, σ", "± seeds", f"{points:,} points, {name}", colours[points], styles[name])


def _bars(
    axes: "Axes", rows: list[Record], column: str, error: str, label: str, colour: str, style: str = "o-"
) -> None:
    errors = [row[error] for row in rows]
    known = None if None in errors else errors
    axes.errorbar([r["units"] for r in rows], [r[column] for r in rows], known, fmt=style, color=colour, label=label)
