"""Gaussians of a diagonal and a few directions, against dense ones."""

import pytest
import torch

import coset
from architectures import made, randomized
from coset.distribution.density import monomial
from coset.distribution.low_rank import LowRank
from coset.errors import InputError
from coset.models import MLP
from coset.running import owners
from coset.symmetry.action import Action

DOUBLE = {"dtype": torch.float64}


def planted(rank=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"a": (4, 2), "b": (5,)}
    mean = {name: torch.randn(shape, generator=generator, **DOUBLE) for name, shape in shapes.items()}
    mean["count"] = torch.tensor(7)
    diagonal = {name: 0.2 + torch.rand(shape, generator=generator, **DOUBLE) for name, shape in shapes.items()}
    factors = {name: torch.randn(rank, *shape, generator=generator, **DOUBLE) for name, shape in shapes.items()}
    return LowRank(mean, diagonal, factors)


def test_density_and_entropy_are_those_of_the_dense_gaussian():
    q = planted()
    f = torch.cat([q.factors["a"].reshape(3, -1), q.factors["b"]], 1)
    d = torch.cat([q.diagonal["a"].reshape(-1), q.diagonal["b"]])
    covariance = d.square().diag() + f.T @ f
    torch.testing.assert_close(q.dense.covariance, covariance, rtol=1e-13, atol=1e-14)
    params = {name: torch.randn(2, 6, *q.mean[name].shape, **DOUBLE) for name in ("a", "b")}
    torch.testing.assert_close(q.log_prob(params), q.dense.log_prob(params), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(q.entropy(), q.dense.entropy(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(q.std["a"].reshape(-1), covariance.diagonal()[:8].sqrt(), rtol=1e-13, atol=0)
    assert q.marginals.std["b"].equal(q.std["b"])


def test_draws_have_its_moments():
    q, n = planted(), 40_000
    draws = q.sample(n, torch.Generator().manual_seed(1))
    assert draws["count"].shape == (n,)
    flat = torch.cat([draws["a"].reshape(n, -1), draws["b"]], 1)
    covariance = q.dense.covariance
    # Standard errors: √(S_ii/n) of a mean, √((S_ii S_jj + S_ij²)/n) of a covariance; five of them.
    spread = covariance.diagonal()
    mean = torch.cat([q.mean["a"].reshape(-1), q.mean["b"]])
    assert bool(((flat.mean(0) - mean).abs() < 5 * (spread / n).sqrt()).all())
    errors = ((spread[:, None] * spread + covariance.square()) / n).sqrt()
    assert bool(((flat.T.cov() - covariance).abs() < 5 * errors).all())
    again = q.sample(n, torch.Generator().manual_seed(1))
    assert again["a"].equal(draws["a"])


@pytest.mark.parametrize("name", ["signs", "grouped-query attention", "batchnorm+depthwise", "tied embeddings"])
def test_an_element_moves_it_as_it_moves_the_dense_gaussian_and_its_draws(name):
    generator = torch.Generator().manual_seed(2)
    if name == "signs":
        model = MLP(3, [4, 4], 2, activation="tanh").double()
        sym = coset.discover(model, torch.zeros(2, 3, **DOUBLE))
    else:
        model, sym, _ = made(name)
    params = randomized(model, generator)
    trained = {key: tensor for key, tensor in params.items() if not sym.parameters[key].buffer}
    diagonal = {key: 0.1 + torch.rand(t.shape, generator=generator, **DOUBLE) for key, t in trained.items()}
    factors = {key: torch.randn(2, *t.shape, generator=generator, **DOUBLE) for key, t in trained.items()}
    for alias, first in owners(model).items():
        if alias in trained:
            diagonal[alias], factors[alias] = diagonal[first], factors[first]
    q = LowRank(params, diagonal, factors)
    g = sym.random(generator)
    moved = sym.act(g, q)
    torch.testing.assert_close(moved.dense.covariance, sym.act(g, q.dense).covariance, rtol=1e-11, atol=1e-13)
    draws = q.sample(3, torch.Generator().manual_seed(4))
    # The density changes by the volume of A alone, so differences between draws stay.
    before, after = q.log_prob(draws), moved.log_prob(sym.act(g, draws))
    torch.testing.assert_close(before - before[0], after - after[0], rtol=1e-8, atol=1e-8)
    volume = monomial(Action(sym, g), params, q.random_names)[1].abs().log().sum()
    torch.testing.assert_close(moved.entropy(), q.entropy() + volume, rtol=1e-10, atol=1e-10)
    back = sym.act(sym.inverse(g), moved)
    for key in trained:
        torch.testing.assert_close(back.factors[key], factors[key], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(back.diagonal[key], diagonal[key], rtol=1e-10, atol=1e-12)


def test_tied_weights_are_one_parameter():
    weight = torch.zeros(3, **DOUBLE)
    spread, factor = torch.ones(3, **DOUBLE), torch.ones(2, 3, **DOUBLE)
    tied = {"x": weight, "y": weight}
    q = LowRank(tied, {"x": spread, "y": spread}, {"x": factor, "y": factor})
    assert q.random_names == ("x",)
    draws = q.sample(4, torch.Generator().manual_seed(0))
    assert draws["x"] is draws["y"]
    single = LowRank({"x": weight}, {"x": spread}, {"x": factor})
    torch.testing.assert_close(q.entropy(), single.entropy())


def test_bad_parts_are_refused():
    q = planted()
    with pytest.raises(InputError, match="diagonal has 'b', which factors has not"):
        LowRank(q.mean, q.diagonal, {"a": q.factors["a"]})
    with pytest.raises(InputError, match=r"factors\['b'\] has shape \(2, 5\); expected \(3, 5\)"):
        LowRank(q.mean, q.diagonal, {"a": q.factors["a"], "b": q.factors["b"][:2]})
    with pytest.raises(InputError, match=r"factors\['a'\] has values that are NaN"):
        LowRank(q.mean, q.diagonal, {**q.factors, "a": q.factors["a"] * float("nan")})
    with pytest.raises(InputError, match="diagonal is empty"):
        LowRank(q.mean, {}, {})
    flat = LowRank(q.mean, {**q.diagonal, "b": torch.zeros(5, **DOUBLE)}, q.factors)
    assert flat.sample(2, torch.Generator().manual_seed(0))["b"].shape == (2, 5)
    with pytest.raises(InputError, match="diagonal has values of 0"):
        flat.entropy()
