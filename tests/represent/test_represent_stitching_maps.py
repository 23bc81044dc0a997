"""Families of stitching maps: the Birkhoff polytope, closed-form starts, what training keeps."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from coset.errors import InputError
from coset.represent._channel_maps import as_rows, on_channels
from coset.represent.stitching.birkhoff import nearest_permutation, to_birkhoff
from coset.represent.stitching.least_squares import (
    full_map,
    low_rank_map,
    monomial_map,
    orthogonal_map,
    polar,
    products,
)
from coset.represent.stitching.maps import FAMILIES, make_family, sparsity
from coset.represent.unit_groups import Part, UnitGroup, random_element, rigid_permutation

OWN = UnitGroup((Part(2, mixes="orthogonal"), Part(2, permutes=True, scales=True)))
OPTIONS = {"rank": {"rank": 2}}


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def is_permutation(matrix: Tensor) -> bool:
    ones = torch.ones(len(matrix), dtype=matrix.dtype)
    binary = bool(((matrix == 0) | (matrix == 1)).all())
    return binary and torch.equal(matrix.sum(0), ones) and torch.equal(matrix.sum(1), ones)


@given(st.integers(1, 9), st.integers(0, 99))
def test_sinkhorn_lands_on_the_birkhoff_polytope(n, seed):
    matrix = 0.1 + torch.rand(n, n, generator=generator(seed), dtype=torch.float64)
    ones = torch.ones(n, dtype=torch.float64)
    # Each half of a sweep contracts Hilbert's distance by tanh(Δ/4), Δ the largest logarithm of a cross ratio.
    ratios = cross_ratios(matrix)
    widest = float(ratios.abs().max())
    landed = to_birkhoff(matrix)
    assert bool((landed >= 0).all())
    torch.testing.assert_close(landed.sum(1), ones, rtol=0, atol=1e-14)
    bound = math.expm1(math.tanh(widest / 4) ** 30 * widest)
    torch.testing.assert_close(landed.sum(0), ones, rtol=0, atol=bound + 1e-14)
    torch.testing.assert_close(to_birkhoff(matrix, 500).sum(0), ones, rtol=0, atol=1e-13)
    # Of the form D A E with diagonal D and E (Sinkhorn's theorem).
    torch.testing.assert_close(cross_ratios(landed), ratios, rtol=0, atol=1e-10)


def cross_ratios(matrix: Tensor) -> Tensor:
    """log a_ij a_kl / (a_il a_kj) for all i, j, k, l."""
    logs = matrix.log()
    rows = logs[:, None, :] - logs[None, :, :]
    return rows[:, :, :, None] - rows[:, :, None, :]


def test_sinkhorn_leaves_doubly_stochastic_matrices_and_drops_negative_entries():
    permutation = torch.eye(5, dtype=torch.float64)[[3, 1, 4, 0, 2]]
    torch.testing.assert_close(to_birkhoff(permutation), permutation, rtol=0, atol=1e-15)
    torch.testing.assert_close(to_birkhoff(permutation - 0.5), permutation, rtol=0, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sinkhorn_in_half_precision_is_that_of_double_precision_rounded(dtype):
    matrix = normal(64, 64, seed=0)
    matrix[3], matrix[:, 5] = -1, 0
    matrix[7] *= 1e-4
    landed = to_birkhoff(matrix.to(dtype))
    assert landed.dtype == dtype
    assert bool(landed.isfinite().all())
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(landed.double().sum(1), torch.ones(64, dtype=torch.float64), rtol=0, atol=rounding)
    expected = to_birkhoff(matrix.to(dtype).double())
    # What is too small for the type becomes 0, and what stands for 0 in single precision is larger than in double.
    least = max(torch.finfo(dtype).tiny, torch.finfo(torch.float32).eps ** 2)
    torch.testing.assert_close(landed.double(), expected, rtol=rounding, atol=least)
    eye = torch.eye(64, dtype=dtype)
    torch.testing.assert_close(to_birkhoff(eye), eye, rtol=0, atol=least)


def test_a_row_without_positive_entries_becomes_a_row_of_the_polytope():
    matrix = torch.rand(4, 4, dtype=torch.float64, generator=generator(0))
    matrix[2] = -1
    landed = to_birkhoff(matrix, 200)
    assert bool(landed.isfinite().all())
    torch.testing.assert_close(landed.sum(1), torch.ones(4, dtype=torch.float64), rtol=0, atol=1e-12)


@given(st.integers(1, 5), st.integers(0, 99))
def test_the_nearest_permutation_has_the_largest_trace(n, seed):
    matrix = normal(n, n, seed=seed)
    found = nearest_permutation(matrix)
    assert is_permutation(found)
    traces = [float(matrix[range(n), order].sum()) for order in itertools.permutations(range(n))]
    assert float((matrix * found).sum()) == pytest.approx(max(traces), abs=1e-12)


def test_full_least_squares_is_that_of_lstsq_with_and_without_bias():
    x, y = normal(50, 4, seed=1), normal(50, 3, seed=2) + 5
    known = products([(x[:20], y[:20]), (x[20:], y[20:])])
    torch.testing.assert_close(full_map(known), torch.linalg.lstsq(x, y).solution.T, rtol=1e-9, atol=1e-9)
    weights = make_family("full", bias=True).fitted(known)
    solution = torch.linalg.lstsq(torch.cat([x, torch.ones(50, 1, dtype=torch.float64)], 1), y).solution
    torch.testing.assert_close(weights["matrix"], solution[:4].T, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(weights["bias"], solution[4], rtol=1e-9, atol=1e-9)


def test_full_least_squares_with_dead_channels_is_finite():
    x, y = normal(50, 4, seed=1), normal(50, 3, seed=2)
    x[:, 1] = 0
    matrix = full_map(products([(x, y)]))
    torch.testing.assert_close(matrix[:, 1], torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-12)


def distance(matrix: Tensor, x: Tensor, y: Tensor) -> float:
    return float((x @ matrix.T - y).square().sum())


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_reduced_rank_regression_is_a_minimum(rank):
    x, y = normal(60, 4, seed=1), normal(60, 4, seed=2)
    y = y + x @ normal(4, 4, seed=3)
    outer, inner = low_rank_map(products([(x, y)]), rank)
    best = distance(outer @ inner, x, y)
    # Alternating least squares, which ends in the global minimum from almost anywhere, is an independent way to it.
    u = normal(4, rank, seed=4)
    for _ in range(500):
        v = torch.linalg.pinv(u) @ torch.linalg.lstsq(x, y).solution.T
        u = torch.linalg.lstsq(x @ v.T, y).solution.T
    assert best == pytest.approx(distance(u @ v, x, y), rel=1e-6)
    assert torch.linalg.matrix_rank(outer @ inner) == rank


@given(st.integers(0, 99), st.booleans())
def test_the_monomial_start_is_the_best_of_all_permutations(seed, scales):
    x, y = normal(12, 4, seed=seed), normal(12, 4, seed=seed + 1000)
    permutation, d = monomial_map(products([(x, y)]), scales=scales)
    found = distance(permutation * d, x, y)
    best = float("inf")
    for order in itertools.permutations(range(4)):
        moved = x[:, order]
        factor = ((moved * y).sum(0) / moved.square().sum(0)).relu() if scales else torch.ones(4, dtype=x.dtype)
        best = min(best, float((moved * factor - y).square().sum()))
    # Scales of 0, which the best may have, are a little above it.
    assert best * (1 - 1e-10) <= found <= best * (1 + 1e-6)


@pytest.mark.parametrize("name", ["g-relu", "softsort"])
def test_units_that_are_dead_or_unlike_all_others_leave_the_start_in_the_group(name):
    x = normal(30, 4, seed=1).abs()
    y = torch.stack([torch.zeros_like(x[:, 0]), x[:, 2], -x[:, 1], 3 * x[:, 0]], 1)
    family = make_family(name)
    for inputs, outputs in ((x, y), (y, x)):
        matrix = family.settled(family.fitted(products([(inputs, outputs)])))
        assert is_permutation((matrix > 0).double())
        assert sparsity(matrix, 0.0) == pytest.approx(1 - 1 / 4)


@pytest.mark.parametrize("factor", [1e-10, 1e10])
def test_the_monomial_start_is_exact_at_any_scale_of_the_features(factor):
    y = normal(30, 4, seed=1).abs()
    permutation, d = monomial_map(products([(factor * y[:, [2, 0, 3, 1]], y)]))
    torch.testing.assert_close((permutation * d) @ (factor * y[:, [2, 0, 3, 1]]).T, y.T, rtol=1e-12, atol=0)


def test_a_step_to_a_negative_scale_ends_in_the_group():
    family = make_family("g-relu")
    weights = family.random(3, 3, generator(0))
    weights["scale"].copy_(torch.tensor([-1.0, 0.0, 2.0]))
    family.project(weights)
    assert bool((weights["scale"] > 0).all())
    assert float(weights["scale"][2]) == 2
    weights["scale"].copy_(torch.tensor([1e-12, 2e-12, -1e-12], dtype=torch.float64))
    family.project(weights)
    assert weights["scale"][:2].tolist() == [1e-12, 2e-12]
    weights["scale"].fill_(-1.0)
    family.project(weights)
    assert bool((weights["scale"] > 0).all())
    assert is_permutation((family.settled(weights) > 0).double())


def test_the_orthogonal_start_is_no_worse_than_its_neighbours():
    x, y = normal(30, 4, seed=1), normal(30, 4, seed=2)
    best = orthogonal_map(products([(x, y)]))
    torch.testing.assert_close(best @ best.T, torch.eye(4, dtype=torch.float64), rtol=0, atol=1e-12)
    for seed in range(50):
        skew = normal(4, 4, seed=seed) * 0.1
        nearby = torch.linalg.matrix_exp(skew - skew.T) @ best
        assert distance(best, x, y) < distance(nearby, x, y)
    for seed in range(50):
        assert distance(best, x, y) < distance(polar(normal(4, 4, seed=seed)), x, y)


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - {"own"}))
def test_the_start_of_each_family_recovers_a_planted_map(name):
    x = normal(80, 5, seed=1).abs()
    planted = {
        "full": normal(5, 5, seed=2),
        "l1": normal(5, 5, seed=2),
        "rank": normal(5, 2, seed=2) @ normal(2, 5, seed=3),
        "orthogonal": polar(normal(5, 5, seed=2)),
    }.get(name, torch.eye(5, dtype=torch.float64)[[2, 0, 4, 1, 3]] * torch.tensor([1.0, 2.0, 0.5, 3.0, 1.5]).double())
    family = make_family(name, **OPTIONS.get(name, {}))
    weights = family.fitted(products([(x, x @ planted.T)]))
    torch.testing.assert_close(family.settled(weights), planted, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - {"own"}))
def test_steps_stay_inside_each_family(name):
    family = make_family(name, **OPTIONS.get(name, {}))
    weights = family.random(6, 6, generator(0))
    for seed in range(5):
        for number, value in enumerate(weights.values()):
            value += 0.05 * normal(*value.shape, seed=10 * seed + number)
        family.project(weights)
    matrix = family.settled(weights)
    if name == "orthogonal":
        torch.testing.assert_close(matrix @ matrix.T, torch.eye(6, dtype=torch.float64), rtol=0, atol=1e-12)
    if name == "rank":
        assert torch.linalg.matrix_rank(matrix) == 2
    if family.square:
        assert is_permutation((matrix != 0).double())
        assert bool((matrix >= 0).all())
        assert sparsity(matrix) == pytest.approx(1 - 1 / 6)


def test_softsort_is_a_permutation_in_the_cold_and_its_row_maxima_need_not_be():
    keys = torch.tensor([0.3, -1.0, 2.0, 0.9], dtype=torch.float64)
    cold = make_family("softsort", temperature=1e-3)
    matrix = cold.matrix({"keys": keys, "log_scale": torch.zeros(4, dtype=torch.float64)})
    assert torch.equal(matrix.round(), torch.eye(4, dtype=torch.float64)[[2, 3, 0, 1]])
    torch.testing.assert_close(matrix.sum(1), torch.ones(4, dtype=torch.float64), rtol=0, atol=1e-14)
    equal = {"keys": torch.tensor([1.0, 1.0, 0.0]).double(), "log_scale": torch.zeros(3, dtype=torch.float64)}
    family = make_family("softsort")
    assert family.matrix(equal).argmax(1).tolist() == [0, 0, 2]
    assert is_permutation(family.settled(equal))


def test_the_penalty_of_the_polytope_is_least_at_permutations():
    family = make_family("g-relu", alpha=0.1)
    inside = {"permutation": torch.full((4, 4), 0.25, dtype=torch.float64)}
    vertex = {"permutation": torch.eye(4, dtype=torch.float64)}
    assert float(family.penalty(inside)) == pytest.approx(-0.1)
    assert float(family.penalty(vertex)) == pytest.approx(-0.4)


@pytest.mark.parametrize("shape", [(7, 4), (7, 3, 4), (7, 4, 2, 3)])
def test_maps_act_on_channels_only(shape):
    features, matrix, bias = normal(*shape, seed=1), normal(5, 4, seed=2), normal(5, seed=3)
    mapped = on_channels(matrix, features, bias)
    torch.testing.assert_close(as_rows(mapped), as_rows(features) @ matrix.T + bias, rtol=1e-12, atol=1e-12)
    assert mapped.shape == tuple(5 if size == 4 else size for size in shape)


def test_channels_of_sequences_are_where_one_says():
    features, matrix = normal(2, 4, 9, seed=1), normal(5, 4, seed=2)
    assert on_channels(matrix, features, axis=1).shape == (2, 5, 9)
    with pytest.raises(InputError, match="4 input channels"):
        on_channels(matrix, features)
    with pytest.raises(InputError, match="channel_axis is 0"):
        on_channels(matrix, features, axis=0)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("linear", {}, "family is 'linear'; expected one of full"),
        ("rank", {}, "needs the option rank"),
        ("full", {"rank": 2}, "has no option rank; expected bias"),
        ("rank", {"rank": 0}, "rank is 0"),
        ("softsort", {"temperature": 0.0}, "temperature is 0.0"),
        ("l1", {"penalty": -1.0}, "penalty is -1.0"),
        ("l1", {"penalty": "a"}, "penalty is 'a'; expected a number"),
        ("softsort", {"temperature": "a"}, "temperature is 'a'; expected a number above 0, or None"),
        ("softsort", {"temperature": True}, "temperature is True"),
        ("g-relu", {"alpha": "x"}, "alpha is 'x'; expected a finite number"),
        ("g-relu", {"alpha": None}, "alpha is None"),
    ],
)
def test_wrong_options_are_named(name, options, message):
    with pytest.raises(InputError, match=message):
        make_family(name, **options)


OWN_GROUPS = {
    "stream": UnitGroup((Part(5, mixes="orthogonal"),)),
    "centred stream": UnitGroup((Part(5, mixes="centred"),), sign=True),
    "heads": UnitGroup((Part(2, permutes=True, inside=(Part(2, mixes="general"),)), Part(1)), order=(4, 0, 3, 1, 2)),
    "turning heads": UnitGroup((Part(2, permutes=True, scales=True, inside=(Part(2, mixes="orthogonal"),)), Part(1))),
    "signs": UnitGroup((Part(5, permutes=True, signs=True),)),
}


@pytest.mark.parametrize("name", OWN_GROUPS)
def test_a_planted_element_of_a_layers_group_is_found(name):
    group = OWN_GROUPS[name]
    x = normal(40, 5, seed=1)
    for seed in range(4):
        planted = random_element(group, generator(seed))
        family = make_family("own", group=group)
        weights = family.fitted(products([(x, x @ planted.T)]))
        torch.testing.assert_close(weights["matrix"], planted, rtol=1e-9, atol=1e-9)
        # Members stay, and what is near them comes back.
        family.project(weights)
        torch.testing.assert_close(weights["matrix"], planted, rtol=1e-9, atol=1e-9)
        weights["matrix"] += 1e-3 * normal(5, 5, seed=seed)
        family.project(weights)
        again = weights["matrix"].clone()
        family.project(weights)
        torch.testing.assert_close(weights["matrix"], again, rtol=1e-12, atol=1e-12)
        assert float((again - planted).norm()) < 2e-2


def test_the_map_of_a_layers_group_is_the_best_of_all_permutations():
    x, y = normal(12, 4, seed=1), normal(12, 4, seed=2)
    found = make_family("own", group=rigid_permutation(4)).fitted(products([(x, y)]))["matrix"]
    best = min(float((x[:, order] - y).square().sum()) for order in itertools.permutations(range(4)))
    assert distance(found, x, y) == pytest.approx(best, abs=1e-10)


def test_a_group_of_another_size_is_named():
    family = make_family("own", group=OWN)
    with pytest.raises(InputError, match=r"group acts on 4 channels .* the layers have 3 and 3"):
        family.random(3, 3, generator(0))
    with pytest.raises(InputError, match="group is a str; expected a UnitGroup"):
        make_family("own", group="orthogonal")
