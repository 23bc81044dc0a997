"""The Sinkhorn operator: its fixed point, its implicit gradient against recorded sweeps, the assignment behind it."""

import itertools

import pytest
import torch

from coset.alignment.matching.sinkhorn_operator import matrix_of, permutation_of, sinkhorn
from coset.errors import InputError


def scores(*shape, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)


def unrolled(s, temperature, sweeps):
    """The same projection, every sweep recorded."""
    s = s / temperature
    for _ in range(sweeps):
        s = s - s.logsumexp(-1, keepdim=True)
        s = s - s.logsumexp(-2, keepdim=True)
    return s.exp()


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (7, 7), (3, 5, 5), (2, 3, 4, 4)])
def test_rows_and_columns_sum_to_one(shape):
    p = sinkhorn(scores(*shape), 0.5, iterations=10_000, tolerance=1e-13)
    assert p.shape == shape
    assert bool((p > 0).all())
    torch.testing.assert_close(p.sum(-1), torch.ones(shape[:-1], dtype=p.dtype), rtol=0, atol=1e-12)
    torch.testing.assert_close(p.sum(-2), torch.ones(shape[:-1], dtype=p.dtype), rtol=0, atol=1e-12)


def test_two_by_two_is_the_closed_form():
    """P = [[s, 1 − s], [1 − s, s]] with s = σ((s₁₁ + s₂₂ − s₁₂ − s₂₁)/2T)."""
    s, temperature = scores(2, 2), 0.7
    share = torch.sigmoid((s[0, 0] + s[1, 1] - s[0, 1] - s[1, 0]) / (2 * temperature))
    expected = torch.stack([torch.stack([share, 1 - share]), torch.stack([1 - share, share])])
    found = sinkhorn(s, temperature, iterations=10_000, tolerance=1e-15)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


def test_shifting_rows_and_columns_changes_nothing():
    s = scores(6, 6)
    shifted = s + scores(6, 1, seed=1) + scores(1, 6, seed=2)
    options = {"iterations": 10_000, "tolerance": 1e-14}
    torch.testing.assert_close(sinkhorn(s, 0.4, **options), sinkhorn(shifted, 0.4, **options), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("shape", "temperature"), [((2, 2), 1.0), ((6, 6), 0.3), ((3, 5, 5), 0.5), ((12, 12), 0.2)])
def test_gradient_is_that_of_recorded_sweeps(shape, temperature):
    upstream = scores(*shape, seed=1)
    s = scores(*shape).requires_grad_()
    (expected,) = torch.autograd.grad((unrolled(s, temperature, 3000) * upstream).sum(), s)
    implicit = sinkhorn(s, temperature, iterations=3000, tolerance=0.0)
    (found,) = torch.autograd.grad((implicit * upstream).sum(), s)
    assert expected.abs().max() > 1e-2
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_gradient_is_that_of_finite_differences():
    s = scores(2, 4, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: sinkhorn(t, 0.5, 5000, 1e-15), s, rtol=1e-6, atol=1e-8)


def test_one_unit_has_one_matrix_and_no_gradient():
    s = scores(4, 1, 1).requires_grad_()
    p = sinkhorn(s, 0.1)
    p.sum().backward()
    assert torch.equal(p, torch.ones_like(p))
    assert torch.equal(s.grad, torch.zeros_like(s))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [30.0, 1000.0])
def test_tiny_temperatures_stay_finite_and_reach_the_assignment(dtype, scale):
    """scores/temperature of ±1000: P is a permutation matrix to the last digit, its gradient small and finite."""
    planted = torch.randperm(9, generator=torch.Generator().manual_seed(3))
    s = (matrix_of(planted, dtype) + 0.1 * torch.rand(9, 9, generator=torch.Generator().manual_seed(4))).to(dtype)
    s.requires_grad_()
    p = sinkhorn(s, 1 / scale)
    (gradient,) = torch.autograd.grad((p * scores(9, 9, seed=5).to(dtype)).sum(), s)
    assert torch.equal(permutation_of(p), planted)
    if scale == 1000:
        assert torch.equal(p.round(decimals=6), matrix_of(planted, dtype))
    # All of it is of the size of what P leaves off the permutation.
    left = float((p.detach() * (1 - matrix_of(planted, dtype))).sum())
    assert bool(torch.isfinite(gradient).all())
    assert float(gradient.abs().max()) <= 10 * scale * left + 1e-7


