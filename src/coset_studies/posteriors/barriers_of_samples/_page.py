"""Claims, text and figure of the study of barriers between draws and between dense Gaussians."""

import math
from typing import TYPE_CHECKING

from coset.study import Claim, Estimate, Results
from coset.study.estimates import cell, ratio, spread
from coset_studies._shared.reading import records

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METHODS = {"map": "MAP", "mean-field": "mean-field VI", "laplace": "dense Laplace", "sgmcmc": "SGHMC"}
NAIVE, ALIGNED, EACH, WITHIN = "naive", "aligned", "draw by draw", "within one set"
LABELS = {NAIVE: "naive", ALIGNED: "aligned", EACH: "each", WITHIN: "within"}
"""Paths, as they are called in the names of numbers."""
LOW = 0.1
"""A barrier has gone with alignment if less than this share of it is left."""


def _left(results: Results, network: str, method: str) -> Estimate | None:
    """What alignment leaves of the naive test barrier on one network."""
    naive, aligned = (
        cell(
            results, "barriers", "test barrier",
            {"hidden units": network, "method": METHODS[method], "path": path}, error="± test", least=0.0,
        )
        for path in (NAIVE, ALIGNED)
    )  # fmt: skip
    return ratio(aligned, naive)


def _left_of_draws(results: Results) -> Estimate | None:
    """The same for SGHMC over the networks: draws that depend on each other give no error of one barrier."""
    found: dict[str, dict[str, float]] = {}
    for row in records(results, "barriers", method=METHODS["sgmcmc"]):
        found.setdefault(row["hidden units"], {})[row["path"]] = row["test barrier"]
    return spread([barriers[ALIGNED] / barriers[NAIVE] if barriers[NAIVE] > 0 else None for barriers in found.values()])


_GONE = """
Less than a tenth left is what counts as no noticeable barrier in the studies of Rossi et al., too; chosen when the runs
were known.
"""
_LOWER = "All of it left is no effect of alignment."
_ERRORS = "Two Monte Carlo standard errors of the draws from both posteriors, of the one pair that was inferred."
_NETWORKS = """
SGHMC: from the least to the greatest of the three networks, the value is their mean, for draws of a chain depend on
each other and the tables hold no error of one barrier.
"""
_OPEN = "Open: whether this extends to the Laplace approximation, whose covariance is dense."
_DRAWS = "Open: whether this extends to draws as SGHMC gives them."
CLAIMS = [
    Claim(
        paper="With alignment barriers between mean-field posteriors of wide networks vanish.",
        source="section 5",
        statistic="mean-field VI, 128 and 128 units: test barrier aligned as a share of the naive one",
        direction="below",
        threshold=LOW,
        reason=_GONE,
        interval=_ERRORS,
        possible=(0.0, math.inf),
        estimate=lambda results: _left(results, "128 and 128", "mean-field"),
    ),
    *(
        Claim(
            paper=_OPEN,
            source="appendix A",
            statistic="dense Laplace, 20 units: test barrier aligned as a share of the naive one",
            direction="below",
            threshold=threshold,
            reason=reason,
            interval=_ERRORS,
            possible=(0.0, math.inf),
            estimate=lambda results: _left(results, "20", "laplace"),
        )
        for threshold, reason in ((1.0, _LOWER), (LOW, _GONE))
    ),
    *(
        Claim(
            paper=_DRAWS,
            source="appendix A",
            statistic="SGHMC, all networks: test barrier aligned as a share of the naive one",
            direction="below",
            threshold=threshold,
            reason=reason,
            interval=_NETWORKS,
            possible=(0.0, math.inf),
            estimate=_left_of_draws,
        )
        for threshold, reason in ((1.0, _LOWER), (LOW, _GONE))
    ),
]
TEXT = """
A Gaussian is aligned by its means and marginal deviations, and carries its covariance along. Draws are aligned by one
element that brings their means and deviations together, or by one for each draw.

**20 units, {data}.** Alignment lowers the barrier of every method: to {laplace_share:.0%} of the naive one for dense
Laplace and {sgmcmc_share:.0%} for SGHMC, beside {mean_field_share:.0%} for mean-field VI and {map_share:.0%} for MAP
points. So narrow a network does not align perfectly. For SGHMC an element for each draw does no better than one for all
({sgmcmc_each:.3f} and {sgmcmc_aligned:.3f} nats).

**Width.** With {widest} alignment leaves {widest_map_share:.0%} for MAP points and {widest_mean_field_share:.0%} for
mean-field VI, but {widest_sgmcmc_share:.0%} for SGHMC ({widest_sgmcmc_each:.3f} nats draw by draw, naive
{widest_sgmcmc_naive:.3f}). Chains of one set, which began at one network, are there as far apart as the sets:
{widest_w2_within:.1f} between two halves of one set, {widest_w2_naive:.1f} between the sets and {widest_w2_aligned:.1f}
once aligned (the last two by twice as many draws, which alone lowers a distance), with a barrier of
{widest_sgmcmc_within:.3f} nats. What is left is what parts draws of one network; no element for a whole set takes that
away. The dense covariance is too large for Laplace on wide networks here.
"""
TABLES = {
    "barriers": """
    Predictive log-likelihood in nats per point: the mean of both ends, and the barrier with its Monte Carlo standard
    error. Errors: the mean of both ends, and at τ = 1/2. Within one set: from one half of the chains of a seed to the
    other.
    """
}
CAPTION = """
(a-d) Predictive log-likelihood along the geodesics of the first network (solid: test, dashed: train), a panel for each
method. (e) The test barrier by the network: aligned (solid) and naive (dotted).
"""


