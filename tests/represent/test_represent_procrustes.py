"""Procrustes distances modulo a group: invariance, closed forms, brute force, nested groups."""

import itertools

import pytest
import torch
from feature_pairs import pair, permuted, rotated
from hypothesis import given, settings
from hypothesis import strategies as st

from coset.errors import InputError
from coset.represent import GROUPS, Part, UnitGroup, cka, procrustes
from coset.represent.similarity._procrustes import cross_moments, procrustes_of_moments
from coset.represent.similarity.unit_matching import best_match

SEEDS = st.integers(0, 2**31)


def formula(x, y):
    """The distance modulo G_ReLU as it is published, by trying all permutations."""
    x, y = (z.flatten(2).transpose(0, 1).flatten(1) for z in (x, y))
    x, y = (z / torch.where(z.norm(dim=1) > 0, z.norm(dim=1), 1)[:, None] for z in (x, y))
    scores = x @ y.T
    channels = len(x)
    best = max(sum(scores[i, p] for i, p in enumerate(order)) for order in itertools.permutations(range(channels)))
    return float(((x.norm() ** 2 + y.norm() ** 2 - 2 * best) / (4 * channels)) ** 0.5)


@settings(max_examples=20)
@given(SEEDS, SEEDS)
def test_each_distance_is_unchanged_by_its_group(seed, other):
    x, y = pair(seed)
    moves = {
        "general": rotated(y, other) * 2 + permuted(rotated(y, other), other),
        "orthogonal": rotated(y, other),
        "permutation": permuted(y, other, scales=True),
        "signed-permutation": permuted(y, other, scales=True, signs=True),
        "rigid-permutation": 2 * permuted(y, other),
        "rigid-signed-permutation": permuted(y, other, signs=True),
        "trivial": 3 * y,
    }
    assert moves.keys() == GROUPS.keys()
    for group, moved in moves.items():
        assert procrustes(x, moved, group=group).distance == pytest.approx(
            procrustes(x, y, group=group).distance, abs=1e-12 if group != "general" else 1e-9
        )
        assert procrustes(moved, y, group=group).distance == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_each_distance_changes_under_what_is_outside_its_group(seed):
    x, _ = pair(seed, n=20)
    scaled = x * torch.arange(1.0, 6)[:, None]
    flipped = x * torch.tensor([1.0, -1, 1, 1, -1])[:, None]
    outside = {
        "orthogonal": [scaled],
        "permutation": [rotated(x, 1), flipped],
        "signed-permutation": [rotated(x, 1)],
        "rigid-permutation": [rotated(x, 1), scaled, flipped],
        "rigid-signed-permutation": [rotated(x, 1), scaled],
        "trivial": [x.roll(1, 1)],
    }
    for group, moved in outside.items():
        assert all(procrustes(x, other, group=group).distance > 0.05 for other in moved)


@pytest.mark.parametrize("seed", range(3))
def test_the_permutation_distance_is_the_published_one(seed):
    x, y = pair(seed, positions=(2, 2))
    x[:, 2] = 0
    found = procrustes(x, y)
    assert found.distance == pytest.approx(formula(x, y), abs=1e-12)
    assert found.similarity == 1 - found.distance
    assert found.distance == pytest.approx(
        procrustes_of_moments(cross_moments([(x.flatten(2), y.flatten(2))]), "permutation").distance
    )


def test_the_orthogonal_distance_is_the_published_one():
    x, y = pair(0, positions=(2, 2))
    a, b = (z.flatten(2).transpose(1, 2).flatten(0, 1) / z.norm() for z in (x, y))
    expected = 0.5 * (2 - 2 * torch.linalg.matrix_norm(a.T @ b, "nuc")) ** 0.5
    found = procrustes(x, y, group="orthogonal")
    assert found.distance == pytest.approx(float(expected), abs=1e-12)
    torch.testing.assert_close(found.rotation.T @ found.rotation, torch.eye(5, dtype=torch.float64))
    assert float((a - b @ found.rotation).norm()) / 2 == pytest.approx(found.distance, abs=1e-12)


