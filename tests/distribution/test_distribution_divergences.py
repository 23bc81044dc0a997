"""KL and Wasserstein distances against torch, POT, integration and brute force; and as the metrics they are."""

import itertools

import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coset.distribution import (
    Delta,
    Gaussian,
    LowRank,
    MeanField,
    Mixture,
    Samples,
    kl,
    wasserstein2,
    wasserstein2_squared,
)
from coset.errors import InputError
from coset.symmetry import Symmetry

SEEDS = st.integers(0, 2**20)
NAMES = ("a", "b")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, generator):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def point(generator):
    return {"a": normal(2, 2, generator=generator), "b": normal(2, generator=generator)}


def mean_field(generator):
    return MeanField(point(generator), {key: tensor.abs() + 0.1 for key, tensor in point(generator).items()})


def gaussian(generator, rank=8):
    root = normal(6, rank, generator=generator)
    return Gaussian(point(generator), root @ root.T / 6, NAMES)


def low_rank(generator, rank=2):
    factors = {key: normal(rank, *tensor.shape, generator=generator) for key, tensor in point(generator).items()}
    field = mean_field(generator)
    return LowRank(field.mean, field.std, factors)


def flat(params):
    return torch.cat([params[key].reshape(-1) for key in NAMES])


def group():
    like = {"a": torch.zeros(2, 2), "b": torch.zeros(2)}
    return Symmetry.from_axes({"a": "h", "b": "/h"}, like, scales="nonzero")


def torch_normal(q):
    if isinstance(q, LowRank):
        factors = torch.cat([q.factors[key].flatten(1) for key in NAMES], 1)
        return torch.distributions.MultivariateNormal(
            flat(q.mean), flat(q.diagonal).square().diag() + factors.mT @ factors
        )
    covariance = q.covariance if isinstance(q, Gaussian) else flat(q.std).square().diag()
    return torch.distributions.MultivariateNormal(flat(q.mean), covariance)


@pytest.mark.parametrize("first", [mean_field, gaussian, low_rank])
@pytest.mark.parametrize("second", [mean_field, gaussian, low_rank])
def test_kl_is_that_of_torch(first, second):
    q, p = first(seeded(1)), second(seeded(2))
    expected = torch.distributions.kl_divergence(torch_normal(q), torch_normal(p))
    torch.testing.assert_close(kl(q, p), expected, rtol=1e-10, atol=1e-10)
    assert float(kl(q, q)) == pytest.approx(0, abs=1e-12)
    draws = q.sample(200_000, seeded())
    logs = q.log_prob(draws) - p.log_prob(draws)
    assert abs(float(logs.mean() - expected)) < 5 * float(logs.std()) / 200_000**0.5


@pytest.mark.parametrize("first", [mean_field, gaussian, low_rank])
@pytest.mark.parametrize("second", [mean_field, gaussian, low_rank])
def test_wasserstein_is_that_of_pot(first, second):
    q0, q1 = first(seeded(1)), second(seeded(2))
    n0, n1 = torch_normal(q0), torch_normal(q1)
    expected = ot.gaussian.bures_wasserstein_distance(n0.mean, n1.mean, n0.covariance_matrix, n1.covariance_matrix)
    torch.testing.assert_close(wasserstein2(q0, q1), expected.reshape(()), rtol=1e-9, atol=1e-9)


def test_wasserstein_in_one_dimension_by_integration():
    """W₂² = ∫ (F₀⁻¹(u) − F₁⁻¹(u))² du."""
    one, two = (torch.tensor([x], dtype=torch.float64) for x in (1.0, -0.5))
    q0, q1 = MeanField({"w": one}, {"w": one / 2}), Gaussian({"w": two}, torch.tensor([[4.0]]).double(), ("w",))
    u = (torch.arange(2_000_000, dtype=torch.float64) + 0.5) / 2_000_000
    quantile = torch.special.ndtri(u)
    numeric = ((one + quantile / 2) - (two + 2 * quantile)).square().mean()
    torch.testing.assert_close(wasserstein2_squared(q0, q1), numeric, rtol=1e-5, atol=0)
    assert float(wasserstein2_squared(q0, q1)) == pytest.approx(1.5**2 + 1.5**2, rel=1e-14)


