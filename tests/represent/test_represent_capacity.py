"""The capacity of stitching families: against counts by enumeration, and the paper's conclusion."""

import itertools
import math

import pytest
import torch

from coset.errors import InputError
from coset.represent.capacity import CAPACITIES, Grid, excess_over_rank, log_capacity


def numbers(grid: Grid) -> list[float]:
    """The grid of E.7, moved by half a step so that it has as many positive numbers as negative ones, and no 0."""
    count = int(2 * grid.magnitude / grid.step)
    return [-grid.magnitude + (index + 0.5) * grid.step for index in range(count)]


def test_full_signed_and_positive_monomial_matrices_by_enumeration():
    grid = Grid(magnitude=1.0, step=0.5)
    axis = numbers(grid)
    full = monomial = positive = 0
    for entries in itertools.product([0.0, *axis], repeat=4):
        matrix = torch.tensor(entries).reshape(2, 2)
        full += bool((matrix != 0).all())
        if bool(((matrix != 0).sum(0) == 1).all() and ((matrix != 0).sum(1) == 1).all()):
            monomial += 1
            positive += bool((matrix >= 0).all())
    assert math.log(full) == pytest.approx(log_capacity("full", 2, grid=grid))
    assert math.log(monomial) == pytest.approx(log_capacity("signed", 2, grid=grid))
    assert math.log(positive) == pytest.approx(log_capacity("g-relu", 2, grid=grid))
    assert math.log(math.factorial(5)) == pytest.approx(log_capacity("permutation", 5, grid=grid))


@pytest.mark.parametrize(("n", "rank"), [(3, 1), (4, 2), (5, 3), (3, 3)])
def test_the_exponent_of_rank_r_is_the_dimension_of_its_variety(n, rank):
    # The dimension: the rank of the derivative of (U, V) ↦ U V in general position.
    u = torch.randn(n, rank, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    v = torch.randn(rank, n, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    du, dv = torch.autograd.functional.jacobian(lambda u, v: (u @ v).flatten(), (u, v))
    dimension = int(torch.linalg.matrix_rank(torch.cat([du.flatten(1), dv.flatten(1)], 1)))
    grid = Grid(2.0, 2.0**-10)
    assert log_capacity("rank", n, rank=rank, grid=grid) == pytest.approx(dimension * math.log(2 * 2.0 / 2.0**-10))


def test_full_rank_is_full():
    assert log_capacity("rank", 7, rank=7) == pytest.approx(log_capacity("full", 7))


def test_the_difference_is_that_of_the_paper_with_the_last_logarithm_corrected():
    n, rank, ratio = 64, 2, 1000.0
    grid = Grid(10.0, 0.01)
    expected = math.lgamma(n + 1) + n * math.log(ratio) - (2 * n * rank - rank**2) * (math.log(ratio) + math.log(2))
    assert excess_over_rank(n, rank, grid=grid) == pytest.approx(expected)
    printed = math.lgamma(n + 1) + n * math.log(ratio) - (2 * n * rank - rank**2) * math.log(ratio + math.log(2))
    assert abs(excess_over_rank(n, rank, grid=grid) - printed) > 100


@pytest.mark.parametrize("n", [2, 16, 64, 512])
def test_g_relu_is_smaller_than_rank_one_on_a_grid_finer_than_its_channels(n):
    # M/ε ≫ n of the paper; single precision has it for all layers in use.
    assert excess_over_rank(n, 1) < 0
    assert excess_over_rank(n, 2) < excess_over_rank(n, 1)
    if n > 16:
        # On a grid of two positive numbers n! wins.
        assert excess_over_rank(n, 1, grid=Grid(1.0, 0.5)) > 0


def test_wrong_input_is_named():
    with pytest.raises(InputError, match="family is 'big'"):
        log_capacity("big", 3)
    with pytest.raises(InputError, match="channels is 0"):
        log_capacity("full", 0)
    with pytest.raises(InputError, match="'rank' takes rank; found none"):
        log_capacity("rank", 3)
    with pytest.raises(InputError, match="'full' takes no options; found rank"):
        log_capacity("full", 3, rank=2)
    with pytest.raises(InputError, match="rank is 4"):
        log_capacity("rank", 3, rank=4)
    with pytest.raises(InputError, match="0 < step ≤ magnitude"):
        Grid(1.0, 2.0)
    assert "orthogonal" in CAPACITIES