def draw(results: Results) -> "Figure":
    """A panel with the paths for each method, and one with the barriers by network."""
    from coset.figures import label_panel, new_figure

    figure = new_figure(12.6, 3.0)
    panels = figure.subplots(1, len(METHODS) + 1)
    for axes, letter, title in zip(panels, "abcd", METHODS.values(), strict=False):
        _draw_paths(axes, results, title)
        label_panel(axes, letter, title)
        axes.set_xlabel("τ")
        axes.legend(loc="lower center")
    low = min(axes.get_ylim()[0] for axes in panels[:-1])
    for axes in panels[:-1]:
        # The legend stands below the curves.
        axes.set_ylim(1.35 * low, 0.0)
    panels[0].set_ylabel("log-likelihood (nats)")
    _draw_networks(panels[-1], results)
    label_panel(panels[-1], "e", "by network")
    return figure


def _draw_paths(axes: "Axes", results: Results, title: str) -> None:
    from coset.figures import BLUE, GREEN, GREY, VERMILION

    rows = records(results, "profiles")
    colours = {NAIVE: VERMILION, ALIGNED: BLUE, EACH: GREEN, WITHIN: GREY}
    for path, colour in colours.items():
        for part, stroke in (("test", "-"), ("train", "--")):
            column = f"{title}, {path}, {part}"
            if column in rows[0]:
                # What lies upon an aligned path must not hide it.
                width = 0.8 if path == EACH else 1.6
                label = path if part == "test" else None
                axes.plot(
                    [row["τ"] for row in rows],
                    [row[column] for row in rows],
                    color=colour,
                    ls=stroke,
                    lw=width,
                    label=label,
                )


def _draw_networks(axes: "Axes", results: Results) -> None:
    from coset.figures import PALETTE

    rows = records(results, "barriers")
    networks = list(dict.fromkeys(row["hidden units"] for row in rows))
    for number, title in enumerate(METHODS.values()):
        for path, stroke in ((NAIVE, ":"), (ALIGNED, "-")):
            own = [row for row in rows if (row["method"], row["path"]) == (title, path)]
            places = [networks.index(row["hidden units"]) for row in own]
            # A barrier of 0 has no place on a logarithmic axis.
            heights = [max(row["test barrier"], 1e-4) for row in own]
            label = title if path == ALIGNED else None
            axes.plot(places, heights, color=PALETTE[number], marker="osD^"[number], linestyle=stroke, label=label)
    axes.set_yscale("log")
    axes.set_xticks(range(len(networks)), [name.replace(" and ", "\n") for name in networks])
    axes.set_xlabel("hidden units")
    axes.set_ylabel("test barrier (nats)")
    # Beside the panel, for lines may go anywhere in it.
    axes.legend(title="aligned\n(dotted: naive)", title_fontsize=8.0, loc="center left", bbox_to_anchor=(1.0, 0.5))
