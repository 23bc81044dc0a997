"""The figure of the study of the two-weight network: fig. 4, and the scan."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coset_studies.gelberg.two_weights._grid import Grid, log_normal, log_symmetrized
from coset_studies.gelberg.two_weights._report import Outcomes, Shown
from coset_studies.gelberg.two_weights._scan import ALPHAS, Orders, orders
from coset_studies.gelberg.two_weights._training import METHODS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REACH = 0.75
"""How far the densities are drawn."""


def draw(found: Outcomes, shown: Shown, epochs: int) -> "Figure":
    """Posterior, q and q^G after some epochs and at the optimum; KL against α; both scans."""
    from coset.figures import label_panel, new_figure

    figure = new_figure(11.5, 5.6)
    axes = figure.subplots(2, 4)
    grid = found.grids[shown.alpha]
    panels = {
        (0, 0): ("a", "Posterior", grid.log_density),
        (0, 1): ("b", f"MFVI, {epochs} epochs", log_normal(grid.points, *shown.runs["MFVI"])),
        (0, 2): ("c", f"SGM, {epochs} epochs", log_symmetrized(grid.points, *shown.runs["SGM (K = 2)"])),
        (1, 1): ("f", "MFVI, optimum", log_normal(grid.points, *shown.optima["MFVI"])),
        (1, 2): ("g", "SGM, optimum", log_symmetrized(grid.points, *shown.optima["SGM (K = 2)"])),
    }
    for place, (letter, title, log_density) in panels.items():
        _draw_density(axes[place], grid, log_density.exp(), shown.alpha)
        label_panel(axes[place], letter, title)
    _draw_divergences(axes[0, 3], found)
    label_panel(axes[0, 3], "d", "KL($q^G$‖posterior)")
    best = _held(orders(found.scan)).amax((2, 3))
    _draw_held(axes[1, 0], found, best)
    label_panel(axes[1, 0], "e", f"Orderings, {epochs} epochs")
    _draw_held(axes[1, 3], found, _held(orders(found.converged)))
    label_panel(axes[1, 3], "h", "Orderings, optima")
    return figure


def _held(order: Orders) -> Tensor:
    """How many of the orderings hold, (…)."""
    return torch.stack([order.error, order.total, order.plain]).sum((0, -1))


def _draw_density(axes: "Axes", grid: Grid, density: Tensor, alpha: float) -> None:
    from coset.figures import VERMILION

    inside = grid.axis.abs() <= REACH
    edge = float(grid.axis[inside].max()) + 0.5 * float(grid.axis[1] - grid.axis[0])
    square = (-edge, edge, -edge, edge)
    axes.imshow(density[inside][:, inside].T.numpy(), origin="lower", extent=square, cmap="Blues", vmin=0)
    axes.grid(False)
    axes.plot([alpha, -alpha], [-alpha, alpha], "x", color=VERMILION, ms=5, mew=1.2)
    axes.set_xticks([-0.5, 0, 0.5])
    axes.set_yticks([-0.5, 0, 0.5])
    axes.set_xlabel("w₁")
    axes.set_ylabel("w₂")


def _draw_divergences(axes: "Axes", found: Outcomes) -> None:
    from coset.figures import BLUE, GREEN, VERMILION

    for shift, (method, colour) in enumerate(zip(METHODS, (VERMILION, BLUE, GREEN), strict=True)):
        runs = torch.stack([found.runs[method, alpha].symmetrized_divergence for alpha in ALPHAS])
        places = torch.tensor(ALPHAS) + 0.008 * (shift - 1)
        axes.plot(places.numpy(), runs.numpy(), ".", color=colour, ms=3, alpha=0.45, mew=0)
        axes.plot(places.numpy(), runs.quantile(0.5, 1).numpy(), "o", color=colour, label=method)
        ends = [float(found.optima[method, alpha].symmetrized_divergence) for alpha in ALPHAS]
        axes.plot(ALPHAS, ends, color=colour, ls=(0, (4, 2)), lw=1.2)
    axes.set_yscale("log")
    axes.set_xticks(ALPHAS)
    axes.set_xlabel("α")
    axes.set_ylabel("nats")
    # Below all that is drawn there is room for the legend.
    axes.set_ylim(bottom=axes.get_ylim()[0] / 20)
    axes.legend(loc="lower left")


def _draw_held(axes: "Axes", found: Outcomes, held: Tensor) -> None:
    from coset.figures import INK

    noises, priors = found.axes.noises, found.axes.priors
    axes.imshow(held.T.numpy(), origin="lower", cmap="Blues", vmin=0, vmax=3 * len(ALPHAS), aspect="auto")
    for i in range(len(noises)):
        for j in range(len(priors)):
            many = int(held[i, j])
            colour = "white" if many > 2 * len(ALPHAS) else INK
            axes.text(i, j, str(many), ha="center", va="center", color=colour, fontsize=7.5)
    axes.set_xticks(range(len(noises)), [f"{noise:g}" for noise in noises])
    axes.set_yticks(range(len(priors)), [f"{prior:g}" for prior in priors])
    axes.grid(False)
    axes.set_xlabel("variance of the noise")
    axes.set_ylabel("variance of the prior")
