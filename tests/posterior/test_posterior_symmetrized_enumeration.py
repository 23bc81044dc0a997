"""Going through every permutation of a small group: which they are, and the symmetrized posterior of deep networks."""

import math

import pytest
import torch

import coset
from architectures import evaluate, made, randomized
from coset.distribution import MeanField, Mixture
from coset.distribution.density import pieces, vector
from coset.errors import InputError
from coset.models import MLP
from coset.posterior.symmetrized import (
    all_permutations,
    entropy_symmetrized,
    log_prob_symmetrized,
    mutual_information,
    permutation_count,
)
from coset.posterior.symmetrized import exact as module
from coset.posterior.symmetrized.units import unknowns

DOUBLE = {"dtype": torch.float64}
CLOSE = {"rtol": 1e-11, "atol": 1e-10}


def deep(sizes=(3, 2), seed=0, std=0.5):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MLP(2, list(sizes), 1).double().eval()
    sym = coset.discover(model, torch.zeros(2, 2, **DOUBLE))
    generator = torch.Generator().manual_seed(seed)
    mean = randomized(model, generator)
    noise = {name: torch.rand(tensor.shape, generator=generator, **DOUBLE) for name, tensor in mean.items()}
    return model, sym, MeanField(mean, {name: std * (0.5 + tensor) for name, tensor in noise.items()})


def as_tuple(element):
    return tuple(tuple(p.reshape(-1).tolist()) for p in element.permutations.values())


