"""Distributions of any size: multiplied by c, in every distance, deviation and gauge, against those as they are."""

import math

import pytest
import torch

from coset.distribution import (
    Delta,
    Gaussian,
    LowRank,
    MeanField,
    Mixture,
    Samples,
    kl,
    normalize_scales,
    wasserstein2,
    wasserstein2_squared,
)
from coset.distribution.rescaling import common_exponent, rescaled
from coset.errors import InputError
from coset.models import MLP
from coset.symmetry.intertwiners.homogeneity import homogeneity_defect
from declared import declared

SCALES = [
    *((torch.float32, c) for c in (1e-30, 1e-22, 1e22, 1e30)),
    *((torch.float64, c) for c in (1e-200, 1e-150, 1e150, 1e200)),
]


def draw(shape, seed, dtype, c):
    """Standard normal numbers, times c."""
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (noise.to(dtype).double() * c).to(dtype)


def params(seed, dtype, c):
    return {"a": draw((2, 3), seed, dtype, c), "b": draw((2,), seed + 1, dtype, c)}


def spread(seed, dtype, c):
    return {name: tensor.abs() for name, tensor in params(seed + 50, dtype, c).items()}


def gaussian(seed, dtype, c):
    """With a covariance of size c², which must be a number."""
    root = draw((8, 8), seed, torch.float64, 1.0)
    return Gaussian(params(seed, dtype, c), ((root @ root.T) * c * c).to(dtype), ("a", "b"))


MADE = {
    "point": lambda seed, t, c: Delta(params(seed, t, c)),
    "mean field": lambda seed, t, c: MeanField(params(seed, t, c), spread(seed, t, c)),
    "low rank": lambda seed, t, c: LowRank(
        params(seed, t, c), spread(seed, t, c), {n: torch.stack([p, 2 * p]) for n, p in params(seed + 9, t, c).items()}
    ),
    "gaussian": gaussian,
    "draws": lambda seed, t, c: Samples.stack([params(seed + 10 * n, t, c) for n in range(4)]),
    "mixture": lambda seed, t, c: Mixture(
        [MeanField(params(seed + 7 * n, t, c), spread(seed + n, t, c)) for n in range(2)]
    ),
}
PAIRS = [("point", kind) for kind in MADE] + [
    ("mean field", "mean field"), ("low rank", "low rank"), ("mean field", "low rank"), ("gaussian", "gaussian"),
    ("gaussian", "mean field"), ("draws", "draws"),
]  # fmt: skip


def has_numbers(dtype, c, kinds):
    """Whether a covariance of that size is made of numbers of the type, with their digits."""
    limits = torch.finfo(dtype)
    return "gaussian" not in kinds or 1e4 * limits.tiny < c * c < 1e-4 * limits.max


CASES = [(t, c, pair) for t, c in SCALES for pair in PAIRS if has_numbers(t, c, pair)]


@pytest.mark.parametrize(("dtype", "c", "kinds"), CASES)
def test_wasserstein_distances_scale_with_the_weights(dtype, c, kinds):
    found, expected = (
        float(wasserstein2(MADE[kinds[0]](0, dtype, size), MADE[kinds[1]](20, dtype, size))) for size in (c, 1.0)
    )
    assert expected > 0
    assert found / c == pytest.approx(expected, rel=1e-5 if dtype == torch.float32 else 1e-11)


@pytest.mark.parametrize(
    ("dtype", "c", "kinds"), [case for case in CASES if not {"point", "draws", "mixture"} & set(case[2])]
)
def test_the_kl_does_not_notice_the_size_of_the_weights(dtype, c, kinds):
    found, expected = (float(kl(MADE[kinds[0]](0, dtype, s), MADE[kinds[1]](20, dtype, s))) for s in (c, 1.0))
    assert found == pytest.approx(expected, rel=1e-4 if dtype == torch.float32 else 1e-10)


@pytest.mark.parametrize(("dtype", "c"), SCALES)
@pytest.mark.parametrize("kind", ["low rank", "draws", "mixture"])
def test_deviations_scale_with_the_weights(kind, dtype, c):
    found, expected = (MADE[kind](0, dtype, size).std for size in (c, 1.0))
    for name, tensor in found.items():
        assert bool((expected[name] > 0).all())
        tolerance = 1e-5 if dtype == torch.float32 else 1e-12
        torch.testing.assert_close(tensor.double() / c, expected[name].double(), rtol=tolerance, atol=0)


