"""What operations say about tensors: which dimensions are the same, and how scales and signs pass.

Every operation of the rule table is written with a handful of statements. Those about dimensions take effect at once
(unification); those about scales and signs are kept and solved when all dimensions are known.
"""

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from coset.symmetry.discovery.terms import Atom, Term, Woven, atoms, fresh, pin, plus, resolve, times, unify


@dataclass(frozen=True)
class About:
    """What the whole numbers of a tensor are, along the dimension ``term``.

    ``role``: "place", a position; "order", every position once; "count", how often each position is named; "end",
    where the group of each position ends. ``index``: which numbers they are; others of the same kind are others.
    """

    role: str
    term: Term
    index: Hashable = None


@dataclass(eq=False)
class Value:
    """A tensor of the graph: its shape and, dimension by dimension, a term.

    ``inert``: it depends on no parameter, so that it carries no scale or sign. ``zero``: all its entries are 0, so that
    any scale and sign may be said of it. ``data``: it depends on an input. ``about``: what its whole numbers mean.
    ``picked``: the indices by which it, or what it is computed from, was picked.
    """

    shape: tuple[int, ...]
    dims: list[Term]
    inert: bool
    where: str
    zero: bool = False
    data: bool = False
    about: About | None = None
    picked: frozenset[Hashable] = frozenset()

    @property
    def ndim(self) -> int:
        return len(self.shape)


@dataclass(frozen=True)
class Power:
    """A factor of a product: ``value`` to the power ``scale`` (and ``sign`` for its sign).

    ``dims``: for each dimension of the result the dimension of ``value`` that stands there, or None.
    """

    value: Value
    dims: tuple[int | None, ...]
    scale: int | Fraction = 1
    sign: int = 1


@dataclass(frozen=True)
class Multiplied:
    """result = ∏ factors, summed over ``contracted`` dimensions (one per factor and contraction, or None).

    ``signs``: whether this holds for signs, too, or for scales alone.
    """

    result: Value
    factors: tuple[Power, ...]
    contracted: tuple[tuple[int | None, ...], ...] = ()
    signs: bool = True


@dataclass(frozen=True)
class Neutral:
    """No scale (and no sign) other than 1 passes here: of ``dims``, or of the whole tensor if None."""

    value: Value
    scale: bool = True
    sign: bool = True
    dims: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Regrouped:
    """The same entries in the same order under another shape: ``groups`` of source and target dimensions."""

    source: Value
    target: Value
    groups: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


@dataclass(frozen=True)
class Joined:
    """``whole`` is ``parts`` one after the other, or position by position in turns, along ``dim``."""

    whole: Value
    parts: tuple[Value, ...]
    dim: int
    woven: bool = False


Relation = Multiplied | Neutral | Regrouped | Joined


@dataclass(frozen=True, eq=False)
class View:
    """What an operation sees at once: some ``dims`` of a tensor, or dimensions by themselves (``value`` None).

    ``data``: it is another one for every input; ``picked``: by which indices.
    """

    terms: tuple[Term, ...]
    value: Value | None = None
    dims: tuple[int, ...] = ()
    data: bool = False
    picked: frozenset[Hashable] = frozenset()


