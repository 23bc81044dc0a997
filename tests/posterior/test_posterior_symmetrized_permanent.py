"""Permanents against brute force, closed forms and exact integers; their gradients, and draws of permutations."""

import itertools
import math
import time
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from coset.errors import InputError
from coset.posterior.symmetrized import log_permanent, permutation_marginals, sample_permutations
from coset.posterior.symmetrized import permanent as module

INF = math.inf


def matrices(*shape, seed=0, spread=1.0):
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(*shape, generator=generator, dtype=torch.float64)


def brute(logs):
    """log Σ_σ exp Σ_i A_{i,σ(i)} of one matrix, term by term."""
    n = len(logs)
    orders = torch.tensor(list(itertools.permutations(range(n))))
    return torch.logsumexp(logs[torch.arange(n), orders].sum(1), 0)


def exact(numbers):
    """The permanent of a matrix of whole numbers or fractions, by the recursion over subsets in exact arithmetic."""
    n = len(numbers)
    sums = [0] * (1 << n)
    sums[0] = 1
    for mask in range(1, 1 << n):
        row = numbers[mask.bit_count() - 1]
        sums[mask] = sum(row[j] * sums[mask ^ (1 << j)] for j in range(n) if mask >> j & 1)
    return sums[-1]


def log_exact(number):
    """log of a positive whole number of any size."""
    shift = max(0, number.bit_length() - 60)
    return math.log(number >> shift) + shift * math.log(2)


