"""Matching on the weights over the whole group: permutations and signs, and rotations of classes that mix.

Over GL(n) nearness has no maximum: first both networks are brought into a gauge, gains folded into their readers and
what writes a class balanced with what reads it, in which rotations are left of it; of rotary pairs, the scales. There
every step is exact: an assignment, a polar factor, an angle for every rotary pair, or for blocks an assignment of what
the best rotations in them are worth (nuclear norms: Theus et al. 2025).
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coset._magnitudes import exponent, scaled
from coset.alignment._agreement import is_trained
from coset.alignment.assignment import assign
from coset.distribution import normalize_scales
from coset.errors import InputError
from coset.symmetry import Element, Symmetry
from coset.symmetry.action import Acted
from coset.symmetry.incidence import appearances, unit_labels
from coset.symmetry.mixing import centred_basis, matrices_shape, units_of_parameter
from coset.symmetry.pairs import best_rotations, pairs_of_parameter

Params = Mapping[str, Tensor]


class NoGauge(InputError):
    """A network that no element brings into the gauge in which rotations are matched."""


_SWEEPS = 30
_PIECE = 2**20
"""So many entries at a time are held in float64."""


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
    step = sym.compose(sym.element(**folded(sym, Acted(sym, step, params))), step)
    return sym.compose(balanced_gauge(sym, Acted(sym, step, params)), step)


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
            ((_, item),) = appearances(sym, gain, name)
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


def grams(
    sym: Symmetry, name: str, params: Params, only: Collection[str] | None = None, *, rounded: bool = False
) -> tuple[Tensor, Tensor]:
    """The Gram matrices of what is written to a class and of what is read from it, (blocks, n, n), on trained
    parameters, or on some of them; ``rounded``: products in the type of the weights, and their sums in float64.
    """
    *outer, n = sym.shape(name)
    found = {way: torch.zeros(math.prod(outer), n, n, dtype=torch.float64) for way in (1, -1)}
    for parameter in _counted(sym, name, params):
        for place, units in units_of_parameter(sym, name, parameter, params[parameter]):
            if place.way and (only is None or parameter in only):
                wide = torch.view_as_real(units.detach()).flatten(-2) if units.is_complex() else units.detach()
                if rounded:
                    found[place.way] += _contracted("bik,bjk->bij", wide, wide).cpu()
                else:
                    wide = wide.double()
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


def _worth(matrix: Tensor, kind: str) -> Tensor:
    """The value of ``polar`` alone."""
    if kind in ("rotary", "centred"):
        return polar(matrix, kind)[1]
    value: Tensor = torch.linalg.svdvals(matrix).sum(-1)
    return value


def _contracted(equation: str, left: Tensor, right: Tensor) -> Tensor:
    """Products over the last axis in the type of the weights, no narrower than float32; their sums in float64.

    In pieces, so that no copy of a parameter is needed; both sides at an ordinary size, where no product underflows.
    """
    by = exponent(left), exponent(right)
    wide = torch.promote_types(left.dtype, torch.float32)
    columns = max(1, _PIECE * left.shape[-1] // max(1, left.numel()))
    pieces = [torch.split(side, columns, -1) for side in (left, right)]
    total = torch.zeros((), dtype=torch.float64, device=left.device)
    for one, two in zip(*pieces, strict=True):
        total = total + torch.einsum(equation, scaled(one.to(wide), by[0]), scaled(two.to(wide), by[1])).double()
    return total * 2.0 ** sum(by)


@dataclass
class Rotations:
    """Exact steps of classes that mix, for a reference and another network in the gauge of ``matching_gauge``."""

    sym: Symmetry
    reference: Params
    seen: Callable[[str, int, Tensor], Tensor] | None = None
    """What the scores of a class are, of what is written to it (1) or reads it (−1), where networks are held otherwise
    than they are compared."""

    def scores(self, name: str, other: Params, settled: Iterable[str] | None = None) -> Tensor:
        """Σ over places of X₀·X₁ᵀ for all pairs of blocks, (B, B, n, n); on parameters of ``settled`` classes alone.

        Of n rotary pairs, (B, B, n, 2, 2).
        """
        *outer, n = self.sym.shape(name)
        blocks, rotary = math.prod(outer), self.sym.continuous[name].kind == "rotary"
        equation, shape = ("bpik,cpjk->bcpij", (n, 2, 2)) if rotary else ("bik,cjk->bcij", (n, n))
        totals: dict[int, Tensor] = {}
        for parameter in _counted(self.sym, name, other):
            beside = {item.name for _, item in appearances(self.sym, parameter)} - {name}
            if settled is not None and not beside <= {*settled, *self._fixed()}:
                continue
            sides = [self._units(name, parameter, params[parameter]) for params in (self.reference, other)]
            for (way, left), (_, right) in zip(*sides, strict=True):
                found = _contracted(equation, left, right.to(left.device)).cpu()
                totals[way] = totals[way] + found if way in totals else found
        none = torch.zeros(blocks, blocks, *shape, dtype=torch.float64)
        return sum((self.seen(name, way, total) if self.seen else total for way, total in totals.items()), start=none)

    def _units(self, name: str, parameter: str, tensor: Tensor) -> list[tuple[int, Tensor]]:
        """What is mixed of a class on a parameter, with its way: (B, n, all else), of pairs that turn (B, n, 2, …)."""
        if self.sym.continuous[name].kind == "rotary":
            return [(1, pairs) for pairs in pairs_of_parameter(self.sym, name, parameter, tensor)]
        found = units_of_parameter(self.sym, name, parameter, tensor)
        return [(place.way, units) for place, units in found if place.way]

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

    def unknown(self, names: Iterable[str], other: Params, settled: Collection[str] = ()) -> list[str]:
        """The classes of which parameters of ``settled`` classes alone tell less than half of the directions."""
        own = {name: self._own(name, other, settled) for name in names}
        return [name for name, part in own.items() if 2 * int(torch.linalg.matrix_rank(part).min()) < part.shape[-1]]

    def _own(self, name: str, other: Params, settled: Iterable[str] | None) -> Tensor:
        """The scores of every block with itself."""
        return self.scores(name, other, settled).diagonal(dim1=0, dim2=1).movedim(-1, 0)

    def exchange(self, parent: str, other: Params) -> Element:
        """The best order of the units of a class, each worth what the best rotations of what is in it are."""
        inside = [name for name in self.sym.continuous if self.sym.classes[name].parent == parent]
        kinds = {name: self.sym.continuous[name].kind for name in inside}
        scores = {name: self.scores(name, other) for name in inside}
        values = sum((_worth(scores[name], kind) for name, kind in kinds.items()), start=torch.zeros(()))
        order = torch.from_numpy(assign(values.numpy()))
        rows = torch.arange(len(order))
        best = {name: polar(scores[name][rows, order], kind)[0] for name, kind in kinds.items()}
        matrices = {name: best[name].reshape(matrices_shape(self.sym, name)) for name in inside}
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


def mean_flips(sym: Symmetry) -> Iterator[Element]:
    """For each stream of LayerNorms, which do not see it: x → x − 2·mean(x)·1."""
    for name in _of_kind(sym, "centred"):
        *outer, n = sym.shape(name)
        turn = torch.eye(n, dtype=torch.float64) - 2 / n
        yield sym.element(matrices={name: turn.expand(*outer, n, n).clone()})


def inner_product(one: Params, two: Params, names: Iterable[str]) -> float:
    """⟨θ₀ | θ₁⟩ over some parameters, in float64: products of small weights vanish in their own type."""
    total = 0.0
    for name in names:
        left = one[name].reshape(-1)
        right = two[name].to(left.device).reshape(-1)
        for a, b in zip(torch.split(left, _PIECE), torch.split(right, _PIECE), strict=True):
            total += float((a.double() * b.double()).sum())
    return total
