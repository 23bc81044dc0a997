"""Spheres: exp and log undo each other, distances are angles at any scale, opposite points are refused."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coset.errors import InputError
from coset.geometry import spheres

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def rotation(size, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))[0]


def apart(angle, seed=0, dtype=torch.float64, size=5, radius=1.0):
    """Two points of a sphere at this angle, and the tangent of unit length at the first one that shows to the other."""
    first, second = rotation(size, seed)[:2] * radius
    x, y = first, math.cos(angle) * first + math.sin(angle) * second
    return x.to(dtype), y.to(dtype), (second / radius).to(dtype)


@given(st.floats(1e-6, math.pi - 1e-3), st.integers(0, 99), st.sampled_from([1.0, 3.0, 1e-3]))
def test_exp_and_log_undo_each_other(angle, seed, radius):
    x, y, direction = apart(angle, seed, radius=radius)
    v = spheres.log(x, y, radius)
    torch.testing.assert_close(v, radius * angle * direction, rtol=1e-8, atol=1e-12 * radius)
    torch.testing.assert_close(spheres.exp(x, v, radius), y, rtol=0, atol=1e-12 * radius)
    back = spheres.log(x, spheres.exp(x, radius * angle * direction, radius), radius)
    torch.testing.assert_close(back, v, rtol=1e-8, atol=1e-12 * radius)
    assert abs(float(x @ v)) <= 1e-12 * radius**2


@given(st.floats(0, math.pi), st.integers(0, 99), st.sampled_from([1.0, 3.0]))
def test_the_distance_is_the_angle_times_the_radius(angle, seed, radius):
    x, y, _ = apart(angle, seed, radius=radius)
    found = float(spheres.distance(x, y, radius))
    assert math.isclose(found, radius * angle, rel_tol=1e-9, abs_tol=1e-14)
    assert found == float(spheres.distance(y, x, radius))


@DTYPES
@pytest.mark.parametrize("angle", [1e-8, 1e-6, 1e-3])
def test_small_angles_have_all_their_digits(dtype, angle):
    """Along an axis, where points that are so near are different numbers in single precision."""
    x = torch.tensor([1.0, 0.0, 0.0], dtype=dtype)
    y = torch.tensor([math.cos(angle), math.sin(angle), 0.0], dtype=dtype)
    rounding = 8 * torch.finfo(dtype).eps
    # Half of a unit in the last place of 1, by which cos may be rounded, is a length to be added at right angles.
    allowed = math.hypot(1, torch.finfo(dtype).eps / angle) - 1 + rounding
    assert float(spheres.distance(x, y)) == pytest.approx(angle, rel=allowed)
    v = spheres.log(x, y)
    assert float(v[1]) == pytest.approx(angle, rel=allowed)
    assert float(v.norm()) == pytest.approx(angle, rel=allowed)
    assert float(spheres.exp(x, v)[1]) == pytest.approx(math.sin(angle), rel=allowed)
    assert float(spheres.slerp(x, y, 0.25)[1]) == pytest.approx(angle / 4, rel=allowed + angle**2)


def test_small_angles_in_any_direction():
    for seed in range(20):
        x, _, direction = apart(1.0, seed, size=50)
        v = 1e-8 * direction
        y = spheres.exp(x, v)
        # y − x has as many digits as 1e-8 has above the rounding of entries.
        torch.testing.assert_close(spheres.log(x, y), v, rtol=0, atol=2e-16)
        assert float(spheres.distance(x, y)) == pytest.approx(1e-8, rel=1e-7)


@DTYPES
def test_logarithms_are_tangent_near_the_antipode(dtype):
    for seed in range(50):
        x, y, _ = apart(math.pi - 1e-3, seed, dtype, size=50)
        assert abs(float(x @ spheres.log(x, y))) <= 8 * math.pi * torch.finfo(dtype).eps


@DTYPES
def test_great_circles_have_constant_speed(dtype):
    x, y, _ = apart(2.5, 3, dtype, radius=2.0)
    assert torch.equal(spheres.slerp(x, y, 0.0, 2.0), x)
    for t in (0.1, 0.5, 0.9, 1.0):
        point = spheres.slerp(x, y, t, 2.0)
        assert float(point.norm()) == pytest.approx(2, rel=TOLERANCE[dtype])
        assert float(spheres.distance(x, point, 2.0)) == pytest.approx(5 * t, rel=TOLERANCE[dtype])
        torch.testing.assert_close(
            point, spheres.exp(x, t * spheres.log(x, y, 2.0), 2.0), rtol=0, atol=2 * TOLERANCE[dtype]
        )


@DTYPES
def test_one_point(dtype):
    x, _, _ = apart(1.0, 0, dtype)
    assert torch.equal(spheres.log(x, x), torch.zeros_like(x))
    assert torch.equal(spheres.exp(x, torch.zeros_like(x)), x)
    assert float(spheres.distance(x, x)) == 0
    torch.testing.assert_close(spheres.slerp(x, x, 0.3), x)


@DTYPES
@pytest.mark.parametrize("call", [spheres.log, lambda x, y: spheres.slerp(x, y, 0.5)], ids=["log", "slerp"])
def test_opposite_points_are_refused(dtype, call):
    x, _, _ = apart(1.0, 0, dtype)
    assert float(spheres.distance(x, -x)) == pytest.approx(math.pi)
    with pytest.raises(InputError, match="x and y are opposite on the sphere"):
        call(torch.stack([x, x]), torch.stack([x, -x]))


def test_many_points_at_once():
    pairs = [apart(angle, 4) for angle in (0.1, 1.0, 3.0)]
    x, y = (torch.stack([pair[part] for pair in pairs]) for part in (0, 1))
    torch.testing.assert_close(spheres.distance(x, y), torch.tensor([0.1, 1.0, 3.0], dtype=torch.float64))
    for row, (one, two, _) in enumerate(pairs):
        torch.testing.assert_close(spheres.log(x, y)[row], spheres.log(one, two))
        torch.testing.assert_close(spheres.slerp(x, y, 0.3)[row], spheres.slerp(one, two, 0.3))


@given(st.integers(0, 99), st.integers(1, 5), st.sampled_from([1.0, 2.0]))
def test_at_the_mean_the_logarithms_cancel(seed, count, radius):
    generator = torch.Generator().manual_seed(seed)
    # In a half sphere, of which the mean is one.
    points = torch.randn(count, 4, generator=generator, dtype=torch.float64) + 2
    points = radius * points / points.norm(dim=1, keepdim=True)
    weights = torch.rand(count, generator=generator, dtype=torch.float64) + 0.1
    found = spheres.mean(points, weights, radius)
    assert float(found.norm()) == pytest.approx(radius, rel=1e-12)
    total = (weights[:, None] * spheres.log(found.expand_as(points), points, radius)).sum(0)
    assert float(total.norm()) < 1e-11 * radius
    single = spheres.mean(points.float(), weights, radius)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), found, rtol=0, atol=1e-5)


def test_means_that_are_not_there():
    with pytest.raises(InputError, match="two that are opposite"):
        spheres.mean(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    corners = torch.tensor([[math.cos(k), math.sin(k)] for k in (0.0, 2 * math.pi / 3, 4 * math.pi / 3)])
    with pytest.raises(InputError, match="the directions cancel"):
        spheres.mean(corners)
