"""Dimensions as terms, and their unification.

A dimension of a tensor is a term: an atom of interchangeable positions, a product of terms (row-major) or a
concatenation of terms. Operations say which dimensions are the same; unification then splits atoms where one operation
sees a dimension as a whole and another one in parts, so that views, heads, flattening, chunks and slices are exact.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, product
from typing import TypeVar

T = TypeVar("T")


class Atom:
    """Positions that nothing has told apart yet, as far as ``pinned`` (the reason) is None.

    ``inert``: it belongs to an input or a constant, which tells positions apart but ties no two dimensions together.
    ``stuck``: two views of it do not fit together, so that neither permutations nor scales are looked for in it.
    ``unread``: no output depends on its entries at all, so that they say nothing of the group.
    ``bound``: the term it turned out to be, another atom or a structure. ``size`` is never 1: such dimensions hold no
    structure and are left out of terms.
    """

    __slots__ = ("bound", "inert", "number", "pinned", "size", "stuck", "unread")
    _count = 0

    def __init__(self, size: int, pinned: str | None = None, inert: bool = False) -> None:
        self.size = size
        self.pinned = pinned
        self.inert = inert
        self.stuck = False
        self.unread = False
        self.bound: Term | None = None
        Atom._count += 1
        self.number = Atom._count

    def __repr__(self) -> str:
        return f"a{self.number}({self.size}{'!' if self.pinned else ''})"


class Times:
    """A product of terms, row-major."""

    __slots__ = ("factors", "size")

    def __init__(self, factors: Iterable["Term"]) -> None:
        self.factors: tuple[Term, ...] = tuple(factors)
        self.size: int = math.prod([factor.size for factor in self.factors])


class Plus:
    """Terms one after the other."""

    __slots__ = ("segments", "size")

    def __init__(self, segments: Iterable["Term"]) -> None:
        self.segments: tuple[Term, ...] = tuple(segments)
        self.size: int = sum([segment.size for segment in self.segments])


class Woven:
    """Terms of one size in turns: tensors that were stacked behind their units and flattened.

    ``bound``: another one that it is the same as, or the product it turned out to be, where its positions are seen in
    another way: its parts are the same then, and share their units.
    """

    __slots__ = ("bound", "segments", "size")

    def __init__(self, segments: Iterable["Term"]) -> None:
        self.segments: tuple[Term, ...] = tuple(segments)
        self.size: int = sum(segment.size for segment in self.segments)
        self.bound: Term | None = None


Term = Atom | Times | Plus | Woven

UNIT = Times(())
"""A dimension of size 1."""


def fresh(size: int, pinned: str | None = None, inert: bool = False) -> Term:
    """A term about which nothing is known but its size."""
    return UNIT if size == 1 else Atom(size, pinned, inert)


def like(atom: Atom, size: int) -> Term:
    """A part of an atom: as pinned, as inert and as stuck as the whole."""
    part = fresh(size, atom.pinned, atom.inert)
    if isinstance(part, Atom):
        part.stuck = atom.stuck
    return part


def times(factors: Iterable[Term]) -> Term:
    """A product in normal form: no product in a product, and concatenations multiplied by what is behind them."""
    flat: list[Term] = []
    for factor in factors:
        term = resolve(factor)
        flat += term.factors if isinstance(term, Times) else [term]
    for at in reversed(range(len(flat) - 1)):
        if isinstance(whole := flat[at], Plus):
            flat[at:] = [plus(times([segment, *flat[at + 1 :]]) for segment in whole.segments)]
    return flat[0] if len(flat) == 1 else Times(flat)


def plus(segments: Iterable[Term]) -> Term:
    """A concatenation in normal form: no concatenation in a concatenation."""
    flat: list[Term] = []
    for segment in segments:
        term = resolve(segment)
        flat += term.segments if isinstance(term, Plus) else [term]
    return flat[0] if len(flat) == 1 else Plus(flat)


def resolve(term: Term) -> Term:
    """The term in normal form, with every bound atom replaced by what it is."""
    if isinstance(term, Atom):
        if term.bound is None:
            return term
        term.bound = resolve(term.bound)
        return term.bound
    if isinstance(term, Woven):
        return term if term.bound is None else resolve(term.bound)
    if _is_settled(term):
        return term
    return times(term.factors) if isinstance(term, Times) else plus(term.segments)


def _is_settled(term: Term) -> bool:
    """Whether a term is still what it was when it was made, in normal form: no atom in it is bound since."""
    if isinstance(term, Atom | Woven):
        return term.bound is None
    return all(map(_is_settled, term.factors if isinstance(term, Times) else term.segments))


def parts_of(term: Plus | Woven) -> tuple[Term, ...]:
    """The segments of a term, resolved."""
    return tuple(resolve(segment) for segment in term.segments)


def atoms(term: Term) -> Iterator[Atom]:
    """The atoms of a resolved term, left to right."""
    if isinstance(term, Atom):
        yield term
    else:
        for part in term.factors if isinstance(term, Times) else parts_of(term):
            yield from atoms(part)


def paths(term: Term, leaf: Callable[[Atom], tuple[T, ...]]) -> list[tuple[T, ...]]:
    """The segments of a resolved term, each as what ``leaf`` makes of the atoms of its factors, left to right."""
    if isinstance(term, Atom):
        return [leaf(term)]
    if isinstance(term, Times):
        choices = product(*[paths(factor, leaf) for factor in term.factors])
        return [tuple(chain.from_iterable(choice)) for choice in choices]
    return [path for segment in parts_of(term) for path in paths(segment, leaf)]


def pin(term: Term, reason: str) -> None:
    """Tell all positions of a term apart."""
    for atom in atoms(resolve(term)):
        atom.pinned = atom.pinned or reason


CLASH = "two views of a dimension do not fit together"
"""How the reason of a stuck atom ends, behind the operation at which it got stuck."""


def stick(term: Term, reason: str) -> None:
    """Give up on a term that is seen in two ways that do not fit together."""
    told = reason if reason.endswith(CLASH) else f"{reason}: {CLASH}"
    for atom in atoms(resolve(term)):
        atom.pinned = atom.pinned or told
        atom.stuck = True


def leave_unread(atom: Atom) -> None:
    """Look neither for permutations nor for scales in an atom that no output depends on."""
    atom.pinned = atom.pinned or "not read by the example"
    atom.stuck = atom.unread = True


def free_atoms(term: Term) -> Iterator[Atom]:
    """The atoms of a term left to right, without stuck ones: the same for all terms that were unified."""
    return (atom for atom in atoms(resolve(term)) if not atom.stuck)


def split(term: Term, at: int, reason: str) -> tuple[Term, Term]:
    """Cut a term of size n into its first ``at`` positions and the rest; what cannot be cut there is stuck."""
    term = resolve(term)
    if isinstance(term, Atom):
        head, tail = like(term, at), like(term, term.size - at)
        term.bound = plus([head, tail])
        return head, tail
    if isinstance(term, Woven):
        return split(unwoven(term, reason), at, reason)
    if isinstance(term, Plus):
        before: list[Term] = []
        rest = list(term.segments)
        while rest and at >= rest[0].size:
            at -= rest[0].size
            before.append(rest.pop(0))
        if at:
            head, tail = split(rest.pop(0), at, reason)
            before.append(head)
            rest.insert(0, tail)
        return plus(before), plus(rest)
    if isinstance(term.factors[0], Woven):
        unwoven(term.factors[0], reason)
        return split(term, at, reason)
    inner = math.prod(factor.size for factor in term.factors[1:])
    if at % inner == 0:
        head, tail = split(term.factors[0], at // inner, reason)
        return times([head, *term.factors[1:]]), times([tail, *term.factors[1:]])
    # The cut goes through a unit of the leading factor: no permutation of either factor is left.
    stick(term, reason)
    parts = [fresh(size, None, is_inert(term)) for size in (at, term.size - at)]
    for part in parts:
        stick(part, reason)
    return parts[0], parts[1]


def unify(one: Term, two: Term, reason: str) -> None:
    """Make two terms of one size the same."""
    one, two = resolve(one), resolve(two)
    if one is two or one.size == 1:
        return
    if isinstance(one, Atom) or isinstance(two, Atom):
        if is_inert(one) != is_inert(two):
            _shadow(*((one, two) if is_inert(one) else (two, one)))
        else:
            _bind(one, two, reason)
    elif isinstance(one, Woven) and isinstance(two, Woven) and len(one.segments) == len(two.segments):
        for mine, yours in zip(one.segments, two.segments, strict=True):
            unify(mine, yours, reason)
        if is_inert(one) == is_inert(two):
            two.bound = one
    elif isinstance(one, Woven):
        unify(unwoven(one, reason), two, reason)
    elif isinstance(two, Woven):
        unify(one, unwoven(two, reason), reason)
    elif isinstance(one, Plus) or isinstance(two, Plus):
        _unify_plus(one, two, reason)
    else:
        _unify_times(list(one.factors), list(two.factors), reason)


def unwoven(term: Woven, reason: str) -> Term:
    """The parts as one tensor: the same units in each, behind them the number of the part."""
    if term.bound is None:
        first, *others = term.segments
        term.bound = times([first, plus([UNIT] * len(term.segments))])
        for other in others:
            unify(first, other, reason)
    return resolve(term.bound)


def is_inert(term: Term) -> bool:
    """Whether a resolved term belongs to an input or a constant."""
    return any(atom.inert for atom in atoms(term))


def _shadow(inert: Term, active: Term) -> None:
    """Give both the same structure and pin what the inert one pins; they do not become the same."""
    if isinstance(inert, Atom):
        _hand_on(inert, active)
        if not isinstance(active, Atom):
            inert.bound = copied(active, True)
        return
    assert isinstance(active, Atom)
    active.bound = copied(inert, False)
    _hand_on(active, active.bound)


def _hand_on(atom: Atom, term: Term) -> None:
    """Tell apart in a term what is told apart in an atom."""
    if atom.pinned:
        (stick if atom.stuck else pin)(term, atom.pinned)


def copied(term: Term, inert: bool = False) -> Term:
    """A resolved term with other atoms in the place of its own."""
    if isinstance(term, Atom):
        copy = Atom(term.size, term.pinned, inert)
        copy.stuck = term.stuck
        return copy
    if isinstance(term, Times):
        return Times(copied(factor, inert) for factor in term.factors)
    if isinstance(term, Woven):
        return Woven(copied(part, inert) for part in parts_of(term))
    return Plus(copied(segment, inert) for segment in term.segments)


def _bind(one: Term, two: Term, reason: str) -> None:
    atom, other = (one, two) if isinstance(one, Atom) else (two, one)
    assert isinstance(atom, Atom)
    if any(inner is atom for inner in atoms(other)):
        # A dimension that is a part of itself (a cut shifted against itself): no permutation is left.
        stick(other, reason)
        return
    _hand_on(atom, other)
    atom.bound = other


def _unify_plus(one: Term, two: Term, reason: str) -> None:
    left: list[Term] = list(one.segments) if isinstance(one, Plus) else [one]
    right: list[Term] = list(two.segments) if isinstance(two, Plus) else [two]
    while left and right:
        a, b = resolve(left.pop(0)), resolve(right.pop(0))
        if a.size > b.size:
            a, rest = split(a, b.size, reason)
            left.insert(0, rest)
        elif b.size > a.size:
            b, rest = split(b, a.size, reason)
            right.insert(0, rest)
        unify(a, b, reason)


def _unify_times(left: list[Term], right: list[Term], reason: str) -> None:
    """Match factors from the right, splitting an atom where the other side has a product."""
    while left and right:
        a, b = resolve(left.pop()), resolve(right.pop())
        if a.size == b.size:
            unify(a, b, reason)
            continue
        small, large, home = (a, b, right) if a.size < b.size else (b, a, left)
        if isinstance(large, Woven):
            large = resolve(unwoven(large, reason))
        if isinstance(large, Plus):
            # As many factors of the other side as it takes.
            others = left if home is right else right
            some = [small]
            while others and math.prod(term.size for term in some) < large.size:
                some.insert(0, resolve(others.pop()))
            if (whole := times(some)).size == large.size:
                unify(large, whole, reason)
                continue
            others.extend(some)
        if large.size % small.size or isinstance(large, Plus):
            for term in (a, b, *left, *right):
                stick(term, reason)
            return
        if isinstance(large, Atom):
            large.bound = times([like(large, large.size // small.size), like(large, small.size)])
        known = resolve(large)
        home.extend(known.factors if isinstance(known, Times) else [known])
        (left if home is right else right).append(small)
