"""Paths between posteriors: constant speed in the Wasserstein distance, closed forms, exact ends."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coset.distribution import Delta, Gaussian, LowRank, MeanField, Mixture, Samples, wasserstein2
from coset.errors import InputError
from coset.landscape._geodesic import geodesic, mixture

SEEDS = st.integers(0, 2**32)
DTYPE = torch.float64


def _generator(seed):
    return torch.Generator().manual_seed(seed)


def _mean(generator):
    return {
        "weight": torch.randn(2, 2, generator=generator, dtype=DTYPE),
        "bias": torch.randn(2, generator=generator, dtype=DTYPE),
        "steps": torch.tensor(3),
    }


def _mean_field(generator):
    mean = _mean(generator)
    std = {name: torch.rand(mean[name].shape, generator=generator, dtype=DTYPE) for name in ("weight", "bias")}
    return MeanField(mean, std)


def _gaussian(generator):
    root = torch.randn(6, 6, generator=generator, dtype=DTYPE)
    return Gaussian(_mean(generator), root @ root.T + 0.01 * torch.eye(6, dtype=DTYPE), ("weight", "bias"))


def _low_rank(generator):
    q = _mean_field(generator)
    factors = {name: torch.randn(2, *q.mean[name].shape, generator=generator, dtype=DTYPE) for name in q.std}
    return LowRank(q.mean, {name: std + 0.1 for name, std in q.std.items()}, factors)


def _samples(generator):
    draws = {name: torch.randn(2, 3, *shape, generator=generator, dtype=DTYPE) for name, shape in SHAPES.items()}
    return Samples(draws)


SHAPES = {"weight": (2, 2), "bias": (2,)}
KINDS = {
    "delta": lambda generator: Delta(_mean(generator)),
    "mean-field": _mean_field,
    "gaussian": _gaussian,
    "low-rank": _low_rank,
    "samples": _samples,
}


@pytest.mark.parametrize("kind", sorted(KINDS))
@given(SEEDS)
@settings(max_examples=20)
def test_the_speed_is_constant(kind, seed):
    """W₂(q_σ, q_τ) = |σ − τ| W₂(q₀, q₁): what makes a path a geodesic."""
    generator = _generator(seed)
    q0, q1 = KINDS[kind](generator), KINDS[kind](generator)
    path = geodesic(q0, q1)
    whole = float(wasserstein2(q0, q1))
    points = {tau: path(tau) for tau in (0.0, 0.25, 0.6, 1.0)}
    points = {tau: Delta(point) if isinstance(point, dict) else point for tau, point in points.items()}
    for (first, a), (second, b) in itertools.combinations(points.items(), 2):
        assert float(wasserstein2(a, b)) == pytest.approx((second - first) * whole, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_ends_are_the_ends(kind):
    generator = _generator(0)
    q0, q1 = KINDS[kind](generator), KINDS[kind](generator)
    for path in (geodesic(q0, q1), mixture(q0, q1)):
        for tau, end in ((0, q0), (1, q1)):
            found = path(tau)
            if isinstance(found, Samples):
                # The same draws, though in the order of their partners.
                for name, tensor in end.flat.items():
                    ours, theirs = (part.flatten(1).tolist() for part in (found.flat[name], tensor))
                    assert sorted(ours) == sorted(theirs)
                continue
            same = found.mean if not isinstance(found, dict) else found
            assert all(torch.equal(same[name], tensor) for name, tensor in end.mean.items() if name != "steps")
    halfway = geodesic(q0, q1)(0.5)
    means = halfway if isinstance(halfway, dict) else halfway.mean
    expected = 0.5 * (q0.mean["weight"] + q1.mean["weight"])
    torch.testing.assert_close(means["weight"], expected)


@given(SEEDS, st.floats(0.01, 0.99))
def test_dense_gaussians_follow_the_corrected_equation(seed, tau):
    """S_τ = S₀^{-1/2}((1−τ)S₀ + τ(S₀^{1/2} S₁ S₀^{1/2})^{1/2})² S₀^{-1/2}, by another way of taking roots."""
    generator = _generator(seed)
    q0, q1 = _gaussian(generator), _gaussian(generator)

    def root(matrix):
        left, values, right = torch.linalg.svd(matrix)
        return (left * values.sqrt()) @ right

    half = root(q0.covariance)
    inverse = torch.linalg.inv(half)
    inner = (1 - tau) * q0.covariance + tau * root(half @ q1.covariance @ half)
    expected = inverse @ inner @ inner @ inverse
    found = geodesic(q0, q1)(tau).covariance
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))


@given(SEEDS, st.floats(0.01, 0.99))
def test_commuting_covariances_are_the_mean_field(seed, tau):
    generator = _generator(seed)
    q0, q1 = _mean_field(generator), _mean_field(generator)
    names = ("weight", "bias")
    dense = [
        Gaussian(q.mean, torch.cat([(q.std[name] + 0.1).reshape(-1) for name in names]).square().diag(), names)
        for q in (q0, q1)
    ]
    wider = [MeanField(q.mean, {name: std + 0.1 for name, std in q.std.items()}) for q in (q0, q1)]
    found, expected = geodesic(*dense)(tau), geodesic(*wider)(tau)
    for name in names:
        torch.testing.assert_close(found.std[name], expected.std[name], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(geodesic(wider[0], dense[1])(tau).covariance, found.covariance)


def test_one_covariance_may_be_singular_and_both_may_not():
    generator = _generator(1)
    regular, names = _gaussian(generator), ("weight", "bias")
    flat = torch.zeros(6, 6, dtype=DTYPE)
    flat[0, 0] = 1.0
    singular = Gaussian(_mean(generator), flat, names)
    for ends in ((regular, singular), (singular, regular)):
        whole = float(wasserstein2(*ends))
        assert float(wasserstein2(ends[0], geodesic(*ends)(0.3))) == pytest.approx(0.3 * whole, rel=1e-6)
    with pytest.raises(InputError, match="both covariances are singular"):
        geodesic(singular, Gaussian(_mean(generator), flat, names))(0.5)


def test_draws_go_to_their_partners():
    generator = _generator(2)
    q0, q1 = _samples(generator), _samples(generator)

    def flat(q, number):
        return torch.cat([q.flat[name][number].reshape(-1) for name in SHAPES])

    costs = {
        order: sum(float((flat(q0, j) - flat(q1, k)).square().sum()) for j, k in enumerate(order))
        for order in itertools.permutations(range(6))
    }
    path = geodesic(q0, q1)
    assert tuple(path.partners.tolist()) == min(costs, key=costs.get)
    moved = path(0.25)
    for draw, partner in enumerate(path.partners.tolist()):
        expected = 0.75 * flat(q0, draw) + 0.25 * flat(q1, partner)
        torch.testing.assert_close(flat(moved, draw), expected)


def test_mixtures_weigh_and_do_not_move():
    generator = _generator(3)
    q0, q1 = _mean_field(generator), _mean_field(generator)
    found = mixture(q0, q1)(0.25)
    assert isinstance(found, Mixture)
    torch.testing.assert_close(found.weights, torch.tensor([0.75, 0.25], dtype=DTYPE))
    assert found.components[0] is q0
    assert found.components[1] is q1


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (("mean-field", "samples"), "q0 is a MeanField and q1 a Samples; geodesics join"),
        (("delta", "gaussian"), "q0 is a Delta and q1 a Gaussian"),
    ],
)
def test_what_cannot_be_joined_is_refused(pair, message):
    generator = _generator(4)
    with pytest.raises(InputError, match=message):
        geodesic(*(KINDS[kind](generator) for kind in pair))


def test_ends_of_other_shapes_are_refused():
    generator = _generator(5)
    q = _mean_field(generator)
    without = MeanField(q.mean, {"weight": q.std["weight"]})
    with pytest.raises(InputError, match="'bias' has deviations in the start and not in the end"):
        geodesic(q, without)
    few = Samples({name: tensor[:, :2] for name, tensor in _samples(generator).params.items()})
    with pytest.raises(InputError, match="the start has 2 × 3 draws and the end 2 × 2"):
        geodesic(_samples(generator), few)
    with pytest.raises(InputError, match="tau is 2"):
        geodesic(q, q)(2)
