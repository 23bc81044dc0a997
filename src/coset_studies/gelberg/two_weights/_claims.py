"""What section 5 of Gelberg et al. 2024 says of the two-weight network, as claims on runs and on optima."""

import math
from collections.abc import Callable, Sequence

from coset.study import Claim, Estimate, Results
from coset.study.estimates import difference, least
from coset_studies._shared.reading import Record, near, over_seeds, record, student

ALPHAS = (0.05, 0.1, 0.15, 0.2)
MFVI, SGM = "MFVI", "SGM (K = 2)"
KEYS = {MFVI: "mfvi", SGM: "sgm", "SGM (exact)": "exact"}
"""Methods in the names of numbers."""
FOUND = 1e-5
"""Optima are found to about this, in MSE and nats."""
CLEAR = 10 * FOUND

_SEEDS = """
After 10 epochs: of the mean over 10 seeds, Student's t for each method; the errors of two methods are added, for the
tables hold no paired differences.
"""
_OPTIMA = f"At optima: the accuracy to which they are found, {FOUND:g}."
_BETTER = "Better is a matter of sign; the least difference of the four α has to have it."
_APART = f"Ten times the accuracy to which optima are found, {FOUND:g}."


def _seeds(results: Results) -> int:
    count = results.numbers["seeds"]
    assert isinstance(count, int)
    return count


def _information(results: Results, method: str, alpha: float, prefix: str = "") -> float:
    """I(g; w)/log 2: 0 where q lies between the modes, 1 where it is on one of them."""
    value = results.numbers[f"{prefix}information_{KEYS[method]}_{ALPHAS.index(alpha)}"]
    assert isinstance(value, float)
    return min(max(value, 0.0), 1.0)


def _share_after_epochs(results: Results) -> Estimate:
    """Of 10 values in [0, 1] with mean m no variance exceeds m(1 − m) n/(n − 1)."""
    count, mean = _seeds(results), _information(results, MFVI, 0.2)
    error = student(count) * math.sqrt(mean * (1 - mean) / max(count - 1, 1))
    return Estimate(mean, max(0.0, mean - error), min(1.0, mean + error))


def _share_at_optimum(results: Results) -> Estimate:
    mean = _information(results, MFVI, 0.2, "optimum_")
    return Estimate(mean, max(0.0, mean - FOUND), min(1.0, mean + FOUND))


def _row(results: Results, table: str, method: str, alpha: float) -> Record:
    found = record(results, table, {"method": method, "α": alpha})
    assert found is not None, "every method is run at every α"
    return found


def _over_alphas(results: Results, of: Callable[[str, float], Estimate], better: str, worse: str) -> Estimate | None:
    return least([difference(of(better, alpha), of(worse, alpha)) for alpha in ALPHAS])


def _run_error(results: Results) -> Estimate | None:
    def of(method: str, alpha: float) -> Estimate:
        row = _row(results, "errors", method, alpha)
        return over_seeds(row["MSE"], row["deviation"], _seeds(results))

    return _over_alphas(results, of, MFVI, SGM)


def _optimal_error(results: Results, alphas: Sequence[float] = ALPHAS) -> Estimate:
    """MSE of MFVI less that of SGM at the optima, the least over some α."""
    values = [_row(results, "errors", MFVI, a)["at the optimum"] - _row(results, "errors", SGM, a)["at the optimum"]
              for a in alphas]  # fmt: skip
    return near(min(values), FOUND)


def _run_bound(results: Results) -> Estimate | None:
    """L^G of SGM less that of MFVI: both count from one log p(Y), so that KL(q^G‖p) says the same."""

    def of(method: str, alpha: float) -> Estimate:
        row = _row(results, "divergences", method, alpha)
        return over_seeds(row["KL(q^G‖p)"], row["deviation of it"], _seeds(results))

    return _over_alphas(results, of, MFVI, SGM)


def _optimal_bound(results: Results, alphas: Sequence[float] = ALPHAS) -> Estimate:
    values = [_row(results, "bounds", SGM, a)["optimal L^G"] - _row(results, "bounds", MFVI, a)["optimal L^G"]
              for a in alphas]  # fmt: skip
    return near(min(values), FOUND)


CLAIMS = [
    Claim(
        paper="The mean-field posterior lies between the two modes.",
        source="section 5, fig. 4b",
        statistic="MFVI after 10 epochs, α = 0.2: I(g; w)/log 2",
        direction="below",
        threshold=0.5,
        reason="0 is a posterior between the modes and 1 one that is on a single mode.",
        interval="""
        I(g; w) after 10 epochs: of the mean over 10 seeds, Student's t with the largest variance that a mean of values
        from 0 to 1 allows, for the tables hold no deviation of it.
        """,
        possible=(0.0, 1.0),
        estimate=_share_after_epochs,
    ),
    Claim(
        paper="The mean-field posterior lies between the two modes.",
        source="section 5, fig. 4b",
        statistic="MFVI at the optimum, α = 0.2: I(g; w)/log 2",
        direction="below",
        threshold=0.5,
        reason="0 is a posterior between the modes and 1 one that is on a single mode.",
        interval=_OPTIMA,
        possible=(0.0, 1.0),
        estimate=_share_at_optimum,
    ),
    Claim(
        paper="SGM predicts better than MFVI at every α.",
        source="table 2",
        statistic="after 10 epochs: test MSE of MFVI less that of SGM, the least of the four α",
        direction="above",
        threshold=0.0,
        reason=_BETTER,
        published=0.02,
        interval=_SEEDS,
        estimate=_run_error,
    ),
    Claim(
        paper="SGM predicts better than MFVI at every α.",
        source="table 2",
        statistic="at the optima: test MSE of MFVI less that of SGM, the least of the four α",
        direction="above",
        threshold=CLEAR,
        reason=_APART,
        published=0.02,
        interval=_OPTIMA,
        estimate=_optimal_error,
    ),
    Claim(
        paper="SGM predicts better than MFVI at every α.",
        source="table 2, α = 0.1 to 0.2",
        statistic="at the optima: test MSE of MFVI less that of SGM, the least of the three larger α",
        direction="above",
        threshold=CLEAR,
        reason=_APART,
        published=0.03,
        interval=_OPTIMA,
        estimate=lambda results: _optimal_error(results, ALPHAS[1:]),
    ),
    Claim(
        paper="SGM has the higher symmetrized ELBO.",
        source="table 3",
        statistic="after 10 epochs: L^G of SGM less that of MFVI, nats, the least of the four α",
        direction="above",
        threshold=0.0,
        reason=_BETTER,
        interval=_SEEDS,
        estimate=_run_bound,
    ),
    Claim(
        paper="SGM has the higher symmetrized ELBO.",
        source="table 3",
        statistic="at the optima: L^G of SGM less that of MFVI, nats, the least of the four α",
        direction="above",
        threshold=CLEAR,
        reason=_APART,
        interval=_OPTIMA,
        estimate=_optimal_bound,
    ),
    Claim(
        paper="SGM has the higher symmetrized ELBO.",
        source="table 3, α = 0.1 to 0.2",
        statistic="at the optima: L^G of SGM less that of MFVI, nats, the least of the three larger α",
        direction="above",
        threshold=CLEAR,
        reason=_APART,
        interval=_OPTIMA,
        estimate=lambda results: _optimal_bound(results, ALPHAS[1:]),
    ),
]
