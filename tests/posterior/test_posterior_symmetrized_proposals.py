"""Proposals of permutations against enumeration: probabilities, unbiased weights, bounds from both sides."""

import itertools
import math
from functools import lru_cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

import coset
from architectures import Attention, attention_symmetry, made, randomized
from coset.distribution import MeanField
from coset.distribution.density import pieces, vector
from coset.errors import InputError
from coset.models import MLP
from coset.posterior.symmetrized import (
    PROPOSALS,
    SymmetrizedELBO,
    all_permutations,
    entropy_bounds,
    guided,
    information_bounds,
    log_prob_symmetrized,
    mutual_information,
    permutation_count,
)
from coset.posterior.symmetrized.guided import class_order, draw_chain, log_prob_of_identity
from coset.posterior.symmetrized.orbit import Drawn, orbit
from coset.posterior.symmetrized.proposals import draw_near, log_density, mixture, squared_distances
from coset.posterior.symmetrized.units import unknowns

DOUBLE = {"dtype": torch.float64}
ERRORS = 4.5
"""So many standard errors an estimate may be off: one in 150,000 is off by more."""

ONE = ("uniform", "sequential", "permanent", "distance", "transpositions", "exact")
SEVERAL = ("uniform", "sequential", "permanent", "transpositions", "exact")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@lru_cache
def network(*hidden):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MLP(1, list(hidden), 1, activation="tanh").double().eval()
    return model, coset.discover(model, torch.zeros(2, 1, **DOUBLE)).restrict(scales=False, signs=False)


@lru_cache
def special(name):
    """Blocks within blocks, or one class on both axes of a matrix, with a small group."""
    if name != "attention":
        model, sym, _ = made(name)
        return model, sym.restrict(scales=False, signs=False)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Attention(groups=2, queries=3, dim=1, width=1).double().eval()
    return model, attention_symmetry(model).restrict(scales=False, signs=False)


def posterior(model, seed=0, std=0.7, spread=0.8):
    """Mean field whose images overlap, means and deviations in general position."""
    draws = generator(seed)
    mean = {name: spread * tensor for name, tensor in randomized(model, draws).items()}
    noise = {name: torch.rand(mean[name].shape, generator=draws, **DOUBLE) for name in mean}
    return MeanField(mean, {name: std * (0.6 + noise[name]) for name in mean})


def drawn_from(sym, q, *lead, seed=0):
    over = unknowns(q)
    x = over.mean + over.std * torch.randn(*lead, len(over.mean), generator=generator(seed), **DOUBLE)
    return Drawn(orbit(sym, over.names, over.like), x, over.mean, over.std)


def log_z(sym, q, x):
    """log q^G(ω)/q(ω) by going through all permutations."""
    over = unknowns(q)
    omega = pieces(x, over.names, over.like)
    return log_prob_symmetrized(sym, q, omega, method="enumeration") - q.log_prob(omega)


def permutations_of(n):
    return torch.tensor(list(itertools.permutations(range(n))))


def numbers_of(orders, every):
    """The row of ``every`` at which each of some permutations stands."""
    base = orders.shape[-1] ** torch.arange(orders.shape[-1])
    keys = (every * base).sum(-1)
    position = keys.argsort()
    return position[torch.searchsorted(keys[position], (orders * base).sum(-1))]


def assert_frequencies(found, probabilities):
    """χ² of the counts of outcomes; those that are expected fewer than five times are taken together."""
    expected = probabilities * len(found)
    counts = torch.bincount(found, minlength=len(probabilities)).double()
    often = expected >= 5
    rest = torch.stack([(~often * counts).sum(), (~often * expected).sum()])
    statistic = ((counts - expected).square() / expected)[often].sum() + (rest[0] - rest[1]).square() / rest[1].clamp(1)
    assert float(statistic) < chi2.ppf(1 - 1e-4, int(often.sum()))


# Drawn row by row -----------------------------------------------------------------------------------------------------


def by_rows(guide, p):
    """The probability of p by the definition: rows, surest first, take one of the columns left."""

    def sureness(row):
        first, second = sorted(guide[row].tolist(), reverse=True)[:2]
        return first - second

    order = sorted(range(len(guide)), key=lambda row: -sureness(row))
    left, total = set(range(len(guide))), 1.0
    for row in order:
        weights = {column: math.exp(float(guide[row, column])) for column in left}
        total *= weights[int(p[row])] / sum(weights.values())
        left.remove(int(p[row]))
    return total


