"""Symmetrized posteriors with correlated weights and with signs, against sums over all elements of the group."""

import itertools
import math

import pytest
import torch
from torch.distributions import MultivariateNormal

import coset
from coset.distribution import Gaussian, MeanField
from coset.errors import InputError
from coset.models import MLP
from coset.posterior.symmetrized import (
    entropy_symmetrized,
    information_by_draws,
    log_prob_symmetrized,
    mutual_information,
)

WIDTH = 3


def network(widths=(WIDTH,)):
    torch.manual_seed(0)
    model = MLP(2, list(widths), 1, activation="tanh").double()
    sym = coset.discover(model, torch.zeros(2, 2, dtype=torch.float64))
    return sym, {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def covariance(size, seed=0):
    factor = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return 0.1 * (factor @ factor.T / size + 0.3 * torch.eye(size, dtype=torch.float64))


def by_units(mean):
    """A covariance of blocks: the weights of each unit, and those of none; names one after the other."""
    places = {"layers.0.weight": 0, "layers.0.bias": 2 * WIDTH, "layers.1.weight": 3 * WIDTH}
    whole = torch.zeros(4 * WIDTH + 1, 4 * WIDTH + 1, dtype=torch.float64)
    for unit in range(WIDTH):
        rows = torch.tensor([2 * unit, 2 * unit + 1, places["layers.0.bias"] + unit, places["layers.1.weight"] + unit])
        whole[rows[:, None], rows] = covariance(4, unit)
    whole[-1, -1] = 0.2
    names = ("layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias")
    return Gaussian(mean, whole, names)


def dense(mean):
    names = tuple(mean)
    return Gaussian(mean, covariance(sum(tensor.numel() for tensor in mean.values())), names)


def group(signs):
    """All elements, as functions of the weights of a network with one hidden layer."""
    for order in itertools.permutations(range(WIDTH)):
        for chosen in itertools.product((1.0, -1.0), repeat=WIDTH) if signs else [(1.0,) * WIDTH]:
            s, p = torch.tensor(chosen, dtype=torch.float64), list(order)
            yield lambda w, s=s, p=p: {
                "layers.0.weight": (s[:, None] * w["layers.0.weight"])[..., p, :],
                "layers.0.bias": (s * w["layers.0.bias"])[..., p],
                "layers.1.weight": (s * w["layers.1.weight"])[..., p],
                "layers.1.bias": w["layers.1.bias"],
            }


def brute(q, omega, signs):
    logs = [q.log_prob(g(omega)) for g in group(signs)]
    return torch.stack(logs).logsumexp(0) - math.log(len(logs))


def kinds(mean):
    spread = {name: torch.rand_like(tensor) + 0.3 for name, tensor in mean.items()}
    return {"mean field": MeanField(mean, spread), "units": by_units(mean), "dense": dense(mean)}


@pytest.mark.parametrize("signs", [False, True])
@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("mean field", "permanent"), ("mean field", "enumeration"), ("units", "permanent"), ("units", "enumeration"),
        ("dense", "enumeration"),
    ],
)  # fmt: skip
def test_the_density_is_the_mean_over_the_group(kind, method, signs):
    sym, mean = network()
    q = kinds(mean)[kind]
    omega = q.sample(4, torch.Generator().manual_seed(1))
    found = log_prob_symmetrized(sym, q, omega, method=method, signs=signs)
    torch.testing.assert_close(found, brute(q, omega, signs), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("signs", [False, True])
def test_it_is_the_same_all_over_an_orbit(signs):
    sym, mean = network((2, 2))
    q = dense(mean)
    omega = q.sample(1, torch.Generator().manual_seed(1))
    finite = sym.restrict(signs=signs)
    g = finite.random(torch.Generator().manual_seed(3))
    moved = {name: tensor[None] for name, tensor in finite.act(g, {k: v[0] for k, v in omega.items()}).items()}
    values = [log_prob_symmetrized(sym, q, w, method="enumeration", signs=signs) for w in (omega, moved)]
    torch.testing.assert_close(values[0], values[1], rtol=1e-10, atol=1e-10)
    assert (q.log_prob(omega) - q.log_prob(moved)).abs() > 1e-3


def test_information_lies_between_its_bound_by_draws_and_the_order():
    sym, mean = network()
    q = dense(mean)
    exact = mutual_information(sym, q, 400, method="enumeration", signs=True, show=False)
    bound = information_by_draws(sym, q, K=30, samples=400, signs=True)
    error = math.hypot(exact.error, bound.error)
    assert bound.value <= min(exact.value + 4 * error, math.log(30))
    assert bound.value > 0.3 * exact.value
    assert exact.value <= math.log(2**WIDTH * math.factorial(WIDTH)) + 1e-9
    whole = entropy_symmetrized(sym, q, 400, method="enumeration", signs=True, show=False)
    names = q.names
    flat = torch.cat([mean[name].reshape(-1) for name in names])
    assert whole.value == pytest.approx(float(MultivariateNormal(flat, q.covariance).entropy()) + exact.value)


def test_units_that_are_correlated_are_refused_by_the_permanent():
    sym, mean = network()
    q = dense(mean)
    with pytest.raises(InputError, match="weights of different units with a correlation of"):
        log_prob_symmetrized(sym, q, q.sample(1, torch.Generator().manual_seed(0)))


def test_signs_that_there_are_not_are_refused():
    torch.manual_seed(0)
    model = MLP(2, [3], 1, activation="relu").double()
    sym = coset.discover(model, torch.zeros(2, 2, dtype=torch.float64))
    mean = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    q = kinds(mean)["mean field"]
    with pytest.raises(InputError, match="sym has 0 free signs"):
        log_prob_symmetrized(sym, q, q.sample(1, torch.Generator().manual_seed(0)), signs=True)