def test_by_hand():
    # Unit vectors: cosines (0.6, 0.8; 0.8, −0.6). Permuted: 2·0.8; signed: 0.6 + 0.6 < 0.8 + 0.8; in order 0.6 − 0.6.
    x = torch.eye(2, dtype=torch.float64)
    y = torch.tensor([[0.6, 0.8], [0.8, -0.6]], dtype=torch.float64)
    assert procrustes(x, y).distance == pytest.approx(((4 - 3.2) / 8) ** 0.5, abs=1e-15)
    assert procrustes(x, y).order.tolist() == [1, 0]
    assert procrustes(x, y, group="trivial").distance == pytest.approx((2 / 4) ** 0.5, abs=1e-15)
    assert procrustes(x, y, group="orthogonal").distance == pytest.approx(0, abs=1e-15)
    assert procrustes(x, -x).distance == pytest.approx((4 / 8) ** 0.5, abs=1e-15)
    assert procrustes(x, -x, group="signed-permutation").distance == 0
    assert procrustes(x[:, :1], -x[:, :1]).distance == 1


def test_the_element_is_the_planted_one():
    x, _ = pair(0)
    order = torch.tensor([3, 1, 4, 0, 2])
    signs = torch.tensor([1.0, -1, -1, 1, -1], dtype=torch.float64)
    y = torch.empty_like(x)
    y[:, order] = x * signs[:, None] * torch.arange(1.0, 6)[:, None]
    found = procrustes(x, y, group="signed-permutation")
    assert found.distance < 1e-15
    assert torch.equal(found.order, order)
    assert torch.equal(found.signs, signs)


@pytest.mark.parametrize("group", ["permutation", "orthogonal", "signed-permutation"])
def test_fewer_channels_are_as_good_as_dead_ones(group):
    x, y = pair(0)
    padded = torch.cat([x, torch.zeros(12, 3, 3, dtype=x.dtype)], 1)
    wide = torch.cat([y, y.flip(0)[:, :3]], 1)
    expected = procrustes(padded, wide, group=group).distance
    assert procrustes(x, wide, group=group).distance == pytest.approx(expected, abs=1e-12)
    swapped = procrustes(wide, x, group=group)
    assert swapped.distance == pytest.approx(expected, abs=1e-12)
    if swapped.order is not None:
        assert sorted(swapped.order.tolist()) == [-1, -1, -1, 0, 1, 2, 3, 4]


def test_dead_and_constant_features_give_numbers():
    x, _ = pair(0)
    zero = torch.zeros_like(x)
    assert procrustes(zero, zero).distance == 0
    # ‖X̂‖² is the number of channels: sqrt(C/(4C)).
    for group in GROUPS:
        assert procrustes(x, zero, group=group).distance == pytest.approx(0.5, abs=1e-12)
    assert procrustes(zero + 1, 5 * (zero + 1), group="orthogonal").distance == pytest.approx(0, abs=1e-12)


def brute(group, scores):
    """The best of all elements of a group, listed one by one."""
    return max(sum(s * scores[i, p] for i, (p, s) in enumerate(g)) for g in elements(group))


def elements(group):
    """All (order, sign) of a group without scales."""
    for chosen in side_by_side(group.parts):
        yield chosen
        if group.sign:
            yield [(p, -s) for p, s in chosen]


def side_by_side(parts):
    rows = []
    start = 0
    for part in parts:
        rows.append([[(p + start, s) for p, s in g] for g in row(part)])
        start += part.size
    return ([item for piece in choice for item in piece] for choice in itertools.product(*rows))


def row(part):
    inner = list(side_by_side(part.inside)) if part.inside else [[(0, 1)]]
    orders = itertools.permutations(range(part.count)) if part.permutes else [tuple(range(part.count))]
    flips = list(itertools.product((1, -1), repeat=part.count)) if part.signs else [(1,) * part.count]
    for order, signs, insides in itertools.product(
        list(orders), flips, list(itertools.product(inner, repeat=part.count))
    ):
        yield [(b * part.width + p, s * sign) for b, sign, g in zip(order, signs, insides, strict=True) for p, s in g]


