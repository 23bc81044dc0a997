"""Score matrices: against the action itself, kept ones against fresh ones, averages against the whole group."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_groups import LINEAR, TINY, inner_product, inner_products, numbered, tiny, weights

from architectures import CASES, made, randomized
from coset.alignment.matching import scores as scores_module
from coset.alignment.matching.class_places import layout_of
from coset.alignment.matching.products import Term, build_terms
from coset.alignment.matching.scores import Scoring
from coset.symmetry.axes import Units, units_of

SEEDS = st.integers(0, 2**31)
SMALL = [name for name in LINEAR if tiny(name).log_order < math.log(1000)]


def drawn(name, seed):
    sym, generator = tiny(name).restrict(scales=False), torch.Generator().manual_seed(seed)
    left, right = weights(sym, generator), weights(sym, generator)
    return sym, left, right, generator


def trained(sym, params):
    """The names that are matched, tied tensors once."""
    names = [name for name in sym.structures if not sym.parameters[name].buffer]
    return list({params[name].data_ptr(): name for name in reversed(names)}.values())


def same(a, b, tolerance=1e-11):
    """Equal scores; a matrix of zeros may be left out."""
    for parity in a.keys() | b.keys():
        one, two = a.get(parity, torch.zeros(1)), b.get(parity, torch.zeros(1))
        assert float((one - two).abs().max()) < tolerance
    return True


# Score matrices entry by entry ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_every_entry_is_what_the_action_gives(name):
    """Of classes that are not nested: S_ij = ⟨left | g·right⟩ with all but old unit j and new unit i set to zero.

    Old unit j is brought to place i by the action, all other classes as in g. The sum over parities is at signs of 1;
    with the sign of unit j turned, entries of odd parity change theirs.
    """
    model, declared, _ = made(name)
    sym = declared.restrict(scales=False)
    generator = torch.Generator().manual_seed(0)
    left, right, g = randomized(model, generator), randomized(model, generator), sym.random(generator)
    scoring = Scoring(layout_of(sym), build_terms(sym, left, right))
    plain = [label for label in sym.permuting if _only_whole_axes(sym, label) and label not in scoring.layout.quadratic]
    for label in plain[:3]:
        found = scoring.scores(label, g)
        n = sym.classes[label].size
        for i, j in [(0, 0), (n - 1, 0), (n // 2, n - 1)]:
            for key in (None, *scoring.layout.flips[label][:2]):
                expected = _by_action(sym, label, left, right, g, i, j, key)
                value = sum(float(matrix[i, j]) * (-1 if key in parity else 1) for parity, matrix in found.items())
                assert value == pytest.approx(expected, rel=0, abs=1e-10)


def _only_whole_axes(sym, label):
    """Whether a class always has an axis to itself, so that its units can be picked along it by hand."""
    nodes = [node for name in sym.carriers(label) for node in sym.parameters[name].axes]
    mixed = [node for node in nodes if not isinstance(node, Units) and any(u.name == label for u in units_of(node))]
    return sym.classes[label].parent is None and not mixed


def _by_action(sym, label, left, right, g, i, j, turned):
    permutation = torch.arange(sym.classes[label].size)
    permutation[i], permutation[j] = j, i
    signs = {key: torch.ones_like(s) if sym.families[key].owner == label else s for key, s in g.signs.items()}
    if turned is not None:
        signs[turned] = torch.where(torch.arange(len(permutation)) == j, -1, 1).to(torch.int8)
    h = sym.element({**g.permutations, label: permutation}, signs=signs)

    carriers = set(sym.carriers(label))
    names = [name for name in trained(sym, right) if name in carriers]

    def only(params, unit):
        masked = {}
        for name in names:
            axis = [isinstance(node, Units) and node.name == label for node in sym.parameters[name].axes].index(True)
            picked = torch.arange(params[name].shape[axis]) == unit
            masked[name] = params[name] * picked.reshape(-1, *[1] * (params[name].ndim - axis - 1))
        return masked

    moved, here = sym.act(h, only(right, j), partial=True), only(left, i)
    return sum(float((here[name] * moved[name]).sum()) for name in names)


@pytest.mark.parametrize("name", TINY)
def test_the_objective_is_the_inner_product(name):
    sym, left, right, generator = drawn(name, 0)
    scoring = Scoring(layout_of(sym), build_terms(sym, left, right))
    for _ in range(3):
        g = sym.random(generator)
        assert scoring.objective(g) == pytest.approx(inner_product(sym, left, g, right), rel=0, abs=1e-11)


# Scores that are kept ------------------------------------------------------------------------------------------------


def _changed_a_little(sym, g, name, generator):
    """g with two units exchanged and a sign turned in one class, and the names of what changed."""
    permutations, signs = dict(g.permutations), dict(g.signs)
    if name in permutations and sym.classes[name].size > 1:
        rows = permutations[name].clone().reshape(-1, sym.classes[name].size)
        block = int(torch.randint(len(rows), (1,), generator=generator))
        i, j = torch.randperm(rows.shape[1], generator=generator)[:2].tolist()
        rows[block, [i, j]] = rows[block, [j, i]]
        permutations[name] = rows.reshape(permutations[name].shape)
    for key in [key for key in sym.flipping if sym.families[key].owner == name]:
        turned = signs[key].clone()
        turned.reshape(-1)[int(torch.randint(turned.numel(), (1,), generator=generator))] *= -1
        signs[key] = turned
    return sym.element(permutations, signs=signs)


@pytest.mark.parametrize(
    "name", ["grouped-query attention", "tied embeddings", "residual mlp", "cct", "flatten", "concatenation"]
)
@settings(max_examples=3)
@given(seed=SEEDS)
def test_kept_scores_are_fresh_ones_after_any_changes(name, seed):
    model, declared, _ = made(name)
    sym = declared.restrict(scales=False)
    generator = torch.Generator().manual_seed(seed)
    left, right = randomized(model, generator), randomized(model, generator)
    terms, layout = build_terms(sym, left, right), layout_of(sym)
    kept, g = Scoring(layout, terms), sym.random(generator)
    names = list(sym.classes)
    for _ in range(4):
        for _ in range(int(torch.randint(1, 4, (1,), generator=generator))):
            name = names[int(torch.randint(len(names), (1,), generator=generator))]
            g = _changed_a_little(sym, g, name, generator)
            kept.changed([name])
        fresh = Scoring(layout, terms)
        assert all(same(kept.scores(label, g), fresh.scores(label, g)) for label in names)
    # From far away, too, and what is handed out is not what is kept.
    g = sym.random(generator)
    kept.changed(names)
    for label in names:
        for matrix in kept.scores(label, g).values():
            matrix.add_(1)
    assert all(same(kept.scores(label, g), Scoring(layout, terms).scores(label, g)) for label in names)


def test_nothing_is_kept_where_it_would_not_fit(monkeypatch):
    sym, left, right, generator = drawn("two layers", 0)
    terms, g = build_terms(sym, left, right), sym.random(generator)
    usual = Scoring(layout_of(sym), terms).scores("h", g)
    monkeypatch.setattr(scores_module, "KEPT_BYTES", 0)
    small = Scoring(layout_of(sym), terms)
    assert same(small.scores("h", g), usual)
    # Without a word that something has changed: nothing is remembered.
    other = sym.random(generator)
    assert same(small.scores("h", other), Scoring(layout_of(sym), terms).scores("h", other))


# Averages over the group ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LINEAR)
def test_the_objective_on_average(name):
    sym, left, right, _ = drawn(name, 0)
    scoring = Scoring(layout_of(sym), build_terms(sym, left, right))
    exact = float(inner_products(sym, left, right).mean())
    assert scoring.objective(None) == pytest.approx(exact, rel=0, abs=1e-10)


@pytest.mark.parametrize("name", SMALL)
def test_scores_on_average(name):
    sym, left, right, _ = drawn(name, 0)
    layout, terms = layout_of(sym), build_terms(sym, left, right)
    scoring = Scoring(layout, terms)
    order = round(math.exp(sym.log_order))
    every = [numbered(sym, number) for number in range(order)]
    for label in sym.classes:
        total = {}
        for g in every:
            scoring.changed(list(sym.classes))
            for parity, matrix in scoring.scores(label, g).items():
                total[parity] = total[parity] + matrix / order if parity in total else matrix / order
        assert same(Scoring(layout, terms).scores(label, None), total, 1e-10)


def test_an_entry_with_two_free_signs_averages_to_zero():
    """Two signs at one entry are not the same sign twice."""
    sym, left, right, _ = drawn("coupled, signed blocks", 0)
    only = [term for term in build_terms(sym, left, right) if term.name == "w"]
    assert Scoring(layout_of(sym), only).objective(None) == 0.0


def test_deviations_average_without_signs():
    sym, left, right, _ = drawn("two layers", 0)
    terms = [Term(name, left[name].abs(), right[name].abs(), signed=False) for name in sym.structures]
    left, right = ({term.name: getattr(term, side) for term in terms} for side in ("left", "right"))
    exact = float(inner_products(sym.restrict(signs=False), left, right).mean())
    assert Scoring(layout_of(sym), terms).objective(None) == pytest.approx(exact, rel=0, abs=1e-11)


# What scores depend on -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TINY)
def test_scores_depend_on_no_other_class_than_they_say(name):
    sym, left, right, generator = drawn(name, 0)
    layout, terms = layout_of(sym), build_terms(sym, left, right)
    g, h = sym.random(generator), sym.random(generator)
    for label in sym.classes:
        known = Scoring(layout, terms).depends(label)
        mixed = sym.element(
            {key: (g if key in known else h).permutations[key] for key in sym.permuting},
            signs={key: (g if sym.families[key].owner in known else h).signs[key] for key in sym.flipping},
        )
        if label not in known:
            assert same(Scoring(layout, terms).scores(label, g), Scoring(layout, terms).scores(label, mixed))


def test_matching_leaves_the_weights_as_they_are():
    sym, left, right, generator = drawn("blocks in blocks", 0)
    copies = [{name: tensor.clone() for name, tensor in part.items()} for part in (left, right)]
    scoring = Scoring(layout_of(sym), build_terms(sym, left, right))
    for label in sym.classes:
        for matrix in scoring.scores(label, sym.random(generator)).values():
            matrix.mul_(2)
    scoring.objective(None)
    for part, copy in zip((left, right), copies, strict=True):
        assert all(torch.equal(part[name], copy[name]) for name in part)