@dataclass
class Book:
    """All that has been said so far.

    ``hidden``: what operations see of tensors inside of them.
    ``limits``: what was pinned for want of knowledge. ``implied``: dimensions whose positions together determine a unit
    of another one, at given inputs, in what was picked by an index (None: in anything). ``orders``: dimensions in an
    order that sorting by units of another one made. ``own``: atoms of parameters. ``smaller``: what of the symmetry of
    some dimensions is not looked for, in words.
    """

    values: list[Value] = field(default_factory=list)
    relations: list[Relation] = field(default_factory=list)
    hidden: list[View] = field(default_factory=list)
    limits: dict[str, list[Term]] = field(default_factory=dict)
    implied: list[tuple[tuple[Term, ...], Term, Hashable]] = field(default_factory=list)
    orders: list[tuple[Atom, Term]] = field(default_factory=list)
    own: set[Atom] = field(default_factory=set)
    smaller: dict[str, list[Term]] = field(default_factory=dict)
    where: str = ""

    def value(self, shape: Sequence[int], dims: Iterable[Term], *, inert: bool = False) -> Value:
        """A new tensor."""
        made = Value(tuple(shape), list(dims), inert, self.where)
        assert [term.size for term in made.dims] == list(made.shape), (self.where, made)
        self.values.append(made)
        return made

    def like(self, shape: Sequence[int], inputs: Iterable[Value], *, pinned: str | None = None) -> Value:
        """A new tensor of unknown structure that depends on ``inputs``."""
        inputs = list(inputs)
        inert = all(v.inert for v in inputs)
        made = self.value(shape, [fresh(n, pinned, inert) for n in shape], inert=inert)
        made.data = any(v.data for v in inputs)
        made.picked = frozenset().union(*(v.picked for v in inputs))
        return made

    def constant(self, shape: Sequence[int], pinned: str | None = None) -> Value:
        """A new tensor that depends on no parameter; its positions are alike unless they are ``pinned``."""
        return self.value(shape, [fresh(n, pinned, True) for n in shape], inert=True)

    def same(self, one: Value, i: int, two: Value, j: int) -> None:
        """Dimension i of one is dimension j of two."""
        unify(one.dims[i], two.dims[j], self.where)

    def pin(self, value: Value, dims: Iterable[int] | None = None, reason: str | None = None) -> None:
        """Tell the positions of some dimensions (default: all) apart."""
        for dim in range(value.ndim) if dims is None else dims:
            pin(value.dims[dim], reason or self.where)

    def limit(self, value: Value, dims: Iterable[int] | None = None, reason: str = "") -> None:
        """Pin where what is known of an operation ends, not the group: it is reported if parameters are concerned."""
        for dim in range(value.ndim) if dims is None else dims:
            self.limit_term(value.dims[dim], reason)

    def limit_term(self, term: Term, reason: str) -> None:
        """The same of a dimension by itself."""
        told = f"{self.where}: {reason}"
        pin(term, told)
        self.limits.setdefault(told, []).append(term)

    def hold(self, value: Value, dims: Collection[int] | None = None, reason: str = "", *, known: bool = True) -> None:
        """Pin some dimensions (default: all), or limit where that is not ``known``; they pass no scale or sign."""
        (self.pin if known else self.limit)(value, dims, reason)
        self.neutral(value, dims=dims)

    def less(self, terms: Iterable[Term], what: str) -> None:
        """Say what of the symmetry of some dimensions is not looked for; it is noted if parameters have them."""
        self.smaller.setdefault(f"{self.where}: {what}", []).extend(terms)

    def same_term(self, one: Term, two: Term) -> None:
        """Two dimensions are the same."""
        unify(one, two, self.where)

    def sorted_atoms(self) -> set[Atom]:
        """The atoms of dimensions that are in an order made by sorting."""
        return {atom for order, _ in self.orders for atom in atoms(resolve(order))}

    def neutral(
        self, value: Value, *, scale: bool = True, sign: bool = True, dims: Iterable[int] | None = None
    ) -> None:
        """No scale or sign passes."""
        self.relations.append(Neutral(value, scale, sign, None if dims is None else tuple(dims)))

    def meet(self, result: Value, value: Value, dims: Sequence[int | None]) -> None:
        """Dimensions of ``value`` stand beside those of ``result``; nothing is said of scales and signs."""
        for j, dim in enumerate(dims):
            if dim is not None:
                self.same(result, j, value, dim)

    def multiply(
        self,
        result: Value,
        factors: Sequence[Power],
        contracted: Sequence[Sequence[int | None]] = (),
        *,
        signs: bool = True,
    ) -> None:
        """result = ∏ factors, summed over contracted dimensions; dimensions that meet become the same."""
        for factor in factors:
            self.meet(result, factor.value, factor.dims)
        for group in contracted:
            present = [(factor.value, dim) for factor, dim in zip(factors, group, strict=True) if dim is not None]
            for value, dim in present[1:]:
                self.same(present[0][0], present[0][1], value, dim)
        self._summed(result, factors, contracted)
        self.relations.append(Multiplied(result, tuple(factors), tuple(tuple(group) for group in contracted), signs))

    def _summed(self, result: Value, factors: Sequence[Power], contracted: Sequence[Sequence[int | None]]) -> None:
        """Units that are summed over meet the units of all factors at once: they see only dimensions shared by these.

        In (W Wᵀ)_hg = Σ_d W_hd W_gd the two h are different ones, so that d cannot be told from what stands around it.
        And the other units of a factor meet all units that are summed over: in Σ_g A_hg V_gd no d moves by itself at a
        g, even if h and g are the same units.
        """
        rows = [[factor.dims[j] for factor in factors] for j in range(result.ndim)] + [list(g) for g in contracted]
        for group in contracted:
            meeting = [number for number, dim in enumerate(group) if dim is not None]
            if len(meeting) > 1:
                shared = [row[meeting[0]] for row in rows if all(row[number] is not None for number in meeting)]
                values = [factors[number].value for number in meeting]
                together = frozenset[Hashable]().union(*(value.picked for value in values))
                beside = [dim for dim in shared if dim is not None]
                self.sees(values[0], beside, data=all(value.data for value in values), picked=together)
        for number, factor in enumerate(factors):
            gone = {group[number] for group in contracted} - {None}
            if gone:
                left = [dim for dim in range(factor.value.ndim) if dim not in gone]
                self.sees(factor.value, left, data=factor.value.data, picked=factor.value.picked)

    def regroup(self, source: Value, target: Value) -> None:
        """``target`` holds the entries of ``source`` in order."""
        groups = regroupings(source.shape, target.shape)
        for left, right in groups:
            unify(times(source.dims[i] for i in left), times(target.dims[i] for i in right), self.where)
        self.relations.append(Regrouped(source, target, groups))

    def reshaped(self, value: Value, shape: Sequence[int]) -> Value:
        """The entries of a tensor in order, under another shape."""
        made = self.like(shape, [value])
        self.regroup(value, made)
        return made

    def join(self, whole: Value, parts: Sequence[Value], dim: int, *, woven: bool = False) -> None:
        """``whole`` is ``parts`` one after the other along ``dim``; ``woven``: position by position in turns."""
        segments = [part.dims[dim] for part in parts]
        for number, part in enumerate(parts):
            if part.inert and not whole.inert:
                # An input among the parts: its positions are told apart in the whole, too.
                segments[number] = fresh(part.shape[dim])
                unify(segments[number], part.dims[dim], self.where)
        unify(whole.dims[dim], Woven(segments) if woven else plus(segments), self.where)
        for part in parts:
            for other in range(whole.ndim):
                if other != dim:
                    self.same(whole, other, part, other)
        self.relations.append(Joined(whole, tuple(parts), dim, woven))

    def joined(self, parts: Sequence[Value], dim: int, *, woven: bool = False) -> Value:
        """A new tensor: parts one after the other along ``dim``, or in turns."""
        shape = list(parts[0].shape)
        shape[dim] = sum(part.shape[dim] for part in parts)
        whole = self.like(shape, parts)
        self.join(whole, parts, dim, woven=woven)
        return whole

    def cut(self, whole: Value, sizes: Iterable[int], dim: int) -> list[Value]:
        """The parts of a tensor, of these sizes, one after the other along ``dim``."""
        parts = [self.like([*whole.shape[:dim], size, *whole.shape[dim + 1 :]], [whole]) for size in sizes]
        self.join(whole, parts, dim)
        return parts

    def sees(
        self, value: Value, dims: Iterable[int], *, data: bool = False, picked: frozenset[Hashable] = frozenset()
    ) -> None:
        """Something inside the operation has just these dimensions of a tensor: statistics of a norm, scores of
        attention.

        ``data``: it is another one for every input, so that positions may imply a unit; ``picked``: by which indices.
        """
        chosen = tuple(dims)
        self.hidden.append(View(tuple(value.dims[dim] for dim in chosen), value, chosen, data, picked))

    def sees_beside(self, value: Value, dims: Collection[int]) -> None:
        """Something inside the operation has all dimensions of a tensor but these."""
        self.sees(value, (dim for dim in range(value.ndim) if dim not in dims))

    def sees_terms(self, *terms: Term) -> None:
        """The same of dimensions that no tensor has together."""
        self.hidden.append(View(terms))


def broadcast(shape: Sequence[int], value: Value) -> tuple[int | None, ...]:
    """For each dimension of ``shape`` the dimension of ``value`` that meets it; None where it is 1 or absent."""
    offset = len(shape) - value.ndim
    return tuple(
        None if j < offset or (value.shape[j - offset] == 1 and n != 1) else j - offset for j, n in enumerate(shape)
    )


def regroupings(source: Sequence[int], target: Sequence[int]) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Cut two shapes of one number of entries into the finest groups of equal product."""
    groups = []
    left: list[int] = []
    right: list[int] = []
    i = j = 0
    a = b = 1
    while i < len(source) or j < len(target):
        if (a <= b and i < len(source)) or j == len(target):
            left.append(i)
            a *= source[i]
            i += 1
        else:
            right.append(j)
            b *= target[j]
            j += 1
        if a == b and left and right:
            groups.append((tuple(left), tuple(right)))
            left, right = [], []
            a = b = 1
    if left or right:  # trailing dimensions of size 1
        groups.append((tuple(left), tuple(right)))
    return tuple(groups)
