"""The numbers of the study of GELU's defect, against integrals done independently."""

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import expit, ndtr

from coset.store import Store
from coset.study import Context, StudyRun, Verdict, run_study
from coset_studies.godfrey.gelu_defect import _monte_carlo, _second_moment, gelu_defect


@pytest.fixture
def run(quick_run: Callable[[str], Any]) -> StudyRun:
    made: StudyRun = quick_run("godfrey-gelu-defect").run
    return made


def _expectation(function: Callable[[float], float]) -> float:
    """E[f(X)], X ~ N(0, 1), by adaptive quadrature on pieces that resolve what happens near 0."""
    edges = (-12, -3, -0.5, -0.05, 0, 0.05, 0.5, 3, 12)

    def weighted(x: float) -> float:
        return function(x) * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    return math.fsum(quad(weighted, low, high, epsabs=1e-14)[0] for low, high in pairwise(edges))


def _by_quadrature(scale: float) -> float:
    return scale * math.sqrt(_expectation(lambda x: (x * (ndtr(scale * x) - ndtr(x))) ** 2))


def test_the_slope_is_the_published_one(run: StudyRun) -> None:
    assert round(float(run.numbers["slope"]), 5) == 0.12675  # type: ignore[arg-type]
    assert round(float(run.numbers["slope"]), 3) == run.numbers["slope_published"]  # type: ignore[arg-type]
    assert run.numbers["slope"] == pytest.approx(run.numbers["slope_closed_form"], rel=1e-12)
    assert run.numbers["slope"] == pytest.approx(
        math.sqrt(_expectation(lambda x: (x * ((x > 0) - ndtr(x))) ** 2)), rel=1e-10
    )
    assert run.verdicts[0].verdict is Verdict.HOLDS


def test_the_defect_vanishes_at_one_and_grows_away_from_it(run: StudyRun) -> None:
    assert run.numbers["defect_at_one"] == 0
    rows = [(row[0], row[1], row[2]) for row in run.tables["slopes"].rows]
    assert (1.0, 0.0, 0.0) in rows
    stretched = [row for row in rows if row[0] >= 1]  # type: ignore[operator]
    assert [defect for _, defect, _ in stretched] == sorted({defect for _, defect, _ in stretched})
    assert [ratio for _, _, ratio in stretched] == sorted({ratio for _, _, ratio in stretched})
    shrunk = [ratio for scale, _, ratio in rows if scale <= 1]  # type: ignore[operator]
    assert shrunk == sorted(set(shrunk), reverse=True)


@given(st.floats(0.05, 50))
def test_the_closed_form_agrees_with_an_integral(scale: float) -> None:
    # The closed form cancels to about 1e-16 in ξ²/λ², hence to 1e-8 in ξ/λ close to λ = 1.
    assert gelu_defect(scale) ** 2 == pytest.approx(_by_quadrature(scale) ** 2, abs=1e-12 * scale**2)


def test_the_closed_form_agrees_with_the_librarys_quadrature(run: StudyRun) -> None:
    assert run.numbers["closed_form_gap"] < 1e-8  # type: ignore[operator]
    assert gelu_defect(1.0) == pytest.approx(0, abs=1e-7)
    assert gelu_defect(1e-6) / 1e-6 == pytest.approx(run.numbers["slope_at_zero"], abs=1e-5)
    within = float(run.numbers["within_one_percent"])  # type: ignore[arg-type]
    assert gelu_defect(within) / within == pytest.approx(0.99 * float(run.numbers["slope"]), rel=1e-9)  # type: ignore[arg-type]


def test_the_samples_agree_with_the_integral(run: StudyRun) -> None:
    assert 0 < run.numbers["largest_deviation"] < 4  # type: ignore[operator]
    for scale, exact, _, _, sampled, error, deviation in run.tables["slopes"].rows:
        assert exact == pytest.approx(_by_quadrature(float(scale)), abs=1e-10 * float(scale))  # type: ignore[arg-type]
        if deviation is not None:
            assert deviation == pytest.approx((sampled - exact) / error)  # type: ignore[operator]


def test_the_standard_error_is_the_spread_of_repeated_estimates() -> None:
    context = Context(0, torch.device("cpu"), Store("unused"), show=False)
    scales, repeats = np.array([0.3, 2.0, 8.0]), 400
    samples = (torch.randn(2000, generator=context.generator(f"{i}"), dtype=torch.float64) for i in range(repeats))
    estimates, errors = np.array([_monte_carlo(normal, scales, context) for normal in samples]).transpose(1, 0, 2)
    # The spread of 400 estimates is itself known to 1/√800 = 3.5 %; four times that is allowed.
    assert np.std(estimates, axis=0) == pytest.approx(np.mean(errors, axis=0), rel=0.14)


def test_the_other_activations(run: StudyRun) -> None:
    oracles = {
        "slope_silu": lambda x: x * ((x > 0) - expit(x)),
        "slope_softplus": lambda x: max(x, 0.0) - math.log1p(math.exp(x)),
        "slope_mish": lambda x: max(x, 0.0) - x * math.tanh(math.log1p(math.exp(x))),
        "slope_elu": lambda x: min(math.expm1(x), 0.0),
    }
    for name, gap in oracles.items():
        assert run.numbers[name] == pytest.approx(math.sqrt(_expectation(lambda x, gap=gap: gap(x) ** 2)), rel=1e-10)  # type: ignore[misc]
    assert [row[0] for row in run.tables["beyond-the-paper"].rows] == ["GELU", "Mish", "SiLU", "ELU", "softplus"]
    slopes = [row[3] for row in run.tables["beyond-the-paper"].rows]
    assert slopes == sorted(slopes)  # type: ignore[type-var]


def test_second_moments() -> None:
    assert _second_moment("relu") == pytest.approx(0.5, abs=1e-14)
    assert _second_moment("identity") == pytest.approx(1, abs=1e-14)
    # E[GELU(X)²] = M(1, 1) = 1/3 + 1/(2π√3).
    assert _second_moment("gelu") == pytest.approx(1 / 3 + 1 / (2 * math.pi * math.sqrt(3)), abs=1e-14)


def test_the_seed_moves_the_samples_only(run: StudyRun, tmp_path: Path) -> None:
    other = run_study("godfrey-gelu-defect", "quick", tmp_path, store=Store(tmp_path / "store"), seed=1)
    assert other.numbers["slope"] == run.numbers["slope"]
    assert other.numbers["sampled_ratio"] != run.numbers["sampled_ratio"]
