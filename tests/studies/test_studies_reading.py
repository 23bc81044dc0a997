"""Intervals that claims read off tables, against SciPy's; and claims that turn where their numbers do."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from coset.study import StudyRun, Table, Verdict, show_study, studies
from coset_studies._shared.reading import deviation_factor, exponential, of_values, over_seeds, records, share, slope
from published_studies import DOCS

values = st.lists(st.floats(-100, 100), min_size=3, max_size=12).filter(lambda each: max(each) - min(each) > 1e-3)


@given(values)
def test_means_over_seeds_have_students_interval(each: list[float]) -> None:
    mean, error = sum(each) / len(each), stats.sem(each)
    found = of_values(each)
    assert (found.low, found.high) == pytest.approx(stats.t.interval(0.95, len(each) - 1, mean, error), rel=1e-9)
    again = over_seeds(mean, float(stats.tstd(each)), len(each))
    assert (again.low, again.high) == pytest.approx((found.low, found.high), rel=1e-9)


@given(values)
def test_slopes_have_students_interval(each: list[float]) -> None:
    x = [float(place**2) for place in range(len(each))]
    line, found = stats.linregress(x, each), slope(x, each)
    half = stats.t.ppf(0.975, len(each) - 2) * line.stderr
    assert found.value == pytest.approx(line.slope, rel=1e-6, abs=1e-9)
    assert found.high - found.value == pytest.approx(half, rel=1e-6, abs=1e-9)


@given(st.integers(1, 300).flatmap(lambda count: st.tuples(st.integers(0, count), st.just(count))))
def test_shares_have_wilsons_interval(pair: tuple[int, int]) -> None:
    successes, count = pair
    expected = stats.binomtest(successes, count).proportion_ci(0.95, method="wilson")
    found = share(successes / count, count)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-6)


@pytest.mark.parametrize("count", [2, 3, 10])
def test_deviations_have_the_interval_of_chi_squared(count: int) -> None:
    """(n − 1)s²/σ² is χ²: σ = s·factor is reached with the probability of the factor."""
    for quantile in (0.025, 0.5, 0.975):
        at = (count - 1) / deviation_factor(count, quantile) ** 2
        assert stats.chi2.sf(at, count - 1) == pytest.approx(quantile, rel=1e-9)
    assert deviation_factor(count, 0.025) < deviation_factor(count, 0.975)


def test_geometric_means() -> None:
    found = exponential(of_values([math.log(2), math.log(8)]))
    assert found.value == pytest.approx(4.0)
    assert found.low * found.high == pytest.approx(16.0)


def _changed(run: StudyRun, table: str, changes: Mapping[str, Callable[[dict[str, Any]], object]]) -> StudyRun:
    """The run with some columns of a table computed from its rows."""
    rows = records(run, table)
    columns = run.tables[table].columns
    made = [[changes[name](row) if name in changes else row[name] for name in columns] for row in rows]
    return replace(run, tables={**run.tables, table: Table(columns, made)})  # type: ignore[arg-type]


def _numbers(run: StudyRun, **changes: float) -> StudyRun:
    return replace(run, numbers={**run.numbers, **changes})


HOLDS, FAILS, OPEN = Verdict.HOLDS, Verdict.FAILS, Verdict.CANNOT_TELL
TURNS: list[tuple[str, int, Verdict, Callable[[StudyRun], StudyRun], Verdict]] = [
    ("gelberg-interpolation", 0, HOLDS, lambda run: _numbers(run, unit_sgd=4.45), OPEN),
    ("gelberg-interpolation", 1, FAILS, lambda run: _numbers(run, sgd_slope=5.2), HOLDS),
    ("gelberg-interpolation", 2, FAILS, lambda run: _numbers(run, switch=5.1), HOLDS),
    ("gelberg-interpolation", 3, HOLDS, lambda run: _numbers(run, descent=4.4), FAILS),
    ("gelberg-two-weights", 0, FAILS, lambda run: _numbers(run, information_mfvi_3=0.01), HOLDS),
    ("gelberg-two-weights", 1, HOLDS, lambda run: _numbers(run, optimum_information_mfvi_3=0.9), FAILS),
    (
        "gelberg-two-weights",
        2,
        OPEN,
        lambda run: _changed(
            run,
            "errors",
            {"MSE": lambda row: 0.5 if row["method"] == "MFVI" else 0.1,
             "deviation": lambda row: None if row["deviation"] is None else 0.01},
        ),
        HOLDS,
    ),
    (
        "gelberg-two-weights",
        4,
        HOLDS,
        lambda run: _changed(run, "errors", {"at the optimum": lambda row: 0.3 if "SGM" in row["method"] else 0.1}),
        FAILS,
    ),
    (
        "gelberg-two-weights",
        6,
        FAILS,
        lambda run: _changed(run, "bounds", {"optimal L^G": lambda row: -1.0 if "SGM" in row["method"] else -2.0}),
        HOLDS,
    ),
    (
        "gelberg-modes",
        2,
        FAILS,
        lambda run: _changed(run, "posteriors", {"ELBO gained halfway, nats": lambda row: 500.0}),
        HOLDS,
    ),
    (
        "gelberg-mnist",
        1,
        FAILS,
        lambda run: _changed(run, "same-seed", {"difference, points": lambda row: 0.12}),
        HOLDS,
    ),
    (
        "symmetrized-estimators",
        1,
        FAILS,
        lambda run: _changed(run, "comparison", {"distance, I": lambda row: 20.0 + row["n"]}),
        HOLDS,
    ),
    (
        "symmetrized-estimators",
        3,
        HOLDS,
        lambda run: _changed(run, "comparison", {"sequential-path, gradient": lambda row: 1.0 + row["n"] / 100}),
        FAILS,
    ),
    (
        "mnist-posteriors",
        4,
        FAILS,
        lambda run: _changed(run, "one-hidden-layer", {"± training seeds": lambda row: 0.02}),
        HOLDS,
    ),
    ("mnist-posteriors", 5, HOLDS, lambda run: _numbers(run, wide_error_400=3.0), FAILS),
    ("mnist-posteriors", 6, OPEN, lambda run: _numbers(run, wide_error_1200=2.9), HOLDS),
    ("snelson-posteriors", 0, HOLDS, lambda run: _numbers(run, mean_field_inside=0.8), FAILS),
    (
        "uci",
        0,
        HOLDS,
        lambda run: _changed(run, "scores", {"RMSE": lambda row: 1.0 + (row["method"] == "HMC")}),
        FAILS,
    ),
    ("uci", 4, FAILS, lambda run: _changed(run, "scores", {"log-likelihood": lambda row: -1.0,
                                                           "± log-likelihood": lambda row: 0.01}), HOLDS),
    (
        "rhat-modulo-symmetry",
        3,
        HOLDS,
        lambda run: _changed(run, "mixing", {"median R̂": lambda row: 1.3}),
        FAILS,
    ),
    (
        "barriers-of-samples",
        2,
        FAILS,
        lambda run: _changed(
            run, "barriers", {"test barrier": lambda row: 0.01 if row["path"] == "aligned" else 1.0,
                              "± test": lambda row: 0.001},
        ),
        HOLDS,
    ),
    (
        "barriers-of-samples",
        3,
        HOLDS,
        lambda run: _changed(run, "barriers", {"test barrier": lambda row: 1.0 + (row["path"] == "aligned")}),
        FAILS,
    ),
    ("group-orders", 0, HOLDS, lambda run: _numbers(run, mlp_log10_order=3499.0), FAILS),
    ("group-orders", 3, FAILS, lambda run: _numbers(run, largest_ratio=1.5), HOLDS),
    (
        "rebasin-mnist",
        2,
        HOLDS,
        lambda run: _changed(run, "widths", {"aligned, train": lambda row: row["width"] ** 0.5}),
        FAILS,
    ),
    (
        "rebasin-midpoints",
        3,
        HOLDS,
        lambda run: _changed(run, "pairs", {"activations, then ste": lambda row: 86.0}),
        FAILS,
    ),
]  # fmt: skip
"""Study, place of the claim, its published verdict, other results and what they say."""


@pytest.mark.parametrize(("name", "place", "before", "change", "after"), TURNS)
def test_claims_turn_with_their_numbers(
    name: str, place: int, before: Verdict, change: Callable[[StudyRun], StudyRun], after: Verdict
) -> None:
    claim, run = studies()[name].claims[place], show_study(name, DOCS)
    assert claim.judge(run).verdict == before
    assert claim.judge(change(run)).verdict == after
