"""Matching on the weights over the whole group: permutations and signs, and rotations of classes that mix.

Over GL(n) nearness has no maximum: first both networks are brought into a gauge, gains folded into their readers and
what writes a class balanced with what reads it, in which rotations are left of it; of rotary pairs, the scales. There
every step is exact: an assignment, a polar factor, an angle for every rotary pair, or for blocks an assignment of what
the best rotations in them are worth (nuclear norms: Theus et al. 2025).
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from coset.alignment._agreement import is_trained
from coset.alignment.assignment import assign
from coset.distribution import normalize_scales
from coset.errors import InputError
from coset.symmetry import Element, Symmetry
from coset.symmetry.action import move
from coset.symmetry.incidence import appearances, unit_labels
from coset.symmetry.mixing import centred_basis, matrices_shape, units_of_parameter
from coset.symmetry.pairs import best_rotations, pairs_of_parameter

Params = Mapping[str, Tensor]


class NoGauge(InputError):
    """A network that no element brings into the gauge in which rotations are matched."""


_ROUNDS, _SWEEPS, _SIGNS = 50, 30, 3
_RISE = 1e-12
"""Rounds end where one of them raises the objective by less, relative to its size."""


def matching_gauge(sym: Symmetry, params: Params, *, scales: bool = False) -> Element:
    """The element that folds the gains of classes that mix into their readers, and balances GL(n) and rotary pairs.

    ``scales``: also without all other scales (``normalize_scales``), which are balanced with the matrices in turn.
    """
    g = sym.identity()
    if not scales:
        return _folded_and_balanced(sym, g, params)
    for _ in range(_SWEEPS):
        before = sym.act(g, params)
        undo = normalize_scales(sym.monomial, before)[1]
        step = sym.inverse(sym.element(scales=undo.scales, signs=undo.signs))
        g = sym.compose(_folded_and_balanced(sym, step, before), g)
        after = sym.act(g, params)
        if all(torch.allclose(after[name], before[name], rtol=1e-9, atol=1e-9) for name in after):
            break
    return g


def _folded_and_balanced(sym: Symmetry, step: Element, params: Params) -> Element:
    """``step``, then gains folded, then classes under GL(n) and rotary pairs balanced."""
    step = sym.compose(sym.element(**folded(sym, sym.act(step, params))), step)
    return sym.compose(balanced_gauge(sym, sym.act(step, params)), step)


def balanced_gauge(sym: Symmetry, params: Params) -> Element:
    """The matrices and scales that balance classes under GL(n) and rotary pairs of a network with folded gains."""
    general = {name: balanced(sym, name, params) for name in _of_kind(sym, "general")}
    pairs = {key: d for name in _of_kind(sym, "rotary") for key, d in _balanced_scales(sym, name, params).items()}
    return sym.element(scales=pairs, matrices=general)


def _of_kind(sym: Symmetry, kind: str) -> list[str]:
    return [name for name, mixing in sym.continuous.items() if mixing.kind == kind]


def _balanced_scales(sym: Symmetry, name: str, params: Params) -> dict[str, Tensor]:
    """The scales with which queries and keys have equal norms in every rotary pair: d = (‖k‖/‖q‖)^½, q → d·q, k → k/d.

    Pairs of which one side vanishes keep their scale.
    """
    found = {}
    for key in (key for key in sym.scaling if sym.families[key].owner == name):
        squares = {power: torch.zeros(sym.shape(name), dtype=torch.float64).reshape(-1) for power in (1, -1)}
        for parameter in _counted(sym, name, params):
            entries = params[parameter].detach().double().cpu().square().reshape(-1)
            for power, total in squares.items():
                labels = unit_labels(sym, parameter, sym.families[key], power).reshape(-1)
                total.index_add_(0, labels[labels >= 0], entries[labels >= 0])
        ratio = (squares[-1] / squares[1]).pow(0.25)
        found[key] = torch.where((ratio > 0) & ratio.isfinite(), ratio, 1.0).reshape(sym.shape(name))
    return found


def folded(sym: Symmetry, params: Params) -> dict[str, dict[str, Tensor]]:
    """The scales and signs that turn gains into ones."""
    scales: dict[str, Tensor] = {}
    signs: dict[str, Tensor] = {}
    for name, mixing in sym.continuous.items():
        for gain in dict.fromkeys(
            gain for places in mixing.places.values() for place in places for gain in place.gains
        ):
            (item,) = (item for _, item in appearances(sym, gain) if item.name == name)
            flat = params[gain].detach().double().reshape(-1)
            if bool((flat == 0).any()):
                raise NoGauge(f"'{gain}' has entries that are 0, so that the units of '{name}' cannot be mixed")
            values = torch.empty(math.prod(sym.shape(name)), dtype=torch.float64, device=flat.device)
            values[item.unit.to(flat.device)] = flat
            values = values.reshape(sym.shape(name)).cpu()
            for key, power in item.scales.items():
                if key in sym.scaling and abs(power) == 1:
                    scales[key] = values.abs() ** -power
            for key in item.signs:
                if key in sym.flipping and key in scales:
                    signs[key] = values.sign().to(torch.int8)
    return {"scales": scales, "signs": signs}


def balanced(sym: Symmetry, name: str, params: Params) -> Tensor:
    """A with A·P·Aᵀ = A⁻ᵀ·Q·A⁻¹ diagonal, for the Gram matrices P of writers and Q of readers, in every block."""
    writers, readers = grams(sym, name, params)
    turned = torch.zeros_like(writers)
    for block in range(len(writers)):
        turned[block] = _balance(writers[block], readers[block], name)
    return turned.reshape(*sym.shape(name), sym.shape(name)[-1])


def grams(sym: Symmetry, name: str, params: Params, only: Collection[str] | None = None) -> tuple[Tensor, Tensor]:
    """The Gram matrices of what is written to a class and of what is read from it, (blocks, n, n), on trained
    parameters, or on some of them.
    """
    *outer, n = sym.shape(name)
    found = {way: torch.zeros(math.prod(outer), n, n, dtype=torch.float64) for way in (1, -1)}
    for parameter in _counted(sym, name, params):
        for place, units in units_of_parameter(sym, name, parameter, params[parameter]):
            if place.way and (only is None or parameter in only):
                wide = units.detach().double()
                found[place.way] += (wide @ wide.mT).cpu()
    return found[1], found[-1]


def _balance(writers: Tensor, readers: Tensor, name: str) -> Tensor:
    """S^½·Uᵀ·L⁻¹ with P = L·Lᵀ and Lᵀ·Q·L = U·S²·Uᵀ, values in descending order.

    Where readers miss directions L⁻¹, and where writers do, the same of the readers.
    """
    ranks = [int(torch.linalg.matrix_rank(gram, hermitian=True, rtol=1e-12)) for gram in (writers, readers)]
    n = len(writers)
    if ranks[0] == n and ranks[1] == n:
        lower = torch.linalg.cholesky(writers)
        values, vectors = torch.linalg.eigh(lower.mT @ readers @ lower)
        root = values.flip(0).sqrt().sqrt()
        result: Tensor = root[:, None] * torch.linalg.solve_triangular(lower.mT, vectors.flip(1), upper=True).mT
        return result
    if n in ranks:
        lower = torch.linalg.cholesky(writers if ranks[0] == n else readers)
        whitened: Tensor = torch.linalg.inv(lower) if ranks[0] == n else lower.mT.contiguous()
        return whitened
    raise NoGauge(f"what is written to '{name}' and what is read from it have rank {ranks[0]} and {ranks[1]} of {n}")


def _counted(sym: Symmetry, name: str, params: Params) -> list[str]:
    """The parameters of a class that are trained and present."""
    return [key for key in sym.continuous[name].places if key in params and is_trained(sym, key, params)]


def polar(matrix: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """The rotation A of a kind with the largest ⟨A, matrix⟩, and that value; (…, n, n) → (…, n, n), (…).

    Of rotary pairs, all angles and their sum: (…, n, 2, 2) → (…, n, 2, 2), (…).
    """
    if kind == "rotary":
        turned, values = best_rotations(matrix)
        return turned, values.sum(-1)
    n = matrix.shape[-1]
    if kind == "centred":
        basis = centred_basis(n)
        inner, value = polar(basis.T @ matrix @ basis, "orthogonal")
        return basis @ inner @ basis.T + 1 / n, value + matrix.sum((-2, -1)) / n
    u, s, vh = torch.linalg.svd(matrix)
    return u @ vh, s.sum(-1)


@dataclass
class Rotations:
    """Exact steps of classes that mix, for a reference and another network in the gauge of ``matching_gauge``."""

    sym: Symmetry
    reference: Params

    def scores(self, name: str, other: Params, settled: Iterable[str] | None = None) -> Tensor:
        """Σ over places of X₀·X₁ᵀ for all pairs of blocks, (B, B, n, n); on parameters of ``settled`` classes alone.

        Of n rotary pairs, (B, B, n, 2, 2).
        """
        *outer, n = self.sym.shape(name)
        blocks, rotary = math.prod(outer), self.sym.continuous[name].kind == "rotary"
        total = torch.zeros(blocks, blocks, *((n, 2, 2) if rotary else (n, n)), dtype=torch.float64)
        for parameter in _counted(self.sym, name, other):
            beside = {item.name for _, item in appearances(self.sym, parameter)} - {name}
            if settled is not None and not beside <= {*settled, *self._fixed()}:
                continue
            sides = [self._units(name, parameter, params[parameter]) for params in (self.reference, other)]
            for left, right in zip(*sides, strict=True):
                equation = "bpik,cpjk->bcpij" if rotary else "bik,cjk->bcij"
                total += torch.einsum(equation, left.double(), right.to(left.device).double()).cpu()
        return total

    def _units(self, name: str, parameter: str, tensor: Tensor) -> list[Tensor]:
        """What is mixed of a class on a parameter: (B, n, all else), of rotary pairs (B, n, 2, all else)."""
        if self.sym.continuous[name].kind == "rotary":
            return pairs_of_parameter(self.sym, name, parameter, tensor)
        return [units for place, units in units_of_parameter(self.sym, name, parameter, tensor) if place.way]

    def _fixed(self) -> set[str]:
        return {name for name, item in self.sym.classes.items() if item.size == 1}

    def turn(self, names: Iterable[str], other: Params, settled: Iterable[str] | None = None) -> Element:
        """The best rotations of some classes, block by block where they are."""
        matrices = {}
        for name in names:
            own = self._own(name, other, settled)
            if bool(own.any()):
                turned, _ = polar(own, self.sym.continuous[name].kind)
                matrices[name] = turned.reshape(matrices_shape(self.sym, name))
        return self.sym.element(matrices=matrices)

    def unknown(self, names: Iterable[str], other: Params) -> list[str]:
        """The classes of which settled parameters alone tell less than half of the directions."""
        own = {name: self._own(name, other, ()) for name in names}
        return [name for name, part in own.items() if 2 * int(torch.linalg.matrix_rank(part).min()) < part.shape[-1]]

    def _own(self, name: str, other: Params, settled: Iterable[str] | None) -> Tensor:
        """The scores of every block with itself."""
        return self.scores(name, other, settled).diagonal(dim1=0, dim2=1).movedim(-1, 0)

    def exchange(self, parent: str, other: Params) -> Element:
        """The best order of the units of a class, each worth what the best rotations of what is in it are."""
        inside = [name for name in self.sym.continuous if self.sym.classes[name].parent == parent]
        turned, values = {}, torch.zeros(())
        for name in inside:
            turned[name], value = polar(self.scores(name, other), self.sym.continuous[name].kind)
            values = values + value
        order = torch.from_numpy(assign(values.numpy()))
        rows = torch.arange(len(order))
        matrices = {name: turned[name][rows, order].reshape(matrices_shape(self.sym, name)) for name in inside}
        return self.sym.element({parent: order}, matrices=matrices)


def reflection(sym: Symmetry, name: str, reference: Params, other: Params) -> Element:
    """1 − 2vvᵀ on a class of one block, along the direction v in which two networks agree least: the other determinant.

    v: the eigenvector of the smallest eigenvalue of the symmetric part of X₀·X₁ᵀ, in the gauge of the reference.
    """
    gauge = matching_gauge(sym, reference)
    left, right = sym.act(gauge, reference), sym.act(gauge, other)
    scores = Rotations(sym, left).scores(name, right)[0, 0]
    n = len(scores)
    basis = centred_basis(n) if sym.continuous[name].kind == "centred" else torch.eye(n, dtype=torch.float64)
    inner = basis.T @ (scores + scores.T) @ basis
    v = basis @ torch.linalg.eigh(inner).eigenvectors[:, 0]
    flipped = sym.element(matrices={name: torch.eye(n, dtype=torch.float64) - 2 * torch.outer(v, v)})
    return sym.compose(sym.inverse(gauge), sym.compose(flipped, gauge))


@dataclass(frozen=True)
class Rotated:
    """An ``element`` of the whole group and the ``history`` of ⟨θ₀ | g·θ₁⟩, every time it rose."""

    element: Element
    history: list[float]


Units = Callable[[Params, Params, Collection[str], bool], Element]
"""Matches classes that only permute, of a reference and another network, all others left; True the first time."""


def rotated(
    sym: Symmetry,
    reference: Params,
    other: Params,
    units: Units,
    *,
    normalized: bool = False,
    report: Callable[[float, str], bool],
) -> Rotated:
    """An element of the whole group that brings ``other`` near the reference.

    Streams come first, by what no other class has to be known for (embeddings and read-outs), then all classes in
    turn, until a round no longer helps; from every choice of signs that are common to many units, and the best is
    taken. ``normalized``: match without the scales of either network.
    """
    gauges = [matching_gauge(sym, params, scales=normalized) for params in (reference, other)]
    left = sym.act(gauges[0], reference)
    best = _best_of_signs(sym, left, lambda start: sym.act(sym.compose(start, gauges[1]), other), units, report)
    return Rotated(sym.compose(sym.inverse(gauges[0]), sym.compose(best.element, gauges[1])), best.history)


def rotated_in_gauge(
    sym: Symmetry, left: Params, right: Params, units: Units, report: Callable[[float, str], bool]
) -> Rotated:
    """The same for networks that are in the gauge, in which they stay."""
    return _best_of_signs(sym, left, lambda start: sym.act(start, right), units, report)


def _best_of_signs(
    sym: Symmetry,
    left: Params,
    right: Callable[[Element], dict[str, Tensor]],
    units: Units,
    report: Callable[[float, str], bool],
) -> Rotated:
    """The best ascent; ``right``: the other network in the gauge, moved by the element it is to begin with."""
    common = [key for key in sym.flipping if math.prod(sym.shape(sym.families[key].owner)) == 1][:_SIGNS]
    best: Rotated | None = None
    for choice in product((1, -1), repeat=len(common)):
        shapes = {key: sym.shape(sym.families[key].owner) for key in common}
        signs = {key: torch.full(shapes[key], sign, dtype=torch.int8) for key, sign in zip(common, choice, strict=True)}
        start = sym.element(signs=signs)
        found = _Ascent(sym, left, right(start), units, report).run(start)
        best = found if best is None or found.history[-1] > best.history[-1] else best
    assert best is not None
    return best


def mean_flips(sym: Symmetry) -> Iterator[Element]:
    """For each stream of LayerNorms, which do not see it: x → x − 2·mean(x)·1."""
    for name in _of_kind(sym, "centred"):
        *outer, n = sym.shape(name)
        turn = torch.eye(n, dtype=torch.float64) - 2 / n
        yield sym.element(matrices={name: turn.expand(*outer, n, n).clone()})


def inner_product(one: Params, two: Params, names: Iterable[str]) -> float:
    """⟨θ₀ | θ₁⟩ over some parameters, in float64: products of small weights vanish in their own type."""
    return sum(float((one[name].double() * two[name].to(one[name].device).double()).sum()) for name in names)


class _Ascent:
    """Rounds of exact steps from one start; both networks in the gauge in which they are matched."""

    def __init__(
        self, sym: Symmetry, left: Params, right: dict[str, Tensor], units: Units, report: Callable[[float, str], bool]
    ) -> None:
        """``right`` is moved in place, so that there is one copy of it."""
        self.sym, self.left, self.right, self.match, self.report = sym, left, right, units, report
        self.steps = Rotations(sym, left)
        classes = sym.classes
        inside = dict.fromkeys(classes[name].parent for name in sym.continuous)
        self.parents = [name for name in inside if name and classes[name].permutes and classes[name].parent is None]
        self.free = [name for name in sym.continuous if classes[name].parent not in self.parents]
        owners = {sym.families[key].owner for key in sym.flipping}
        others = [name for name in classes if name not in sym.continuous and name not in self.parents]
        self.units = [name for name in others if classes[name].permutes or name in owners]
        self.signed_parents = [name for name in self.parents if name in owners]
        # Gains are ones in this gauge: beside them small weights would be lost in rounding.
        gains = {gain for mixing in sym.continuous.values() for gain in mixing.gains}
        self.names = [name for name in left if is_trained(sym, name, left) and name not in gains]

    def product(self) -> float:
        """⟨θ₀ | θ₁⟩ over trained weights but gains."""
        return inner_product(self.left, self.right, self.names)

    def run(self, g: Element) -> Rotated:
        """The element reached from ``g``, which has brought the other network where it is."""
        best, history = g, [self.product()]
        for h, what in self._course():
            g = self.sym.compose(h, g)
            move(self.sym, h, self.right)
            value = self.product()
            if value > history[-1]:
                best, history = g, [*history, value]
            if self.report(value, what):
                break
        return Rotated(best, history)

    def _apart(self, params: Params, unknown: Collection[str]) -> Params:
        """The parameters with zeros where classes stand that are not matched yet, so that they say nothing of units."""
        blocks = {*self.parents, *unknown, *(name for name in self.sym.continuous if name not in self.free)}
        return {
            name: tensor
            if blocks.isdisjoint(item.name for _, item in appearances(self.sym, name))
            else tensor.new_zeros(()).expand(tensor.shape)
            for name, tensor in params.items()
        }

    def _course(self) -> Iterator[tuple[Element, str]]:
        """Steps in turn, until a round of them no longer helps."""
        unknown = self.steps.unknown(self.free, self.right)
        yield self.steps.turn(self.free, self.right, settled=()), "streams"
        reached = -math.inf
        for number in range(_ROUNDS):
            if self.units:
                if number:
                    found = self.match(self.left, self.right, [*self.units, *self.signed_parents], False)
                else:
                    found = self.match(
                        self._apart(self.left, unknown), self._apart(self.right, unknown), self.units, True
                    )
                yield self.sym.element(found.permutations, signs=found.signs), "units"
            for parent in self.parents:
                yield self.steps.exchange(parent, self.right), f"blocks {parent}"
            if self.free:
                yield self.steps.turn(self.free, self.right), "streams"
            before, reached = reached, self.product()
            if reached <= before + _RISE * abs(reached):
                return
