"""Assignments that begin with the prices of the last one: as good as those from nothing, whatever came before."""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from coset.alignment.assignment import WARM_FROM, WarmAssignment, assign
from coset.alignment.matching.ascent import ROUNDING

N = WARM_FROM + 16


def _value(score, order):
    return score[np.arange(len(score)), order].sum(dtype=np.float64)


def _check(score, order):
    assert sorted(order.tolist()) == list(range(len(score)))
    best = linear_sum_assignment(score, maximize=True)[1]
    # What an ascent takes for rounding of the entries picked.
    rounding = ROUNDING * np.finfo(score.dtype).eps * _value(np.abs(score), best)
    assert _value(score, best) - _value(score, order) <= rounding


def _drifting(rng):
    """A matrix of noise that goes on changing, ever less, by few ranks: what a class sees in an ascent."""
    score = rng.standard_normal((N, N))
    for step in range(6):
        yield score
        score = score + 0.5**step * rng.standard_normal((N, 8)) @ rng.standard_normal((8, N))


def _unrelated(rng):
    return (rng.standard_normal((N, N)) for _ in range(3))


def _planted(rng):
    features, order = rng.standard_normal((N, 20)), rng.permutation(N)
    return (features @ features[order].T + noise * rng.standard_normal((N, N)) for noise in (0.0, 1.0, 0.0))


def _crowded(rng):
    """Rank one: every row wants the same few columns."""
    return (np.outer(rng.standard_normal(N), rng.standard_normal(N)) for _ in range(2))


def _ties(rng):
    return (rng.integers(0, 3, (N, N)).astype(float) for _ in range(3))


def _dead_and_equal_units(rng):
    score = rng.standard_normal((N, N))
    score[:50], score[:, 200:250] = score[0], 0.0
    return iter((score, score, score + 0.01 * np.outer(score[:, 0], score[1])))


def _all_the_same(rng):
    return (np.full((N, N), value) for value in (0.0, 0.0, 2.0))


def _of_very_different_size(rng):
    score = rng.standard_normal((N, N))
    score[3] *= 1e6
    score[:, 5] *= 1e6
    return (score + 0.1 * rng.standard_normal((N, N)) for _ in range(3))


SEQUENCES = (
    _drifting,
    _unrelated,
    _planted,
    _crowded,
    _ties,
    _dead_and_equal_units,
    _all_the_same,
    _of_very_different_size,
)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sequence", SEQUENCES)
def test_every_assignment_of_a_sequence_is_optimal(sequence, dtype):
    solver = WarmAssignment()
    for score in sequence(np.random.default_rng(0)):
        _check(score.astype(dtype), solver(score.astype(dtype)))


def test_an_unchanged_problem_has_an_unchanged_solution():
    score = np.random.default_rng(1).standard_normal((N, N)).astype(np.float32)
    solver = WarmAssignment()
    first = solver(score)
    assert np.array_equal(solver(score), first)
    # What is the same for all assignments changes none of them.
    offset = np.arange(N, dtype=np.float32)[:, None]
    _check(score + offset, solver(score + offset))


def test_problems_of_different_sizes_do_not_disturb_each_other():
    rng, solver = np.random.default_rng(2), WarmAssignment()
    for size in (N, N + 5, 7, 1, N):
        score = rng.standard_normal((size, size))
        _check(score, solver(score))


def test_the_scores_are_left_as_they_are():
    score = np.random.default_rng(3).standard_normal((N, N))
    before, solver = score.copy(), WarmAssignment()
    solver(score)
    solver(score)
    assert np.array_equal(score, before)


def test_a_single_unit_stays_where_it_is():
    assert assign(np.array([[-3.0]])).tolist() == [0]
