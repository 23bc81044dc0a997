"""What every kind of distribution can do: draw, score, be moved; against closed forms, torch and brute force."""

import math

import pytest
import torch
from contract import SMALL, gaussian, low_rank, mean_field, random_names, samples, seeded

from architectures import made, randomized
from coset.distribution import Delta, Gaussian, MeanField, Mixture, Samples, act_each
from coset.distribution.density import vector
from coset.distribution.ties import ties
from coset.errors import InputError
from coset.symmetry import Symmetry


def every_kind(name, seed=0):
    """One distribution of each kind that is no mixture over the weights of an architecture."""
    model, sym, shape = made(name)
    generator = seeded(seed)
    params = randomized(model, generator)
    names = random_names(params)
    kinds = {
        "delta": Delta(params),
        "mean field": mean_field(params, names, generator),
        "gaussian": gaussian(params, names, generator),
        "samples": samples(params, generator),
        "low rank": low_rank(params, names, generator),
    }
    return model, sym, shape, kinds


def small():
    """Two parameters, a buffer of whole numbers and a point."""
    return {
        "a": torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64),
        "b": torch.tensor([0.1, 0.2, -0.3], dtype=torch.float64),
        "count": torch.tensor(7),
        "fixed": torch.tensor([4.0], dtype=torch.float64),
    }


@pytest.mark.parametrize("name", SMALL)
def test_points_are_views_of_their_means(name):
    kinds = every_kind(name)[-1]
    for q in (kinds["delta"], kinds["mean field"], kinds["gaussian"], kinds["low rank"]):
        drawn = q.sample(4, seeded())
        fixed = [key for key in q.mean if ties(q.mean)[key] not in q.random_names]
        assert all(drawn[key].data_ptr() == q.mean[key].data_ptr() for key in fixed)
        assert all(float(drawn[key].std(0).min()) > 0 for key in q.random_names)


@pytest.mark.parametrize("name", SMALL)
def test_the_covariance_moves_as_that_of_moved_draws(name):
    """A S Aᵀ is the covariance of g·θ; signs count. A by brute force: the action on unit vectors."""
    _, sym, _, kinds = every_kind(name)
    q, g = kinds["gaussian"], sym.random(seeded(3), spread=0.2)
    first = vector(sym.act(g, q.mean), q.names, q.mean)
    columns, names = [], q.names[:3]
    for key in names:
        # Every unit vector of one parameter at once, on a leading axis.
        bumped = q.mean[key] + torch.eye(q.mean[key].numel(), dtype=torch.float64).reshape(-1, *q.mean[key].shape)
        tied = {other: bumped for other, one in ties(q.mean).items() if one == ties(q.mean)[key]}
        columns.append(vector(sym.act(g, {**q.mean, **tied}), q.names, q.mean) - first)
    size = sum(q.mean[key].numel() for key in names)
    matrix = torch.cat(columns).T[:size]
    expected = matrix @ q.covariance[:size, :size] @ matrix.T
    torch.testing.assert_close(sym.act(g, q).covariance[:size, :size], expected, rtol=1e-10, atol=1e-10)


def test_a_signed_element_flips_correlations():
    params = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0])}
    sym = Symmetry.from_axes({"a": "h"}, params, scales="nonzero")
    g = sym.element(
        {"h": torch.tensor([1, 0])}, {"h": torch.tensor([1.0, 3.0])}, {"h": torch.tensor([1, -1], dtype=torch.int8)}
    )
    q = Gaussian(params, torch.tensor([[1.0, 0.5, 0.2], [0.5, 2.0, 0.1], [0.2, 0.1, 3.0]]), ("a", "b"))
    moved = sym.act(g, q)
    assert moved.mean["a"].tolist() == [-6.0, 1.0]
    expected = torch.tensor([[18.0, -1.5, -0.3], [-1.5, 1.0, 0.2], [-0.3, 0.2, 3.0]])
    torch.testing.assert_close(moved.covariance, expected)


