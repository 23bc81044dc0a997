"""Claims, text and figure of the study of chains and their symmetries."""

from typing import TYPE_CHECKING

from coset.study import Claim, Estimate, Results
from coset.study.estimates import spread
from coset_studies._shared.reading import records

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIDES = {"weights": "weights as drawn", "functions": "functions", "aligned weights": "weights, aligned"}
NEAR = 1.05
"""R̂ up to here counts as near 1: about what independent draws reach by chance in so short chains."""


def _over_widths(results: Results, side: str, column: str, least: int = 0) -> Estimate | None:
    """A column of one side over the widths, from ``least`` units on."""
    rows = [row for row in records(results, "mixing", **{"R̂ of": SIDES[side]}) if row["units"] >= least]
    return spread([row[column] for row in rows])


_REASON = f"{NEAR} is about what independent draws reach by chance in chains as short as these."
_WIDTHS = (
    "From the least to the greatest of the widths, the value is their mean; one seed and one choice of points each."
)
_MODES = f"{_WIDTHS} With 3 units chains are in modes that no symmetry relates, see below."
CLAIMS = [
    Claim(
        paper="Many weights have a large R̂: the chains differ in the space of weights.",
        source="Izmailov et al. 2021, on the mixing of HMC",
        statistic="median R̂ of the weights as drawn",
        direction="above",
        threshold=NEAR,
        reason=_REASON,
        interval=_WIDTHS,
        possible=(0.0, float("inf")),
        estimate=lambda results: _over_widths(results, "weights", "median R̂"),
    ),
    Claim(
        paper="R̂ is near 1 for most predictions.",
        source="Izmailov et al. 2021, on the mixing of HMC",
        statistic=f"share of the predictions with R̂ of at most {NEAR}, %",
        direction="above",
        threshold=50.0,
        reason="Most is more than half.",
        interval=_MODES,
        possible=(0.0, 100.0),
        estimate=lambda results: _over_widths(results, "functions", f"R̂ ≤ {NEAR}, %"),
    ),
    Claim(
        paper="Not said there: that what tells chains apart on weights is the symmetry.",
        source="a question of this study",
        statistic="median R̂ of the aligned weights",
        direction="below",
        threshold=NEAR,
        reason=_REASON,
        interval=_MODES,
        possible=(0.0, float("inf")),
        estimate=lambda results: _over_widths(results, "aligned weights", "median R̂"),
    ),
    Claim(
        paper="Not said there: that what tells chains apart on weights is the symmetry.",
        source="a question of this study",
        statistic="median R̂ of the aligned weights, 5 units or more",
        direction="below",
        threshold=NEAR,
        reason=_REASON,
        interval=_WIDTHS,
        possible=(0.0, float("inf")),
        estimate=lambda results: _over_widths(results, "aligned weights", "median R̂", 5),
    ),
]
TEXT = """
A posterior has a copy of every mode for each element of the network's symmetry group. Chains in different copies
predict the same, and R̂ on weights calls them unmixed. Here each draw is also brought to one common gauge.

**{width} units.** The group of permutations and signs has {order} elements. {chains} chains of {draws} draws were in
{visited} copies and changed the copy in {switches:.0f} % of the steps. R̂ of the weights as drawn is up to
{weights_max:.2f}, by which the run would be thrown away; on functions it is at most {functions_max:.3f}, modulo
symmetry {aligned_weights_max:.3f}. The median effective sample size of a weight is {aligned_weights_ess:.0f} instead of
{weights_ess:.0f}, beside {functions_ess:.0f} on functions. What remains falls as chains grow: with the first {fewest}
draws of each the largest R̂ modulo symmetry is {aligned_weights_fewest:.2f}. That is what slow movement inside a mode
would do; that the gauge has a part in it is not excluded, for no other gauge was tried.

**{narrowest} units.** Chains in modes that the group does not relate stay apart: R̂ is up to {narrowest_functions:.2f}
on functions and {narrowest_aligned:.2f} modulo symmetry. The mean of ‖θ‖², which no permutation or sign changes, is
from {narrowest_least_norm:.0f} to {narrowest_largest_norm:.0f} over the chains. With {width} units it is from
{least_norm:.0f} to {largest_norm:.0f}.

**{widest} units.** {widest_switches:.0f} % of the steps change the copy; R̂ is {widest_weights:.2f} as drawn and
{widest_aligned:.3f} modulo symmetry.
"""
TABLES = {
    "mixing": "R̂ and effective sample sizes (ESS) of the same draws, seen in three ways.",
    "copies": "Where the chains were; ‖θ‖², the mean over a chain, is the same in all copies.",
}
CAPTION = f"""
(a) The largest R̂ (triangles) and the median (dots) of weights as drawn, of functions, and of weights modulo symmetry,
on a logarithmic scale of R̂ − 1; dashed: {NEAR}. (b) The largest R̂ of the first draws of every chain, and of all.
"""
_FLOOR, _CEILING = 1e-3, 9.0
_RHAT = r"$\hat{R}$"
"""As mathematics: the font sets a combining hat beside its letter."""


def draw(results: Results) -> "Figure":
    """R̂ by width and side, and with longer chains."""
    from coset.figures import BLUE, GREEN, VERMILION, label_panel, new_figure

    colours = dict(zip(SIDES, (VERMILION, GREEN, BLUE), strict=True))
    figure = new_figure(8.0, 3.4)
    left, right = figure.subplots(1, 2)
    widths = list(dict.fromkeys(row["units"] for row in records(results, "mixing")))
    for number, (side, title) in enumerate(SIDES.items()):
        rows = records(results, "mixing", **{"R̂ of": title})
        at = [place + 0.2 * (number - 1) for place in range(len(rows))]
        for column, mark, label in (("max R̂", "^", None), ("median R̂", "o", title)):
            left.plot(at, [_shown(row[column]) for row in rows], mark, color=colours[side], label=label)
        key = side.replace(" ", "_")
        values = [results.numbers[f"{key}_fewest"], results.numbers[f"{key}_max"]]
        right.plot([0, 1], [_shown(value) for value in values], "^-", color=colours[side], label=title)
    left.set_xticks(range(len(widths)), [f"{width} units" for width in widths])
    draws = [results.numbers[name] for name in ("fewest", "draws")]
    right.set_xticks([0, 1], [f"first {draws[0]} draws", f"all {draws[1]} draws"])
    right.set_xlim(-0.3, 1.3)
    for axes, letter, title in (
        (left, "a", f"{_RHAT} by width"),
        (right, "b", f"Longer chains, {results.numbers['width']} units"),
    ):
        _log_rhat(axes)
        label_panel(axes, letter, title)
    left.set_ylabel(_RHAT)
    left.legend(loc="lower left", bbox_to_anchor=(0.0, 1.08), ncols=3, handletextpad=0.1, columnspacing=1.0)
    return figure


def _shown(rhat: object) -> float:
    """R̂ − 1 inside the frame of the logarithmic axis."""
    assert isinstance(rhat, float)
    return min(max(rhat - 1, _FLOOR), _CEILING)


def _log_rhat(axes: "Axes") -> None:
    from coset.figures import INK

    axes.set_yscale("log")
    axes.set_ylim(0.8 * _FLOOR, _CEILING)
    marks = {0.001: "≤ 1.001", 0.01: "1.01", NEAR - 1: str(NEAR), 0.2: "1.2", 1.0: "2", 4.0: "5"}
    axes.set_yticks(list(marks), list(marks.values()))
    axes.minorticks_off()
    axes.axhline(NEAR - 1, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
