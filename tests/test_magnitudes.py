"""Powers of two change no digit: scaling there and back, norms of numbers whose squares are none."""

import math

import pytest
import torch

from coset._magnitudes import equivariant, exponent, exponents, magnitude, scaled, scaled_by, squares_hold, unscaled


def normal(*shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_numbers_of_ordinary_size_are_left_alone(dtype):
    x = normal(5, 3, dtype=dtype)
    assert exponent(x) == 0
    assert scaled(x, exponent(x)) is x
    assert scaled_by(x, exponents(x, 0)) is x


@pytest.mark.parametrize(
    ("dtype", "power"), [(torch.float32, -100), (torch.float32, 110), (torch.float64, -1000), (torch.float64, 1000)]
)
def test_scaling_changes_no_digit(dtype, power):
    x = normal(50, dtype=dtype)
    far = scaled(x, -power)
    assert exponent(far) == magnitude(x) + power
    assert torch.equal(scaled(far, power), x)
    assert torch.equal(scaled_by(far, torch.full((50,), power)), x)
    near = scaled(far, exponent(far))
    assert 0.5 <= float(near.abs().max()) < 1


@pytest.mark.parametrize("c", [5e-324, 1e-310, 1e-200, 1e-150, 1.0, 1e150, 1e200, 1e307])
def test_norms_of_numbers_whose_squares_are_none(c):
    """‖(3, 4)‖ = 5, at any size, the smallest that there are included."""
    norm = equivariant(torch.linalg.vector_norm, c * torch.tensor([3.0, 4.0], dtype=torch.float64))
    assert float(norm) == pytest.approx(5 * c, rel=4e-16, abs=0)


def test_parts_have_exponents_of_their_own():
    x = torch.tensor([[1.0, -2.0], [1e-200, 3e-200], [0.0, 0.0], [1e200, 1.0]], dtype=torch.float64)
    by = exponents(x, 1)
    assert by.tolist() == [0, math.frexp(3e-200)[1], 0, math.frexp(1e200)[1]]
    norms = scaled_by(scaled_by(x, by[:, None]).norm(dim=1), -by)
    expected = torch.tensor([5**0.5, 10**0.5 * 1e-200, 0.0, 1e200], dtype=torch.float64)
    torch.testing.assert_close(norms, expected, rtol=1e-15, atol=0)


def test_what_has_no_size_is_left_alone():
    assert magnitude() is None
    assert magnitude(torch.zeros(3), torch.zeros(0)) is None
    assert magnitude(torch.tensor([1.0, math.nan])) is None
    assert magnitude(torch.tensor([1.0, math.inf])) is None
    assert exponent(torch.zeros(3)) == 0
    count = torch.tensor(3)
    assert scaled(count, 5) is count


def test_values_beyond_all_floats_are_infinite_and_below_them_zero():
    assert unscaled(1.5, 3) == 12.0
    assert unscaled(-1.0, 2000) == -math.inf
    assert unscaled(1.0, -2000) == 0.0


def test_which_squares_have_their_digits():
    squares = torch.tensor([0.0, 1e-320, 1e-300, 1e-280, 1.0, math.inf, math.nan], dtype=torch.float64)
    assert squares_hold(squares).tolist() == [False, False, False, True, True, False, False]
    assert squares_hold(squares, torch.float32).tolist() == [False] * 4 + [True, False, False]
