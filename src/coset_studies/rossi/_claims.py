"""What section 5.1 of Rossi et al. 2023 says of the barriers of MLPs, as claims on the table of barriers."""

import math
from collections.abc import Sequence

from coset.study import Claim, Estimate, Results
from coset_studies.rossi._report import NEAR_ZERO, SPLITS

ERRORS = 2.0
"""Half the length of an interval in standard errors."""
NOTICEABLE = round(0.1 * math.log(10), 2)
"""A barrier in nats that counts as one."""

_INTERVAL = f"""
Intervals are {ERRORS:g} Monte Carlo standard errors of the draws from the posteriors to both sides; they hold for the
one pair of posteriors that was measured, and say nothing of other seeds.
"""


def claims_on(data: str) -> list[Claim]:
    """The claims on one data set: a barrier without alignment, nearly none with it, smaller ones on test data."""
    return [
        Claim(
            paper="Regardless of the data set, performance degrades significantly on the naive path.",
            source="section 5.1, fig. 4",
            statistic=f"{data}: naive barrier, nats, the smaller of train and test",
            direction="above",
            threshold=NOTICEABLE,
            reason="""
            A tenth of log 10 = 2.30 nats, the loss of a network that guesses among ten classes. The paper prints no
            numbers. A barrier is never negative, so that one above 0 would be no finding. The threshold was set when
            the first run was known.
            """,
            interval=_INTERVAL,
            possible=(0.0, math.inf),
            estimate=lambda results: _least([_barrier(results, data, "naive", split) for split in SPLITS]),
        ),
        *(_share(data, split) for split in SPLITS),
        Claim(
            paper="Barriers are quantifiably smaller in the test set.",
            source="section 5.1",
            statistic=f"{data}: train barrier less test barrier, nats, the smaller of naive and aligned",
            direction="above",
            threshold=0.0,
            reason="Smaller is a matter of sign; the paper does not say by how much.",
            interval=_INTERVAL,
            estimate=lambda results: _least([_difference(results, data, path) for path in ("naive", "aligned")]),
        ),
    ]


def _share(data: str, split: str) -> Claim:
    named = "section 5.1, fig. 4"
    return Claim(
        paper="With alignment there is no noticeable loss barrier for MLPs, on both splits.",
        source=named if data in ("MNIST", "CIFAR-10") else f"{named}, where the text names MNIST and CIFAR10 only",
        statistic=f"{data}: aligned barrier as a share of the naive one, {split}",
        direction="below",
        threshold=NEAR_ZERO,
        reason="""
        The paper prints no numbers; where a tenth of the naive barrier or more is left, the aligned curve of fig. 4
        would not look flat beside the naive one. The threshold was chosen when the run was known.
        """,
        interval=_INTERVAL,
        possible=(0.0, math.inf),
        estimate=lambda results: _ratio(
            _barrier(results, data, "aligned", split), _barrier(results, data, "naive", split)
        ),
    )


def _barrier(results: Results, data: str, path: str, split: str) -> Estimate | None:
    """A barrier of the table, ± its standard errors; it is never negative."""
    table, row = results.tables["barriers"], {"data": data, "path": path}
    value, error = table.cell(f"{split} barrier, nats", row), table.cell(f"± {split}", row)
    if not isinstance(value, float) or not isinstance(error, float):
        return None
    return Estimate(value, max(0.0, value - ERRORS * error), value + ERRORS * error)


def _ratio(part: Estimate | None, whole: Estimate | None) -> Estimate | None:
    """All ratios of values of two intervals; None where the whole may be 0."""
    if part is None or whole is None or whole.low <= 0:
        return None
    return Estimate(part.value / whole.value, part.low / whole.high, part.high / whole.low)


def _difference(results: Results, data: str, path: str) -> Estimate | None:
    """Train less test: both have the same draws of weights, so that their errors may add."""
    train, test = (_barrier(results, data, path, split) for split in SPLITS)
    if train is None or test is None:
        return None
    return Estimate(train.value - test.value, train.low - test.high, train.high - test.low)


def _least(estimates: Sequence[Estimate | None]) -> Estimate | None:
    """The least of several, of which each lies in its interval."""
    known = [estimate for estimate in estimates if estimate is not None]
    if len(known) < len(estimates):
        return None
    return Estimate(
        min(estimate.value for estimate in known),
        min(estimate.low for estimate in known),
        min(estimate.high for estimate in known),
    )
