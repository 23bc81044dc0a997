"""What Gelberg et al. 2024 say of the estimator's error, as claims on mean squared errors at equal time."""

import math

from coset.study import Claim, Estimate, Results
from coset.study.estimates import spread
from coset_studies._shared.reading import exponential, of_values, records

LARGE = 10
"""Fewer units have so few permutations that K uniform ones try them all."""
ASKED = 10.0
"""How many times smaller a mean squared error is to be."""
_POSTERIORS = f"""
Intervals are over the posteriors with {LARGE} units or more (three widths on two data sets): the geometric mean, and
Student's t of the logarithms.
"""


def _large(results: Results, column: str) -> list[float]:
    return [row[column] for row in records(results, "comparison") if row["n"] >= LARGE]


def _factor(results: Results, column: str) -> Estimate | None:
    """The geometric mean of a column of the comparison over the large posteriors."""
    values = _large(results, column)
    return exponential(of_values([math.log(value) for value in values])) if len(values) > 1 else None


def _variance_share(results: Results) -> Estimate | None:
    """deviation²/MSE of I by K = 1000 uniform permutations."""
    rows = [row for row in records(results, "estimators", estimator="uniform", K=1000) if row["n"] >= LARGE]
    return spread([row["deviation of I"] ** 2 / row["MSE of I"] for row in rows])


def _own(statistic: str, column: str) -> Claim:
    return Claim(
        paper="Importance sampling or other ways to reduce the variance could mitigate this; left to future work.",
        source="section 6, limitations",
        statistic=f"{statistic}: how many times smaller the mean squared error is than by uniform permutations",
        direction="above",
        threshold=ASKED,
        reason="A tenth of the error is worth another estimator. The threshold was set before the runs.",
        interval=_POSTERIORS,
        possible=(0.0, math.inf),
        estimate=lambda results: _factor(results, column),
    )


CLAIMS = [
    Claim(
        paper="The variance of the estimator grows with the model, which limits its use.",
        source="section 6, limitations",
        statistic="I(g; ω) by 1,000 uniform permutations: the variance as a share of the mean squared error",
        direction="above",
        threshold=0.5,
        reason="Where less than half of the error is variance, it is not the variance that limits the estimator.",
        interval="The share of the variance: from the least to the greatest of these posteriors.",
        possible=(0.0, math.inf),
        estimate=_variance_share,
    ),
    Claim(
        paper="One way is importance sampling with f(g) ∝ exp(−‖gμ − μ‖).",
        source="section 6, limitations",
        statistic="I(g; ω) by f(g): how many times smaller the mean squared error is than by uniform permutations",
        direction="above",
        threshold=1.0,
        reason="1 is no gain.",
        interval=_POSTERIORS,
        possible=(0.0, math.inf),
        estimate=lambda results: _factor(results, "distance, I"),
    ),
    _own("I(g; ω) by permutations drawn row by row, path gradient", "sequential-path, I"),
    _own("gradient of I(g; ω) by permutations drawn row by row, path gradient", "sequential-path, gradient"),
    _own("gradient of I(g; ω) by permutations drawn row by row, gradient of the bound", "sequential, gradient"),
]
