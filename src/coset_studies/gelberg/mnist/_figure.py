"""The figure of the study of symmetrized VI on MNIST."""

from typing import TYPE_CHECKING

from coset.study import Results
from coset_studies._shared.reading import Record, records

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FLOOR = 1e-16
"""Gradients below this are drawn here: it is where rounding begins."""
CAPTION = """
(a) Test accuracy: means and standard deviations over seeds; crosses: the paper. (b) Accuracy less that of MFVI of the
same seed, in points; crosses: the paper; grey: MFVI with the same initial weights and batches, but other noise. (c) How
far the best exchange of two units is below the identity, −E[Δ] in nats, while MFVI is trained from some initial σ. (d)
The largest entry of the gradient of what symmetrization adds, where that of the entropy is 1 (grey line): permutations
drawn uniformly (dashed) and by the weights (lines); what is below 1e-16 is drawn there.
"""


def draw(results: Results) -> "Figure":
    """Accuracies, what is left of them at equal seeds, and the course of training."""
    from coset.figures import label_panel, new_figure

    figure = new_figure(9.0, 6.4)
    panels = figure.subplots(2, 2)
    _accuracies(panels[0, 0], records(results, "accuracy"))
    _differences(panels[0, 1], records(results, "same-seed"))
    course, last = records(results, "course"), results.numbers["steps_per_epoch"]
    _exchanges(panels[1, 0], course)
    _gradients(panels[1, 1], course)
    for axes in panels[1]:
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xlabel(f"steps ({last} an epoch)")
        axes.set_xlim(-0.1, 1.5 * max(row["step"] for row in course))
    titles = ("Test accuracy", "Difference to MFVI at the same seed", "The best exchange of two units",
              "Gradient of what symmetrization adds")  # fmt: skip
    for axes, letter, title in zip(panels.flat, "abcd", titles, strict=True):
        label_panel(axes, letter, title)
    return figure


def _methods(axes: "Axes", rows: list[Record], colours: list[str], column: str, published: str) -> None:
    """A mark with its deviation for each method beside each width, and the paper's as crosses."""
    from coset.figures import INK

    widths, names = (list(dict.fromkeys(row[key] for row in rows)) for key in ("units", "method"))
    for number, (name, colour) in enumerate(zip(names, colours, strict=False)):
        own = [row for row in rows if row["method"] == name]
        at = [widths.index(row["units"]) + 0.7 * ((number + 0.5) / len(names) - 0.5) for row in own]
        spread = [row["± seeds"] or 0.0 for row in own]
        axes.errorbar(at, [row[column] for row in own], spread, fmt="o", color=colour, label=name)
        known = [(x, row[published]) for x, row in zip(at, own, strict=True) if row[published] is not None]
        label = "paper" if number == 0 and known else None
        axes.plot([x for x, _ in known], [y for _, y in known], "x", color=INK, ms=4, zorder=3, label=label)
    axes.set_xticks(range(len(widths)), [str(width) for width in widths])
    axes.set_xlabel("hidden units")


def _accuracies(axes: "Axes", rows: list[Record]) -> None:
    from coset.figures import PALETTE

    _methods(axes, rows, list(PALETTE), "accuracy, %", "paper, %")
    axes.set_ylabel("accuracy, %")
    axes.legend(loc="lower right")


def _differences(axes: "Axes", rows: list[Record]) -> None:
    from coset.figures import GREY, PALETTE

    count = len({row["method"] for row in rows})
    _methods(axes, rows, [*PALETTE[1:count], GREY], "difference, points", "paper's difference")
    axes.set_ylabel("points")
    axes.legend(ncols=2, loc="lower right")


def _exchanges(axes: "Axes", course: list[Record]) -> None:
    from coset.figures import PALETTE

    for std, colour in zip(dict.fromkeys(row["initial σ"] for row in course), PALETTE, strict=False):
        own = [row for row in course if row["initial σ"] == std]
        values = [-row["E[Δ], nats"] for row in own]
        axes.plot([row["step"] for row in own], values, "o-", color=colour, label=f"from σ = {std:g}")
    axes.set(yscale="log", ylabel="−E[Δ], nats")
    axes.legend()


def _gradients(axes: "Axes", course: list[Record]) -> None:
    from coset.figures import GREY, PALETTE

    for std, colour in zip(dict.fromkeys(row["initial σ"] for row in course), PALETTE, strict=False):
        own = [row for row in course if row["initial σ"] == std]
        for line, column, label in (("o-", "gradient, guided", "by the weights"),
                                    ("s--", "gradient, uniform", "uniform")):  # fmt: skip
            values = [max(row[column], FLOOR) for row in own]
            steps = [row["step"] for row in own]
            axes.plot(steps, values, line, ms=3, color=colour, label=f"{label}, σ = {std:g}")
    axes.axhline(1, color=GREY, lw=1.0)
    axes.set(yscale="log", ylabel="largest entry")
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 0.12))