@pytest.mark.parametrize("n", range(1, 9))
def test_equals_the_sum_over_all_permutations(n):
    logs = matrices(2, n, n, seed=n, spread=3.0)
    torch.testing.assert_close(log_permanent(logs), torch.stack([brute(one) for one in logs]), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("n", [1, 2, 5, 12, 20])
def test_known_permanents(n):
    ones = torch.zeros(n, n, dtype=torch.float64)
    assert float(log_permanent(ones)) == pytest.approx(math.lgamma(n + 1), rel=1e-14, abs=1e-14)
    identity = torch.full((n, n), -INF, dtype=torch.float64).fill_diagonal_(0.0)
    assert float(log_permanent(identity)) == 0.0


@pytest.mark.parametrize("n", [2, 3, 7, 13, 18])
def test_derangements_and_circulants(n):
    without_diagonal = torch.zeros(n, n, dtype=torch.float64).fill_diagonal_(-INF)
    derangements = [1, 0]
    for k in range(2, n + 1):
        derangements.append((k - 1) * (derangements[-1] + derangements[-2]))
    assert float(log_permanent(without_diagonal)) == pytest.approx(math.log(derangements[n]), rel=1e-14, abs=1e-14)
    # I + P of a cycle P: the identity and the cycle. I + P + P²: Lucas numbers and 2 (Minc 1978), from n = 3 on.
    shift = torch.arange(n)
    two = torch.full((n, n), -INF, dtype=torch.float64).fill_diagonal_(0.0)
    two[shift, (shift + 1) % n] = 0.0
    assert float(log_permanent(two)) == pytest.approx(math.log(2), rel=1e-14)
    if n >= 3:
        three = two.clone()
        three[shift, (shift + 2) % n] = 0.0
        lucas = [2, 1]
        while len(lucas) <= n:
            lucas.append(lucas[-1] + lucas[-2])
        assert float(log_permanent(three)) == pytest.approx(math.log(lucas[n] + 2), rel=1e-14)


@pytest.mark.parametrize("bits", [0, 30, 300, 3000])
def test_entries_that_span_hundreds_of_nats_against_exact_integers(bits):
    # Powers of two: their logarithms are rounded once, their sums are whole numbers of any length.
    n = 11
    generator = torch.Generator().manual_seed(bits)
    powers = torch.randint(0, bits + 1, (n, n), generator=generator)
    truth = exact([[1 << int(power) for power in row] for row in powers])
    logs = powers.double() * math.log(2)
    value = float(log_permanent(logs))
    assert value == pytest.approx(log_exact(truth), rel=4e-16 * 20, abs=1e-13)
    for i, j in [(0, 0), (3, 7), (10, 2)]:
        minor = [[1 << int(powers[r, c]) for c in range(n) if c != j] for r in range(n) if r != i]
        share = Fraction((1 << int(powers[i, j])) * exact(minor), truth)
        assert float(permutation_marginals(logs)[i, j]) == pytest.approx(float(share), rel=1e-9, abs=1e-100)


def test_a_best_permutation_that_no_row_and_no_column_would_choose():
    # Greedy choices lose 1000 nats: scaling by rows or by columns alone underflows here.
    n = 9
    heights = 1000.0 * torch.arange(n, dtype=torch.float64)
    logs = matrices(n, n, seed=3)
    assert float(log_permanent(logs + heights[:, None] - 2 * heights)) == pytest.approx(
        float(log_permanent(logs)) - float(heights.sum()), rel=1e-15
    )
    staircase = torch.full((n, n), -5000.0, dtype=torch.float64)
    staircase[range(n), range(n)] = 0.0
    staircase[range(n - 1), range(1, n)] = 2000.0
    # The whole cycle, which takes the worst entry once; the next best is 2000 nats behind.
    assert float(log_permanent(staircase)) == 2000.0 * (n - 1) - 5000.0


def test_permutations_without_weight():
    logs = matrices(3, 4, 4).clone()
    logs[1, :, 2] = -INF
    logs.requires_grad_()
    value = log_permanent(logs)
    assert value[1] == -INF
    assert bool(value[[0, 2]].isfinite().all())
    (gradient,) = torch.autograd.grad(value.sum(), logs)
    assert bool(gradient.isfinite().all())
    assert bool((gradient[1] == 0).all())
    assert bool((permutation_marginals(logs)[1] == 0).all())
    # Not by an empty row: no matching, though every row and column has an entry.
    blocked = torch.full((4, 4), -INF, dtype=torch.float64)
    blocked[:3, 0], blocked[3] = 0.0, 0.0
    assert log_permanent(blocked) == -INF
    with pytest.raises(InputError, match="every permutation meets"):
        sample_permutations(blocked, 3, torch.Generator().manual_seed(0))


def test_gradients_against_finite_differences_and_brute_force():
    logs = matrices(2, 5, 5, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(log_permanent, (logs,), eps=1e-6, atol=1e-8)
    by_terms = torch.autograd.grad(sum(brute(one) for one in logs), logs)[0]
    ours = torch.autograd.grad(log_permanent(logs).sum(), logs)[0]
    torch.testing.assert_close(ours, by_terms, rtol=1e-12, atol=1e-14)
    assert torch.equal(permutation_marginals(logs), ours)


@pytest.mark.parametrize("n", [6, 15])
def test_marginals_are_doubly_stochastic_and_follow_a_change(n):
    logs = matrices(n, n, seed=4, spread=4.0)
    marginals = permutation_marginals(logs)
    ones = torch.ones(n, dtype=torch.float64)
    torch.testing.assert_close(marginals.sum(0), ones, rtol=0, atol=1e-13)
    torch.testing.assert_close(marginals.sum(1), ones, rtol=0, atol=1e-13)
    # Changing one entry: the permanent is linear in exp A_ij, so the ratio is 1 + P_ij (e^t − 1), exactly.
    for i, j in [(0, 0), (n - 1, 2), (2, n - 1)]:
        changed = logs.clone()
        changed[i, j] += 0.7
        ratio = float(log_permanent(changed) - log_permanent(logs))
        assert ratio == pytest.approx(math.log1p(float(marginals[i, j]) * math.expm1(0.7)), rel=1e-9, abs=1e-12)


def test_batches_are_taken_in_pieces(monkeypatch):
    logs = matrices(2, 3, 6, 6, seed=2).requires_grad_()
    whole = log_permanent(logs)
    gradient = torch.autograd.grad(whole.sum(), logs)[0]
    monkeypatch.setattr(module, "MEMORY", 1)
    torch.testing.assert_close(log_permanent(logs.detach()), whole.detach(), rtol=1e-14, atol=0)
    torch.testing.assert_close(torch.autograd.grad(log_permanent(logs).sum(), logs)[0], gradient, rtol=1e-13, atol=0)
    assert whole.shape == (2, 3)
    assert log_permanent(logs[:0]).shape == (0, 3)
    assert permutation_marginals(logs[:0]).shape == (0, 3, 6, 6)


def test_twenty_rows_take_less_than_a_second():
    logs = matrices(20, 20, spread=100.0)
    log_permanent(logs)
    start = time.process_time()
    log_permanent(logs)
    permutation_marginals(logs)
    assert time.process_time() - start < 1


def test_single_precision_comes_in_and_double_goes_out():
    logs = matrices(4, 4).float().requires_grad_()
    value = log_permanent(logs)
    assert value.dtype == torch.float64
    assert torch.autograd.grad(value, logs)[0].dtype == torch.float32
    torch.testing.assert_close(value, log_permanent(logs.double()), rtol=0, atol=0)


@given(
    n=st.integers(1, 7),
    seed=st.integers(0, 2**31),
    spread=st.sampled_from([0.1, 5.0, 300.0]),
    holes=st.integers(0, 6),
)
def test_invariances(n, seed, spread, holes):
    generator = torch.Generator().manual_seed(seed)
    logs = spread * torch.randn(n, n, generator=generator, dtype=torch.float64)
    for _ in range(holes):
        i, j = torch.randint(n, (2,), generator=generator)
        if i != j:  # The diagonal stays, so that one permutation does.
            logs[i, j] = -INF
    value = float(log_permanent(logs))
    tolerance = {"rel": 1e-13, "abs": 1e-12}
    rows, columns = (torch.randperm(n, generator=generator) for _ in range(2))
    assert float(log_permanent(logs[rows][:, columns])) == pytest.approx(value, **tolerance)
    assert float(log_permanent(logs.mT)) == pytest.approx(value, **tolerance)
    u, v = 50 * torch.randn(2, n, generator=generator, dtype=torch.float64)
    shifted = float(log_permanent(logs + u[:, None] + v))
    assert shifted == pytest.approx(value + float(u.sum() + v.sum()), rel=1e-12, abs=1e-11)
    torch.testing.assert_close(
        permutation_marginals(logs + u[:, None] + v), permutation_marginals(logs), rtol=1e-9, atol=1e-12
    )
    # Laplace expansion along the first row, every term positive.
    if n > 1:
        rest = [[c for c in range(n) if c != j] for j in range(n)]
        parts = torch.stack([logs[0, j] + log_permanent(logs[1:][:, rest[j]]) for j in range(n)])
        assert float(torch.logsumexp(parts, 0)) == pytest.approx(value, **tolerance)


def test_draws_have_the_frequencies_of_their_weights():
    n, draws = 4, 20_000
    logs = matrices(2, n, n, seed=8)
    found = sample_permutations(logs, draws, torch.Generator().manual_seed(1))
    assert found.shape == (2, draws, n)
    orders = list(itertools.permutations(range(n)))
    for matrix, sigmas in zip(logs, found, strict=True):
        weights = matrix[torch.arange(n), torch.tensor(orders)].sum(1).softmax(0)
        expected = draws * weights
        # Rare ones together, for the approximation by χ².
        common = expected > 5
        place = {order: number for number, order in enumerate(orders)}
        counts = torch.bincount(torch.tensor([place[tuple(s)] for s in sigmas.tolist()]), minlength=len(orders))
        cells = [(counts[common], expected[common]), (counts[~common].sum()[None], expected[~common].sum()[None])]
        statistic = sum(float(((c - e).square() / e).sum()) for c, e in cells if float(e.sum()) > 0)
        assert statistic < chi2.isf(1e-4, int(common.sum()))


def test_draws_of_a_large_matrix_follow_its_marginals():
    n, draws = 14, 4000
    logs = matrices(n, n, seed=9, spread=2.0)
    sigmas = sample_permutations(logs, draws, torch.Generator().manual_seed(2))
    assert bool((sigmas.sort(-1).values == torch.arange(n)).all())
    share = torch.nn.functional.one_hot(sigmas, n).double().mean(0)
    marginals = permutation_marginals(logs)
    deviation = (marginals * (1 - marginals) / draws).sqrt()
    assert float(((share - marginals).abs() / (deviation + 1e-3)).max()) < 4.5
    again = sample_permutations(logs, draws, torch.Generator().manual_seed(2))
    assert torch.equal(again, sigmas)


def test_draws_where_all_but_one_permutation_is_hopeless():
    n = 10
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    logs = torch.full((n, n), -900.0, dtype=torch.float64)
    logs[range(n), order] = 0.0
    assert bool((sample_permutations(logs, 50, torch.Generator().manual_seed(0)) == order).all())


@pytest.mark.parametrize(
    ("logs", "words"),
    [
        ([[0.0]], "list"),
        (torch.zeros(2, 2, dtype=torch.long), "int64"),
        (torch.zeros(2, 3), r"\(2, 3\)"),
        (torch.zeros(3), r"\(3,\)"),
        (torch.zeros(0, 0), r"\(0, 0\)"),
        (torch.full((2, 2), INF), "NaN, "),
        (torch.full((2, 2), math.nan), "NaN, "),
        (torch.full((2, 2), -1e16, dtype=torch.float64), "larger than 1e[+]15"),
        (torch.zeros(25, 25), "25 rows.*GB; expected 24"),
    ],
)
def test_what_has_no_permanent_is_refused(logs, words):
    for function in (log_permanent, permutation_marginals):
        with pytest.raises(InputError, match=words):
            function(logs)
