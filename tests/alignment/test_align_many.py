"""Many networks in one frame: planted ones found, all pairs consistent exactly, the objective never falls."""

import itertools

import pytest
import torch

from architectures import made, randomized
from coset.alignment import align_many
from coset.distribution import MeanField
from coset.errors import InputError
from coset.models import MLP
from coset.symmetry import discover


@pytest.fixture(scope="module")
def network():
    model = MLP(6, [10, 10], 4).double().eval()
    return model, discover(model, torch.zeros(2, 6, dtype=torch.float64), verify=False)


def planted(model, sym, count, noise, seed=0):
    """Copies of one network with noise, each moved by an element of its own; and these elements."""
    generator = torch.Generator().manual_seed(seed)
    base, finite = randomized(model, generator), sym.restrict(scales=False)
    moves = [finite.random(generator) for _ in range(count)]
    noisy = [
        {name: t + noise * torch.randn(t.shape, generator=generator, dtype=torch.float64) for name, t in base.items()}
        for _ in moves
    ]
    return [finite.act(h, copy) for h, copy in zip(moves, noisy, strict=True)], noisy, moves


@pytest.mark.parametrize("method", ["mean", "universe"])
def test_twenty_networks(network, method):
    model, sym = network
    networks, noisy, moves = planted(model, sym, 20, 0.1)
    result = align_many(sym, networks, method=method)
    finite = sym.restrict(scales=False)
    for i, aligned in enumerate(result.aligned):
        expected = finite.act(moves[0], noisy[i])
        assert all(torch.equal(aligned[name], expected[name]) for name in expected)
    for i, j, k in itertools.product((0, 3, 11), (0, 7), (2, 19)):
        assert sym.compose(result.between(i, j), result.between(j, k)) == result.between(i, k)
    assert result.elements[0] == sym.identity()
    assert all(later > earlier for earlier, later in itertools.pairwise(result.history))
    assert min(result.agreement.values()) > 0.9


def test_the_objective_is_that_of_all_pairs_and_pairs_are_consistent_without_a_plant(network):
    model, sym = network
    generator = torch.Generator().manual_seed(5)
    networks = [randomized(model, generator) for _ in range(5)]
    result = align_many(sym, networks, seed=1)
    direct = sum(
        float((a[name] * b[name]).sum())
        for a, b in itertools.combinations(result.aligned, 2)
        for name in a
        if name in sym.structures
    )
    assert result.objective == pytest.approx(direct, rel=1e-9)
    for i, j, k in itertools.permutations(range(5), 3):
        assert sym.compose(result.between(i, j), result.between(j, k)) == result.between(i, k)


@pytest.mark.parametrize("seed", range(4))
def test_three_tiny_networks_against_exhaustive_search(seed):
    model = MLP(2, [3], 2).double().eval()
    sym = discover(model, torch.zeros(2, 2, dtype=torch.float64), verify=False).restrict(scales=False)
    generator = torch.Generator().manual_seed(seed)
    networks = [randomized(model, generator) for _ in range(3)]
    orders = [sym.element({"layers.0": torch.tensor(p)}) for p in itertools.permutations(range(3))]

    def objective(chosen):
        return sum(
            float((a[name] * b[name]).sum()) for a, b in itertools.combinations(chosen, 2) for name in sym.structures
        )

    moved = [[sym.act(g, network) for g in orders] for network in networks[1:]]
    best = max(objective([networks[0], b, c]) for b in moved[0] for c in moved[1])
    assert align_many(sym, networks).objective == pytest.approx(best, rel=1e-10)


def test_heads_and_posteriors():
    model, sym, _ = made("cct")
    generator = torch.Generator().manual_seed(0)
    mean = randomized(model, generator)
    std = {n: 0.1 + torch.rand(t.shape, generator=generator, dtype=torch.float64) for n, t in mean.items()}
    finite = sym.restrict(scales=False)
    base = MeanField(mean, std)
    result = align_many(sym, [base, *(finite.act(finite.random(generator), base) for _ in range(2))])
    for aligned in result.aligned:
        assert all(torch.equal(aligned.mean[n], mean[n]) and torch.equal(aligned.std[n], std[n]) for n in mean)


def test_stopping_and_refusals(network):
    model, sym = network
    networks, _, _ = planted(model, sym, 4, 0.3)
    seen = []
    result = align_many(sym, networks, callback=lambda step: seen.append(step.number) or step.number >= 2)
    assert result.stopped
    assert seen == [1, 2]
    for given, options, message in (
        (networks[:1], {}, "1 networks are given"),
        (networks, {"method": "median"}, "method is 'median'; expected one of mean, universe"),
        (networks, {"rounds": 0}, "rounds is 0"),
        ([networks[0], {**networks[1], "layers.0.bias": torch.full((10,), float("nan"))}], {},
         "'layers.0.bias' of network 1 has 10 entries that are NaN"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            align_many(sym, given, **options)