UNIT_GROUPS = [
    UnitGroup((Part(4, permutes=True),)),
    UnitGroup((Part(3, permutes=True, signs=True),)),
    UnitGroup((Part(3, signs=True),)),
    UnitGroup((Part(2, permutes=True), Part(1), Part(2, permutes=True, signs=True))),
    UnitGroup((Part(2, permutes=True, inside=(Part(3, permutes=True),)),)),
    UnitGroup((Part(2, permutes=True, signs=True, inside=(Part(2, permutes=True), Part(1))),)),
    UnitGroup((Part(3, permutes=True, signs=True, inside=(Part(2),)),)),
    UnitGroup((Part(2, inside=(Part(2, permutes=True, signs=True),)),)),
    UnitGroup((Part(3, permutes=True),), sign=True),
    UnitGroup((Part(2, permutes=True, inside=(Part(2, permutes=True, inside=(Part(2, signs=True),)),)),)),
]


@pytest.mark.parametrize("group", UNIT_GROUPS, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_nested_groups_are_matched_exactly(group, seed):
    scores = torch.randn(group.size, group.size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    match = best_match(group, scores)
    assert match.value == pytest.approx(float(brute(group, scores)), abs=1e-12)
    total = sum(s * scores[i, p] for i, (p, s) in enumerate(zip(match.order, match.signs, strict=True)))
    assert match.value == pytest.approx(float(total), abs=1e-12)
    assert [(int(p), int(s)) for p, s in zip(match.order, match.signs, strict=True)] in list(elements(group))


def test_channels_behind_a_flatten_are_compared_as_channels_with_positions():
    x, y = pair(0, channels=4, positions=(3,))
    flat = UnitGroup((Part(4, permutes=True, scales=True, inside=(Part(3),)),))
    expected = procrustes(x, y)
    found = procrustes(x.flatten(1), y.flatten(1), group=flat)
    assert found.distance == pytest.approx(expected.distance, abs=1e-12)
    last = UnitGroup(flat.parts, order=tuple(p * 4 + c for c in range(4) for p in range(3)))
    other = procrustes(x.transpose(1, 2).flatten(1), y.transpose(1, 2).flatten(1), group=last)
    assert other.distance == pytest.approx(expected.distance, abs=1e-12)
    assert torch.equal(other.order[:4], expected.order)
    moments = cross_moments([tuple(z.transpose(1, 2).flatten(1)[:, :, None] for z in (x, y))])
    assert procrustes_of_moments(moments, last).distance == pytest.approx(expected.distance, abs=1e-9)
    assert cka(x.transpose(1, 2).flatten(1), y.transpose(1, 2).flatten(1), group=last) == pytest.approx(
        cka(x, y, group="permutation"), abs=1e-12
    )


def test_scales_of_blocks_are_removed_and_those_of_units_seen():
    x, _ = pair(0, channels=4)
    blocks = UnitGroup((Part(2, permutes=True, scales=True, inside=(Part(2, permutes=True),)),))
    scaled = x * torch.tensor([2.0, 2, 5, 5])[:, None]
    assert procrustes(x, scaled, group=blocks).distance == pytest.approx(0, abs=1e-12)
    assert procrustes(x, x * torch.tensor([2.0, 1, 5, 5])[:, None], group=blocks).distance > 0.05
    assert blocks.scaled == (0, 0, 1, 1)
    assert UnitGroup((Part(2, scales=True), Part(2))).scaled == (0, 1, 2, 2)


X, Y = pair(0)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((X, Y[:, :, :2]), {}, "x has 3 positions and y 2"),
        ((X, Y[:3]), {}, "x has 12 examples and y 3"),
        ((X, Y), {"group": "rotation"}, "group is 'rotation'"),
        ((X, Y[:, :4]), {"group": GROUPS["permutation"](5)}, "group acts on 5 channels .*; y has 4"),
        ((X / 0, Y), {}, "x holds NaN or infinite"),
        (([1], Y), {}, "x is a list"),
    ],
)
def test_bad_input_is_refused(arguments, options, message):
    with pytest.raises(InputError, match=message):
        procrustes(*arguments, **options)
