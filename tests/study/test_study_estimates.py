"""Estimates: of cells and seeds, and combinations that contain every value that their parts may have."""

from statistics import mean, stdev
from types import SimpleNamespace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from coset.errors import InputError
from coset.study import Estimate, Table
from coset.study.estimates import cell, difference, greatest, least, mean_of, number, ratio, spread

RESULTS = SimpleNamespace(
    numbers={"a": 2, "b": None, "c": "much"},
    tables={"t": Table(("path", "value", "±"), [("naive", 1.0, 0.25), ("aligned", 0.1, 0.25), ("none", None, None)])},
)
values = st.floats(0, 1e3)


@st.composite
def estimates(draw: st.DrawFn, lowest: float = 0.0) -> tuple[Estimate, float]:
    """An estimate and a value in its interval."""
    low, value, inside, high = (draw(st.floats(lowest, 1e3)) for _ in range(4))
    low, value, high = sorted((low, value, high))
    return Estimate(value, low, high), min(max(inside, low), high)


def contains(found: Estimate | None, value: float) -> bool:
    assert found is not None
    return found.low - 1e-9 <= value <= found.high + 1e-9


def test_numbers_and_cells() -> None:
    assert number(RESULTS, "a") == Estimate(2, 2, 2)
    assert number(RESULTS, "b") is number(RESULTS, "d") is None
    with pytest.raises(InputError, match="an estimate is to be made of 'much'"):
        number(RESULTS, "c")
    assert cell(RESULTS, "t", "value", {"path": "naive"}) == Estimate(1, 1, 1)
    assert cell(RESULTS, "t", "value", {"path": "naive"}, error="±") == Estimate(1, 0.5, 1.5)
    assert cell(RESULTS, "t", "value", {"path": "aligned"}, error="±", least=0.0) == Estimate(0.1, 0, 0.6)
    assert cell(RESULTS, "t", "value", {"path": "none"}) is None
    assert cell(RESULTS, "t", "value", {"path": "other"}) is cell(RESULTS, "s", "value", {}) is None


@given(st.lists(values, min_size=2, max_size=9))
def test_a_mean_of_seeds_has_two_standard_errors(found: list[float]) -> None:
    made = mean_of(found)
    assert made is not None
    error = stdev(found) / len(found) ** 0.5
    assert (made.low, made.value, made.high) == pytest.approx(
        (mean(found) - 2 * error, mean(found), mean(found) + 2 * error), rel=1e-9, abs=1e-6
    )
    assert mean_of(found[:1]) is None


@given(estimates(), estimates(lowest=0.5))
def test_intervals_of_combinations_hold_all_that_may_be(
    one: tuple[Estimate, float], other: tuple[Estimate, float]
) -> None:
    (first, a), (second, b) = one, other
    assert contains(difference(first, second), a - b)
    assert contains(least([first, second]), min(a, b))
    assert contains(greatest([first, second]), max(a, b))
    assert contains(ratio(first, second), a / b)
    assume(first.low == 0)
    assert ratio(second, first) is None


@given(st.lists(values, min_size=1))
def test_a_spread_is_the_range(found: list[float]) -> None:
    made = spread(found)
    assert made is not None
    assert (made.low, made.high) == (min(found), max(found))
    assert made.value == pytest.approx(mean(found))


def test_what_was_not_measured_makes_nothing() -> None:
    one = Estimate(1, 1, 1)
    for made in (
        ratio(one, None),
        difference(None, one),
        least([one, None]),
        greatest([]),
        spread([1.0, None]),
        spread([]),
    ):
        assert made is None
