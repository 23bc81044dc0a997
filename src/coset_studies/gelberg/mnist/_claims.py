"""What table 1 of Gelberg et al. 2024 says of averaging over permutations, as claims on fits of equal seeds."""

from functools import partial

from coset.study import Claim, Estimate, Results
from coset_studies._shared.reading import over_seeds, record

LARGEST = "K = 20"
PUBLISHED = {
    "MFVI": {5: (88.379, 0.023), 10: (93.217, 0.022), 20: (94.836, 0.025), 30: (95.432, 0.023)},
    "K = 5": {5: (88.423, 0.027), 10: (93.221, 0.021), 20: (94.899, 0.035), 30: (95.534, 0.033)},
    "K = 10": {5: (88.405, 0.034), 10: (93.220, 0.023), 20: (94.896, 0.026), 30: (95.540, 0.025)},
    "K = 20": {5: (88.408, 0.026), 10: (93.221, 0.027), 20: (94.905, 0.024), 30: (95.552, 0.023)},
}
"""Test accuracy and its standard deviation, %, by method and hidden units: table 1."""


def gain(width: int, method: str = LARGEST) -> float:
    """The published accuracy less that of MFVI, in points."""
    return PUBLISHED[method][width][0] - PUBLISHED["MFVI"][width][0]


def _difference(results: Results, width: int, method: str) -> Estimate | None:
    """The accuracy of a method less that of MFVI of the same seed, over the seeds."""
    row = record(results, "same-seed", {"units": width, "method": method})
    if row is None or row["± seeds"] is None:
        return None
    return over_seeds(row["difference, points"], row["± seeds"], row["of"])


_PAIRED = """
Intervals are of the mean over seeds of paired differences, MFVI and the other method from the same initial weights,
batches and noise: Student's t with 3 seeds. Where all fits of a method are those of MFVI the interval is the point 0.
"""

CLAIMS = [
    *(
        Claim(
            paper="Averaging over permutations improves the accuracy, the more the wider the network.",
            source="table 1",
            statistic=f"{width} units: accuracy with {LARGEST} less that of MFVI, points",
            direction="above",
            threshold=gain(width) / 2,
            published=gain(width),
            reason="Half of the published difference.",
            interval=_PAIRED,
            possible=(-100.0, 100.0),
            estimate=partial(_difference, width=width, method=LARGEST),
        )
        for width in (20, 30)
    ),
    Claim(
        paper="Averaging over permutations improves the accuracy, the more the wider the network.",
        source="table 1, where the estimator is another",
        statistic="30 units: accuracy with permutations that are drawn by the weights less that of MFVI, points",
        direction="above",
        threshold=gain(30) / 2,
        published=gain(30),
        reason="Half of the published difference.",
        interval=_PAIRED,
        possible=(-100.0, 100.0),
        estimate=lambda results: _difference(results, 30, "better estimator"),
    ),
]
