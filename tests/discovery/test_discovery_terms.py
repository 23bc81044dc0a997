"""Unification of dimensions against positions one by one; null spaces against brute force."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coset.symmetry._linear import complement, integral, null_space, parity, rational
from coset.symmetry.discovery.relations import regroupings
from coset.symmetry.discovery.terms import Atom, Plus, atoms, fresh, plus, resolve, split, times, unify


def _labels(term):
    """What stands at each position: a number within each atom it belongs to; None within what was given up."""
    if isinstance(term, Atom):
        return [((None if term.stuck else (term.number, i)),) for i in range(term.size)]
    if isinstance(term, Plus):
        return [label for segment in term.segments for label in _labels(segment)]
    return [sum(choice, ()) for choice in itertools.product(*(_labels(factor) for factor in term.factors))]


def _shown(term):
    """Single positions belong to no atom: they show as little as what was given up."""
    return [None if None in label or not label else label for label in _labels(resolve(term))]


def _terms(size, depth=2):
    """Any way to see ``size`` positions, as products and concatenations of fresh atoms."""
    options = [st.builds(fresh, st.just(size))]
    if depth and size > 1:
        cuts = st.integers(1, size - 1)
        options.append(
            cuts.flatmap(lambda at: st.tuples(_terms(at, depth - 1), _terms(size - at, depth - 1))).map(plus)
        )
        divisors = [d for d in range(2, size) if size % d == 0]
        if divisors:
            options.append(
                st.sampled_from(divisors)
                .flatmap(lambda d: st.tuples(_terms(d, depth - 1), _terms(size // d, depth - 1)))
                .map(times)
            )
    return st.one_of(options)


SIZES = st.sampled_from([4, 6, 8, 12])


@given(SIZES.flatmap(lambda n: st.lists(_terms(n), min_size=2, max_size=4)))
def test_unified_terms_are_the_same_at_every_position(terms):
    for one, two in itertools.pairwise(terms):
        unify(one, two, "test")
    shown = [_shown(term) for term in terms]
    assert all(one == shown[0] for one in shown)
    assert all(resolve(term).size == len(shown[0]) for term in terms)


@given(SIZES.flatmap(lambda n: st.tuples(_terms(n), st.integers(1, n - 1))))
def test_a_cut_gives_both_parts(case):
    term, at = case
    head, tail = split(term, at, "test")
    assert (head.size, tail.size) == (at, term.size - at)
    assert _shown(term) == _shown(head) + _shown(tail)


def test_a_cut_through_a_unit_gives_up():
    term = times([fresh(2), fresh(3)])
    split(term, 2, "here")
    assert all(atom.stuck and atom.pinned.startswith("here: two views") for atom in atoms(resolve(term)))


def test_an_input_pins_but_does_not_tie():
    one, two, given_input = fresh(6), fresh(6), fresh(6, "an input", True)
    unify(one, given_input, "test")
    unify(two, given_input, "test")
    assert resolve(one) is not resolve(two)
    assert [atom.pinned for term in (one, two) for atom in atoms(resolve(term))] == ["an input"] * 2


@pytest.mark.parametrize(
    ("source", "target", "groups"),
    [
        ((2, 12), (2, 3, 4), (((0,), (0,)), ((1,), (1, 2)))),
        ((2, 3, 4), (6, 4), (((0, 1), (0,)), ((2,), (1,)))),
        ((4, 6), (8, 3), (((0, 1), (0, 1)),)),
    ],
)
def test_the_finest_groups_of_a_view(source, target, groups):
    assert regroupings(source, target) == groups


SYSTEMS = st.integers(1, 5).flatmap(
    lambda n: st.tuples(
        st.lists(st.lists(st.integers(-2, 2), min_size=n, max_size=n), max_size=5), st.integers(1, n), st.just(n)
    )
)


@given(SYSTEMS)
def test_rational_null_spaces(system):
    matrix, count, n = system
    rows = [{j: Fraction(c) for j, c in enumerate(row)} for row in matrix]
    dense = np.array(matrix, dtype=float).reshape(len(matrix), n)
    everything = null_space(rows, range(n), rational)
    assert len(everything) == n - (np.linalg.matrix_rank(dense) if len(matrix) else 0)
    for vector in everything:
        assert all(sum(c * vector.get(j, 0) for j, c in row.items()) == 0 for row in rows)
    # Seen on the first few variables only.
    seen = np.array([[float(v.get(j, 0)) for j in range(count)] for v in everything]).reshape(-1, count)
    assert len(null_space(rows, range(count), rational)) == (np.linalg.matrix_rank(seen) if len(seen) else 0)


@given(SYSTEMS)
def test_null_spaces_of_parities(system):
    matrix, count, n = system
    rows = [{j: Fraction(c) for j, c in enumerate(row)} for row in matrix]
    solutions = {
        bits[:count]
        for bits in itertools.product((0, 1), repeat=n)
        if all(sum(c * b for c, b in zip(row, bits, strict=True)) % 2 == 0 for row in matrix)
    }
    basis = null_space(rows, range(count), parity)
    spanned = {
        tuple(int(sum(c * v.get(j, 0) for c, v in zip(choice, basis, strict=True)) % 2) for j in range(count))
        for choice in itertools.product((0, 1), repeat=len(basis))
    }
    assert spanned == solutions
    assert len(solutions) == 2 ** len(basis)


@given(st.lists(st.lists(st.integers(-2, 2), min_size=4, max_size=4), min_size=1, max_size=5), st.integers(0, 3))
def test_complements(vectors, known):
    rows = [{j: Fraction(c) for j, c in enumerate(vector) if c} for vector in vectors]
    chosen = complement(rows[known:], rows[:known], rational)
    rank = [np.linalg.matrix_rank(np.array(part).reshape(-1, 4)) if part else 0 for part in (vectors, vectors[:known])]
    assert len(chosen) == rank[0] - rank[1]


def test_whole_multiples():
    assert integral({"a": Fraction(1, 2), "b": Fraction(-2, 3)}) == {"a": 3, "b": -4}
    assert integral({}) == {}
