"""The figure of the study of mode interpolation: densities, curves against the distance, and the role of σ."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from coset_studies.gelberg.interpolation._mixture import Along, Array, at_midpoint, midpoint, settle
from coset_studies.gelberg.interpolation._runs import Curve, Fitted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DENSITIES = (2.0, 4.0, 5.0, 7.0)
"""α of the panels of densities, σ = 1."""
TICKS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Of α, where it is on a logarithmic scale."""
MARKS = ("o", "s", "^", "D")
MOST_MARKS = 30
"""On one curve; more would hide the line behind them."""


@dataclass(frozen=True, eq=False)
class Shown:
    """What is drawn.

    ``runs`` by optimizer, dimension and σ; ``fields``, the mean fields of SGD by k; ``curves``, exact descent by k;
    ``middle``, the fits halfway; the thresholds of ``descent`` and of the best fit (``switch``), in σ; and α* by σ.
    """

    runs: Mapping[tuple[str, int, float], Fitted]
    fields: Mapping[int, Fitted]
    curves: Mapping[int, Curve]
    middle: Curve
    descent: float
    switch: float
    published: Mapping[float, float]


def draw(shown: Shown) -> "Figure":
    """Densities (fig. 2) in the first row, σ = 1 (fig. 3) in the second, every σ (fig. 5) and mean fields below."""
    from coset.figures import new_figure

    figure = new_figure(10.0, 8.2)
    grid = figure.add_gridspec(3, 12, height_ratios=(0.75, 1.0, 1.0))
    first: Axes | None = None
    for index, (letter, distance) in enumerate(zip("abcd", DENSITIES, strict=True)):
        axes = figure.add_subplot(grid[0, 3 * index : 3 * index + 3], sharey=first)
        _draw_density(axes, letter, distance)
        first = axes if first is None else first
    seconds, thirds = ([figure.add_subplot(grid[row, 4 * i : 4 * i + 4]) for i in range(3)] for row in (1, 2))
    _draw_unit(seconds, shown)
    _draw_sigmas(thirds[:2], shown)
    _draw_mean_fields(thirds[2], shown)
    return figure


def _normal(x: Array, fit: Along) -> Array:
    scaled = (x - fit.mean) / fit.deviation
    return np.asarray(np.exp(-(scaled**2) / 2) / (fit.deviation * np.sqrt(2 * np.pi)))


def _draw_density(axes: "Axes", letter: str, distance: float) -> None:
    from coset.figures import BLUE, GREY, ORANGE, label_panel

    x = np.linspace(-3.5, DENSITIES[-1] + 3.5, 600)
    target = (_normal(x, Along(0.0, 1.0)) + _normal(x, Along(distance, 1.0))) / 2
    axes.fill_between(x, target, color=GREY, alpha=0.45, lw=0, label="mixture p")
    found = settle(distance)
    axes.plot(x, _normal(x, found), color=BLUE, label="q of descent")
    if not at_midpoint(distance, found):
        axes.plot(x, _normal(x, midpoint(distance)), color=ORANGE, ls=(0, (4, 2)), label="q halfway")
    axes.set_ylim(0, 0.42)
    axes.set_xlabel("x")
    if letter != "a":
        axes.tick_params(labelleft=False)
    else:
        axes.set_ylabel("density")
    if letter in "ad":
        axes.legend(loc="upper right")
    label_panel(axes, letter, f"α = {distance:g}")


def _marks(colour: str, mark: str) -> dict[str, Any]:
    return {"color": colour, "marker": mark, "ls": "", "ms": 3.0, "mew": 0.8, "mfc": "none"}