@pytest.mark.parametrize("n", [3, 4])
def test_permutations_come_as_often_as_is_said(n):
    guide = guided.balanced(1.5 * torch.randn(n, n, generator=generator(n), **DOUBLE))
    every = permutations_of(n)
    expected = torch.tensor([by_rows(guide, p) for p in every], **DOUBLE)
    assert float(expected.sum()) == pytest.approx(1, abs=1e-12)
    # With its columns in the order of p, the identity of the new matrix is p of the old.
    relabelled = torch.stack([guided.log_prob_along(guide[:, p]) for p in every])
    torch.testing.assert_close(relabelled.exp(), expected, rtol=1e-11, atol=0)
    order, said = guided.draw_along(guide[None], 20_000, generator(1))
    chosen = numbers_of(order, every)
    torch.testing.assert_close(said.exp(), expected[chosen], rtol=1e-11, atol=0)
    assert_frequencies(chosen, expected)


def test_matrices_of_a_batch_are_drawn_from_each_for_itself():
    guide = guided.balanced(2 * torch.randn(2, 5, 4, 4, generator=generator(), **DOUBLE))
    order, said = guided.draw_along(guide, 5, generator(1))
    assert order.shape == (2, 5, 4)
    for lead in itertools.product(range(2), range(5)):
        assert float(said[lead].exp()) == pytest.approx(by_rows(guide[lead], order[lead]), rel=1e-11)
    assert guided.log_prob_along(guide).shape == (2, 5)


def test_scaling_makes_rows_and_columns_sum_to_one_even_of_far_apart_entries():
    logs = 300 * torch.randn(3, 6, 6, generator=generator(), **DOUBLE)
    found = guided.balanced(torch.cat([logs, logs / 300]), rounds=2000)
    assert found.isfinite().all()
    for axis in (-1, -2):
        torch.testing.assert_close(found[3:].exp().sum(axis), torch.ones(3, 6, **DOUBLE), rtol=0, atol=1e-9)


@pytest.mark.parametrize("hidden", [(4,), (4, 3), (3, 2, 3)])
def test_what_is_drawn_does_not_know_which_element_moved_the_weights(hidden):
    """r(hg | hω) = r(g | ω), here with h = g⁻¹: the probability of the identity at g⁻¹·ω is that of g at ω."""
    model, sym = network(*hidden)
    drawn = drawn_from(sym, posterior(model))
    moved = drawn.orbit
    chain = class_order(moved, tuple(moved.simple))
    assert len(chain) == len(hidden)
    moves, log_r = draw_chain(drawn, chain, 12, generator(3))
    for number in range(12):
        g = sym.element({name: order[number] for name, order in moves.items()})
        back = sym.act(sym.inverse(g), pieces(drawn.x, moved.names, moved.like))
        x = vector(back, moved.names, moved.like)
        found = log_prob_of_identity(Drawn(moved, x, drawn.mean, drawn.std), chain)
        assert float(found) == pytest.approx(float(log_r[number]), abs=1e-9)


def test_probabilities_of_a_chain_sum_to_one():
    model, sym = network(3, 2)
    drawn = drawn_from(sym, posterior(model))
    moved = drawn.orbit
    chain = class_order(moved, tuple(moved.simple))
    total = 0.0
    for g in all_permutations(sym):
        back = sym.act(sym.inverse(g), pieces(drawn.x, moved.names, moved.like))
        x = vector(back, moved.names, moved.like)
        total += float(log_prob_of_identity(Drawn(moved, x, drawn.mean, drawn.std), chain).exp())
    assert total == pytest.approx(1, abs=1e-9)


# The distance of the means --------------------------------------------------------------------------------------------


def test_the_mixture_is_the_exponential_of_the_distance():
    times, log_weights = mixture()
    y = torch.cat([torch.zeros(1, **DOUBLE), torch.logspace(-4, math.log10(3600), 200, **DOUBLE)])
    found = torch.logsumexp(log_weights - times * y[:, None], -1)
    assert float((found + y.sqrt()).abs().max()) < 1e-3
    # The rule's doing: with every second value it is far from it.
    coarse = torch.logsumexp(log_weights[::2] + math.log(2) - times[::2] * y[:, None], -1)
    assert float((coarse + y.sqrt()).abs().max()) > 0.1