def test_densities_are_those_of_torch():
    params, generator = small(), seeded()
    q = mean_field(params, ("a", "b"), generator)
    dense = gaussian(params, ("b", "a"), generator)
    drawn = q.sample(6, generator)
    stacked = {key: tensor.reshape(2, 3, *tensor.shape[1:]) for key, tensor in drawn.items()}
    normal = torch.distributions.Normal
    parts = [normal(q.mean[key], q.std[key]).log_prob(drawn[key]).reshape(6, -1).sum(1) for key in ("a", "b")]
    torch.testing.assert_close(q.log_prob(stacked), sum(parts).reshape(2, 3))
    assert q.log_prob({key: tensor[0] for key, tensor in drawn.items()}).shape == ()
    flat = torch.cat([drawn["b"], drawn["a"].reshape(6, -1)], dim=1)
    centre = torch.cat([params["b"], params["a"].reshape(-1)])
    oracle = torch.distributions.MultivariateNormal(centre, dense.covariance)
    torch.testing.assert_close(dense.log_prob(stacked), oracle.log_prob(flat).reshape(2, 3))
    torch.testing.assert_close(dense.entropy(), oracle.entropy())
    torch.testing.assert_close(q.entropy(), sum(normal(q.mean[key], q.std[key]).entropy().sum() for key in q.std))
    thin = low_rank(params, ("a", "b"), generator)
    torch.testing.assert_close(thin.log_prob(stacked), thin.dense.log_prob(stacked))
    mixed = Mixture([q, Gaussian(params, dense.covariance, ("b", "a"))], [1.0, 3.0])
    expected = torch.logsumexp(
        torch.stack([q.log_prob(drawn) + math.log(0.25), dense.log_prob(drawn) + math.log(0.75)]), 0
    )
    torch.testing.assert_close(mixed.log_prob(drawn), expected)
    pair, same = Mixture([q, thin], [1.0, 3.0]), Mixture([q, thin.dense], [1.0, 3.0])
    torch.testing.assert_close(pair.log_prob(drawn), same.log_prob(drawn))


def test_draws_have_the_moments_of_their_distribution():
    """100,000 draws: within five standard errors."""
    params, generator, count = small(), seeded(), 100_000
    dense = gaussian(params, ("a", "b"), generator)
    singular = gaussian(params, ("a", "b"), generator, rank=2)
    mixed = Mixture([mean_field(params, ("a", "b"), generator), dense], [0.4, 0.6])
    thin = low_rank(params, ("a", "b"), generator)
    both = Mixture([thin, dense], [0.5, 0.5])
    for q in (mean_field(params, ("a", "b"), generator), dense, singular, mixed, thin, both):
        drawn = q.sample(count, generator)
        for key in ("a", "b"):
            deviation = q.std[key]
            assert bool(((drawn[key].mean(0) - q.mean[key]).abs() <= 5 * deviation / math.sqrt(count)).all())
            torch.testing.assert_close(drawn[key].std(0), deviation, rtol=0.02, atol=0)
        assert bool((drawn["fixed"] == 4.0).all())
    flat = vector(singular.sample(count, generator), singular.names, params)
    torch.testing.assert_close(flat.T.cov(), singular.covariance, rtol=0.1, atol=0.05)
    assert int(torch.linalg.matrix_rank(flat - flat.mean(0))) == 2


def test_a_mixture_has_the_moments_of_total_variance_and_an_estimated_entropy():
    params, generator = small(), seeded()
    q = mean_field(params, ("a", "b"), generator)
    far = MeanField({**params, "a": params["a"] + 100.0}, q.std)
    mixed = Mixture([q, far], [0.25, 0.75])
    torch.testing.assert_close(mixed.mean["a"], params["a"] + 75.0)
    torch.testing.assert_close(mixed.std["a"], (q.std["a"].square() + 100.0**2 * 0.25 * 0.75).sqrt())
    assert float(mixed.std["fixed"]) == 0.0
    assert mixed.mean["count"] == 7
    # Components that do not overlap: H = Σ w_k (H_k − log w_k), here with equal H_k.
    exact = float(q.entropy()) - 0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    found = mixed.entropy(4000, generator)
    assert abs(found.value - exact) <= 4 * found.error
    assert 0 < found.error < 0.1
    same = Mixture([q, q]).entropy(4000, generator)
    assert abs(same.value - float(q.entropy())) <= 4 * same.error


