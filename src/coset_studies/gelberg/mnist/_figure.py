"""The figure of the study of symmetrized VI on MNIST."""

import statistics
from typing import TYPE_CHECKING

from coset_studies.gelberg.mnist._fits import OTHER_NOISE, PLAIN
from coset_studies.gelberg.mnist._report import Found

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FLOOR = 1e-16
"""Gradients below this are drawn here: it is where rounding begins."""


def draw(found: Found) -> "Figure":
    """Accuracies, what is left of them at equal seeds, and the course of training."""
    from coset.figures import label_panel, new_figure

    figure = new_figure(9.0, 6.4)
    panels = figure.subplots(2, 2)
    _accuracies(panels[0, 0], found)
    _differences(panels[0, 1], found)
    _exchanges(panels[1, 0], found)
    _gradients(panels[1, 1], found)
    titles = ("Test accuracy", "Difference to MFVI at the same seed", "The best exchange of two units",
              "Gradient of what symmetrization adds")  # fmt: skip
    for axes, letter, title in zip(panels.flat, "abcd", titles, strict=True):
        label_panel(axes, letter, title)
    return figure


def _places(found: Found, count: int, number: int) -> list[float]:
    """One place beside each width."""
    return [index + 0.7 * ((number + 0.5) / count - 0.5) for index in range(len(found.widths))]


def _accuracies(axes: "Axes", found: Found) -> None:
    from coset.figures import INK, PALETTE

    names = [name for name in found.names if name != OTHER_NOISE]
    for number, (name, colour) in enumerate(zip(names, PALETTE, strict=False)):
        at = _places(found, len(names), number)
        rows = {
            x: found.rows[width, name] for x, width in zip(at, found.widths, strict=True) if (width, name) in found.rows
        }
        spread = [statistics.stdev(row.accuracies) if len(row.scores) > 1 else 0.0 for row in rows.values()]
        means = [row.mean("accuracy") for row in rows.values()]
        axes.errorbar(list(rows), means, spread, fmt="o", color=colour, label=name)
        published = [found.published.get(name, {}).get(width) for width in found.widths]
        known = [(x, pair[0]) for x, pair in zip(at, published, strict=True) if pair is not None]
        label = "paper" if name == PLAIN and known else None
        axes.plot([x for x, _ in known], [y for _, y in known], "x", color=INK, ms=4, zorder=3, label=label)
    _widths(axes, found)
    axes.set_ylabel("accuracy, %")
    axes.legend(loc="lower right")


def _differences(axes: "Axes", found: Found) -> None:
    from coset.figures import GREY, INK, PALETTE

    names = found.names[1:]
    for number, (name, colour) in enumerate(zip(names, [*PALETTE[1 : len(names)], GREY], strict=True)):
        for x, width in zip(_places(found, len(names), number), found.widths, strict=True):
            first = width == found.widths[0]
            values = found.differences(width, name) if (width, name) in found.rows else []
            axes.plot([x] * len(values), values, "o", color=colour, alpha=0.8, label=name if first else None)
            paper = found.published_difference(width, name)
            if paper is not None:
                spread = found.published[name][width][1]
                label = "paper" if first and number == 0 else None
                axes.errorbar([x], [paper], [spread], fmt="x", color=INK, ms=4, lw=0.8, label=label)
    _widths(axes, found)
    axes.set_ylabel("points")
    axes.legend(ncols=2)


def _widths(axes: "Axes", found: Found) -> None:
    axes.set_xticks(range(len(found.widths)), [str(width) for width in found.widths])
    axes.set_xlabel("hidden units")


def _exchanges(axes: "Axes", found: Found) -> None:
    from coset.figures import PALETTE

    for (std, moments), colour in zip(found.courses.items(), PALETTE, strict=False):
        steps = [moment.step for moment in moments]
        axes.plot(steps, [-moment.exchange for moment in moments], "o-", color=colour, label=f"from σ = {std:g}")
    _steps(axes, found)
    axes.set(yscale="log", ylabel="−E[Δ], nats")
    axes.legend()


def _gradients(axes: "Axes", found: Found) -> None:
    from coset.figures import GREY, PALETTE

    for (std, moments), colour in zip(found.courses.items(), PALETTE, strict=False):
        steps = [moment.step for moment in moments]
        for line, label, values in (
            ("o-", f"guided, σ = {std:g}", [moment.guided for moment in moments]),
            ("s--", f"uniform, σ = {std:g}", [moment.uniform for moment in moments]),
        ):
            axes.plot(steps, [max(value, FLOOR) for value in values], line, ms=3, color=colour, label=label)
    axes.axhline(1, color=GREY, lw=1.0)
    _steps(axes, found)
    axes.set(yscale="log", ylabel="largest entry")
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 0.12))


def _steps(axes: "Axes", found: Found) -> None:
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xlabel(f"steps ({found.steps_per_epoch} an epoch)")
    axes.set_xlim(-0.1, 1.5 * max(moment.step for moments in found.courses.values() for moment in moments))