@pytest.mark.parametrize(
    ("case", "names", "count"),
    [
        ("concatenation", None, 6 * 120),
        ("grouped-query attention", ["g", "h"], 2 * 6**2),
        ("grouped+groupnorm", ["g", "in"], 6 * 2**3),
        ("residual mlp, one stream", None, None),
        ("rotary", None, 1),
    ],
)
def test_every_element_once_the_identity_first(case, names, count):
    model, sym, shape = made(case)
    finite = sym.restrict(names, scales=False, signs=False)
    elements = list(all_permutations(finite))
    count = count or round(math.exp(sym.log_permutations))
    assert len(elements) == permutation_count(finite) == count
    assert math.log(count) == pytest.approx(finite.log_permutations, abs=1e-12)
    assert len({as_tuple(g) for g in elements}) == count
    assert elements[0] == finite.identity()
    params = randomized(model, torch.Generator().manual_seed(0))
    x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(1), **DOUBLE)
    before = evaluate(model, params, x)
    for g in elements[:: max(1, count // 20)]:
        finite.check(g)
        torch.testing.assert_close(evaluate(model, finite.act(g, params), x), before, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("case", "names"),
    [
        ("grouped-query attention", ["g", "h"]),
        ("grouped+groupnorm", ["g", "in"]),
        ("residual mlp, one stream", None),
        ("concatenation", None),
    ],
)
def test_products_of_exchanges_are_all_elements_once(case, names):
    model, sym, _ = made(case)
    finite = sym.restrict(names, scales=False, signs=False)
    mean = randomized(model, torch.Generator().manual_seed(0))
    over = unknowns(MeanField(mean, {name: torch.ones_like(tensor) for name, tensor in mean.items()}))
    start = torch.arange(len(over.mean))
    tables = list(module.products(start[None], module.exchanges(finite, over.names, over.like), 10 * len(start)))
    assert all(len(table) <= 10 for table in tables)
    found = {tuple(row) for table in tables for row in table.tolist()}
    numbered = pieces(start.double(), over.names, over.like)
    elements = all_permutations(finite)
    truth = {tuple(vector(finite.act(g, numbered), over.names, over.like).long().tolist()) for g in elements}
    assert len(truth) == sum(map(len, tables)) == permutation_count(finite)
    assert found == truth


def test_density_of_a_deep_network_is_that_of_the_mixture_of_all_images():
    _, sym, q = deep()
    finite = sym.restrict(scales=False, signs=False)
    mixture = Mixture([finite.act(g, q) for g in all_permutations(finite)])
    assert len(mixture.components) == 12
    omega = q.sample(6, torch.Generator().manual_seed(1))
    found = log_prob_symmetrized(sym, q, omega, method="enumeration")
    torch.testing.assert_close(found, mixture.log_prob(omega), **CLOSE)
    g = finite.random(torch.Generator().manual_seed(2))
    torch.testing.assert_close(log_prob_symmetrized(sym, q, finite.act(g, omega), method="enumeration"), found, **CLOSE)


def test_blocks_within_blocks():
    model, sym, _ = made("grouped-query attention")
    finite = sym.restrict(["g", "h"], scales=False, signs=False)
    mean = randomized(model, torch.Generator().manual_seed(0))
    q = MeanField(mean, {name: torch.full_like(tensor, 0.7) for name, tensor in mean.items()})
    omega = q.sample(2, torch.Generator().manual_seed(1))
    mixture = Mixture([finite.act(g, q) for g in all_permutations(finite)])
    torch.testing.assert_close(
        log_prob_symmetrized(finite, q, omega, method="enumeration"), mixture.log_prob(omega), **CLOSE
    )


def test_a_class_on_both_axes():
    model, sym, _ = made("residual mlp, one stream")
    finite = sym.restrict(scales=False, signs=False)
    mean = randomized(model, torch.Generator().manual_seed(0))
    q = MeanField(mean, {name: torch.full_like(tensor, 0.7) for name, tensor in mean.items()})
    omega = q.sample(2, torch.Generator().manual_seed(1))
    mixture = Mixture([finite.act(g, q) for g in all_permutations(finite)])
    torch.testing.assert_close(
        log_prob_symmetrized(finite, q, omega, method="enumeration"), mixture.log_prob(omega), **CLOSE
    )


def test_one_layer_of_two_agrees_with_the_permanent_and_layers_add_up():
    _, sym, q = deep((4, 3))
    omega = q.sample(3, torch.Generator().manual_seed(1))
    finite = sym.restrict(scales=False, signs=False)
    first, second = finite.permuting
    for name in (first, second):
        one = finite.restrict([name])
        torch.testing.assert_close(
            log_prob_symmetrized(one, q, omega), log_prob_symmetrized(one, q, omega, method="enumeration"), **CLOSE
        )
    # The sum over one layer, for every permutation of the other, is a permanent.
    one = finite.restrict([first])
    others = [finite.element(g.permutations) for g in all_permutations(finite.restrict([second]))]
    parts = [log_prob_symmetrized(one, finite.act(g, q), omega) for g in others]
    whole = torch.logsumexp(torch.stack(parts), 0) - math.log(len(parts))
    torch.testing.assert_close(whole, log_prob_symmetrized(finite, q, omega, method="enumeration"), **CLOSE)


def test_information_of_a_deep_network():
    _, sym, q = deep(std=1.0)
    information = mutual_information(sym, q, 3000, 0, method="enumeration")
    assert 0.1 * math.log(12) < information.value < 0.9 * math.log(12)
    finite = sym.restrict(scales=False, signs=False)
    mixture = Mixture([finite.act(g, q) for g in all_permutations(finite)])
    sampled = mixture.entropy(20_000, torch.Generator().manual_seed(5))
    entropy = entropy_symmetrized(sym, q, 3000, 0, method="enumeration")
    assert abs(entropy.value - sampled.value) < 4 * math.hypot(entropy.error, sampled.error)
    separate = MeanField(q.mean, {name: 1e-4 * tensor for name, tensor in q.std.items()})
    assert mutual_information(sym, separate, 20, 0, method="enumeration").value == pytest.approx(math.log(12), abs=1e-9)


def test_elements_are_taken_in_pieces(monkeypatch):
    _, sym, q = deep()
    omega = q.sample(3, torch.Generator().manual_seed(1))
    whole = log_prob_symmetrized(sym, q, omega, method="enumeration")
    monkeypatch.setattr(module, "_ENTRIES", 1)
    torch.testing.assert_close(log_prob_symmetrized(sym, q, omega, method="enumeration"), whole, rtol=1e-14, atol=0)


def test_large_groups_are_refused():
    _, sym, q = deep((9,))
    with pytest.raises(InputError, match=r"10\^5.56 permutations; expected 100,000 or fewer"):
        log_prob_symmetrized(sym, q, q.mean, method="enumeration")
    with pytest.raises(InputError, match=r"10\^374.90 permutations"):
        all_permutations(deep((200,))[1])
    other = {"extra": torch.zeros(2, **DOUBLE)}
    unknown = MeanField(other, {"extra": torch.ones(2, **DOUBLE)})
    with pytest.raises(InputError, match="not a parameter of this symmetry"):
        log_prob_symmetrized(deep()[1], unknown, other, method="enumeration")
