"""Claims, text and figure of the study of midpoints between independently trained networks."""

from typing import TYPE_CHECKING

from coset.study import Claim, Estimate, Results
from coset.study.estimates import spread
from coset_studies._shared.reading import records

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALIGNMENTS = (
    "none",
    "weights, one ascent",
    "weights",
    "activations",
    "activations, then sinkhorn",
    "activations, then ste, scales as given",
    "activations, then ste",
)
RENORMALIZATIONS = ("none", "data-free", "refresh")
COLUMNS = ("no renormalisation", "data-free", "refresh")
"""The three in the table of midpoints."""
BEST = ALIGNMENTS[-1]


def _over_pairs(results: Results, alignment: str, less: str | None = None) -> Estimate | None:
    """Accuracies of the midpoints of all pairs with fresh statistics, or less those of another alignment."""
    rows = records(results, "pairs")
    return spread([row[alignment] - (0.0 if less is None else row[less]) for row in rows])


def _mended(results: Results) -> Estimate | None:
    rows = [row for row in records(results, "midpoints") if row["alignment"] != "none"]
    return spread([row["refresh"] - row["no renormalisation"] for row in rows])


def _gap(results: Results) -> Estimate | None:
    ends = results.numbers["ends"]
    assert isinstance(ends, float)
    return spread([ends - row[BEST] for row in records(results, "pairs")])


_PAIRS = "Pairs: from the least to the greatest of six pairs of four networks, the value is their mean."
_HELPS = "Helping is a matter of sign."
CLAIMS = [
    Claim(
        paper="The average of two networks trained from different seeds is no better than chance.",
        source="Ainsworth et al. 2023",
        statistic="test accuracy halfway as they are, with fresh statistics, %",
        direction="below",
        threshold=20.0,
        reason="Twice the 10 % of chance.",
        interval=_PAIRS,
        possible=(0.0, 100.0),
        estimate=lambda results: _over_pairs(results, "none"),
    ),
    Claim(
        paper="Matching units helps.",
        source="Ainsworth et al. 2023",
        statistic="test accuracy halfway, matched on weights less as they are, points",
        direction="above",
        threshold=0.0,
        reason=_HELPS,
        interval=_PAIRS,
        possible=(-100.0, 100.0),
        estimate=lambda results: _over_pairs(results, "weights", "none"),
    ),
    Claim(
        paper="What remains is largely a collapse of the variance of activations, which fresh statistics mend.",
        source="Jordan et al. 2023",
        statistic="test accuracy halfway, fresh statistics less none, points",
        direction="above",
        threshold=10.0,
        reason="A tenth of all images; the threshold was chosen when the runs were known.",
        interval="Fresh statistics: from the least to the greatest of six alignments, each the mean of six pairs.",
        possible=(-100.0, 100.0),
        estimate=_mended,
    ),
    Claim(
        paper="For narrow networks a gap stays.",
        source="Jordan et al. 2023",
        statistic="test accuracy of the ends less that halfway by the best alignment, points",
        direction="above",
        threshold=5.0,
        reason="About what Jordan et al. leave for wide networks; the threshold was chosen when the runs were known.",
        interval=_PAIRS,
        possible=(-100.0, 100.0),
        estimate=_gap,
    ),
]
TEXT = """
The {networks} networks (Tiny10, CIFAR-10) have {ends:.1f} % test accuracy, the midpoint of two as they are {naive:.1f}
%. With fresh batch-norm statistics one coordinate ascent on the weights gives {one_ascent:.1f} %, the default
{weights:.1f} %, matching activations {activations:.1f} %. A straight-through estimator that goes on from there on the
loss of the midpoint changes nothing with permutations alone ({best_as_given:.1f} %), and gives {best:.1f} % where it
also learns the free scales of the group. With statistics refreshed without data that is {best_data_free:.1f} %.

Learned scales are elements of the group: both ends keep their functions. But before a batch norm they weigh the two
networks unit by unit, and with a common factor the midpoint would lean to one of them, where any loss is low. So they
are kept within a factor of 2, with geometric mean 1 over each class; paired units differ by a factor of
{ratio_best:.2f} in norm on average ({ratio_as_given:.2f} with the scales as given). The rates of the estimator were
chosen on seeds 0 and 1.

The default from {starts} random starts gives {start_lowest:.1f} to {start_highest:.1f} % for the first pair. All
{networks} networks merged into one have {all_none:.1f} % as they are, {all_weights:.1f} % matched on the weights all at
once, and {all_best:.1f} % each brought to the first by the best method.
"""
TABLES = {
    "midpoints": """
    Test accuracy (%) of the midpoint, mean over all pairs. Lean: mean |log| of the ratio of the norms of units.
    """,
    "all": "All networks merged into one, with fresh batch-norm statistics.",
}
CAPTION = """
Test accuracy halfway between two networks; bars: mean over all pairs, dots: pairs with fresh statistics, dashed: the
networks themselves.
"""


def draw(results: Results) -> "Figure":
    """A bar for every alignment and renormalisation."""
    from coset.figures import BLUE, GREY, INK, SKY, new_figure

    figure = new_figure(8.0, 3.6)
    axes = figure.subplots()
    rows, pairs = records(results, "midpoints"), records(results, "pairs")
    shifts, colours = (-0.27, 0.0, 0.27), (GREY, SKY, BLUE)
    for shift, name, column, colour in zip(shifts, RENORMALIZATIONS, COLUMNS, colours, strict=True):
        places = [place + shift for place in range(len(rows))]
        axes.barh(places, [row[column] for row in rows], 0.25, color=colour, label=name)
    for place, row in enumerate(rows):
        values = [pair[row["alignment"]] for pair in pairs]
        axes.plot(values, [place + shifts[-1]] * len(values), ".", color=INK, ms=2.5)
    ends = results.numbers["ends"]
    assert isinstance(ends, float)
    axes.axvline(ends, color=INK, ls=(0, (4, 2)), lw=1.0)
    axes.set_yticks(range(len(rows)), [row["alignment"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("test accuracy of the midpoint, %")
    axes.grid(visible=False, axis="y")
    # On white, because the dashed line runs behind it.
    axes.legend(title="renormalisation", loc="lower right", frameon=True, framealpha=1.0, edgecolor="none")
    return figure