@pytest.mark.parametrize("n", [2, 4, 5])
def test_distances_make_a_distribution_over_permutations(n):
    rows = torch.randn(n, 3, generator=generator(n), **DOUBLE)
    apart = squared_distances(rows)
    every = permutations_of(n)
    logs = log_density(apart, every)
    by_hand = torch.stack([(rows[p] - rows).norm() for p in every])
    torch.testing.assert_close(logs, -by_hand, rtol=0, atol=1e-3)
    order, said = draw_near(apart, 20_000, generator(1))
    chosen = numbers_of(order, every)
    # Normalised over all permutations, by a permanent and not by their number.
    torch.testing.assert_close(said, (logs - torch.logsumexp(logs, 0))[chosen], rtol=0, atol=1e-11)
    assert_frequencies(chosen, torch.softmax(logs, 0))


def test_units_in_one_place_are_exchanged_freely():
    order, said = draw_near(squared_distances(torch.ones(3, 2, **DOUBLE)), 10, generator())
    torch.testing.assert_close(said, torch.full((10,), -math.log(6), **DOUBLE), rtol=0, atol=1e-12)
    assert order.shape == (10, 3)


# Weights and bounds ---------------------------------------------------------------------------------------------------


@lru_cache
def setting(structure):
    """The symmetry of a network, a posterior whose images overlap in part, and its information."""
    model, sym = special(structure) if isinstance(structure, str) else network(*structure)
    q = posterior(model, std=1.0, spread=0.4)
    return sym, q, mutual_information(sym, q, samples=3000, seed=7, method="enumeration")


STRUCTURES = [
    *(((4,), name) for name in ONE),
    *(((3, 3), name) for name in SEVERAL),
    *(("attention", name) for name in SEVERAL),
    *(("residual mlp, one stream", name) for name in ("uniform", "sequential", "transpositions", "exact")),
]


@pytest.mark.parametrize(("structure", "proposal"), STRUCTURES)
def test_the_mean_weight_is_the_ratio_of_densities(structure, proposal):
    sym, q, _ = setting(structure)
    drawn = drawn_from(sym, q, 2)
    expected = log_z(sym, q, drawn.x)
    count = 10 if proposal == "exact" else 3000
    weights = (PROPOSALS[proposal].weights(drawn, count, generator(5)).draws - expected[:, None]).exp()
    assert weights.shape == (2, count)
    if proposal == "exact" or (proposal == "permanent" and structure == (4,)):
        torch.testing.assert_close(weights, torch.ones_like(weights), rtol=0, atol=1e-9)
        return
    errors = weights.std(-1) / math.sqrt(count)
    assert ((weights.mean(-1) - 1).abs() < ERRORS * errors).all()
    # Tight enough to see a factor of two anywhere.
    assert (errors < 0.15).all()


@pytest.mark.parametrize(("structure", "proposal"), STRUCTURES)
def test_bounds_hold_the_information_between_them_and_close(structure, proposal):
    sym, q, exact = setting(structure)
    samples = 400
    assert 0.1 < exact.value / math.log(permutation_count(sym)) < 0.95
    wide, close = (information_bounds(sym, q, K, samples, 1, proposal=proposal, show=False) for K in (3, 60))
    for bounds in (wide, close):
        assert bounds.upper.value > exact.value - ERRORS * math.hypot(exact.error, bounds.upper.error)
        if bounds.lower is not None:
            assert bounds.lower.value < exact.value + ERRORS * math.hypot(exact.error, bounds.lower.error)
    assert (close.lower is None) == (proposal in ("distance", "transpositions"))
    if proposal == "exact":
        assert close.lower == pytest.approx(close.upper, abs=1e-12)
        return
    assert close.upper.value <= wide.upper.value + ERRORS * math.hypot(close.upper.error, wide.upper.error)
    if close.lower is not None and close.lower != close.upper:
        assert close.lower.value > wide.lower.value
        assert close.upper.value - close.lower.value < 0.6 * (wide.upper.value - wide.lower.value)


