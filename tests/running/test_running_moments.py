"""Moments: those of parts, merged in any way, are those of the whole; nothing cancels."""

import math
from fractions import Fraction

import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from coset.running.moments import merged, merged_pairs, moments_of, pair_moments_of

NUMBERS = st.floats(-1e3, 1e3, width=32)


@st.composite
def _split(draw, columns=1):
    """A table (n, 2·columns) with a part before, and a part behind, a row; large means are added to the columns."""
    shape = draw(array_shapes(min_dims=1, max_dims=1, min_side=2, max_side=30))
    values = torch.from_numpy(draw(arrays("float64", (*shape, 2 * columns), elements=NUMBERS)))
    values = values + draw(st.sampled_from([0.0, 1e6]))
    row = draw(st.integers(1, len(values) - 1))
    return values, values[:row], values[row:]


def _exact(x, y):
    """x̄, ȳ, Σ(x − x̄)(y − ȳ) as fractions."""
    x, y = ([Fraction(value) for value in part.tolist()] for part in (x, y))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return mean_x, mean_y, sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))


@given(_split(columns=2))
def test_parts_merged_are_the_whole(split):
    whole, first, second = split
    found = merged(moments_of(first), moments_of(second))
    assert found.count == len(whole)
    assert torch.equal(found.largest, whole.abs().amax(0))
    for unit in range(whole.shape[1]):
        mean, _, squares = _exact(whole[:, unit], whole[:, unit])
        assert math.isclose(found.mean[unit], mean, rel_tol=1e-14, abs_tol=1e-10)
        # Of a mean of 1e6 the 16th digit is 1e-10; its square, with 1e12, would leave four digits.
        assert math.isclose(found.squares[unit], squares, rel_tol=1e-9, abs_tol=1e-15 * float(found.largest[unit]) ** 2)


@given(_split())
def test_cross_products_merged_are_those_of_the_whole(split):
    parts = [pair_moments_of(part[:, :1].T, part[:, 1:].T) for part in split]
    found = merged_pairs(parts[1], parts[2])
    _, _, cross = _exact(split[0][:, 0], split[0][:, 1])
    size = float(split[0].abs().amax(0).prod())
    assert math.isclose(found.cross.item(), cross, rel_tol=1e-9, abs_tol=1e-13 * size)
    torch.testing.assert_close(found.cross, parts[0].cross, rtol=1e-9, atol=1e-13 * size)


@given(_split())
def test_merging_does_not_depend_on_the_order(split):
    _, first, second = split
    one = merged(moments_of(first), moments_of(second))
    two = merged(moments_of(second), moments_of(first))
    torch.testing.assert_close(one.mean, two.mean, rtol=1e-14, atol=1e-12)
    torch.testing.assert_close(one.squares, two.squares, rtol=1e-12, atol=1e-12)


def test_units_stand_on_any_axis():
    values = torch.randn(5, 3, 4, 2, generator=torch.Generator().manual_seed(0))
    found = moments_of(values)
    assert found.count == 40
    torch.testing.assert_close(found.deviation, values.double().std((0, 2, 3), correction=0))
    torch.testing.assert_close(moments_of(values.movedim(1, 3), 3).squares, found.squares)
