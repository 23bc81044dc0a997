"""The search for the largest excess, errors of profiles, and λ-convexity, on curves known in closed form."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coset.distribution import Estimate
from coset.errors import InputError
from coset.landscape import Functional, Profile, barrier


def path(tau):
    return tau


@pytest.mark.parametrize("peak", [0.03, 0.31, 0.5, 0.77])
@pytest.mark.parametrize("better", ["lower", "higher"])
def test_a_search_finds_what_the_grid_misses(peak, better):
    sign = 1 if better == "lower" else -1
    functional = Functional("bump", lambda tau: sign * math.exp(-(((tau - peak) / 0.15) ** 2)), better=better)
    fine = barrier(path, functional, points=20001)
    found = barrier(path, functional, tolerance=1e-5, points=60)
    assert len(found.taus) < 40
    assert fine.barrier - 1e-4 < found.barrier <= fine.barrier + 1e-8
    assert found.argmax == pytest.approx(fine.argmax, abs=0.02)
    assert len(barrier(path, functional, tolerance=1e-12, points=12).taus) <= 12


def test_a_search_stops_soon_where_there_is_nothing_to_find():
    asked = []

    def line(tau):
        asked.append(tau)
        return 3.0 - tau

    profile = barrier(path, line, tolerance=1e-6)
    assert len(asked) == 10
    assert profile.barrier == pytest.approx(0, abs=1e-15)


def test_a_search_serves_every_functional():
    bumps = {str(peak): lambda tau, peak=peak: math.exp(-(((tau - peak) / 0.2) ** 2)) for peak in (0.2, 0.8)}
    profiles = barrier(path, bumps, tolerance=1e-6, points=100)
    for name, bump in bumps.items():
        assert profiles[name].barrier == pytest.approx(barrier(path, bump, points=20001).barrier, abs=1e-5)


def test_tolerance_must_be_a_positive_number():
    for bad in (0, -1.0, math.nan, "small"):
        with pytest.raises(InputError, match="tolerance is"):
            barrier(path, lambda tau: tau, tolerance=bad)


@given(
    strength=st.floats(-50, 50).filter(lambda x: abs(x) > 1e-3), slope=st.floats(-5, 5), distance=st.floats(1e-2, 100)
)
def test_the_convexity_of_a_parabola_is_its_own(strength, slope, distance):
    """ℓ(τ) = ½λW²τ² + bτ + c along a geodesic of length W is exactly λ-convex, and so is −L for L = −ℓ."""

    def curve(tau):
        return 0.5 * strength * distance * tau**2 + slope * tau + 1

    scale = 1 + abs(slope) + abs(strength) * distance
    for functional in (Functional("ℓ", curve), Functional("L", lambda tau: -curve(tau), better="higher")):
        profile = barrier(path, functional)
        assert profile.convexity(distance) == pytest.approx(strength, abs=1e-10 * scale / distance)
        if strength < 0:
            assert profile.barrier <= -strength * distance / 8 * (1 + 1e-12) + 1e-12


def test_convexity_needs_a_distance():
    profile = barrier(path, lambda tau: tau)
    for bad in (0.0, -1.0, math.nan):
        with pytest.raises(InputError, match="distance_squared"):
            profile.convexity(bad)


def test_estimates_of_ones_own_have_errors_as_if_independent():
    functional = Functional("noisy", lambda tau: Estimate(tau * (1 - tau), 0.1 + tau))
    profile = barrier(path, functional, points=3)
    assert profile.errors == (0.1, 0.6, 1.1)
    assert profile.barrier_error == pytest.approx(math.sqrt(0.6**2 + 0.05**2 + 0.55**2))
    assert profile.to_dict()["barrier_error"] == profile.barrier_error
    assert barrier(path, lambda tau: tau).barrier_error is None
    with pytest.raises(InputError, match="2 errors at 3"):
        Profile("f", (0.0, 0.5, 1.0), (0.0, 0.0, 0.0), errors=(0.0, 0.0))
