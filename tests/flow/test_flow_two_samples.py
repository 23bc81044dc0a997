"""Energy distance and mean discrepancy: closed forms, all pairs one by one, scipy, and the level of their test."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from coset.errors import InputError
from coset.flow import TwoSamples, discrepancy_of_distances, energy_distance, energy_of_distances, mean_discrepancy


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(n, d=1, mean=0.0, std=1.0, seed=0):
    return mean + std * torch.randn(n, d, generator=seeded(seed), dtype=torch.float64)


def absolute(mean, variance):
    """E|N(m, v)|."""
    return stats.foldnorm.mean(abs(mean) / math.sqrt(variance), scale=math.sqrt(variance))


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.7, 1.5)])
def test_both_are_unbiased_between_gaussians(mean, std):
    """2 E|X − Y| − E|X − X'| − E|Y − Y'|, and the same of a kernel that keeps Gaussians: E k = h/√(h² + v)·exp(…)."""
    h = 0.8

    def kernel(m, v):
        return h / math.sqrt(h**2 + v) * math.exp(-(m**2) / (2 * (h**2 + v)))

    energy = 2 * absolute(mean, 1 + std**2) - absolute(0, 2) - absolute(0, 2 * std**2)
    discrepancy = kernel(0, 2) + kernel(0, 2 * std**2) - 2 * kernel(mean, 1 + std**2)
    found = np.array(
        [
            (energy_distance(x, y).value, mean_discrepancy(x, y, bandwidth=h).value)
            for x, y in ((normal(12, seed=2 * s), normal(9, 1, mean, std, 2 * s + 1)) for s in range(300))
        ]
    )
    errors = found.std(0, ddof=1) / math.sqrt(len(found))
    np.testing.assert_array_less(np.abs(found.mean(0) - [energy, discrepancy]), 4 * errors)
    if mean:
        assert energy > 10 * errors[0]
        assert discrepancy > 10 * errors[1]


@pytest.mark.parametrize("unbiased", [True, False])
def test_all_pairs_one_by_one(unbiased):
    x, y = normal(5, 3, seed=1), normal(4, 3, 0.5, seed=2)

    def mean(k, a, b):
        same = a is b and unbiased
        values = [k(p, q) for i, p in enumerate(a) for j, q in enumerate(b) if not (same and i == j)]
        return sum(values) / len(values)

    for k, found in (
        (lambda p, q: -float((p - q).norm()), energy_distance(x, y, unbiased=unbiased)),
        (
            lambda p, q: math.exp(-float((p - q).square().sum()) / (2 * 1.3**2)),
            mean_discrepancy(x, y, bandwidth=1.3, unbiased=unbiased),
        ),
    ):
        assert found.value == pytest.approx(mean(k, x, x) + mean(k, y, y) - 2 * mean(k, x, y), rel=1e-12)


def test_scipy_knows_the_energy_distance_on_a_line():
    x, y = normal(40, seed=1), normal(30, 1, 1.0, 2.0, seed=2)
    own = energy_distance(x, y, unbiased=False).value
    assert math.sqrt(own) == pytest.approx(stats.energy_distance(x[:, 0].numpy(), y[:, 0].numpy()), rel=1e-12)


def test_the_bandwidth_is_that_of_the_reference():
    x, y = normal(5, 3, std=9, seed=1), normal(6, 3, seed=2)
    found = mean_discrepancy(x, y)
    assert found.bandwidth == pytest.approx(np.median(torch.pdist(y).numpy()), rel=1e-12)
    assert found == mean_discrepancy(x, y, bandwidth=found.bandwidth)
    assert mean_discrepancy(y, x).bandwidth > 5 * found.bandwidth


def test_distances_are_enough():
    x, y = normal(5, 3, seed=1), normal(6, 3, seed=2)
    apart = torch.cdist(x, x), torch.cdist(x, y), torch.cdist(y, y)
    options = {"permutations": 20, "seed": 3}
    for one, other in (
        (energy_of_distances(*apart, **options), energy_distance(x, y, **options)),
        (discrepancy_of_distances(*apart, **options), mean_discrepancy(x, y, **options)),
    ):
        assert one.value == pytest.approx(other.value, rel=1e-9)
        assert one.p_value == other.p_value


@pytest.mark.parametrize("compare", [energy_distance, mean_discrepancy])
def test_the_level_is_kept_and_differences_are_seen(compare):
    """Of equal distributions p ≤ .1 in one of ten cases: 19 divisions make that exact."""
    values = [
        compare(normal(8, 2, seed=2 * s), normal(11, 2, seed=2 * s + 1), permutations=19, seed=s).p_value
        for s in range(400)
    ]
    low, high = stats.binom.interval(0.999, 400, 0.1)
    assert low <= sum(p <= 0.1 for p in values) <= high
    # Every value of p is as likely.
    assert stats.chisquare(np.bincount([round(20 * p) for p in values], minlength=21)[1:]).pvalue > 1e-3
    for other in (normal(20, 2, 1.5, seed=1), normal(20, 2, 0, 4, seed=1)):
        assert compare(normal(20, 2), other, permutations=99).p_value == 0.01


def test_divisions_like_the_given_one_count():
    """Two points of either: 2 of the 6 divisions have the value of the given one, the largest."""
    x, y = torch.tensor([[0.0], [0.1]]), torch.tensor([[5.0], [5.1]])
    found = energy_distance(x, y, permutations=3000)
    assert found.p_value == pytest.approx(1 / 3, abs=4 * math.sqrt(2 / 9 / 3000))
    assert energy_distance(x, y, permutations=3000) == found
    assert found == TwoSamples(**found.to_dict())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: energy_distance(torch.zeros(3), torch.zeros(3, 1)), r"x is \(3,\); expected rows"),
        (lambda: energy_distance(torch.zeros(3, 1), torch.zeros(0, 1)), r"y is \(0, 1\); expected rows"),
        (lambda: energy_distance(torch.zeros(3, 1), torch.zeros(3, 2)), "rows of x have 1 numbers and those of y 2"),
        (lambda: energy_distance(torch.zeros(3, 1) / 0, torch.zeros(3, 1)), "x has rows with entries that are NaN"),
        (lambda: energy_distance(torch.zeros(1, 1), torch.ones(3, 1)), "at least two of both, or unbiased=False"),
        (lambda: energy_distance(torch.zeros(3, 1), torch.ones(3, 1), permutations=-1), "permutations is -1"),
        (lambda: energy_distance(torch.zeros(3, 1), torch.ones(3, 1), seed=-1), "seed is -1"),
        (lambda: mean_discrepancy(torch.zeros(3, 1), torch.ones(3, 1)), "half of all pairs of y are equal"),
        (lambda: mean_discrepancy(torch.zeros(3, 1), torch.ones(1, 1)), "y is one point"),
        (lambda: mean_discrepancy(torch.zeros(3, 1), torch.ones(3, 1), bandwidth=0.0), "bandwidth is 0.0; expected"),
        (lambda: energy_of_distances(torch.zeros(2, 2), torch.zeros(3, 2), torch.zeros(2, 2)), "have shapes"),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(InputError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