def test_the_bounds_of_one_class_by_its_permanent_are_the_information():
    model, sym = network(5)
    q = posterior(model)
    expected = mutual_information(sym, q, samples=500, seed=3)
    for proposal in ("exact", "permanent"):
        found = information_bounds(sym, q, 5, 500, 4, proposal=proposal, show=False)
        assert found.lower.value == pytest.approx(found.upper.value, abs=1e-12)
        assert abs(found.upper.value - expected.value) < ERRORS * math.hypot(found.upper.error, expected.error)
    # Draw by draw to rounding.
    drawn = drawn_from(sym, q, 20)
    weights = PROPOSALS["permanent"].weights(drawn, 3, generator())
    torch.testing.assert_close(weights.upper(), -log_z(sym, q, drawn.x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("proposal", ["sequential", "permanent"])
def test_guided_bounds_of_a_deep_network_are_close(proposal):
    model, sym = network(4, 3)
    q = posterior(model)
    exact = mutual_information(sym, q, samples=4000, seed=7, method="enumeration")
    uniform = information_bounds(sym, q, 20, 400, 1, proposal="uniform", show=False)
    found = information_bounds(sym, q, 20, 400, 1, proposal=proposal, show=False)
    for side in found:
        assert abs(side.value - exact.value) < 0.1 + ERRORS * math.hypot(side.error, exact.error)
    assert found.upper.value - found.lower.value < 0.2 * (uniform.upper.value - uniform.lower.value)


def test_entropies_are_bounded_by_that_of_q_and_the_information():
    model, sym = network(4)
    q = posterior(model)
    information = information_bounds(sym, q, 10, 50, 1, show=False)
    entropy = entropy_bounds(sym, q, 10, 50, 1, show=False)
    for a, b in zip(information, entropy, strict=True):
        assert b.value - a.value == pytest.approx(float(q.entropy()), abs=1e-10)
        assert a.error == b.error


@pytest.mark.parametrize("structure", [(4,), (3, 3)])
def test_the_gain_grows_with_k_from_nothing_to_the_information(structure):
    model, sym = network(*structure)
    q = posterior(model, std=0.5)
    values = [information_bounds(sym, q, K, 800, 2, proposal="uniform", show=False).lower for K in (1, 2, 8, 64, 512)]
    assert values[0] == (0.0, 0.0)
    for K, after, before in zip((2, 8, 64, 512), values[1:], values[:-1], strict=True):
        assert before.value < after.value <= math.log(K)
    exact = mutual_information(sym, q, samples=4000, seed=5, method="enumeration")
    assert abs(values[-1].value - exact.value) < ERRORS * math.hypot(values[-1].error, exact.error)


def test_the_gain_of_two_units_is_its_sum_over_numbers_of_exchanges():
    """Of K − 1 uniform elements of S₂ a binomial number exchange the units."""
    model, sym = network(2)
    q = posterior(model)
    K, repeats = 5, 20_000
    drawn = drawn_from(sym, q)
    swap = {name: torch.tensor([[1, 0]]) for name in drawn.orbit.classes}
    ratio = math.exp(float(drawn.log_ratios(swap)))
    chances = [math.comb(K - 1, b) / 2 ** (K - 1) for b in range(K)]
    outcomes = [-math.log((K - b + b * ratio) / K) for b in range(K)]
    expected = sum(chance * value for chance, value in zip(chances, outcomes, strict=True))
    spread = math.sqrt(sum(c * (value - expected) ** 2 for c, value in zip(chances, outcomes, strict=True)))
    many = Drawn(drawn.orbit, drawn.x.expand(repeats, -1), drawn.mean, drawn.std)
    found = SymmetrizedELBO(sym, K=K).added(many, generator(1))
    assert spread > 0.05
    assert abs(float(found.mean()) - expected) < ERRORS * spread / math.sqrt(repeats)


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(0, 10_000), st.floats(0.01, 30))
def test_no_draw_gains_more_than_the_logarithm_of_k(K, seed, far):
    """For any ω, near q or not."""
    model, sym = network(4)
    q = posterior(model, seed=seed % 5)
    omega = {name: tensor + far * torch.randn(tensor.shape, generator=generator(seed), **DOUBLE)
             for name, tensor in q.mean.items()}  # fmt: skip
    assert float(SymmetrizedELBO(sym, K=K).gain(q, omega, generator(seed))) <= math.log(K) + 1e-12


@pytest.mark.parametrize("structure", [(4,), (3, 3)])
def test_an_invariant_posterior_gains_nothing(structure):
    model, sym = network(*structure)
    mean = {name: torch.full_like(tensor, 0.3) for name, tensor in model.state_dict().items()}
    q = MeanField(mean, {name: torch.full_like(tensor, 0.4) for name, tensor in mean.items()})
    assert abs(float(mutual_information(sym, q, samples=20, method="enumeration").value)) < 1e-10
    # The control variate of transpositions counts how many were drawn, and is left with that noise.
    for proposal in set(ONE if structure == (4,) else SEVERAL) - {"transpositions", "sequential", "permanent"}:
        bounds = information_bounds(sym, q, 7, 20, proposal=proposal, show=False)
        for side in bounds:
            assert side is None or abs(side.value) < 1e-10
    # Guides look at ω, which tells its units apart, and only on average say nothing.
    for proposal in ("sequential", "permanent"):
        bounds = information_bounds(sym, q, 50, 200, proposal=proposal, show=False)
        assert bounds.lower.value < ERRORS * bounds.lower.error + 1e-9
        assert bounds.upper.value > -ERRORS * bounds.upper.error - 1e-9


def test_the_gain_is_infonce():
    """I^K as theorem E.1 has it, by K elements and K weights against each other, has the same mean (Gelberg eq. 19)."""
    model, sym = network(3)
    q = posterior(model)
    K, repeats = 4, 2500
    elements = list(all_permutations(sym))
    number = torch.randint(len(elements), (repeats, K), generator=generator(1))
    plain = q.sample(repeats * K, generator(2))
    images = [sym.act(g, plain) for g in elements]
    own = number.reshape(-1)
    omega = {name: torch.stack([image[name] for image in images])[own, torch.arange(repeats * K)] for name in plain}
    # log q(ω_i | g) for every g and every i.
    logs = torch.stack([q.log_prob(sym.act(sym.inverse(g), omega)) for g in elements])
    logs = logs.reshape(len(elements), repeats, K).movedim(0, -1)
    against = logs.gather(-1, number[:, None, :].expand(repeats, K, K))
    contrast = against.diagonal(dim1=-2, dim2=-1) - (torch.logsumexp(against, -1) - math.log(K))
    values = contrast.mean(-1)
    error = float(values.std()) / math.sqrt(repeats)
    found = information_bounds(sym, q, K, 6000, 3, proposal="uniform", show=False).lower
    assert abs(found.value - float(values.mean())) < ERRORS * math.hypot(error, found.error)
    exact = mutual_information(sym, q, samples=2000).value
    # Both are well below the information: agreement is not that of two estimates of it.
    assert found.value + 0.1 < exact


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hidden", "change", "message"),
    [
        ((3,), {"K": 0}, "K is 0; expected a whole number ≥ 1"),
        ((3,), {"samples": 1}, "samples is 1; expected two or more"),
        ((3,), {"seed": -1}, "seed is -1; expected a whole number ≥ 0"),
        ((3,), {"proposal": "gibbs"}, "proposal is 'gibbs'; expected one of uniform, sequential"),
        ((3,), {"proposal": ["uniform"]}, r"proposal is \['uniform'\]; expected one of"),
        ((3, 2), {"proposal": "distance"}, "'distance': the permuting classes are .*, .*; expected one"),
        ((25,), {"proposal": "distance"}, "'distance': '.*' has 25 units; expected 24 or fewer"),
        ((25,), {"proposal": "exact"}, r"'exact': sym has 10\^25.19 permutations .*; expected one class of at most 24"),
        ((25,), {"proposal": "permanent"}, "'permanent': the permuting classes are .*; expected one of at most 20"),
    ],
)
def test_bad_settings_are_refused_by_name(hidden, change, message):
    model, sym = network(*hidden)
    with pytest.raises(InputError, match=message):
        information_bounds(sym, posterior(model), **({"K": 3, "samples": 4, "show": False} | change))


def test_twenty_four_units_are_summed_over_exactly():
    model, sym = network(21)
    drawn = drawn_from(sym, posterior(model))
    weights = PROPOSALS["permanent"].weights(drawn, 2, generator())
    assert torch.equal(weights.draws[0], weights.draws[1])


def test_same_seed_same_bounds():
    model, sym = network(4)
    q = posterior(model)
    first, again, other = (information_bounds(sym, q, 5, 20, seed, show=False) for seed in (1, 1, 2))
    assert first == again
    assert first != other
