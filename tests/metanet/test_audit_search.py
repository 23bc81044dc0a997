"""The worst case that an audit finds: closed forms, brute force, and more than as many random elements find."""

import math
from itertools import permutations

import pytest
import torch
from torch import nn

from coset.metanet import audit
from coset.metanet.auditing.moves import Moves
from coset.symmetry import Symmetry

REACH = 1.5
"""Logarithms of scales in the search: three deviations of 0.5."""


def planted(units, diagonal):
    """One hidden layer, its symmetry, and a linear reader with a weight of its own for every parameter."""
    torch.manual_seed(units)
    model = nn.Sequential(nn.Linear(1, units, bias=False), nn.Identity(), nn.Linear(units, 1, bias=False)).double()
    axes = {"0.weight": "h -", "2.weight": "- /h"}
    sym = Symmetry.from_axes(axes, model, scales={"h": diagonal})
    params = dict(model.state_dict())
    by = {name: torch.randn_like(tensor) for name, tensor in params.items()}
    return sym, params, by, lambda given: float(sum((by[name] * given[name]).sum() for name in by))


@pytest.mark.parametrize("kind", ["permutations", "signs", "scales"])
def test_it_finds_more_than_as_many_random_elements(kind):
    sym, params, _, reader = planted(24, "nonzero")
    budget = 150
    found = audit(reader, sym, params, kinds=[kind], draws=2, budget=budget, show=False)[kind]
    assert found.worst.readings <= budget
    moves = Moves(sym, kind, (kind,), 0.5)
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        random = [
            abs(reader(sym.act(moves.random(params, generator).element, params)) - reader(params))
            for _ in range(budget)
        ]
        assert found.worst.change > 1.2 * max(random)
    # It is where it says.
    assert abs(reader(sym.act(found.worst.place.element, params)) - reader(params)) == pytest.approx(found.worst.change)


def test_of_signs_it_finds_the_worst():
    sym, params, by, reader = planted(12, "sign")
    parts = (by["0.weight"] * params["0.weight"])[:, 0] + (by["2.weight"] * params["2.weight"])[0]
    worst = 2 * max(float(parts.clamp(min=0).sum()), float(parts.clamp(max=0).abs().sum()))
    found = audit(reader, sym, params, kinds=["signs"], draws=4, budget=80, show=False)["signs"].worst
    assert found.change == pytest.approx(worst, rel=1e-12)


def test_of_scales_it_finds_the_worst():
    """Σ u_i·d_i + v_i/d_i with u, v > 0 is convex in log d: largest where every d_i is least or largest."""
    sym, params, by, reader = planted(6, "positive")
    for name in by:
        params[name] = params[name].abs()
        by[name].abs_()
    u, v = (by["0.weight"] * params["0.weight"])[:, 0], (by["2.weight"] * params["2.weight"])[0]
    ends = torch.stack([u * math.exp(r) + v * math.exp(-r) for r in (REACH, -REACH)])
    worst = float((ends.amax(0) - u - v).sum())
    found = audit(reader, sym, params, kinds=["scales"], draws=1, budget=150, show=False)["scales"].worst
    assert found.change == pytest.approx(worst, rel=1e-12)


def test_of_permutations_it_finds_the_worst():
    sym, params, by, reader = planted(5, "one")
    u, v = (name[:, 0] if name.shape[1] == 1 else name[0] for name in (by["0.weight"], by["2.weight"]))
    x, y = params["0.weight"][:, 0], params["2.weight"][0]
    worst = max(
        abs(float((u * x[list(p)] + v * y[list(p)]).sum() - (u * x + v * y).sum())) for p in permutations(range(5))
    )
    found = audit(reader, sym, params, draws=2, budget=150, show=False)
    assert list(found.kinds) == ["permutations"]
    assert found["permutations"].worst.change == pytest.approx(worst, rel=1e-12)


def test_without_a_budget_it_is_the_worst_draw():
    sym, params, _, reader = planted(6, "sign")
    found = audit(reader, sym, params, kinds=["signs"], draws=5, budget=0, show=False)["signs"]
    assert found.worst.readings == 0
    assert found.worst.change == float(found.changes.max())


def test_labels_that_random_elements_seldom_flip_are_searched_for():
    """All of six units flipped, which one element in 64 does."""
    sym, params, _, _ = planted(6, "sign")
    before = params["0.weight"].sign()

    def label(given):
        return bool((given["0.weight"].sign() == -before).all())

    few = audit(label, sym, params, kinds=["signs"], draws=4, budget=0, show=False)["signs"]
    many = audit(label, sym, params, kinds=["signs"], draws=4, budget=600, show=False)["signs"]
    assert (few.flipped, many.flipped) == (0.0, 1.0)
    assert (few.verdict, many.verdict) == ("invariant", "changes")
    assert bool((many.worst.place.element.signs["h"] < 0).all())