def test_random_scores_at_a_tiny_temperature_have_a_finite_gradient():
    """Far from convergence, with rows far from 1: nothing overflows."""
    s = scores(2, 150, 150).requires_grad_()
    p = sinkhorn(s, 1e-3, iterations=5)
    assert float((p.detach().sum(-1) - 1).abs().max()) > 0.5
    (gradient,) = torch.autograd.grad((p * scores(2, 150, 150, seed=1)).sum(), s)
    assert bool(torch.isfinite(p).all())
    assert bool(torch.isfinite(gradient).all())


def test_blocks_that_do_not_mix_have_the_gradients_of_the_blocks():
    """A P that decomposes has one null direction per block; the gradient must not notice."""
    small = scores(2, 3, 3)
    s = torch.full((6, 6), -1e4, dtype=torch.float64)
    s[:3, :3], s[3:, 3:] = small[0], small[1]
    upstream = scores(6, 6, seed=1)
    s.requires_grad_()
    (found,) = torch.autograd.grad((sinkhorn(s, 0.5, 5000, 1e-14) * upstream).sum(), s)
    for block in (slice(0, 3), slice(3, 6)):
        alone = s.detach()[block, block].clone().requires_grad_()
        loss = (sinkhorn(alone, 0.5, 5000, 1e-14) * upstream[block, block]).sum()
        torch.testing.assert_close(found[block, block], torch.autograd.grad(loss, alone)[0], rtol=1e-8, atol=1e-10)


def test_permutation_of_is_the_best_of_all():
    matrix = scores(2, 3, 4, 4)
    found = permutation_of(matrix)
    assert found.shape == (2, 3, 4)
    assert found.dtype == torch.long
    values = torch.gather(matrix, -1, found[..., None]).sum((-2, -1))
    every = torch.tensor(list(itertools.permutations(range(4))))
    best = torch.stack([matrix[..., torch.arange(4), p].sum(-1) for p in every]).amax(0)
    torch.testing.assert_close(values, best, rtol=0, atol=1e-14)


def test_matrix_of_and_permutation_of_undo_each_other():
    p = torch.rand(3, 2, 6, generator=torch.Generator().manual_seed(0)).argsort(-1)
    assert torch.equal(permutation_of(matrix_of(p)), p)
    assert float(matrix_of(p)[1, 1, 4, p[1, 1, 4]]) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sinkhorn(torch.zeros(2, 3), 1.0), "shape"),
        (lambda: sinkhorn(torch.zeros(2, 2, dtype=torch.long), 1.0), "int64"),
        (lambda: sinkhorn(torch.zeros(2, 2), 0.0), "temperature is 0.0"),
        (lambda: sinkhorn(torch.zeros(2, 2), float("nan")), "temperature is nan"),
        (lambda: sinkhorn(torch.zeros(2, 2), "a"), "temperature is 'a'; expected a number > 0"),
        (lambda: sinkhorn(torch.zeros(2, 2), True), "temperature is True"),
        (lambda: sinkhorn(torch.zeros(2, 2), 1.0, 0), "iterations is 0"),
        (lambda: sinkhorn(torch.zeros(2, 2), 1.0, 7.5), "iterations is 7.5; expected a whole number"),
        (lambda: sinkhorn(torch.zeros(2, 2), 1.0, tolerance="a"), "tolerance is 'a'"),
        (lambda: sinkhorn([[1.0, 2.0], [3.0, 4.0]]), "scores is a list; expected a tensor"),
        (lambda: sinkhorn(torch.full((3, 3), float("nan"))), "scores have entries that are NaN or infinite"),
        (lambda: sinkhorn(torch.full((3, 3), float("inf"))), "scores have entries that are NaN or infinite"),
        (lambda: permutation_of(torch.zeros(2, 3)), "square"),
        (lambda: permutation_of(torch.full((2, 2), float("nan"))), "NaN"),
    ],
)
def test_refusals_name_what_was_given(call, message):
    with pytest.raises(InputError, match=message):
        call()
