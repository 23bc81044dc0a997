"""Planes as a figure."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from coset.errors import InputError
from coset.landscape._plane import Plane

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

VALUES: dict[str, Callable[[Plane], Tensor]] = {
    "log-likelihood": lambda plane: plane.log_likelihood,
    "log-prior": lambda plane: plane.log_prior,
    "log-posterior": lambda plane: plane.log_posterior,
}
LEVELS = 12


def plot_plane(
    plane: Plane,
    *,
    values: Sequence[str] = tuple(VALUES),
    labels: Sequence[str] = ("$\\theta_0$", "$\\theta_1$", "$\\theta_2$"),
) -> "Figure":
    """A panel for each of ``values``, with the three networks under ``labels`` and the samples as dots.

    Contours lie at top − depth·(k/12)², k = 0, …, 12, from the largest value down to the least: close to each other
    where values are large, where all three networks are, and far apart below. Both axes have one scale.
    """
    if not values or any(name not in VALUES for name in values):
        raise InputError(f"values is {values!r}; expected some of {', '.join(VALUES)}")
    if len(labels) != len(plane.coordinates):
        raise InputError(f"labels has {len(labels)}; expected one for each of {len(plane.coordinates)} networks")
    # matplotlib takes long to import, and only this needs it.
    from coset.figures import label_panel, new_figure, styled

    extent = [float(axis[-1] - axis[0]) for axis in (plane.s, plane.t)]
    # Tall or flat planes get a figure to suit, within reason.
    height = 1.35 + min(4.5, max(1.4, 2.7 * extent[1] / extent[0]))
    with styled():
        figure = new_figure(0.4 + 2.9 * len(values), height)
        for number, name in enumerate(values):
            axes = figure.add_subplot(1, len(values), number + 1)
            _contours(axes, plane, VALUES[name](plane))
            _mark(axes, plane, labels)
            label_panel(axes, "abc"[number % 3], name)
            if number == 0:
                axes.set_ylabel("t")
            else:
                axes.tick_params(labelleft=False)
    return figure


def _contours(axes: "Axes", plane: Plane, values: Tensor) -> None:
    from matplotlib.colors import BoundaryNorm

    top, bottom = float(values.max()), float(values.min())
    # A plane without slopes, but for rounding, still has colours.
    depth = top - bottom if top - bottom > 1e-9 * abs(top) else 1.0
    levels = [top - depth * (k / LEVELS) ** 2 for k in range(LEVELS, -1, -1)]
    s, t, z = plane.s.numpy(), plane.t.numpy(), values.numpy()
    filled = axes.contourf(s, t, z, levels=levels, cmap="cividis", norm=BoundaryNorm(levels, 256))
    axes.contour(s, t, z, levels=levels, colors="white", linewidths=0.3, linestyles="solid")
    axes.set_aspect("equal")
    axes.grid(visible=False)
    axes.set_xlabel("s")
    ticks = levels[:: LEVELS // 3]
    bar = axes.figure.colorbar(filled, ax=axes, orientation="horizontal", ticks=ticks, shrink=0.85, aspect=24)
    bar.set_label("nats per data point")
    bar.minorticks_off()
    # As many decimals as tell the ticks nearest to each other apart.
    decimals = max(0, 1 - math.floor(math.log10(depth)))
    bar.ax.set_xticklabels([f"{tick:.{decimals}f}".replace("-", "−") for tick in ticks])


def _mark(axes: "Axes", plane: Plane, labels: Sequence[str]) -> None:
    from matplotlib.patheffects import withStroke

    from coset.figures import INK, VERMILION

    if len(plane.samples):
        axes.plot(*plane.samples.mT.numpy(), ls="", marker=".", ms=5, color="white", mec=INK, mew=0.5)
    axes.plot(*plane.coordinates.mT.numpy(), ls="", marker="o", ms=6, color=VERMILION, mec=INK, mew=0.9)
    for label, (s, t) in zip(labels, plane.coordinates.tolist(), strict=True):
        halo = [withStroke(linewidth=2, foreground="white")]
        axes.annotate(label, (s, t), (6, 6), textcoords="offset points", path_effects=halo)