def test_singular_and_nearly_equal_covariances_keep_their_digits():
    """Rank one: S = x xᵀ and y yᵀ have W₂² = |x|² + |y|² − 2|⟨x, y⟩|; a tiny change has a tiny distance."""
    generator = seeded(3)
    zero = {"a": torch.zeros(2, 2, dtype=torch.float64), "b": torch.zeros(2, dtype=torch.float64)}
    x, y = normal(6, generator=generator), normal(6, generator=generator)
    q0, q1 = (Gaussian(zero, torch.outer(v, v), NAMES) for v in (x, y))
    expected = x @ x + y @ y - 2 * (x @ y).abs()
    torch.testing.assert_close(wasserstein2_squared(q0, q1), expected, rtol=1e-12, atol=0)
    q = gaussian(generator)
    assert float(wasserstein2(q, q)) < 1e-13
    wider = Gaussian(q.mean, q.covariance * (1 + 1e-9) ** 2, NAMES)
    exact = 1e-9 * float(q.covariance.trace().sqrt())
    assert float(wasserstein2(q, wider)) == pytest.approx(exact, rel=1e-5)


def test_points_and_draws():
    generator = seeded()
    here, q = Delta(point(generator)), gaussian(generator)
    expected = (flat(here.params) - flat(q.mean)).square().sum() + q.covariance.trace()
    torch.testing.assert_close(wasserstein2_squared(here, q), expected)
    torch.testing.assert_close(wasserstein2_squared(q, here), expected)
    draws = [Samples.stack([point(generator) for _ in range(5)]) for _ in range(2)]
    rows = [torch.stack([flat(draw) for draw in part]) for part in draws]
    brute = min((rows[0] - rows[1][list(order)]).square().sum(1).mean() for order in itertools.permutations(range(5)))
    torch.testing.assert_close(wasserstein2_squared(*draws), brute)
    torch.testing.assert_close(
        wasserstein2_squared(here, draws[0]), (rows[0] - flat(here.params)).square().sum(1).mean()
    )
    thin = low_rank(generator)
    expected = (flat(here.params) - flat(thin.mean)).square().sum() + torch_normal(thin).covariance_matrix.trace()
    torch.testing.assert_close(wasserstein2_squared(here, thin), expected)
    torch.testing.assert_close(wasserstein2_squared(thin, here), expected)
    mixed = Mixture([q, mean_field(generator)], [0.2, 0.8])
    parts = [wasserstein2_squared(here, part) for part in mixed.components]
    torch.testing.assert_close(wasserstein2_squared(here, mixed), 0.2 * parts[0] + 0.8 * parts[1])


@settings(max_examples=25)
@given(seed=SEEDS, rank=st.integers(1, 8))
def test_wasserstein_is_a_distance_that_permutations_and_signs_keep(seed, rank):
    generator, sym = seeded(seed), group()
    q = [gaussian(generator, rank), mean_field(generator), gaussian(generator)]
    d01, d12, d02 = (wasserstein2(q[i], q[j]) for i, j in ((0, 1), (1, 2), (0, 2)))
    torch.testing.assert_close(wasserstein2(q[1], q[0]), d01, rtol=1e-9, atol=1e-9)
    assert float(d02) <= float(d01 + d12) + 1e-9
    g = sym.restrict(scales=False).random(generator)
    g = sym.element(g.permutations, signs=g.signs)
    torch.testing.assert_close(wasserstein2(sym.act(g, q[0]), sym.act(g, q[1])), d01, rtol=1e-9, atol=1e-9)


@settings(max_examples=25)
@given(seed=SEEDS)
def test_every_element_keeps_the_kl(seed):
    generator, sym = seeded(seed), group()
    g = sym.random(generator)
    kinds = [gaussian(generator), mean_field(generator), low_rank(generator)]
    for q, p in itertools.product(kinds, kinds):
        torch.testing.assert_close(kl(sym.act(g, q), sym.act(g, p)), kl(q, p), rtol=1e-8, atol=1e-8)
        assert float(kl(q, p)) >= -1e-9


