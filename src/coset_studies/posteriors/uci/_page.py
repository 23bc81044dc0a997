"""The text and the figure of the study of UCI regression."""

from typing import TYPE_CHECKING

from coset.study import Results
from coset_studies._shared.reading import Record, records

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TEXT = """
One hidden layer of {width} ReLU units, weights N(0, {gain:g}²/fan-in), the noise of the targets a parameter with a
prior of its own, {splits} splits. All settings are the same on all data sets; those of the preset small were chosen on
15 % held out of the train part of the first split of each. An ensemble of {members} maxima of the posterior comes
first. Laplace and MFVI begin at one of them, the chains of SGHMC and HMC at all. Published deep ensembles have a noise
for each input and adversarial examples; this one has neither.

**HMC** has the highest log-likelihood on every set, and the lowest RMSE. Its chains are short ({hmc_draws} draws each):
the median R̂ of a predicted value is {hmc_rhat:.2f}, that of SGHMC {sghmc_rhat:.2f}. They are mixtures over {members}
modes explored locally, not converged samples. On yacht and energy they predict better than the published ones, on
concrete and boston worse. On yacht the published log-likelihood of HMC does not go with its RMSE: a
Gaussian of that standard deviation would have {yacht_calibrated:.2f}.

**Laplace** is a posterior of the linearised network. With the same weights in the network itself the log-likelihood is
{laplace_sampled} on average over the sets.

**MFVI from scratch**, for as many steps in all, ends at an ELBO that is {scratch_elbo} per point than from a trained
network, and predicts with a log-likelihood that is {scratch}: here the ELBO is no guide to the predictions.
"""
TABLES = {
    "scores": "Test parts, in the target's own units: mean over the splits ± its standard error.",
}
CAPTION = """
Log-likelihood of the test part, nats per point in the target's own units: mean over the splits and twice its standard
error. Filled: here; hollow: published. Triangles at the edge: further left, at the number beside them.
"""


def draw(results: Results) -> "Figure":
    """A panel for each data set, a row for each method."""
    from coset.figures import label_panel, new_figure

    rows = records(results, "scores")
    data = list(dict.fromkeys(row["data"] for row in rows))
    figure = new_figure(2.4 * len(data) + 1.6, 3.4)
    panels = figure.subplots(1, len(data), squeeze=False, sharey=True)[0]
    for letter, axes, name in zip("abcd", panels, data, strict=False):
        _dots(axes, [row for row in rows if row["data"] == name])
        label_panel(axes, letter, name)
    names = [
        row["method"] if row["from"] == "here" else f"{row['method']}, published"
        for row in rows
        if row["data"] == data[0]
    ]
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    return figure


def _dots(axes: "Axes", rows: list[Record]) -> None:
    """One row a method; one that is far below all others is a triangle at the edge, with its value."""
    from matplotlib.ticker import MaxNLocator

    from coset.figures import BLUE, GREY, VERMILION

    values = [row["log-likelihood"] for row in rows]
    errors = [2 * (row["± log-likelihood"] or 0.0) for row in rows]
    lowest, *others = sorted(value - error for value, error in zip(values, errors, strict=True))
    spread = max(values) - others[0]
    low = lowest if max(values) - lowest < 2 * spread else others[0] - 0.15 * spread
    for place, (row, value, error) in enumerate(zip(rows, values, errors, strict=True)):
        colour = BLUE if row["from"] == "here" else VERMILION
        if value < low:
            text = f"{value:.2f}".replace("-", "−")
            axes.plot(low, place, "<", color=colour, clip_on=False, markersize=5)
            axes.annotate(text, (low, place), (7, 0), textcoords="offset points", va="center", fontsize=7.5)
            continue
        face = colour if row["from"] == "here" else "white"
        bar = None if row["± log-likelihood"] is None else error
        axes.errorbar(value, place, xerr=bar, fmt="o", color=colour, markerfacecolor=face, markersize=5)
    here = sum(row["from"] == "here" for row in rows)
    if here < len(rows):
        axes.axhline(here - 0.5, color=GREY, linewidth=0.7)
    axes.set_xlim(left=low - 0.07 * spread)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel("log-likelihood, nats")
    axes.tick_params(axis="y", length=0)
