"""What Gelberg et al. 2024 say of the distance at which a Gaussian stops interpolating, as claims on the thresholds."""

from coset.study import Claim, Estimate, Results
from coset_studies._shared.reading import near

PUBLISHED = {0.25: 1.25, 0.5: 2.5, 1.0: 5.0, 2.0: 10.0}
"""α* by σ, read off fig. 5."""
PUBLISHED_SLOPE = 5.0
TOLERANCE = 0.5
ROUNDING = 1e-4
"""Exact thresholds are found to about this."""

_REASON = "The paper prints “≈ 5”, read off a figure; a tenth of it is more than such a reading errs by."
_SPACING = "Thresholds of stochastic descent lie between two distances that were tried: ± half their spacing."
_EXACT = f"Exact ones are found by quadrature and root finding, to {ROUNDING:g}."


def _number(results: Results, name: str, error: float | None = None) -> Estimate | None:
    """A number ± ``error``, by default half the spacing of the distances; None where a run has none."""
    value, half = results.numbers[name], results.numbers["half_spacing"]
    assert isinstance(half, float)
    return near(value, half if error is None else error) if isinstance(value, float) else None


CLAIMS = [
    Claim(
        paper="Up to a threshold α* ≈ 5 the Gaussian that is found lies halfway between the two modes.",
        source="section 3, fig. 3",
        statistic="stochastic gradient descent, σ = 1: α at which it stops ending halfway",
        direction="equal within",
        published=PUBLISHED_SLOPE,
        threshold=TOLERANCE,
        reason=_REASON,
        interval=_SPACING,
        possible=(0.0, float("inf")),
        estimate=lambda results: _number(results, "unit_sgd"),
    ),
    Claim(
        paper="The threshold grows linearly with the deviation of the components: 1.25, 2.5, 5 and 10.",
        source="appendix A, fig. 5",
        statistic="stochastic gradient descent: the threshold over σ, for the σ where it is farthest from 5",
        direction="equal within",
        published=PUBLISHED_SLOPE,
        threshold=TOLERANCE,
        reason=_REASON,
        interval=_SPACING,
        possible=(0.0, float("inf")),
        estimate=lambda results: _number(results, "sgd_slope"),
    ),
    Claim(
        paper="The minimiser of the reverse KL lies halfway for α ≤ α* and at one mode beyond.",
        source="section 3, caption of fig. 3",
        statistic="exact: α/σ at which the Gaussian with the least KL changes over",
        direction="equal within",
        published=PUBLISHED_SLOPE,
        threshold=TOLERANCE,
        reason=_REASON,
        interval=_EXACT,
        possible=(0.0, float("inf")),
        estimate=lambda results: _number(results, "switch", ROUNDING),
    ),
    Claim(
        paper="The minimiser of the reverse KL lies halfway for α ≤ α* and at one mode beyond.",
        source="section 3, caption of fig. 3",
        statistic="exact: α/σ at which descent from one mode stops ending halfway",
        direction="equal within",
        published=PUBLISHED_SLOPE,
        threshold=TOLERANCE,
        reason=_REASON,
        interval=_EXACT,
        possible=(0.0, float("inf")),
        estimate=lambda results: _number(results, "descent", ROUNDING),
    ),
]