@pytest.mark.parametrize("c", [1e-200, 1e200])
def test_squares_that_are_no_numbers_are_refused_and_equal_weights_are_not_apart(c):
    q0, q1 = (MADE["mean field"](seed, torch.float64, c) for seed in (0, 20))
    with pytest.raises(InputError, match=r"q0 and q1 are \S+ apart, whose square is no number in float64; .* use wass"):
        wasserstein2_squared(q0, q1)
    assert float(wasserstein2_squared(q0, q0)) == 0.0
    assert float(wasserstein2(q0, q0)) == 0.0


def test_distances_have_derivatives_at_any_size():
    mean = draw((3,), 0, torch.float64, 1e-200).requires_grad_()
    distance = wasserstein2(Delta({"a": mean}), Delta({"a": torch.zeros(3, dtype=torch.float64)}))
    (gradient,) = torch.autograd.grad(distance, mean)
    direction = draw((3,), 0, torch.float64, 1.0)
    torch.testing.assert_close(gradient, direction / direction.norm())


@pytest.mark.parametrize("kind", MADE)
def test_rescaling_multiplies_by_a_power_of_two_and_changes_no_digit(kind):
    q = MADE[kind](0, torch.float64, 1.0)
    assert common_exponent(q) == 0
    assert rescaled(q, 0) is q
    there = rescaled(q, 300)
    back = rescaled(there, -300)
    assert -302 < common_exponent(there) < -295
    for name in q.mean:
        assert torch.equal(there.mean[name], q.mean[name] * 2.0**-300)
        assert torch.equal(back.mean[name], q.mean[name])
        if name in q.std:
            torch.testing.assert_close(there.std[name] * 2.0**300, q.std[name], rtol=1e-14, atol=0)


def test_covariances_that_are_no_numbers_are_refused():
    q = MADE["low rank"](0, torch.float32, 1e-30)
    with pytest.raises(InputError, match=r"whose squares are no numbers in torch.float32"):
        _ = q.dense


# The gauge ----------------------------------------------------------------------------------------------------------

MODEL = MLP(3, [6, 4], 2)
SYM = declared(MODEL)


def network(dtype, c=1.0):
    shapes = {name: tensor.shape for name, tensor in MODEL.state_dict().items()}
    return {name: draw(shape, seed, dtype, c) for seed, (name, shape) in enumerate(shapes.items())}


@pytest.mark.parametrize("c", [1e-200, 1e-150, 1e-90, 1e90, 1e150, 1e200])
def test_single_units_of_any_size_have_their_norm(c):
    """The incoming weights and the bias of a unit times c: the representative does not notice, and the scale is c's."""
    plain = network(torch.float64)
    far = {name: tensor.clone() for name, tensor in plain.items()}
    far["layers.0.weight"][2] *= c
    far["layers.0.bias"][2] *= c
    far["layers.1.weight"][:, 2] /= c
    found, undo = normalize_scales(SYM, far)
    expected, known = normalize_scales(SYM, plain)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-12, atol=1e-12)
    assert float(undo.scales["h1"][2] / known.scales["h1"][2]) == pytest.approx(c, rel=1e-12)


@pytest.mark.parametrize(("dtype", "c"), [case for case in SCALES if case[0] == torch.float32])
def test_a_representative_that_is_no_longer_a_number_is_refused(dtype, c):
    what = "underflows" if c < 1 else "overflows"
    with pytest.raises(InputError, match=rf"'layers.2.weight' {what} torch.float32 without its scales"):
        normalize_scales(SYM, network(dtype, c))
    wide = {name: tensor.double() for name, tensor in network(dtype, c).items()}
    found, _ = normalize_scales(SYM, wide)
    expected, _ = normalize_scales(SYM, network(torch.float64))
    weight = "layers.1.weight"
    torch.testing.assert_close(found[weight], expected[weight], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("c", [1e-300, 1e-200, 1e150])
def test_the_defect_of_homogeneity_scales_with_the_activation(c):
    whole, part = (
        homogeneity_defect(lambda x, size=size: size * torch.nn.functional.gelu(x), 3.0) for size in (1.0, c)
    )
    assert math.isfinite(part)
    assert part / c == pytest.approx(whole, rel=1e-12)