def test_gradients_follow_draws_and_densities():
    params = {"w": torch.zeros(2, dtype=torch.float64)}
    mean = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    std = torch.tensor([0.5, 0.25], dtype=torch.float64, requires_grad=True)
    q = MeanField({"w": mean}, {"w": std})
    assert torch.autograd.gradcheck(lambda m, s: MeanField({"w": m}, {"w": s}).log_prob(params), (mean, std))
    (-q.entropy()).backward()
    torch.testing.assert_close(std.grad, -1 / std.detach())
    noise = (q.sample(5, seeded())["w"] - mean) / std
    (slope,) = torch.autograd.grad(q.sample(5, seeded())["w"].sum(), std)
    torch.testing.assert_close(slope, noise.detach().sum(0))


def test_tied_weights_are_one_parameter():
    shared = torch.tensor([1.0, 2.0], dtype=torch.float64)
    params = {"in": shared, "out": shared, "b": torch.zeros(1, dtype=torch.float64)}
    std = torch.tensor([0.5, 0.1], dtype=torch.float64)
    single = MeanField({"in": shared}, {"in": std})
    for q in (
        MeanField(params, {"in": std, "out": std.clone()}),
        MeanField(params, {"out": std}),
        Gaussian(params, std.square().diag(), ("out",)),
    ):
        drawn = q.sample(3, seeded())
        assert drawn["in"] is drawn["out"]
        assert float(q.entropy()) == pytest.approx(float(single.entropy()), rel=1e-14)
        assert float(q.log_prob({"in": shared + 1, "out": shared + 1})) == pytest.approx(
            float(single.log_prob({"in": shared + 1})), rel=1e-14
        )
    with pytest.raises(InputError, match="one tensor under 'in' and 'out', and std has two different"):
        MeanField(params, {"in": std, "out": 2 * std}).sample(1, seeded())
    with pytest.raises(InputError, match="names has 'in' and 'out', which are one tensor"):
        Gaussian(params, torch.eye(4), ("in", "out"))


def test_samples_are_chains_of_draws():
    params = {"w": torch.arange(24.0).reshape(2, 4, 3), "n": torch.arange(8).reshape(2, 4)}
    q = Samples(params)
    assert (q.chains, q.draws, len(q)) == (2, 4, 8)
    assert q.flat["w"].shape == (8, 3)
    assert q.flat["w"].data_ptr() == params["w"].data_ptr()
    assert q.draw(1, -1)["w"].tolist() == [21.0, 22.0, 23.0]
    assert [int(draw["n"]) for draw in q] == list(range(8))
    assert q.mean["w"].tolist() == [10.5, 11.5, 12.5]
    assert int(q.mean["n"]) == 0
    torch.testing.assert_close(q.std["w"], params["w"].reshape(8, 3).std(0, correction=0))
    assert q.thin(2, skip=1).params["n"].tolist() == [[1, 3], [5, 7]]
    counts = torch.bincount(q.sample(80_000, seeded())["n"], minlength=8)
    assert bool(((counts - 10_000).abs() < 5 * math.sqrt(80_000 * 7 / 64)).all())
    again = Samples.stack(list(q), chains=2)
    assert all(torch.equal(again.params[key], params[key]) for key in params)


@pytest.mark.parametrize("chains", [0, 1, 2])
def test_what_consists_of_networks_can_have_others(chains):
    """A point is one network, draws are many; a Gaussian consists of none."""
    w = torch.arange(24.0).reshape(2, 3, 4)
    q = Samples({"w": w[:chains], "again": w[:chains]}) if chains else Delta({"w": w})
    assert torch.equal(q.networks["w"], w[:chains].flatten(0, 1) if chains else w)
    moved = q.at({name: -tensor for name, tensor in q.networks.items()})
    assert type(moved) is type(q)
    assert torch.equal(moved.params["w"], -q.params["w"])
    field = MeanField({"w": w}, {"w": torch.ones(2, 3, 4)})
    assert field.networks is None
    with pytest.raises(InputError, match="a MeanField consists of no networks"):
        field.at({"w": w})


def test_each_draw_by_its_own_element():
    _, sym, _, kinds = every_kind("tied embeddings")
    q, generator = kinds["samples"], seeded(5)
    elements = [sym.random(generator, spread=0.2) for _ in range(len(q))]
    moved = act_each(sym, elements, q)
    assert ties(moved.params) == ties(q.params)
    for g, before, after in zip(elements, q, moved, strict=True):
        expected = sym.act(g, before)
        assert all(torch.equal(after[key], expected[key]) for key in expected)
    with pytest.raises(InputError, match="there are 5 elements for 6 draws"):
        act_each(sym, elements[:5], q)


