"""Powers of rotations: a one-parameter group of rotations from the identity to Q, along the shortest way."""

import math

import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coset.errors import InputError
from coset.represent.dissection.bases import rotation_powers, special_rotation


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def assert_near(a: Tensor, b: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


@settings(max_examples=40)
@given(st.integers(1, 12), st.integers(0, 999), st.floats(0, 1), st.floats(0, 1))
def test_powers_are_rotations_and_add_up(channels: int, seed: int, s: float, t: float) -> None:
    q = special_rotation(channels, generator(seed))
    a, b, both, half = rotation_powers(q, [s, t, s + t, 0.5])
    eye = torch.eye(channels, dtype=torch.float64)
    for power in (a, b, both, half):
        assert_near(power @ power.mT, eye)
        assert float(torch.linalg.det(power)) == pytest.approx(1, abs=1e-12)
    assert_near(a @ b, both)
    assert_near(half @ half, q)


def test_the_ends_are_exact_and_negative_powers_are_inverses() -> None:
    q = special_rotation(7, generator(1))
    first, last, back, twice = rotation_powers(q, [0, 1, -1, 2])
    assert torch.equal(first, torch.eye(7, dtype=torch.float64))
    assert torch.equal(last, q)
    assert_near(back, q.mT)
    assert_near(twice, q @ q)


def test_powers_are_those_of_the_matrix_logarithm() -> None:
    q = special_rotation(6, generator(3))
    logarithm = scipy.linalg.logm(q.numpy())
    expected = torch.from_numpy(scipy.linalg.expm(0.3 * logarithm).real)
    assert_near(rotation_powers(q, [0.3])[0], expected, 1e-10)


@pytest.mark.parametrize(
    "matrix",
    [
        torch.diag(torch.tensor([-1.0, 1.0, -1.0, 1.0, 1.0])),
        torch.diag(torch.tensor([-1.0, -1.0, -1.0, -1.0])),
        torch.eye(3)[[1, 2, 0]],
        torch.eye(4)[[1, 0, 3, 2]],
        torch.eye(1),
    ],
    ids=["half turn", "two half turns", "cycle", "two swaps", "one channel"],
)
def test_half_turns_and_permutations(matrix: Tensor) -> None:
    q = matrix.double()
    half, third = rotation_powers(q, [0.5, 1 / 3])
    assert_near(half @ half, q)
    assert_near(third @ third @ third, q)
    assert_near(half @ half.mT, torch.eye(len(q), dtype=torch.float64))


def test_the_way_is_the_shortest() -> None:
    # A turn by 350° is one by −10°: halfway it is −5°.
    angle = math.radians(350)
    q = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64)
    (half,) = rotation_powers(q, [0.5])
    assert math.degrees(math.atan2(half[1, 0], half[0, 0])) == pytest.approx(-5, abs=1e-10)


def test_special_rotations_are_uniform() -> None:
    draws = torch.stack([special_rotation(3, generator(seed)) for seed in range(2000)])
    assert torch.linalg.det(draws).min() > 0.999
    # Entries have mean 0 and second moment 1/3; 2000 draws have deviations of 0.013 and 0.0067, twelve entries.
    assert float(draws.mean(0).abs().max()) < 0.06
    assert float((draws.square().mean(0) - 1 / 3).abs().max()) < 0.03
    assert torch.equal(special_rotation(4, generator(0)), special_rotation(4, generator(0)))


def test_rotations_in_single_precision() -> None:
    q = special_rotation(20, generator(0)).float()
    half, last = rotation_powers(q, [0.5, 1])
    assert_near(half @ half, q.double(), 1e-5)
    assert torch.equal(last, q.double())
    with pytest.raises(InputError, match="rotation is not orthogonal"):
        rotation_powers(q.double(), [0.5])


def test_bad_input() -> None:
    swap = torch.eye(3)[[1, 0, 2]]
    with pytest.raises(InputError, match="determinant −1"):
        rotation_powers(swap, [0.5])
    with pytest.raises(InputError, match="rotation is not orthogonal"):
        rotation_powers(2 * torch.eye(3), [0.5])
    with pytest.raises(InputError, match="rotation is not orthogonal"):
        rotation_powers(torch.full((2, 2), torch.nan), [0.5])
    with pytest.raises(InputError, match=r"rotation is \(2, 3\); expected a square matrix"):
        rotation_powers(torch.ones(2, 3), [0.5])
    with pytest.raises(InputError, match="powers holds nan"):
        rotation_powers(torch.eye(2), [math.nan])
    with pytest.raises(InputError, match="powers is empty"):
        rotation_powers(torch.eye(2), [])
    with pytest.raises(InputError, match="channels is 0"):
        special_rotation(0, generator(0))
