"""What Gelberg et al. 2024 say of equivalent modes and of interpolating them, as claims on networks and posteriors."""

import math
from functools import partial

from coset.study import Claim, Estimate, Results
from coset_studies._shared.reading import near, record, records

ERRORS = 2.0
"""Half the length of an interval in standard errors."""
HARM = 0.01
"""A rise of the expected loss, in nats per point, that counts as a worse fit."""
WIDTHS = (5, 20, 100)
POINTS = 60_000
"""The training part of MNIST, as in the paper."""

_DRAWS = f"""
Intervals are {ERRORS:g} Monte Carlo standard errors of the weights that were drawn; they hold for the mean of the two
posteriors that were inferred, and say nothing of other seeds.
"""


def _posterior(results: Results, width: int, column: str, error: str | None = None) -> Estimate | None:
    """A column of the posteriors with the paper's settings, ± its error; None where a run has none."""
    row = record(results, "posteriors", {"training points": POINTS, "inference": "constant", "units": width})
    if row is None:
        return None
    return near(row[column], ERRORS * (row["± draws"] if error is None else row[error] / POINTS))


def _bound(results: Results) -> Estimate:
    value = min(row["2D/log|G|"] for row in records(results, "networks", **{"hidden layers": 1}))
    # A closed form, but for rounding.
    return near(value, 1e-9 * value)


CLAIMS = [
    Claim(
        paper="In wide networks with one hidden layer equivalent modes are close to one another.",
        source="theorem 3.1",
        statistic="one hidden layer: the bound 2R of theorem 3.1 over ‖ω‖, the least of all widths",
        direction="below",
        threshold=2.0,
        reason="No two equivalent networks are farther apart than 2‖ω‖: only a bound below it says something.",
        interval="The bound of theorem 3.1 is a closed form.",
        possible=(0.0, math.inf),
        estimate=_bound,
    ),
    *(
        Claim(
            paper="Unimodal approximations would tend to interpolate equivalent modes that are closely spaced.",
            source="section 3; inference as in section 5",
            statistic=f"{width} units: ELBO halfway to the likeliest exchange of units less that of the fit, nats",
            direction="above",
            threshold=0.0,
            reason="VI interpolates where its objective is higher between two modes.",
            interval=_DRAWS,
            estimate=partial(_posterior, width=width, column="ELBO gained halfway, nats"),
        )
        for width in WIDTHS
    ),
    Claim(
        paper="Interpolating equivalent modes is detrimental to the fit.",
        source="section 3",
        statistic="100 units: rise of the expected loss halfway to the likeliest exchange, nats per point",
        direction="above",
        threshold=HARM,
        reason="Other settings change the ELBO per point by 0.02 nats or more. The threshold was chosen after the run.",
        interval=_DRAWS,
        estimate=lambda results: _posterior(results, 100, "loss halfway, nats per point", "± draws"),
    ),
]
