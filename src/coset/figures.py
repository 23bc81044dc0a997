"""How figures look: one style for all of them, legible in print and to the colour-blind, the same bytes every time."""

import io
from collections.abc import Callable
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's palette (2008), dark colours first; yellow is left out, for it fades on white.
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
INK, GREY = "#222222", "#8A8A8A"
PALETTE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)

STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.prop_cycle": cycler(color=PALETTE),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9.5,
    "errorbar.capsize": 0.0,
    "figure.dpi": 100.0,
    "figure.facecolor": "white",
    "font.family": "DejaVu Sans",  # shipped with matplotlib: the same letters on every machine
    "font.size": 8.5,
    "grid.color": "#E8E8E8",
    "grid.linewidth": 0.6,
    "legend.fontsize": 8.0,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.0,
    "lines.solid_capstyle": "round",
    "savefig.dpi": 200.0,
    "svg.fonttype": "path",
    "svg.hashsalt": "coset",
    "xtick.color": INK,
    "xtick.major.width": 0.7,
    "ytick.color": INK,
    "ytick.major.width": 0.7,
}


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches, that arranges its own margins."""
    return Figure(figsize=(width, height), layout="constrained")


def label_panel(axes: Axes, letter: str, title: str) -> None:
    """Head a panel with its letter in bold and its title, from the left."""
    axes.set_title(f"$\\bf{{({letter})}}$  {title}", loc="left")


def render(draw: Callable[[], Figure]) -> tuple[bytes, bytes]:
    """Draw in the shared style; give PNG and SVG, free of dates and versions."""
    png, svg = io.BytesIO(), io.BytesIO()
    with matplotlib.rc_context():
        # A reader's own matplotlibrc must not change the figures.
        matplotlib.rcdefaults()
        with matplotlib.rc_context(STYLE):
            figure = draw()
            figure.savefig(png, format="png", metadata={"Software": None})
            figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return png.getvalue(), svg.getvalue()
