"""What Rossi et al. 2023 say of barriers, as claims on the table of barriers that most of their studies have."""

import math
from collections.abc import Callable, Sequence

from coset.study import Claim, Estimate, Results, Scalar
from coset.study.estimates import ERRORS, cell, difference, greatest, least, ratio

SPLITS = ("train", "test")
NEAR_ZERO = 0.1
"""The share of the naive barrier below which the aligned one counts as nearly none."""
FALLS = 0.9
"""A barrier that is not below this share of another one is not seen to be lower in a figure."""
NOTICEABLE = round(0.1 * math.log(10), 2)
"""A barrier in nats that counts as one."""
NO_NUMBERS = "The paper prints no numbers; the threshold was chosen when the run was known."
INTERVAL = f"""
Intervals are {ERRORS:g} Monte Carlo standard errors of the draws from the posteriors to both sides; they hold for the
one pair of networks that was measured at each setting, and say nothing of other seeds.
"""
NO_ERROR = "The statistic is of the one pair that was measured; its error is not known, and its interval is a point."


def barrier_claims(label: str, name: str, source: str, aligned_source: str) -> list[Claim]:
    """On one row of the table: a barrier without alignment, nearly none with it, smaller ones on test data."""
    return [
        naive_claim(label, name, source),
        *(share_claim(label, name, aligned_source, split) for split in SPLITS),
        Claim(
            paper="Barriers are quantifiably smaller in the test set.",
            source="section 5.1",
            statistic=f"{name}train barrier less test barrier, nats, the smaller of naive and aligned",
            direction="above",
            threshold=0.0,
            reason="Smaller is a matter of sign; the paper does not say by how much.",
            interval=INTERVAL,
            estimate=lambda results: least(
                [
                    difference(barrier(results, label, path, "train"), barrier(results, label, path, "test"))
                    for path in ("naive", "aligned")
                ]
            ),
        ),
    ]


def naive_claim(label: str, name: str, source: str, path: str = "naive") -> Claim:
    """There is a barrier on the path as it came."""
    return Claim(
        paper="Regardless of the data set, performance degrades significantly on the naive path.",
        source=source,
        statistic=f"{name}naive barrier, nats, the smaller of train and test",
        direction="above",
        threshold=NOTICEABLE,
        reason="""
        A tenth of log 10 = 2.30 nats, the loss of a network that guesses among ten classes. The paper prints no
        numbers. A barrier is never negative, so that one above 0 would be no finding. The threshold was set when
        the first run was known.
        """,
        interval=INTERVAL,
        possible=(0.0, math.inf),
        estimate=lambda results: least([barrier(results, label, path, split) for split in SPLITS]),
    )


def share_claim(
    label: str,
    name: str,
    source: str,
    split: str,
    paper: str = "With alignment there is no noticeable loss barrier, on both splits.",
) -> Claim:
    """Alignment leaves nearly nothing of the barrier."""
    return Claim(
        paper=paper,
        source=source,
        statistic=f"{name}aligned barrier as a share of the naive one, {split}",
        direction="below",
        threshold=NEAR_ZERO,
        reason="""
        The paper prints no numbers; where a tenth of the naive barrier or more is left, the aligned curve of fig. 4
        would not look flat beside the naive one. The threshold was chosen when the run was known.
        """,
        interval=INTERVAL,
        possible=(0.0, math.inf),
        estimate=lambda results: ratio(
            barrier(results, label, "aligned", split), barrier(results, label, "naive", split)
        ),
    )


def share_of_rows(
    paper: str,
    source: str,
    statistic: str,
    rows: Callable[[Results], tuple[Scalar, Scalar] | None],
    path: str,
    threshold: float | tuple[float, float],
    reason: str,
) -> Claim:
    """The barrier on ``path`` of one row as a share of that of another: of train and test the greater."""
    return Claim(
        paper=paper,
        source=source,
        statistic=f"{statistic}, the greater of train and test",
        direction="between" if isinstance(threshold, tuple) else "below",
        threshold=threshold,
        reason=reason,
        interval=INTERVAL,
        possible=(0.0, math.inf),
        estimate=lambda results: _greatest_share(results, rows(results), path),
    )


def _greatest_share(results: Results, rows: tuple[Scalar, Scalar] | None, path: str) -> Estimate | None:
    if rows is None:
        return None
    part, whole = rows
    return greatest(
        [ratio(barrier(results, part, path, split), barrier(results, whole, path, split)) for split in SPLITS]
    )


def labels(results: Results) -> list[Scalar]:
    """The first column of the table of barriers, every label once, in its order."""
    return list(dict.fromkeys(row[0] for row in results.tables["barriers"].rows))


def last_to_first(results: Results) -> tuple[Scalar, Scalar]:
    """The last label and the first: the ends of a sweep."""
    found = labels(results)
    return found[-1], found[0]


def barriers(results: Results, path: str, split: str) -> Sequence[Estimate | None]:
    """Of all labels."""
    return [barrier(results, label, path, split) for label in labels(results)]


def barrier(results: Results, label: Scalar, path: str, split: str) -> Estimate | None:
    """A barrier of the table, ± its standard errors; it is never negative."""
    what = results.tables["barriers"].columns[0]
    where = {what: label, "path": path}
    return cell(results, "barriers", f"{split} barrier, nats", where, error=f"± {split}", least=0.0)


def beside(results: Results, table: str, label: str, column: str) -> Estimate | None:
    """The cell of ``column`` in the row that begins with ``label``, ± the error in the column to the right of it."""
    found = results.tables[table]
    at = found.columns.index(column)
    for row in found.rows:
        value, error = row[at], row[at + 1]
        if row[0] == label and isinstance(value, float | int) and isinstance(error, float | int):
            half = ERRORS * float(error)
            return Estimate(float(value), max(0.0, value - half), value + half)
    return None
