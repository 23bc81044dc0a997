"""Cheap generators: blends of networks, noise, Gaussians, against enumeration, closed forms and numpy."""

import itertools
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

sys.path.insert(0, str(Path(__file__).parent.parent / "distribution"))

from contract import Contract, random_names, seeded

from coset.distribution.ties import map_tied, ties
from coset.errors import InputError
from coset.flow import (
    GENERATORS,
    Blends,
    cheap_samples,
    fitted_gaussian,
    interpolations,
    midpoints,
    noisy_networks,
    principal_gaussian,
    soups,
)


def stacked(count=7, seed=0):
    """Networks whose entries have a mean and a scale of their own; tied names, statistics and counters as well."""
    generator = seeded(seed)
    centre, scale = (torch.randn(3, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    weight = centre + scale * torch.randn(count, 3, 2, generator=generator, dtype=torch.float64)
    bias = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    return {
        "weight": weight,
        "again": weight,
        "bias": bias,
        "running_var": bias.square() + 1,
        "steps": torch.arange(count),
    }


def flat(stack):
    return torch.cat([stack["weight"].flatten(1), stack["bias"]], 1).numpy()


class TestBlends(Contract):
    dense, exact, saved = False, True, False

    def make(self, params, names, generator):
        """Networks that differ in what is trained."""

        def drawn(name):
            tensor = params[name]
            if name not in names:
                return tensor.expand(4, *tensor.shape)
            noise = torch.randn(4, *tensor.shape, generator=generator, dtype=torch.float64)
            return tensor * (0.1 * noise).exp().to(tensor.dtype)

        return Blends(map_tied(drawn, ties(params)), 3, "uniform")

    def test_the_names_that_vary_are_those_of_floating_point_numbers(self):
        q = self.over("batchnorm+depthwise")[-1]
        assert set(random_names(q.mean)) <= set(q.random_names)


@pytest.mark.parametrize(("make", "count"), [(interpolations, 2), (midpoints, 2), (lambda z: soups(z, count=3), 3)])
def test_a_blend_shows_its_shares(make, count):
    """Of networks that are unit vectors a draw is its own shares: ``count`` that are not 0, which sum to 1."""
    drawn = make({"a": torch.eye(5, dtype=torch.float64)}).sample(3000, seeded())["a"]
    torch.testing.assert_close(drawn.sum(1), torch.ones(3000, dtype=torch.float64))
    assert ((drawn > 0).sum(1) == count).all()
    # Every set of networks is as likely as every other.
    sets, times = torch.unique(drawn > 0, dim=0, return_counts=True)
    assert len(sets) == math.comb(5, count)
    assert stats.chisquare(times.numpy()).pvalue > 1e-3
    shares = drawn[drawn > 0]
    if make is interpolations:
        assert stats.kstest(drawn[drawn[:, 0] > 0, 0].numpy(), "uniform").pvalue > 1e-3
    else:
        torch.testing.assert_close(shares, torch.full_like(shares, 1 / count))


@pytest.mark.parametrize(
    ("shares", "count"), [("equal", 1), ("equal", 3), ("uniform", 2), ("uniform", 3), ("equal", 5)]
)
def test_moments_of_blends_by_enumeration(shares, count):
    """E w_a² = 2/(k(k+1)) and E w_a w_b = 1/(k(k+1)) on the simplex, 1/k² of equal shares."""
    networks = stacked(5)
    q = Blends(networks, count, shares)
    values = networks["weight"]
    square, mixed = (1 / count**2,) * 2
    if shares == "uniform":
        square, mixed = 2 / (count * (count + 1)), 1 / (count * (count + 1))
    mean, second, total = 0, 0, 0
    for chosen in itertools.permutations(range(5), count):
        parts = values[list(chosen)]
        mean = mean + parts.mean(0)
        second = second + (square - mixed) * parts.square().sum(0) + mixed * parts.sum(0).square()
        total += 1
    torch.testing.assert_close(q.mean["weight"], mean / total)
    deviation = (second / total - (mean / total).square()).clamp(min=0).sqrt()
    torch.testing.assert_close(q.std["weight"], deviation, atol=1e-7, rtol=1e-9)


def test_what_is_no_real_number_comes_from_a_network():
    networks = stacked()
    for name, make in GENERATORS.items():
        q = make(networks, **({"count": 3} if name == "soup" else {}))
        drawn = q.sample(50, seeded())
        assert drawn["steps"].dtype == torch.long
        assert torch.isin(drawn["steps"], networks["steps"]).all()
        assert torch.equal(drawn["weight"], drawn["again"])
        assert ties(drawn)["again"] == "weight"


def test_noise_is_a_mixture_around_every_network():
    networks = stacked()
    q = noisy_networks(networks, scale=0.3, names=("weight", "bias"))
    rows = flat(networks)
    point = {name: tensor[2] + 0.1 for name, tensor in networks.items()}
    x = flat({name: tensor[None] for name, tensor in point.items()})[0]
    logs = stats.norm.logpdf(x, rows, 0.3 * rows.std(0)).sum(1)
    assert float(q.log_prob(point)) == pytest.approx(np.logaddexp.reduce(logs) - math.log(len(rows)), rel=1e-12)
    # What does not vary is the network's own.
    drawn = q.sample(200, seeded())
    assert torch.equal(drawn["running_var"], networks["running_var"][drawn["steps"]])
    away = (flat(drawn) - rows[drawn["steps"]]) / (0.3 * rows.std(0))
    assert stats.kstest(away.ravel(), "norm").pvalue > 1e-3


def test_the_gaussian_has_the_moments_of_the_networks():
    networks = stacked()
    q = fitted_gaussian(networks, names=("weight",))
    np.testing.assert_allclose(q.mean["weight"], networks["weight"].numpy().mean(0))
    np.testing.assert_allclose(q.std["weight"], networks["weight"].numpy().std(0))
    assert torch.equal(q.sample(2, seeded())["bias"][1], q.mean["bias"])
    assert fitted_gaussian(networks).random_names == ("weight", "bias", "running_var")


def test_all_principal_components_have_all_covariances():
    """Also of fewer networks than weights, whose draws are then in their span."""
    for count in (30, 5):
        networks = stacked(count, seed=1)
        q = principal_gaussian(networks, names=("weight", "bias"))
        rows = flat(networks)
        np.testing.assert_allclose(q.dense.covariance, np.cov(rows.T, bias=True), atol=1e-12)
        centred = rows - rows.mean(0)
        drawn = flat(q.sample(20, seeded())) - rows.mean(0)
        projected = drawn @ np.linalg.pinv(centred) @ centred
        np.testing.assert_allclose(projected, drawn, atol=1e-9)
        assert np.linalg.matrix_rank(drawn) == min(count - 1, 9)


def test_a_remainder_is_what_maximises_the_likelihood():
    """Probabilistic principal components: eigenvalues kept, the others at their mean; nearby densities are lower."""
    networks = stacked(40)
    q = principal_gaussian(networks, count=3, remainder=True, names=("weight", "bias"))
    rows = flat(networks)
    values, vectors = np.linalg.eigh(np.cov(rows.T, bias=True))
    left = values[:-3].mean()
    np.testing.assert_allclose(np.linalg.eigvalsh(q.dense.covariance), [*[left] * 6, *values[-3:]], rtol=1e-9)

    def likelihood(top, rest):
        covariance = vectors[:, -3:] * top @ vectors[:, -3:].T + rest * vectors[:, :-3] @ vectors[:, :-3].T
        return stats.multivariate_normal(rows.mean(0), covariance).logpdf(rows)

    best = likelihood(values[-3:], left)
    np.testing.assert_allclose(q.log_prob(networks), best, rtol=1e-9)
    for top, rest in itertools.product((0.97, 1, 1.03), repeat=2):
        if (top, rest) != (1, 1):
            assert likelihood(top * values[-3:], rest * left).sum() < best.sum()


def test_cheap_samples_have_streams_of_their_own():
    networks = stacked()
    options = {"soup": {"count": 3}, "noise": {"scale": 0.2}}
    every = cheap_samples(networks, 4, seed=3, options=options)
    assert every.keys() == GENERATORS.keys()
    alone = cheap_samples(networks, 4, seed=3, generators=["noise"], options=options)
    assert torch.equal(alone["noise"]["weight"], every["noise"]["weight"])
    other = cheap_samples(networks, 4, seed=4, generators=["noise"], options=options)
    assert not torch.equal(other["noise"]["weight"], every["noise"]["weight"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda z: soups(z), "count is 16; expected at most the 7 networks"),
        (lambda z: soups(z, count=0), "count is 0; expected a whole number ≥ 1"),
        (lambda z: Blends(z, 2, "none"), "shares is 'none'; expected one of equal, uniform"),
        (lambda z: noisy_networks(z, scale=0), "scale is 0; expected a number > 0"),
        (
            lambda z: noisy_networks(z, names=["steps"]),
            "names has 'steps', which is no parameter of floating",
        ),
        (lambda z: fitted_gaussian(z, names=[]), "names is empty"),
        (lambda z: fitted_gaussian({"a": torch.zeros(1, 2)}), "there are 1 networks; expected at least 2"),
        (lambda z: fitted_gaussian({}), "expected a dict of tensors"),
        (lambda z: fitted_gaussian({**z, "bias": z["bias"][:3]}), "'weight' is of 7 networks and 'bias' of 3"),
        (lambda z: fitted_gaussian({**z, "bias": z["bias"] / 0}), "'bias' of the networks has entries that are NaN"),
        (lambda z: fitted_gaussian({"a": torch.zeros(3, 2, dtype=torch.cfloat)}), "expected real numbers"),
        (lambda z: principal_gaussian(z, count=7), "count is 7; expected at most 6, for 7 networks of 12 weights"),
        (lambda z: principal_gaussian(z, count=6, remainder=True), "nothing remains beside 6 components"),
        (lambda z: cheap_samples(z, 2, generators=["flow"]), "generators is 'flow'; expected one of noise"),
        (lambda z: cheap_samples(z, 0), "n is 0"),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(InputError, match=message) as error:
        call(stacked())
    assert "\n" not in str(error.value)
