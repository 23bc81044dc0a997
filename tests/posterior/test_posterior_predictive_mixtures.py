"""Draws of mixtures: those of their components, chosen evenly, and along a path of weights each changed once."""

import itertools

import pytest
import torch

from coset.distribution import Delta, Gaussian, LowRank, MeanField, Mixture, Samples
from coset.models import MLP
from coset.posterior.prediction._predictive import predictive_log_likelihood
from coset.posterior.prediction.draws import draws_of


def network(seed):
    torch.manual_seed(seed)
    return MLP(4, [6], 3).double().eval()


def weights_of(seed):
    return {name: tensor.detach().clone() for name, tensor in network(seed).state_dict().items()}


def mean_field(seed, std=0.3):
    mean = weights_of(seed)
    return MeanField(mean, {name: torch.full_like(tensor, std) for name, tensor in mean.items()})


def gaussian(seed):
    q = mean_field(seed, 0.2)
    size = sum(tensor.numel() for tensor in q.mean.values())
    return Gaussian(q.mean, 0.04 * torch.eye(size, dtype=torch.float64) + 0.01, tuple(q.mean))


def low_rank(seed):
    q = mean_field(seed, 0.1)
    return LowRank(q.mean, q.std, q.sample(2, torch.Generator().manual_seed(4)))


def samples(seed, chains, draws):
    drawn = mean_field(seed).sample(chains * draws, torch.Generator().manual_seed(2))
    return Samples({name: tensor.unflatten(0, (chains, draws)) for name, tensor in drawn.items()})


def nested():
    inner = Mixture([mean_field(0, 0.1), gaussian(5)], [0.5, 0.5])
    return inner, Mixture([inner, Delta(weights_of(6)), samples(7, 3, 5)], [0.25, 0.25, 0.5])


PAIRS = {
    "mean fields": lambda: (mean_field(0), mean_field(5)),
    "dense and low rank": lambda: (gaussian(0), low_rank(5)),
    "draws": lambda: (samples(0, 3, 5), samples(5, 2, 3)),
    "points": lambda: (Delta(weights_of(0)), Delta(weights_of(5))),
    "mixtures": nested,
}


@pytest.mark.parametrize("count", [None, 12])
@pytest.mark.parametrize("pair", PAIRS)
def test_the_ends_of_a_path_are_exactly_its_components(pair, count):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(23, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (23,), generator=generator)
    ends = PAIRS[pair]()
    for q, weights in zip(ends, ([1, 0], [0, 1]), strict=True):
        found, expected = (
            predictive_log_likelihood(network(0), each, x, y, samples=count, seed=3)
            for each in (Mixture(ends, weights), q)
        )
        assert torch.equal(found.values, expected.values)
        assert (found.mean, found.mean_error) == (expected.mean, expected.mean_error)


@pytest.mark.parametrize("pair", PAIRS)
def test_along_a_path_every_draw_is_that_of_a_component_and_switches_once_at_most(pair):
    ends = PAIRS[pair]()
    alone = [draws_of(q, 40, 3) for q in ends]

    def sides(tau):
        mixed = draws_of(Mixture(ends, [1 - tau, tau]), 40, 3)
        for j in range(40 if 0 < tau < 1 else mixed.count):
            drawn = mixed.draw(j)
            equal = [all(torch.equal(drawn[name], t) for name, t in q.draw(j % q.count).items()) for q in alone]
            assert any(equal)
            # Both where the components are alike in this draw: no switch to be seen.
            yield None if all(equal) else equal.index(True)

    path = [list(sides(step / 8)) for step in range(9)]
    assert not any(path[0])
    assert all(side != 0 for side in path[-1])
    for before, after in itertools.pairwise(path[1:-1]):
        assert all(one is two is None or one <= two for one, two in zip(before, after, strict=True))
    assert any(one != two for one, two in zip(path[1], path[-2], strict=True))


def point(value):
    return Delta({"w": torch.tensor([float(value)])})


def values(q, count, seed):
    draws = draws_of(q, count, seed)
    return torch.tensor([float(draws.draw(j)["w"]) for j in range(count)])


@pytest.mark.parametrize("seed", range(5))
def test_any_first_draws_are_shared_out_evenly(seed):
    """Blocks of 3ᵏ draws have u on a grid, so each misses by less than 1: the first m by less than m's digits' sum."""
    q = Mixture([point(0), point(1), point(2)], [0.3, 0.2, 0.5])
    drawn = values(q, 333, seed)
    for m, digits in ((1, 1), (3, 1), (9, 1), (10, 2), (27, 1), (30, 2), (81, 1), (100, 4), (243, 1), (333, 3)):
        for part, weight in enumerate((0.3, 0.2, 0.5)):
            assert abs(int((drawn[:m] == part).sum()) - m * weight) < digits
    assert torch.equal(values(q, 20, seed), drawn[:20])


def test_over_seeds_each_draw_has_the_weights_of_the_components():
    q = Mixture([point(0), point(1)], [0.3, 0.7])
    shares = torch.stack([values(q, 5, seed) for seed in range(400)]).mean(0)
    assert float((shares - 0.7).abs().max()) < 5 * (0.3 * 0.7 / 400) ** 0.5


def test_choices_in_mixtures_of_mixtures_are_spread_jointly():
    """In 81·25 draws every pair of cells of both heights comes once; a share has its length of them, ± 2."""
    q = Mixture([Mixture([point(0), point(1)], [0.25, 0.75]), point(2)], [0.5, 0.5])
    for seed in range(3):
        counts = torch.bincount(values(q, 81 * 25, seed).long(), minlength=3).tolist()
        for count, inner in zip(counts, (81 * 0.25, 81 * 0.75), strict=False):
            assert (inner - 2) * (12.5 - 2) < count < (inner + 2) * (12.5 + 2)


def test_the_choice_of_a_component_does_not_choose_among_its_draws():
    """In 32·27 draws each of a component's 32 meets each of 27 cells once: 27 times its weight, ± 2 at the ends."""
    parts = [Samples({"w": torch.arange(first, first + 32.0).reshape(4, 8)}) for first in (0, 32)]
    for seed in range(5):
        counts = torch.bincount(values(Mixture(parts, [0.4, 0.6]), 32 * 27, seed).long(), minlength=64)
        assert float((counts[:32] - 0.4 * 27).abs().max()) < 2
        assert float((counts[32:] - 0.6 * 27).abs().max()) < 2
