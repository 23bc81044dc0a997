"""Matching on the weights over the whole group: permutations and signs, and rotations of classes that mix.

Over GL(n) nearness has no maximum: first both networks are brought into a gauge, gains folded into their readers and
what writes a class balanced with what reads it, in which rotations are left of it. There every step is exact: an
assignment, a polar factor, or for blocks an assignment of the nuclear norms of what is in them (Theus et al. 2025).
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
from coset.symmetry.incidence import appearances
from coset.symmetry.mixing import centred_basis, units_of_parameter

Params = Mapping[str, Tensor]


class NoGauge(InputError):
    """A network that no element brings into the gauge in which rotations are matched."""


_ROUNDS, _SWEEPS, _SIGNS = 50, 30, 3
_RISE = 1e-10
"""Rounds end where one of them raises the objective by less, relative to its size."""


def matching_gauge(sym: Symmetry, params: Params, *, scales: bool = False) -> Element:
    """The element that folds the gains of classes that mix into their readers, and balances classes under GL(n).

    ``scales``: also without all other scales (``normalize_scales``), which are balanced with the matrices in turn.
    """
    g = sym.identity()
    for _ in range(_SWEEPS if scales else 1):
        before = sym.act(g, params)
        step = sym.identity()
        if scales:
            undo = normalize_scales(sym.monomial, before)[1]
            step = sym.inverse(sym.element(scales=undo.scales, signs=undo.signs))
        step = sym.compose(sym.element(**_folded(sym, sym.act(step, before))), step)
        folded = sym.act(step, before)
        general = [name for name, mixing in sym.continuous.items() if mixing.kind == "general"]
        step = sym.compose(sym.element(matrices={name: _balanced(sym, name, folded) for name in general}), step)
        g = sym.compose(step, g)
        after = sym.act(g, params)
        if all(torch.allclose(after[name], before[name], rtol=1e-9, atol=1e-9) for name in after):
            break
    return g


def _folded(sym: Symmetry, params: Params) -> dict[str, dict[str, Tensor]]:
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


def _balanced(sym: Symmetry, name: str, params: Params) -> Tensor:
    """A with A·P·Aᵀ = A⁻ᵀ·Q·A⁻¹ diagonal, for the Gram matrices P of writers and Q of readers, in every block."""
    *outer, n = sym.shape(name)
    grams = {way: torch.zeros(math.prod(outer), n, n, dtype=torch.float64) for way in (1, -1)}
    for parameter in _counted(sym, name, params):
        for place, units in units_of_parameter(sym, name, parameter, params[parameter]):
            wide = units.detach().double()
            grams[place.way] += (wide @ wide.mT).cpu() if place.way else 0
    writers, readers = grams[1], grams[-1]
    turned = torch.zeros_like(writers)
    for block in range(len(writers)):
        turned[block] = _balance(writers[block], readers[block], name)
    return turned.reshape(*outer, n, n)


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
    """The rotation A of a kind with the largest ⟨A, matrix⟩, and that value; (…, n, n) → (…, n, n), (…)."""
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
        """Σ over places of X₀·X₁ᵀ for all pairs of blocks, (B, B, n, n); on parameters of ``settled`` classes alone."""
        *outer, n = self.sym.shape(name)
        blocks = math.prod(outer)
        total = torch.zeros(blocks, blocks, n, n, dtype=torch.float64)
        for parameter in _counted(self.sym, name, other):
            beside = {item.name for _, item in appearances(self.sym, parameter)} - {name}
            if settled is not None and not beside <= {*settled, *self._fixed()}:
                continue
            pairs = zip(
                units_of_parameter(self.sym, name, parameter, self.reference[parameter]),
                units_of_parameter(self.sym, name, parameter, other[parameter]),
                strict=True,
            )
            for (place, left), (_, right) in pairs:
                if place.way:
                    right = right.to(left)
                    total += torch.einsum("bik,cjk->bcij", left, right).double().cpu()
        return total

    def _fixed(self) -> set[str]:
        return {name for name, item in self.sym.classes.items() if item.size == 1}

    def turn(self, names: Iterable[str], other: Params, settled: Iterable[str] | None = None) -> Element:
        """The best rotations of some classes, block by block where they are."""
        matrices = {}
        for name in names:
            scores = self.scores(name, other, settled)
            own = scores.diagonal(dim1=0, dim2=1).movedim(-1, 0)
            if bool(own.any()):
                turned, _ = polar(own, self.sym.continuous[name].kind)
                matrices[name] = turned.reshape(*self.sym.shape(name), -1)
        return self.sym.element(matrices=matrices)

    def exchange(self, parent: str, other: Params) -> Element:
        """The best order of the units of a class, each worth what the best rotations of what is in it are."""
        inside = [name for name in self.sym.continuous if self.sym.classes[name].parent == parent]
        turned, values = {}, torch.zeros(())
        for name in inside:
            turned[name], value = polar(self.scores(name, other), self.sym.continuous[name].kind)
            values = values + value
        order = torch.from_numpy(assign(values.numpy()))
        rows = torch.arange(len(order))
        matrices = {name: turned[name][rows, order].reshape(*self.sym.shape(name), -1) for name in inside}
        return self.sym.element({parent: order}, matrices=matrices)


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
    left, right = (sym.act(gauge, params) for gauge, params in zip(gauges, (reference, other), strict=True))
    common = [key for key in sym.flipping if math.prod(sym.shape(sym.families[key].owner)) == 1][:_SIGNS]
    best: Rotated | None = None
    for choice in product((1, -1), repeat=len(common)):
        shapes = {key: sym.shape(sym.families[key].owner) for key in common}
        signs = {key: torch.full(shapes[key], sign, dtype=torch.int8) for key, sign in zip(common, choice, strict=True)}
        start = sym.element(signs=signs)
        found = _Ascent(sym, left, sym.act(start, right), units, report).run(start)
        best = found if best is None or found.history[-1] > best.history[-1] else best
    assert best is not None
    return Rotated(sym.compose(sym.inverse(gauges[0]), sym.compose(best.element, gauges[1])), best.history)


class _Ascent:
    """Rounds of exact steps from one start; both networks in the gauge in which they are matched."""

    def __init__(
        self, sym: Symmetry, left: Params, right: Params, units: Units, report: Callable[[float, str], bool]
    ) -> None:
        self.sym, self.left, self.right, self.match, self.report = sym, left, right, units, report
        self.steps = Rotations(sym, left)
        classes = sym.classes
        inside = dict.fromkeys(classes[name].parent for name in sym.continuous)
        self.parents = [name for name in inside if name and classes[name].permutes and classes[name].parent is None]
        self.free = [name for name in sym.continuous if classes[name].parent not in self.parents]
        owners = {sym.families[key].owner for key in sym.flipping}
        others = [name for name in classes if name not in sym.continuous and name not in self.parents]
        self.units = [name for name in others if classes[name].permutes or name in owners]
        self.names = [name for name in left if is_trained(sym, name, left)]

    def product(self) -> float:
        """⟨θ₀ | θ₁⟩ over trained weights."""
        return sum(float((self.left[n] * self.right[n].to(self.left[n])).double().sum()) for n in self.names)

    def run(self, g: Element) -> Rotated:
        """The element reached from ``g``, which has brought the other network where it is."""
        best, history = g, [self.product()]
        for h, what in self._course():
            g, self.right = self.sym.compose(h, g), self.sym.act(h, self.right)
            value = self.product()
            if value > history[-1]:
                best, history = g, [*history, value]
            if self.report(value, what):
                break
        return Rotated(best, history)

    def _course(self) -> Iterator[tuple[Element, str]]:
        """Steps in turn, until a round of them no longer helps."""
        yield self.steps.turn(self.free, self.right, settled=()), "streams"
        reached = -math.inf
        for number in range(_ROUNDS):
            if self.units:
                found = self.match(self.left, self.right, self.units, not number)
                yield self.sym.element(found.permutations, signs=found.signs), "units"
            for parent in self.parents:
                yield self.steps.exchange(parent, self.right), f"blocks {parent}"
            if self.free:
                yield self.steps.turn(self.free, self.right), "streams"
            before, reached = reached, self.product()
            if reached <= before + _RISE * abs(reached):
                return
