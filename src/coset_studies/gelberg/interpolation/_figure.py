"""The figure of the study of mode interpolation: curves against the distance, thresholds by σ, and mean fields."""

from typing import TYPE_CHECKING

from coset.study import Results
from coset_studies._shared.reading import records
from coset_studies.gelberg.interpolation._claims import PUBLISHED_SLOPE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CAPTION = """
σ = 1 in (a) and (b). (a) How far the fitted Gaussian is from the component where descent starts, as a share of α:
halfway is 0.5. (b) Its KL. Vertical lines: α at which descent stops ending halfway (dashed), and at which the best
Gaussian changes over (dotted). (c) The threshold over σ. (d) Mean fields: α/σ below which halfway is a minimum, if u is
spread over k coordinates.
"""


def draw(results: Results) -> "Figure":
    """‖μ‖/α and KL against α; thresholds by σ; thresholds of mean fields."""
    from coset.figures import label_panel, new_figure

    figure = new_figure(9.0, 5.6)
    panels = figure.subplots(2, 2)
    _curves(panels[0, 0], panels[0, 1], results)
    _thresholds(panels[1, 0], results)
    _mean_fields(panels[1, 1], results)
    titles = ("‖μ‖/α", "KL, nats", "Threshold over σ", "Halfway is a minimum for a mean field")
    for axes, letter, title in zip(panels.flat, "abcd", titles, strict=True):
        label_panel(axes, letter, title)
    return figure


def _curves(left: "Axes", right: "Axes", results: Results) -> None:
    from coset.figures import BLUE, GREY, INK, ORANGE, VERMILION

    rows = records(results, "curves")
    alphas = [row["α"] for row in rows]
    for axes in (left, right):
        for name, dashes in (("descent", (0, (4, 2))), ("switch", (0, (1, 1.5)))):
            axes.axvline(results.numbers[name], color=GREY, lw=1.0, ls=dashes)  # type: ignore[arg-type]
        axes.set_xlabel("α")
    left.axhline(0.5, color=ORANGE, ls=(0, (4, 2)), lw=1.2, label="halfway")
    right.plot(alphas, [row["KL halfway"] for row in rows], color=ORANGE, ls=(0, (4, 2)), lw=1.2, label="halfway")
    for column, axes in (("‖μ‖/α", left), ("KL", right)):
        # Descent jumps from halfway to a component: no line leads across.
        jump = next((i for i, row in enumerate(rows) if row["‖μ‖/α"] < 0.25), len(rows))
        for part, label in ((slice(0, jump), "exact descent"), (slice(jump, None), None)):
            axes.plot(alphas[part], [row[column] for row in rows[part]], color=INK, lw=1.2, label=label)
        drawn = [name for name in rows[0] if name.startswith(f"{column}, ")]
        for name, colour, mark in zip(drawn, (BLUE, VERMILION), "o^", strict=False):
            label = f"SGD, {name.removeprefix(f'{column}, ')}"
            axes.plot(alphas, [row[name] for row in rows], mark, color=colour, ms=4, mfc="none", label=label)
    left.set_ylim(-0.03, 0.6)
    left.legend(loc="lower left")
    right.set_ylim(-0.03, 1.2)


def _thresholds(axes: "Axes", results: Results) -> None:
    from coset.figures import BLUE, GREEN, GREY, INK

    rows = records(results, "thresholds")
    places = range(len(rows))
    axes.axhline(PUBLISHED_SLOPE, color=GREY, lw=1.0, label="paper")
    axes.plot(places, [row["descent, exact"] / row["σ"] for row in rows], "_", color=INK, ms=16, label="exact descent")
    timed = [row["SGD's time, exact"] / row["σ"] for row in rows]
    axes.plot(places, timed, "_", color=BLUE, ms=16, label="exact, stopped with SGD")
    for name, colour, mark in (("SGD, 1-d", BLUE, "o"), ("Adam, 1-d", GREEN, "x")):
        found = [(at, row[name] / row["σ"]) for at, row in zip(places, rows, strict=True) if row[name] is not None]
        axes.plot([at for at, _ in found], [value for _, value in found], mark, color=colour, label=name[:-5])
    axes.set_xticks(places, [f"{row['σ']:g}" for row in rows])
    axes.set_xlabel("σ")
    axes.set_ylim(3.8, 5.4)
    axes.legend(loc="lower left")


def _mean_fields(axes: "Axes", results: Results) -> None:
    from coset.figures import BLUE

    rows = [row for row in records(results, "mean-field") if row["halfway a minimum below"] is not None]
    places = range(len(rows))
    axes.plot(places, [row["halfway a minimum below"] for row in rows], "o", color=BLUE)
    axes.set_xticks(places, [str(row["coordinates that share u"]) for row in rows])
    axes.set_xlabel("k, coordinates that share u")
    axes.set_ylabel("α/σ")
    axes.set_ylim(2.5, 4.0)
