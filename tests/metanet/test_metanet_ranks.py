"""Rank correlations beside SciPy's, and their intervals."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau

from coset.errors import InputError
from coset.metanet._ranks import rank_correlation


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 30), st.integers(2, 12))
def test_it_is_the_tau_b_of_scipy(seed, count, values):
    generator = torch.Generator().manual_seed(seed)
    predicted, truth = torch.randint(values, (2, count), generator=generator).double()
    expected = kendalltau(predicted, truth).statistic
    found = rank_correlation(predicted, truth, draws=3).value
    if expected != expected:  # SciPy's word for predictions that are all equal
        assert found == 0
    else:
        assert found == pytest.approx(expected, abs=1e-12)


def test_intervals_are_those_of_a_plain_bootstrap():
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(40, generator=generator)
    predicted = truth + torch.randn(3, 40, generator=generator)
    found = rank_correlation(predicted, truth, draws=400, seed=5)
    assert found.value == pytest.approx(sum(kendalltau(row, truth).statistic for row in predicted) / 3)
    generator = torch.Generator().manual_seed(5)
    networks = torch.randint(40, (400, 40), generator=generator)
    seeds = torch.randint(3, (400, 3), generator=generator)
    for number in (0, 7, 399):
        rows = predicted[seeds[number]][:, networks[number]]
        again = [kendalltau(row, truth[networks[number]]).statistic for row in rows]
        assert float(found.draws[number]) == pytest.approx(sum(again) / 3)
    assert found.low < found.value < found.high
    assert found.high - found.low > 0.1


def test_differences_are_paired():
    generator = torch.Generator().manual_seed(1)
    truth = torch.randn(60, generator=generator)
    good = truth + 0.3 * torch.randn(3, 60, generator=generator)
    poor = good + 0.5 * torch.randn(3, 60, generator=generator)
    apart = rank_correlation(good, truth, against=poor, draws=500)
    alone = [rank_correlation(one, truth, draws=500) for one in (good, poor)]
    assert apart.value == pytest.approx(alone[0].value - alone[1].value)
    torch.testing.assert_close(apart.draws, alone[0].draws - alone[1].draws)
    assert apart.low > 0
    same = rank_correlation(good, truth, against=good, draws=50)
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)


def test_bad_input_is_named():
    truth = torch.arange(4.0)
    with pytest.raises(InputError, match=r"predicted is \(3,\); expected a number for each of 4 networks"):
        rank_correlation(truth[:3], truth)
    with pytest.raises(InputError, match="have 3 and 2 seeds"):
        rank_correlation(truth.expand(3, 4), truth, against=truth.expand(2, 4))
    with pytest.raises(InputError, match="predicted has values that are not finite"):
        rank_correlation(truth / 0, truth)
    with pytest.raises(InputError, match="truth is no row"):
        rank_correlation(truth, truth[None])
