"""Claims, text and figure of the study of group orders."""

import math
from functools import partial
from typing import TYPE_CHECKING

from coset.study import Claim, Estimate, Results
from coset_studies._shared.reading import Record, near, record, records

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE_MLP = "MLP 784-512-512-512-10"
_EXACT = "Counts of what was discovered have no error; logarithms are exact to 1e-9 of their size."


def _log_order(results: Results) -> Estimate:
    value = results.numbers["mlp_log10_order"]
    assert isinstance(value, float)
    return near(value, 1e-9 * value)


def _scales(results: Results, architecture: str) -> Estimate | None:
    row = record(results, "orders", {"architecture": architecture})
    return None if row is None else near(row["scales"], 0.0)


def _largest_ratio(results: Results) -> Estimate:
    value = results.numbers["largest_ratio"]
    assert isinstance(value, float)
    return near(value, 1e-9 * value)


CLAIMS = [
    Claim(
        paper="An MLP with hidden widths d_i has d₁!⋯d_{L−1}! equivalent weight vectors.",
        source="Gelberg et al. 2024, section 2",
        statistic=f"{WIDE_MLP}: log₁₀ of the order of the group of permutations and signs that was discovered",
        direction="equal within",
        published=3 * math.lgamma(513) / math.log(10),
        threshold=1e-3,
        reason="One permutation more or fewer would change the logarithm by more.",
        interval=_EXACT,
        possible=(0.0, math.inf),
        estimate=_log_order,
    ),
    *(
        Claim(
            paper=paper,
            source="Godfrey et al. 2022, section 3 and E.9",
            statistic=f"{architecture}: free scales that were discovered",
            direction="equal within",
            published=published,
            threshold=0.5,
            reason="A count.",
            interval=_EXACT,
            possible=(0.0, math.inf),
            estimate=partial(_scales, architecture=architecture),
        )
        for architecture, published, paper in (
            ("Myrtle CNN", 960, "One positive scale for every ReLU channel."),
            ("Myrtle CNN, BatchNorm", 1920, "A second scale where batch normalisation stands before the ReLU."),
        )
    ),
    Claim(
        paper="In wide networks with one hidden layer equivalent modes are close to one another.",
        source="Gelberg et al. 2024, theorem 3.1",
        statistic="log|P|/D, P the permutations, D the weights: the largest of all architectures and widths here",
        direction="above",
        threshold=1.0,
        reason="The bound of theorem 3.1 is 2D/log|P|·‖ω‖, and no two points of an orbit are farther apart than 2‖ω‖.",
        interval=_EXACT,
        possible=(0.0, math.inf),
        estimate=_largest_ratio,
    ),
]
TEXT = """
Every group was discovered from the model itself and verified on a random element of it (permutations, scales and signs
together) in float64: outputs differ by at most {largest_error:.1e} of their size.

An MLP with three layers of 512 units has 10^{mlp_log10_order:.0f} equivalent weight vectors, ResNet20 with FRN
10^{resnet20_frn_log10_permutations:.0f} by permutations alone. With signs FRN has more than batch normalisation,
because its ε stands under an absolute value. In a residual network each convolution into a stream has a scale of its
own before its norm, but all share the stream's units: {resnet20_batch_scales} scales in ResNet20 with batch
normalisation.

Theorem 3.1 says nothing of these networks: for the MLP with 100 hidden units its bound is {bound_of_100_units:.0f}‖ω‖.
The study gelberg-modes measures how far the nearest equivalent mode is.
"""
TABLES = {
    "orders": "Sizes of the groups; error: largest relative change of an output under a random element.",
}
CAPTION = """
(a) Digits of the number of equivalent weight vectors, by permutations and with signs. (b) The same against the width,
with log|P|/D below (P: permutations): theorem 3.1 says something only above the dashed line.
"""


def draw(results: Results) -> "Figure":
    """Orders of all architectures; orders and log|P|/D against the width."""
    from coset.figures import new_figure

    figure = new_figure(10.0, 3.9)
    grid = figure.add_gridspec(3, 2, width_ratios=(1.45, 1.0))
    _draw_architectures(figure.add_subplot(grid[:, 0]), records(results, "orders"))
    upper = figure.add_subplot(grid[:2, 1])
    _draw_widths(upper, figure.add_subplot(grid[2, 1], sharex=upper), records(results, "widths"))
    return figure


def _draw_architectures(axes: "Axes", rows: list[Record]) -> None:
    from coset.figures import BLUE, VERMILION, label_panel

    ordered = sorted(rows, key=lambda row: row["log₁₀ permutations"])
    for place, row in enumerate(ordered):
        digits, signed = row["log₁₀ permutations"], row["log₁₀ with signs"]
        axes.plot([1, digits], [place, place], color=BLUE, lw=1.0, alpha=0.35)
        label = "with signs" if place == 0 else None
        axes.plot(signed, place, "o", mfc="none", color=VERMILION, ms=6.5, label=label)
        axes.plot(digits, place, "o", color=BLUE, ms=4, label="permutations" if place == 0 else None)
    axes.set_yticks(range(len(ordered)), [row["architecture"] for row in ordered])
    axes.set_xscale("log")
    axes.set_xlim(1, 1e5)
    axes.set_xlabel("digits of the number of equivalent weight vectors, log₁₀|G|")
    axes.grid(visible=False, axis="y")
    axes.legend(loc="lower right")
    label_panel(axes, "a", "Equivalent weight vectors of one network")


def _draw_widths(axes: "Axes", below: "Axes", rows: list[Record]) -> None:
    from coset.figures import BLUE, GREEN, GREY, label_panel

    for kind, colour in zip(dict.fromkeys(row["architecture"] for row in rows), (BLUE, GREEN), strict=True):
        own = [row for row in rows if row["architecture"] == kind]
        widths = [row["width"] for row in own]
        axes.plot(widths, [row["log₁₀ permutations"] for row in own], "o-", color=colour, label=kind)
        below.plot(widths, [row["log|P|/D"] for row in own], "o-", color=colour)
    axes.set_yscale("log")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.tick_params(labelbottom=False)
    axes.set_ylabel("log₁₀|G|")
    axes.legend(loc="upper left")
    label_panel(axes, "b", "Wider networks have more of them")
    below.axhline(1, color=GREY, ls=(0, (4, 2)), lw=1.0)
    below.set_yscale("log")
    below.set_ylabel("log|P| / D")
    below.set_xlabel("width")
