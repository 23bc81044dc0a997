"""The figure of the study of estimators: how many times smaller their errors are than those of uniform permutations."""

from typing import TYPE_CHECKING

from coset.study import Results
from coset_studies._shared.reading import Record, records

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = ("transpositions", "distance", "sequential", "exact", "sequential-path", "exact-path")
CAPTION = """
How many times smaller than that of uniform permutations the mean squared error is at equal time, against the number of
units: of I(g; ω) and of its gradient, on posteriors of two data sets. Above the line an estimator is better. The path
of a gradient does not change I.
"""


def draw(results: Results) -> "Figure":
    """A panel for each data set, and for I and its gradient."""
    from coset.figures import label_panel, new_figure

    rows = records(results, "comparison")
    data = list(dict.fromkeys(row["data"] for row in rows))
    figure = new_figure(2.3 * 2 * len(data), 3.2)
    panels = figure.subplots(1, 2 * len(data), sharey=True)
    whats = [(what, name) for what in ("I", "gradient") for name in data]
    for axes, letter, (what, name) in zip(panels, "abcdefgh", whats, strict=False):
        _panel(axes, [row for row in rows if row["data"] == name], what)
        label_panel(axes, letter, f"{'I(g; ω)' if what == 'I' else 'gradient'}, {name}")
    panels[0].set_ylabel("error of uniform / error")
    handles, labels = panels[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def _panel(axes: "Axes", rows: list[Record], what: str) -> None:
    from coset.figures import GREY, PALETTE

    units = [row["n"] for row in rows]
    for name, colour in zip(SHOWN, PALETTE, strict=False):
        if what == "I" and name.endswith("path"):
            continue
        axes.plot(units, [row[f"{name}, {what}"] for row in rows], "o-", color=colour, label=name, ms=4)
    axes.axhline(1, color=GREY, lw=0.8)
    axes.set_yscale("log")
    axes.set_xticks(units)
    axes.set_xlabel("hidden units")