def _thinned(run: Fitted) -> slice:
    return slice(None, None, -(-len(run.distances) // MOST_MARKS))


def _broken(curve: Curve, values: Array) -> tuple[Array, Array]:
    """A curve with a gap where descent jumps from halfway to a component."""
    jumps = np.flatnonzero(np.diff(curve.interpolation) < -0.2) + 1
    return np.insert(curve.distances, jumps, np.nan), np.insert(values, jumps, np.nan)


def _draw_unit(panels: "list[Axes]", shown: Shown) -> None:
    from coset.figures import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, VERMILION, label_panel

    exact, middle = shown.curves[1], shown.middle
    lines = ((exact.interpolation, middle.interpolation), (exact.variance, middle.variance), (exact.kl, middle.kl))
    for axes, (descent, halfway) in zip(panels, lines, strict=True):
        for at, dashes in ((shown.descent, (0, (4, 2))), (shown.switch, (0, (1, 1.5)))):
            axes.axvline(at, color=GREY, lw=1.0, ls=dashes)
        axes.plot(middle.distances, halfway, color=ORANGE, ls=(0, (4, 2)), lw=1.2, label="halfway")
        axes.plot(*_broken(exact, descent), color=INK, lw=1.2, label="exact descent")
        axes.set_xlabel("α")
    unit = {
        dimension: run for (optimizer, dimension, sigma), run in shown.runs.items() if (optimizer, sigma) == ("sgd", 1)
    }
    for (dimension, run), colour, mark in zip(unit.items(), (BLUE, VERMILION, GREEN, PURPLE), MARKS, strict=False):
        kept = _thinned(run)
        style = _marks(colour, mark)
        for axes, values in zip(panels, (run.interpolation, run.determinant, run.estimate), strict=True):
            axes.plot(run.distances[kept], values[kept], label=f"SGD, d = {dimension}", **style)
    largest = float(exact.distances[-1])
    panels[0].annotate(f"{shown.descent:.2f}", (shown.descent, 0.57), (-2, 0), textcoords="offset points", ha="right")
    panels[0].annotate(f"{shown.switch:.2f}", (shown.switch, 0.57), (2, 0), textcoords="offset points")
    panels[0].set_ylim(-0.03, 0.62)
    panels[0].legend(loc="lower left")
    panels[2].set_ylim(-0.03, 1.2)
    for axes, letter, title in zip(panels, "efg", ("‖μ‖/α", "det Σ", "KL (nats)"), strict=True):
        axes.set_xlim(0, largest)
        label_panel(axes, letter, f"{title}, σ = 1")


def _draw_sigmas(panels: "list[Axes]", shown: Shown) -> None:
    from coset.figures import BLUE, GREEN, PURPLE, VERMILION, label_panel

    exact = shown.curves[1]
    sigmas = [sigma for optimizer, _, sigma in shown.runs if optimizer == "adam"]
    for sigma, colour in zip(sigmas, (BLUE, VERMILION, GREEN, PURPLE), strict=False):
        for axes, values in zip(panels, (exact.interpolation, exact.kl), strict=True):
            at, level = _broken(exact, values)
            axes.plot(sigma * at, level, color=colour, lw=1.2, label=f"σ = {sigma:g}")
        for optimizer, mark in (("sgd", "o"), ("adam", "x")):
            run = shown.runs[optimizer, 1, sigma]
            kept = _thinned(run)
            style = _marks(colour, mark)
            for axes, values in zip(panels, (run.interpolation, run.estimate), strict=True):
                axes.plot(sigma * run.distances[kept], values[kept], **style)
        panels[0].plot(shown.published[sigma], 0.57, color=colour, marker="v", ms=5, ls="")
    for axes in panels:
        axes.set_xscale("log")
        axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
        axes.minorticks_off()
        axes.set_xlabel("α")
        axes.set_xlim(min(sigmas), max(sigmas) * float(exact.distances[-1]))
    panels[0].set_ylim(-0.03, 0.72)
    panels[1].set_ylim(-0.03, 0.85)
    panels[0].legend(loc="upper left", ncols=2)
    label_panel(panels[0], "h", "‖μ‖/α for each σ")
    label_panel(panels[1], "i", "KL (nats) for each σ")


def _draw_mean_fields(axes: "Axes", shown: Shown) -> None:
    from coset.figures import BLUE, GREEN, INK, PURPLE, VERMILION, label_panel

    axes.plot(*_broken(shown.curves[1], shown.curves[1].interpolation), color=INK, lw=1.2, label="k = 1")
    for (k, run), colour, mark in zip(shown.fields.items(), (BLUE, VERMILION, GREEN, PURPLE), MARKS, strict=False):
        axes.plot(shown.curves[k].distances, shown.curves[k].interpolation, color=colour, lw=1.2, label=f"k = {k}")
        kept = _thinned(run)
        style = _marks(colour, mark)
        axes.plot(run.distances[kept], run.interpolation[kept], **style)
    axes.set_xlim(0, float(shown.curves[1].distances[-1]))
    axes.set_ylim(-0.03, 0.62)
    axes.set_xlabel("α")
    axes.legend(loc="lower left")
    label_panel(axes, "j", "‖μ‖/α, mean field, σ = 1")
