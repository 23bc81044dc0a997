"""A step is the best its move can do: compared with every element that differs from the current one by the move."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_groups import LINEAR, inner_product, inner_products, numbered, tiny, weights

from architectures import made, randomized
from coset.alignment.matching.class_places import ClassMove, layout_of
from coset.alignment.matching.products import build_terms
from coset.alignment.matching.scores import Scoring
from coset.alignment.matching.step import TreeStep, move_scores
from coset.distribution import MeanField

SEEDS = st.integers(0, 2**31)


def drawn(name, seed):
    """A tiny symmetry without scales, two networks, an element, and the scoring of the pair."""
    sym, generator = tiny(name).restrict(scales=False), torch.Generator().manual_seed(seed)
    left, right, g = weights(sym, generator), weights(sym, generator), sym.random(generator)
    return sym, left, right, g, Scoring(layout_of(sym), build_terms(sym, left, right))


def stepped(scoring, move, g):
    return TreeStep(scoring.layout, move, g, move_scores(scoring, move, g))


@pytest.mark.parametrize("name", LINEAR)
@settings(max_examples=3)
@given(seed=SEEDS)
def test_a_step_is_the_best_of_all_elements_of_its_move(name, seed):
    sym, left, right, g, scoring = drawn(name, seed)
    for move in scoring.layout.moves:
        found = stepped(scoring, move, g).best()
        sym.check(found)
        best = float(inner_products(sym, left, right, g, move.active).max())
        assert inner_product(sym, left, found, right) == pytest.approx(best, rel=0, abs=1e-10)


@pytest.mark.parametrize("name", LINEAR)
def test_a_step_leaves_alone_what_is_not_its_own(name):
    sym, _, _, g, scoring = drawn(name, 0)
    for move in scoring.layout.moves:
        found = stepped(scoring, move, g).best()
        for part in ("permutations", "signs"):
            for key, before in getattr(g, part).items():
                owner = key if part == "permutations" else sym.families[key].owner
                if owner not in move.active:
                    assert torch.equal(getattr(found, part)[key], before)


@pytest.mark.parametrize("name", LINEAR)
@settings(max_examples=2)
@given(seed=SEEDS)
def test_the_value_of_a_step_is_the_objective_up_to_a_constant(name, seed):
    sym, left, right, g, scoring = drawn(name, seed)
    for move in scoring.layout.moves:
        step = stepped(scoring, move, g)
        exact = inner_products(sym, left, right, g, move.active)
        chosen = range(0, len(exact), 1 + len(exact) // 20)
        values = [step.value(numbered(sym, number, g, move.active)) for number in chosen]
        constants = exact[list(chosen)] - torch.tensor([total for total, _ in values], dtype=torch.float64)
        assert float((constants - constants[0]).abs().max()) < 1e-10
        assert all(size >= abs(total) for total, size in values)


def test_every_class_that_can_move_is_active_and_none_beside_another():
    for name in LINEAR:
        layout = layout_of(tiny(name).restrict(scales=False))
        for move in layout.moves:
            assert all(layout.coupled[one].isdisjoint(move.active) for one in move.active)
        active = set().union(*(move.active for move in layout.moves))
        assert active == {
            name for name in layout.sym.classes if layout.sym.classes[name].permutes or layout.flips[name]
        }


def test_blocks_are_assigned_with_each_of_two_coupled_insides():
    """A block is worth what its inside is: with only one of the two it would be judged by an inside for another."""
    layout = layout_of(tiny("coupled"))
    assert [sorted(move.active) for move in layout.moves] == [["g", "i"], ["g", "o"]]
    nested = layout_of(tiny("coupled, one with blocks"))
    assert nested.coupled["i"] == {"o", "x"}
    assert nested.coupled["o"] == nested.coupled["x"] == {"i"}
    assert [sorted(move.active) for move in nested.moves] == [["g", "i"], ["g", "o", "x"]]


@settings(max_examples=2)
@given(seed=SEEDS)
@pytest.mark.parametrize("name", ["blocks", "blocks in blocks", "coupled, one with blocks", "signs with a hub"])
def test_any_choice_of_active_classes_is_exact(name, seed):
    """Classes that are not active keep their order and signs, wherever they are in the tree."""
    sym, left, right, g, scoring = drawn(name, seed)
    layout = scoring.layout
    for root, count in itertools.product([n for n, item in sym.classes.items() if item.parent is None], (1, 2)):
        for active in itertools.combinations(layout.tree(root), count):
            if any(layout.coupled[one] & set(active) for one in active):
                continue
            found = stepped(scoring, ClassMove(root, frozenset(active)), g).best()
            best = float(inner_products(sym, left, right, g, active).max())
            assert inner_product(sym, left, found, right) == pytest.approx(best, rel=0, abs=1e-10)


def test_what_vanishes_keeps_its_sign():
    """A unit that is zero in one of the networks says nothing about its sign: it stays."""
    sym, left, right, _, _ = drawn("two layers", 0)
    right["b"][1] = 0
    right["c"][:, 1] = 0
    g = sym.element(signs={"k": torch.tensor([1, -1, 1], dtype=torch.int8)})
    scoring = Scoring(layout_of(sym), build_terms(sym, left, right))
    move = next(move for move in scoring.layout.moves if move.root == "k")
    assert int(stepped(scoring, move, g).best().signs["k"][1]) == -1


def test_deviations_do_not_see_signs():
    """Equal means up to sign, and deviations that tell the units apart: the best step uses both."""
    sym, generator = tiny("two layers").restrict(scales=False), torch.Generator().manual_seed(0)
    mean, std = weights(sym, generator), {k: v.abs() for k, v in weights(sym, generator).items()}
    planted = sym.random(generator)
    left = MeanField(mean, std)
    right = sym.act(planted, left)
    scoring = Scoring(layout_of(sym), build_terms(sym, left, right))
    g = sym.inverse(planted)
    for move in scoring.layout.moves:
        assert stepped(scoring, move, g).best() == g


CASES = [
    "grouped+groupnorm",
    "grouped-query attention",
    "tied embeddings",
    "concatenation",
    "cct",
    "batchnorm+depthwise",
]


@pytest.mark.parametrize("name", CASES)
def test_every_exchange_of_two_units_and_every_sign(name):
    """In real architectures: the step's value against the action, for every exchange within a block and every flip."""
    model, declared, _ = made(name)
    sym = declared.restrict(scales=False)
    generator = torch.Generator().manual_seed(0)
    left, right, g = randomized(model, generator), randomized(model, generator), sym.random(generator)
    trained = [name for name in sym.structures if not sym.parameters[name].buffer]
    once = {right[name].data_ptr(): name for name in reversed(trained)}.values()
    scoring = Scoring(layout_of(sym), build_terms(sym, left, right))

    def objective(h):
        moved = sym.act(h, right)
        return sum(float((left[name] * moved[name]).sum()) for name in once)

    before = objective(g)
    for move in scoring.layout.moves:
        step = stepped(scoring, move, g)
        start = step.value(g)[0]
        for h in _neighbours(sym, g, move.active):
            assert step.value(h)[0] - start == pytest.approx(objective(h) - before, rel=0, abs=1e-9)


def _neighbours(sym, g, active, most=40):
    """Elements that differ from g by one exchange in a block, or by one sign, of active classes; of many only some."""
    found = []
    for name in sorted(set(sym.permuting) & active):
        rows = g.permutations[name].reshape(-1, sym.classes[name].size)
        for block, (i, j) in itertools.product(range(len(rows)), itertools.combinations(range(rows.shape[1]), 2)):
            swapped = rows.clone()
            swapped[block, i], swapped[block, j] = rows[block, j], rows[block, i]
            found.append(sym.element({**g.permutations, name: swapped.reshape(sym.shape(name))}, signs=g.signs))
    for key in sym.flipping:
        if sym.families[key].owner in active:
            for unit in range(g.signs[key].numel()):
                flipped = g.signs[key].clone()
                flipped.reshape(-1)[unit] *= -1
                found.append(sym.element(g.permutations, signs={**g.signs, key: flipped}))
    return found[:: 1 + len(found) // most]