def test_the_order_of_names_and_ties_do_not_matter():
    shared = torch.ones(2, dtype=torch.float64)
    wide, narrow = torch.tensor([2.0, 1.0]).double(), torch.tensor([1.0, 3.0]).double()
    q = MeanField({"a": shared, "z": shared}, {"a": wide, "z": wide})
    single = MeanField({"a": shared}, {"a": wide})
    other = torch.zeros(2, dtype=torch.float64)
    p = Gaussian({"z": other, "a": other}, narrow.square().diag(), ("z",))
    alone = MeanField({"a": other}, {"a": narrow})
    torch.testing.assert_close(kl(q, p), kl(single, alone))
    torch.testing.assert_close(wasserstein2(q, p), wasserstein2(single, alone))
    factor = torch.tensor([[0.5, -2.0]]).double()
    thin = LowRank({"z": other, "a": other}, {"z": narrow}, {"z": factor})
    lone = LowRank({"a": other}, {"a": narrow}, {"a": factor})
    torch.testing.assert_close(kl(q, thin), kl(single, lone))
    torch.testing.assert_close(wasserstein2(thin, q), wasserstein2(lone, single))
    untied = MeanField({"a": other, "z": other.clone()}, {"a": narrow, "z": narrow})
    with pytest.raises(InputError, match="'z' and 'a' are one tensor in one distribution and two in the other"):
        wasserstein2(q, untied)


def test_points_beside_a_low_rank_gaussian_vary_by_nothing():
    """In single precision too: the covariance is summed in float64."""
    generator = seeded(4)
    q = low_rank(generator)
    part = LowRank(q.mean, {"b": q.diagonal["b"]}, {"b": q.factors["b"]})
    wide = {"a": torch.zeros(2, 2, dtype=torch.float64), "b": q.diagonal["b"]}
    none = {"a": torch.zeros(2, 2, 2, dtype=torch.float64), "b": q.factors["b"]}
    torch.testing.assert_close(wasserstein2(part, q), wasserstein2(LowRank(q.mean, wide, none), q))
    single = LowRank(
        *({key: tensor.float() for key, tensor in each.items()} for each in (q.mean, q.diagonal, q.factors))
    )
    double = LowRank(
        *(
            {key: tensor.double() for key, tensor in each.items()}
            for each in (single.mean, single.diagonal, single.factors)
        )
    )
    p = gaussian(generator)
    torch.testing.assert_close(kl(single, p), kl(double, p), rtol=1e-12, atol=0)


def test_what_has_no_closed_form_is_named():
    generator = seeded()
    q, p = mean_field(generator), gaussian(generator)
    with pytest.raises(
        InputError, match="kl of a Delta and a MeanField has no closed form; expected one of: MeanField"
    ):
        kl(Delta(q.mean), q)
    with pytest.raises(InputError, match="wasserstein2 of a Mixture and a MeanField has no closed form"):
        wasserstein2(Mixture([q]), q)
    with pytest.raises(InputError, match="'b' varies in q and not in p; expected the same names to vary"):
        kl(q, MeanField(q.mean, {"a": q.std["a"]}))
    with pytest.raises(InputError, match="p has deviations of 0, so the KL is infinite"):
        kl(q, MeanField(q.mean, {**q.std, "b": torch.zeros(2, dtype=torch.float64)}))
    with pytest.raises(InputError, match="q has a singular covariance, so the KL is infinite"):
        kl(gaussian(generator, rank=2), p)
    with pytest.raises(InputError, match="there are 2 draws in q0 and 3 in q1"):
        wasserstein2(*(Samples.stack([point(generator)] * count) for count in (2, 3)))
    with pytest.raises(InputError, match="the first distribution has 'b' and the second has not"):
        wasserstein2(q, Delta({"a": q.mean["a"]}))
