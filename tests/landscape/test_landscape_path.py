"""Lines and curves against their formulas."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coset.distribution import Delta
from coset.errors import InputError
from coset.landscape import Bezier, PolygonalChain, linear
from coset.landscape._curves import KINDS


def points(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "w": torch.randn(3, 2, generator=generator, dtype=torch.float64),
            "b": torch.randn(3, generator=generator, dtype=torch.float64),
            "batches": torch.tensor(number),
        }
        for number in range(count)
    ]


def assert_points_equal(found, expected):
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-14)


@given(tau=st.floats(0.001, 0.999), seed=st.integers(0, 1000))
def test_the_line_is_the_weighted_mean(tau, seed):
    a, b = points(2, seed)
    expected = {name: (1 - tau) * a[name] + tau * b[name] for name in ("w", "b")} | {"batches": a["batches"]}
    assert_points_equal(linear(a, b)(tau), expected)
    assert_points_equal(linear(b, a)(1 - tau), expected | {"batches": b["batches"]})


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("kind", ["line", *KINDS])
def test_the_ends_are_the_networks_themselves(kind, count):
    control = points(count)
    path = linear(control[0], control[-1]) if kind == "line" else KINDS[kind](control)
    for tau, end in ((0, control[0]), (1.0, control[-1])):
        assert all(path(tau)[name] is end[name] for name in end)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
@given(tau=st.floats(0, 1))
def test_what_the_ends_share_is_bitwise_the_same_between_them(dtype, tau):
    tensor = torch.randn(50, generator=torch.Generator().manual_seed(0)).to(dtype)
    for path in (linear({"w": tensor}, {"w": tensor.clone()}), Bezier([{"w": tensor.clone()} for _ in range(4)])):
        assert path(tau)["w"].dtype == dtype
        assert torch.equal(path(tau)["w"], tensor)


def test_a_delta_is_its_params():
    a, b = points(2)
    assert_points_equal(linear(Delta(a), Delta(b))(0.3), linear(a, b)(0.3))
    assert_points_equal(Bezier([Delta(a), a, b])(0.3), Bezier([a, a, b])(0.3))


def test_paths_follow_derivatives_of_their_ends():
    a, b = points(2)
    a["w"].requires_grad_()
    b["w"].requires_grad_()
    linear(a, b)(0.25)["w"].sum().backward()
    assert torch.equal(a["w"].grad, torch.full_like(a["w"], 0.75))
    assert torch.equal(b["w"].grad, torch.full_like(b["w"], 0.25))


@pytest.mark.parametrize("kind", [linear, lambda a, b: Bezier([a, b, a]), lambda a, b: PolygonalChain([a, b])])
def test_tied_tensors_stay_tied_and_equal_values_do_not_become_tied(kind):
    a, b = points(2)
    # As in a state dict: one memory, two tensor objects.
    a["again"], b["again"] = a["w"].view(3, 2), b["w"].view(3, 2)
    a["copy"], b["copy"] = a["w"].clone(), b["w"].clone()
    point = kind(a, b)(0.4)
    assert point["again"] is point["w"]
    assert torch.equal(point["copy"], point["w"])
    assert point["copy"].data_ptr() != point["w"].data_ptr()


# Curves -----------------------------------------------------------------------------------------------------------


@given(tau=st.floats(0, 1), count=st.integers(2, 6))
def test_bezier_is_the_sum_of_bernstein_polynomials(tau, count):
    control = points(count)
    curve = Bezier(control)
    weights = curve.weights(tau)
    assert sum(weights) == pytest.approx(1, abs=1e-14)
    for name in ("w", "b"):
        expected = sum(weight * point[name] for weight, point in zip(weights, control, strict=True))
        torch.testing.assert_close(curve(tau)[name], expected, rtol=0, atol=1e-13)


@given(tau=st.floats(0, 1))
def test_quadratic_bezier_in_closed_form(tau):
    p, q, r = points(3)
    expected = (1 - tau) ** 2 * p["w"] + 2 * tau * (1 - tau) * q["w"] + tau**2 * r["w"]
    torch.testing.assert_close(Bezier([p, q, r])(tau)["w"], expected, rtol=0, atol=1e-13)


def test_quadratic_bezier_leaves_towards_its_bend_and_arrives_from_it():
    p, q, r = points(3)
    curve, h = Bezier([p, q, r]), 2.0**-6
    # Three values of a parabola give its derivative at the first exactly.
    start = (-3 * p["w"] + 4 * curve(h)["w"] - curve(2 * h)["w"]) / (2 * h)
    end = (3 * r["w"] - 4 * curve(1 - h)["w"] + curve(1 - 2 * h)["w"]) / (2 * h)
    torch.testing.assert_close(start, 2 * (q["w"] - p["w"]), rtol=0, atol=1e-12)
    torch.testing.assert_close(end, 2 * (r["w"] - q["w"]), rtol=0, atol=1e-12)


@given(tau=st.floats(0, 1), kind=st.sampled_from(sorted(KINDS)), bends=st.integers(0, 4))
def test_control_points_evenly_on_the_line_give_the_line(tau, kind, bends):
    line = linear(*points(2))
    curve = KINDS[kind]([line(number / (bends + 1)) for number in range(bends + 2)])
    torch.testing.assert_close(curve(tau)["w"], line(tau)["w"], rtol=0, atol=1e-13)


@given(tau=st.floats(0, 1), count=st.integers(2, 6))
def test_the_chain_is_straight_between_its_points(tau, count):
    control = points(count)
    chain = PolygonalChain(control)
    at = min(int(tau * (count - 1)), count - 2)
    share = tau * (count - 1) - at
    torch.testing.assert_close(
        chain(tau)["w"], (1 - share) * control[at]["w"] + share * control[at + 1]["w"], rtol=0, atol=1e-13
    )
    weights = chain.weights(tau)
    assert sum(weights) == 1
    assert sum(weight > 0 for weight in weights) <= 2
    expected = sum(weight * point["w"] for weight, point in zip(weights, control, strict=True))
    torch.testing.assert_close(chain(tau)["w"], expected, rtol=0, atol=1e-13)


def test_the_chain_passes_through_its_points():
    control = points(5)
    for number, point in enumerate(control):
        assert PolygonalChain(control)(number / 4)["w"] is point["w"]


# Refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [-1e-9, 1 + 1e-9, float("nan"), True, "0.5", None])
@pytest.mark.parametrize("kind", [linear, lambda a, b: Bezier([a, b]), lambda a, b: PolygonalChain([a, b])])
def test_tau_outside_is_refused(kind, tau):
    with pytest.raises(InputError, match=r"tau is .*; expected a number from 0 to 1"):
        kind(*points(2))(tau)


def test_ends_of_different_architectures_are_refused_by_name():
    a, b = points(2)
    with pytest.raises(InputError, match="the start has 'b' and the end has not; expected networks of one architectu"):
        linear(a, {name: b[name] for name in ("w", "batches")})
    with pytest.raises(InputError, match="the end has 'extra' and the start has not"):
        linear(a, b | {"extra": b["b"]})
    with pytest.raises(InputError, match=r"'w' has shape \(3, 2\) in the start and \(2, 3\) in the end"):
        linear(a, b | {"w": b["w"].T})
    with pytest.raises(InputError, match=r"'b' has dtype torch.float64 in control point 0 and torch.float32 in contr"):
        Bezier([a, b, b | {"b": b["b"].float()}])
    with pytest.raises(InputError, match="b is a list; expected a dict of parameters or a Delta"):
        linear(a, [b])
    with pytest.raises(InputError, match="'w' of a is a float; expected a tensor"):
        linear(a | {"w": 1.0}, b)
    with pytest.raises(InputError, match="a has no parameters; expected at least one"):
        linear({}, {})


@pytest.mark.parametrize("kind", [Bezier, PolygonalChain])
def test_a_curve_needs_two_points(kind):
    with pytest.raises(InputError, match="control has 1 points; expected at least the two ends"):
        kind(points(1))
