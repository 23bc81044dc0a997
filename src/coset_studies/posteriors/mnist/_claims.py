"""What is published on mean-field VI on MNIST, as claims on accuracies and errors."""

from functools import partial

from coset.study import Claim, Estimate, Results
from coset.study.estimates import difference
from coset_studies._shared.reading import deviation_factor, over_seeds, record, records, share

PUBLISHED = {5: 88.38, 10: 93.22, 20: 94.84, 30: 95.43}
"""Test accuracy of mean-field VI with one hidden layer (Gelberg et al. 2024, table 1), %."""
IMAGES = 10_000
"""Of the test part of MNIST."""
BACKPROP = {400: 1.82, 800: 1.99, 1200: 2.04}
"""Test error with two hidden layers and a Gaussian prior (Blundell et al. 2015, table 1), %."""


def _off(results: Results, width: int) -> Estimate | None:
    """The accuracy less the published one."""
    row, seeds = record(results, "one-hidden-layer", {"hidden units": width}), results.numbers["seeds"]
    assert isinstance(seeds, int)
    if row is None:
        return None
    return over_seeds(row["accuracy, %"] - PUBLISHED[width], row["± training seeds"], seeds)


def _least_deviation(results: Results) -> Estimate | None:
    """The least of the deviations over seeds: an interval that each width's own contains is too short at its ends."""
    rows, seeds = records(results, "one-hidden-layer"), results.numbers["seeds"]
    assert isinstance(seeds, int)
    value = min(row["± training seeds"] for row in rows)
    low, high = (deviation_factor(seeds, quantile) for quantile in (0.025 / len(rows), 1 - 0.025 / len(rows)))
    return Estimate(value, low * value, high * value)


def _error(results: Results, width: int) -> Estimate | None:
    value = results.numbers.get(f"wide_error_{width}")
    if not isinstance(value, float):
        return None
    wrong = share(value / 100, IMAGES)
    return Estimate(value, 100 * wrong.low, 100 * wrong.high)


_SEEDS = "Accuracies: of the mean over training seeds, by Student's t."
_IMAGES = f"Errors of two layers: of one seed, the binomial error of {IMAGES:,} test images."
CLAIMS = [
    *(
        Claim(
            paper=f"Test accuracy of mean-field VI with one hidden layer of {width} units: {published} %.",
            source="Gelberg et al. 2024, table 1",
            statistic=f"{width} units: test accuracy less the published one, points",
            direction="between",
            threshold=(-1.0, 1.0),
            reason="""
            A point is about what the prior and the initial deviations change, which the paper does not print. Here they
            were chosen on these accuracies, all widths together.
            """,
            interval=_SEEDS,
            possible=(-100.0, 100.0),
            estimate=partial(_off, width=width),
        )
        for width, published in PUBLISHED.items()
    ),
    Claim(
        paper="What is printed beside an accuracy is its standard deviation over 10 runs with different seeds.",
        source="Gelberg et al. 2024, caption of table 1",
        statistic="the least standard deviation over training seeds, of all widths, points",
        direction="below",
        published=0.025,
        threshold=0.05,
        reason="Twice the largest that table 1 prints for mean-field VI, 0.025 points.",
        interval="""
        The deviation: by χ² with 9 degrees of freedom, at a level that covers the choice of the least of four.
        """,
        possible=(0.0, 100.0),
        estimate=_least_deviation,
    ),
    Claim(
        paper="Test error with two hidden layers and a Gaussian prior.",
        source="Blundell et al. 2015, table 1",
        statistic="two layers of 400 units: test error, %",
        direction="equal within",
        published=BACKPROP[400],
        threshold=0.5,
        reason="Errors of other methods and widths in that table differ by about this.",
        interval=_IMAGES,
        possible=(0.0, 100.0),
        estimate=lambda results: _error(results, 400),
    ),
    Claim(
        paper="Larger networks are worse.",
        source="Blundell et al. 2015, table 1",
        statistic="two layers: test error of 1,200 units less that of 400, %",
        direction="above",
        published=BACKPROP[1200] - BACKPROP[400],
        threshold=0.0,
        reason="Worse is a matter of sign.",
        interval=_IMAGES,
        possible=(-100.0, 100.0),
        estimate=lambda results: difference(_error(results, 1200), _error(results, 400)),
    ),
]
