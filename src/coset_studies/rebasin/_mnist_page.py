"""Claims, text and figure of the study of barriers of MLPs before and after alignment."""

import math
from typing import TYPE_CHECKING

from coset.study import Claim, Estimate, Results
from coset.study.estimates import spread
from coset_studies._shared.reading import Record, records, slope

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("as trained", "weights, one ascent", "weights", "activations", "weights, then ste")
"""What is done before the line between the two networks is drawn; "weights" is the default method."""
NOTICEABLE = round(0.1 * math.log(10), 2)
LEFT = 0.1


def _naive(results: Results) -> Estimate | None:
    return spread([row["as trained, train"] for row in records(results, "widths")])


def _left(results: Results) -> Estimate | None:
    """What the methods leave of the naive train barrier."""
    barriers = {row["alignment"]: row["train loss barrier"] for row in records(results, "methods")}
    naive = barriers.pop(METHODS[0])
    return spread([barrier / naive if naive > 0 else None for barrier in barriers.values()])


def _exponent(results: Results) -> Estimate | None:
    """The slope of log barrier against log width; a barrier of 0 has no logarithm."""
    rows: list[Record] = [row for row in records(results, "widths") if row["aligned, train"] > 0]
    if len(rows) < 3:
        return None
    return slope([math.log(row["width"]) for row in rows], [math.log(row["aligned, train"]) for row in rows])


CLAIMS = [
    Claim(
        paper="Two networks from different seeds are apart by a high barrier of the loss.",
        source="Ainsworth et al. 2023, fig. 2",
        statistic="train barrier as trained, nats",
        direction="above",
        threshold=NOTICEABLE,
        reason="A tenth of log 10, the loss of a network that guesses among ten classes.",
        interval="As trained: from the least to the greatest of five widths, each the mean of two pairs of seeds.",
        possible=(0.0, math.inf),
        estimate=_naive,
    ),
    Claim(
        paper="Matching weights, activations, or a straight-through estimator removes it for wide MLPs.",
        source="Ainsworth et al. 2023, fig. 2",
        statistic="512 units: train barrier aligned as a share of the naive one",
        direction="below",
        threshold=LEFT,
        reason="Less than a tenth would look flat beside the naive curve; chosen when the runs were known.",
        interval="Aligned: from the least to the greatest of four methods, each the mean of two pairs of seeds.",
        possible=(0.0, math.inf),
        estimate=_left,
    ),
    Claim(
        paper="The barrier that is left falls with the width.",
        source="Ainsworth et al. 2023, fig. 5",
        statistic="exponent of the width in the aligned train barrier",
        direction="below",
        threshold=0.0,
        reason="Falling is a matter of sign.",
        interval="The exponent: least squares over five widths, Student's t with three degrees of freedom.",
        estimate=_exponent,
    ),
]
TEXT = """
Networks with three hidden layers of {width} units, trained by {recipe}; their test accuracy is {test_accuracy:.2f} %.
Over {pairs} pairs of seeds the train barrier is {as_trained_train_loss:.3f} nats as trained,
{weights_one_ascent_train_loss:.4f} after one coordinate ascent on the weights, {weights_train_loss:.4f} after the
default (with a relaxation as its start), {activations_train_loss:.4f} by activations, and
{weights_then_ste_train_loss:.4f} where the straight-through estimator goes on from the default and learns the free
scales of the group, too. Halfway the test accuracy goes from {as_trained_midpoint:.1f} % as trained to
{weights_midpoint:.1f} % with the default.

The recipe matters as much as the method. For networks of the same width trained by {other_recipe} the default leaves
{other_recipe_train_loss:.2g} nats of {other_recipe_as_trained:.3f} (one pair).

Two pairs do not tell how much barriers vary with the seeds: the intervals above are of widths and methods.
"""
TABLES = {
    "methods": "Barriers on 25 points of the line, mean over pairs of seeds.",
    "widths": "Barriers of the loss against the width, default weight matching, mean over pairs of seeds.",
}
CAPTION = """
(a) Barriers of the train and test loss on the line between two networks, by alignment. (b) The barrier of the train
loss against the width, as trained and after weight matching. Means over pairs of seeds.
"""
FLOOR = 1e-5
"""Barriers below this are drawn here."""


def draw(results: Results) -> "Figure":
    """Barriers by method and by width."""
    from coset.figures import BLUE, GREY, ORANGE, label_panel, new_figure

    figure = new_figure(9.0, 3.2)
    left, right = figure.subplots(1, 2)
    rows = records(results, "methods")
    for shift, part, colour in ((-0.12, "train", BLUE), (0.12, "test", ORANGE)):
        values = [max(row[f"{part} loss barrier"], FLOOR) for row in rows]
        left.plot(values, [place + shift for place in range(len(rows))], "o", color=colour, label=part)
    left.set_yticks(range(len(rows)), [row["alignment"] for row in rows])
    left.invert_yaxis()
    left.set_xlabel("barrier of the loss, nats")
    left.set_xscale("log")
    left.legend(loc="lower right")
    widths = records(results, "widths")
    for column, label, colour in (("as trained, train", "as trained", GREY), ("aligned, train", "aligned", BLUE)):
        values = [max(row[column], FLOOR) for row in widths]
        right.plot([row["width"] for row in widths], values, "o-", color=colour, label=label)
    right.set_xscale("log", base=2)
    right.xaxis.set_major_formatter("{x:g}")
    right.set_yscale("log")
    right.set_xlabel("width")
    right.set_ylabel("barrier of the train loss, nats")
    right.legend()
    label_panel(left, "a", "By method")
    label_panel(right, "b", "By width")
    return figure
