"""Distances modulo the group: a metric where the group is small, bounds where it is not."""

import math
from itertools import permutations

import pytest
import torch
from form_networks import setting
from hypothesis import given, settings
from hypothesis import strategies as st
from test_canonical_kinds import mlp, weights
from torch import nn

import coset
from coset.canonical import canonicalize, distance, distances, manifold, triangle_violations
from coset.symmetry.enumeration import finite_elements, finite_order
from coset.symmetry.stacks import one_of

METRICS = ["geodesic", "euclidean"]


def by_hand(sym, a, b, metric):
    """The least over all orders of both hidden layers of a ReLU network, one by one."""
    a, b = canonicalize(sym, a).params, canonicalize(sym, b).params
    space = manifold(sym)
    least = math.inf
    for p in permutations(range(4)):
        for q in permutations(range(3)):
            image = {
                "0.weight": b["0.weight"][list(p)],
                "0.bias": b["0.bias"][list(p)],
                "2.weight": b["2.weight"][list(q)][:, list(p)],
                "2.bias": b["2.bias"][list(q)],
                "4.weight": b["4.weight"][:, list(q)],
                "4.bias": b["4.bias"],
            }
            if metric == "geodesic":
                found = float(space.distance(a, image))
            else:
                found = math.sqrt(sum(float((a[k] - image[k]).square().sum()) for k in a))
            least = min(least, found)
    return least


@pytest.mark.parametrize("metric", METRICS)
def test_small_groups_are_gone_through(metric):
    model, sym = mlp()
    a, b = weights(model, 0), weights(model, 1)
    assert distance(sym, a, b, metric=metric) == pytest.approx(by_hand(sym, a, b, metric), rel=1e-12)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@given(seed=st.integers(0, 2**31))
@settings(max_examples=5)
def test_it_is_a_metric_on_the_quotient(metric, activation, seed):
    model, sym = mlp(activation)
    stack = weights(model, seed % 1000, 3)
    found = distances(sym, stack, metric=metric, limit=10**6) if activation == "relu" else None
    if found is None:  # 2⁷·4!·3! orders and signs, one pair at a time
        found = distances(sym, stack, metric=metric)
    d = found.values
    assert found.exact
    assert bool((d == d.T).all()) or float((d - d.T).abs().max()) < 1e-10
    assert float(d.diagonal().abs().max()) == 0
    # Networks of three orbits: none is at no distance from another.
    assert float(d[~torch.eye(3, dtype=torch.bool)].min()) > 0.1
    for i, j, k in permutations(range(3)):
        assert float(d[i, j]) <= float(d[i, k] + d[k, j]) + 1e-10
    g = sym.random(torch.Generator().manual_seed(seed))
    moved = sym.act(g, {name: tensor[1] for name, tensor in stack.items()})
    own = {name: tensor[0] for name, tensor in stack.items()}
    assert distance(sym, own, moved, metric=metric) == pytest.approx(float(d[0, 1]), rel=1e-8)
    assert distance(sym, moved, {name: tensor[1] for name, tensor in stack.items()}, metric=metric) < 1e-6


def test_all_elements_are_listed_once():
    model, sym = mlp("tanh")
    listed = [(e.permutations, e.signs) for e in finite_elements(sym, 1000)]
    rows = torch.cat([torch.cat([*p.values(), *(s.long() for s in f.values())], 1) for p, f in listed])
    assert len(rows) == finite_order(sym) == math.factorial(4) * math.factorial(3) * 2**7
    assert len(rows.unique(dim=0)) == len(rows)
    assert math.log(len(rows)) == pytest.approx(sym.log_order)
    params, x = weights(model, 2), torch.randn(4, 5, dtype=torch.float64)
    first = next(finite_elements(sym, 7))
    for number in range(7):
        image = sym.act(one_of(first, number), params)
        outputs = [torch.func.functional_call(model, theta, (x,)) for theta in (params, image)]
        torch.testing.assert_close(*outputs)


@pytest.mark.parametrize("name", ["discovered: group norm", "discovered: multihead attention"])
def test_blocks_are_listed_within_blocks(name):
    _, sym, _, _ = setting(name)
    assert math.log(finite_order(sym)) == pytest.approx(sym.log_order)