def test_half_precision_keeps_its_type():
    mean = {"w": torch.zeros(3, dtype=torch.bfloat16)}
    q = MeanField(mean, {"w": torch.ones(3)})
    assert q.sample(2, seeded())["w"].dtype == torch.bfloat16
    dense = Gaussian(mean, torch.eye(3, dtype=torch.float64), ("w",))
    assert dense.sample(2, seeded())["w"].dtype == torch.bfloat16
    assert dense.log_prob(mean).dtype == torch.float64


def test_what_has_no_density_says_so():
    params = small()
    with pytest.raises(InputError, match="no name has deviations: all are points"):
        MeanField(params, {}).entropy()
    with pytest.raises(InputError, match=r"std\['b'\] has values of 0, where there is no density"):
        MeanField(params, {"b": torch.zeros(3, dtype=torch.float64)}).log_prob(params)
    with pytest.raises(InputError, match="covariance is singular, so there is no density"):
        gaussian(params, ("a",), seeded(), rank=1).entropy()
    narrow, wide = mean_field(params, ("b",), seeded()), mean_field(params, ("a", "b"), seeded())
    with pytest.raises(InputError, match="'a' varies in component 1 and not in component 0"):
        Mixture([narrow, wide]).log_prob(params)


def test_bad_distributions_are_named():
    params, eye = small(), torch.eye(3, dtype=torch.float64)
    with pytest.raises(InputError, match=r"covariance has shape \(3, 3\); expected \(4, 4\)"):
        Gaussian(params, eye, ("a",))
    with pytest.raises(InputError, match=r"covariance is not symmetric: entries differ .* by up to 0.5"):
        Gaussian(params, eye + 0.5 * torch.eye(3).roll(1, 0).tril(), ("b",))
    with pytest.raises(InputError, match="covariance is not positive semidefinite: its eigenvalues lie between -1 and"):
        Gaussian(params, eye - 2 * torch.diag(torch.tensor([0.0, 0.0, 1.0])), ("b",))
    with pytest.raises(InputError, match="covariance has entries that are NaN"):
        Gaussian(params, eye * torch.nan, ("b",))
    with pytest.raises(InputError, match="names has 'c', which mean has not"):
        Gaussian(params, eye, ("c",))
    with pytest.raises(InputError, match=r"'count' has means of type torch.int64"):
        Gaussian(params, torch.eye(1), ("count",))
    with pytest.raises(InputError, match=r"'count' has means of type torch.int64"):
        MeanField(params, {"count": torch.tensor(1.0)})
    with pytest.raises(InputError, match=r"params\['b'\] begins with the axes \(2, 4\) and 'a' with \(2, 3\)"):
        Samples({"a": torch.zeros(2, 3), "b": torch.zeros(2, 4)})
    with pytest.raises(InputError, match=r"params\['a'\] has shape \(3,\); expected \(chains, draws"):
        Samples({"a": torch.zeros(3)})
    with pytest.raises(InputError, match="there are 3 draws; expected a positive multiple of the 2 chains"):
        Samples.stack([params] * 3, chains=2)
    with pytest.raises(InputError, match="draw 1 has 'x' and draw 0 has not"):
        Samples.stack([params, {**params, "x": params["b"]}])
    with pytest.raises(InputError, match="component 0 has 'a' and component 1 has not"):
        Mixture([Delta(params), Delta({"b": params["b"]})])
    with pytest.raises(InputError, match=r"weights has shape \(2,\); expected \(1,\)"):
        Mixture([Delta(params)], [1.0, 2.0])
    with pytest.raises(InputError, match=r"weights are \[-1.0, 2.0\]; expected finite numbers ≥ 0"):
        Mixture([Delta(params)] * 2, [-1.0, 2.0])
    q = mean_field(params, ("b",), seeded())
    with pytest.raises(InputError, match="params lacks 'b', over which the density runs"):
        q.log_prob({"a": params["a"]})
    with pytest.raises(InputError, match=r"params\['b'\] has shape \(2,\); expected \(3,\)"):
        q.log_prob({"b": torch.zeros(2)})