@pytest.mark.parametrize("metric", METRICS)
def test_alignment_bounds_the_least_from_above(metric):
    model, sym = mlp()
    stack = weights(model, 3, 6)
    exact, bounds = (distances(sym, stack, metric=metric, limit=limit) for limit in (10**5, 1))
    assert not bounds.exact
    assert bool((bounds.values >= exact.values - 1e-10).all())
    assert float((bounds.values / exact.values.fill_diagonal_(1)).max()) < 1.5
    torch.testing.assert_close(bounds.values, bounds.values.T)
    assert bounds.violations == triangle_violations(bounds.values)
    between = distances(sym, stack, {name: t[:2] for name, t in stack.items()}, metric=metric, limit=1)
    torch.testing.assert_close(between.values, bounds.values[:, :2], rtol=1e-9, atol=1e-6)


def test_triangles_that_are_violated_are_counted():
    flat = torch.tensor([[0.0, 1, 3], [1, 0, 1], [3, 1, 0]])
    assert triangle_violations(flat) == 1.0
    flat[0, 2] = flat[2, 0] = 2.0
    assert triangle_violations(flat) == 0.0
    four = torch.ones(4, 4).fill_diagonal_(0)
    four[0, 1] = four[1, 0] = 5
    assert triangle_violations(four) == 0.5
    with pytest.raises(coset.InputError, match=r"values has shape \(2, 2\)"):
        triangle_violations(torch.zeros(2, 2))


def test_a_planted_network_is_at_no_distance_in_large_groups():
    model = nn.Sequential(nn.Linear(20, 12), nn.ReLU(), nn.Linear(12, 10), nn.Tanh(), nn.Linear(10, 3)).double()
    sym = coset.discover(model, torch.randn(2, 20, dtype=torch.float64))
    a = weights(model, 5)
    moved = sym.act(sym.random(torch.Generator().manual_seed(5)), a)
    assert distance(sym, a, moved) < 1e-6
    assert distance(sym, a, weights(model, 6)) > 1


def test_rotations_are_within_the_group():
    _, sym, params, _ = setting("mixing: layer norm")
    moved = sym.act(sym.random(torch.Generator().manual_seed(2)), params)
    other = {
        name: t + 0.1 * torch.ones_like(t) * t.abs().mean() if t.is_floating_point() else t
        for name, t in params.items()
    }
    assert distance(sym, params, moved) < 1e-3 * distance(sym, params, other)


def test_classifiers_are_as_near_at_any_temperature():
    model, sym = mlp()
    a, b = weights(model, 7), weights(model, 8)
    warm = b | {name: 4.0 * b[name] for name in ("4.weight", "4.bias")}
    assert distance(sym, a, warm, classifier=True) == pytest.approx(distance(sym, a, b, classifier=True), rel=1e-10)
    assert distance(sym, b, warm, classifier=True) < 1e-6 < distance(sym, b, warm)


def test_bad_input():
    model, sym = mlp()
    a = weights(model, 0)
    with pytest.raises(coset.InputError, match="metric is 'angle'"):
        distance(sym, a, a, metric="angle")
    with pytest.raises(coset.InputError, match="b has a leading axis"):
        distance(sym, a, weights(model, 0, 2))
    with pytest.raises(coset.InputError, match="expected a stack"):
        distances(sym, a)
    with pytest.raises(coset.InputError, match="networks is a NoneType"):
        distances(sym, None)
    with pytest.raises(coset.InputError, match="a is a list"):
        distance(sym, [a], a)
    with pytest.raises(coset.InputError, match="values is a list"):
        triangle_violations([[1.0]])
    with pytest.raises(coset.InputError, match=r"'4\.bias'"):
        distance(sym, a, {name: t for name, t in a.items() if name != "4.bias"})


def test_dead_units_are_as_far_in_both_directions():
    """A unit that is dead in one network and not in another: the manifold is the same for both."""
    model = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1)).double()
    sym = coset.discover(model, torch.randn(2, 1, dtype=torch.float64))
    a = {"0.weight": [[0.0], [-2.0]], "0.bias": [0.0, -2.0], "2.weight": [[0.0, -2.0]], "2.bias": [0.0]}
    b = {"0.weight": [[0.0], [0.0]], "0.bias": [0.0, 0.0], "2.weight": [[0.0, 0.0]], "2.bias": [-2.0]}
    a, b = ({name: torch.tensor(rows, dtype=torch.float64) for name, rows in theta.items()} for theta in (a, b))
    assert distance(sym, a, b) == pytest.approx(distance(sym, b, a), rel=1e-12)
    stack = {name: torch.stack([a[name], b[name], a[name] + 1]) for name in a}
    found = distances(sym, stack).values
    assert float(found[0, 1]) == pytest.approx(distance(sym, a, b), rel=1e-12)
    assert triangle_violations(found) == 0
