"""What counts how much when networks are matched on their weights over the whole group.

⟨θ₀ | g·θ₁⟩ is a sum over all entries. Of large matrices between units that are matched themselves most of what agrees
does so by chance; embeddings and read-outs agree only where the streams do. And of all directions of a class those
matter that are both written and read.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coset.alignment.matching.rotations import Params, grams
from coset.symmetry import Element, Symmetry
from coset.symmetry.action import Acted, move
from coset.symmetry.incidence import appearances
from coset.symmetry.mixing import multiplied

WEIGHTINGS = ("auto", "plain", "even", "directed")

_STREAMS = 30.0
"""Parameters that tell how streams turn with no other class matched count so much more."""

_POWER, _LEAST = 0.25, 1e-3
"""Directions count by this power of a Gram matrix, whose eigenvalues are at least this part of their mean."""

Directions = Mapping[str, Mapping[int, Tensor]]
"""Class → way → (blocks, n, n): what is written to a class is multiplied by that of 1, what reads it by that of −1."""


@dataclass(frozen=True)
class InBlocks(Mapping[str, Tensor]):
    """``params``, each multiplied by ``directions`` when it is asked for."""

    sym: Symmetry
    params: Params
    directions: Directions

    def __getitem__(self, name: str) -> Tensor:
        return directed(self.sym, self.directions, name, self.params[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.params)

    def __len__(self) -> int:
        return len(self.params)


@dataclass
class Weighting:
    """How much the entries of two networks in the gauge count: ⟨D₀θ₀·f | D₁θ₁⟩, with factors f, is what is matched.

    All that can be is done to the other network, of which a moved copy is held: instead of the reference's, made anew
    at each request, its directions of ``streams`` are put there, ⟨D₀θ₀ | D₁θ₁⟩ = ⟨θ₀ | D₀D₁θ₁⟩, and its factors.
    """

    sym: Symmetry
    streams: Directions
    """D₀ of the classes that mix in a single block."""
    theirs: Directions
    """D₁ of all classes that mix."""
    norms: Mapping[str, float]
    """‖D₀θ₀‖ of each parameter; none where entries count as they are."""
    free: frozenset[str]
    """Parameters on which one of these classes stands alone tell how it turns, and count more."""

    def count(self, params: dict[str, Tensor]) -> None:
        """θ₁ → f·D₁θ₁ in place of the parameters of a dict."""
        _replace(self.sym, params, lambda name, tensor: self._counted(name, tensor))

    def _counted(self, name: str, tensor: Tensor) -> Tensor:
        tensor = directed(self.sym, self.theirs, name, tensor)
        ours, norm = self.norms.get(name, 0.0), float(torch.linalg.vector_norm(tensor.double()))
        if min(ours, norm) == 0:
            return tensor
        # One after the other: their product may be out of range.
        return (tensor * (1 / ours)).mul_(self._weight(name) * tensor.numel() / norm)

    def _weight(self, name: str) -> float:
        single = {item.name for item in self.sym.classes.values() if item.size == 1}
        classes = {item.name for _, item in appearances(self.sym, name)} - single
        return _STREAMS if len(classes) == 1 and classes <= self.free else 1.0

    def place(self, params: dict[str, Tensor]) -> None:
        """f·D₁θ₁ → D₀·f·D₁θ₁ for the directions of ``streams``."""
        _replace(self.sym, params, lambda name, tensor: directed(self.sym, self.streams, name, tensor))

    def move(self, h: Element, params: dict[str, Tensor]) -> set[str]:
        """D₀·θ → D₀·h·θ in place, as ``move``: a rotation A of a stream is D₀·A·D₀⁻¹ here."""
        turned = {name: h.matrices[name] for name in h.matrices if name in self.streams}
        rest = {name: matrix for name, matrix in h.matrices.items() if name not in turned}
        moved = move(self.sym, replace(h, matrices=rest), params)
        around = {
            name: {way: _around(d, matrix, d) for way, d in self.streams[name].items()}
            for name, matrix in turned.items()
        }
        _replace(self.sym, params, lambda name, tensor: directed(self.sym, around, name, tensor))
        return moved.union(*(self.sym.continuous[name].places for name in turned)) & params.keys()

    def scores(self, name: str, way: int, raw: Tensor) -> Tensor:
        """(D₀θ₀)·(D₁θ₁)ᵀ of a stream from ``raw``, θ₀·(D₀D₁θ₁)ᵀ: D₀·raw·D₀⁻¹; (1, 1, n, n)."""
        return _around(self.streams[name][way], raw, self.streams[name][way]) if name in self.streams else raw


def _around(left: Tensor, matrix: Tensor, right: Tensor) -> Tensor:
    """L·M·R⁻¹ in float64."""
    result: Tensor = torch.linalg.solve(right, left @ matrix.to(left), left=False)
    return result


def _replace(sym: Symmetry, params: dict[str, Tensor], made: Callable[[str, Tensor], Tensor]) -> None:
    """Parameters of a dict by others, one after the other, so that there are never two of all; tied ones stay tied."""
    same: dict[tuple[int, int], list[str]] = {}
    for name, tensor in params.items():
        same.setdefault((id(tensor), id(sym.structures.get(name))), []).append(name)
    for names in same.values():
        params.update(dict.fromkeys(names, made(names[0], params[names[0]])))


def weighed(
    sym: Symmetry, weighting: str, free: list[str], gauge: Element, reference: Params, right: Params
) -> tuple[Params, Weighting | None]:
    """The reference in its ``gauge`` as scores need it, and what makes another network count alike; ``right``: in its.

    "plain": as they are. "even": each parameter of n entries multiplied by n/(‖θ₀‖·‖θ₁‖), as if entries of all had one
    size, and by ``_STREAMS`` where it tells how the streams ``free`` turn with no other class. "directed": besides, on
    every class that mixes what writes is multiplied by Q^¼ and what reads by P^¼, P the Gram matrix of the writers and
    Q of the readers of the same network, both of mean eigenvalue 1. A rotation A takes P to A·P·Aᵀ and Q to A·Q·Aᵀ, so
    that networks which differ by one still do, and the best rotation is found by the same steps.
    """
    left: Params = Acted(sym, gauge, reference)
    if weighting == "plain":
        return left, None
    ours, theirs = ({}, {}) if weighting == "even" else (directions(sym, left), directions(sym, right))
    norms = {
        name: float(torch.linalg.vector_norm(directed(sym, ours, name, tensor).double()))
        for name, tensor in left.items()
    }
    streams = {name: ways for name, ways in ours.items() if all(len(d) == 1 for d in ways.values())}
    inside = {name: ways for name, ways in ours.items() if name not in streams}
    return _in_blocks(sym, gauge, reference, inside), Weighting(sym, streams, theirs, norms, frozenset(free))


def _in_blocks(sym: Symmetry, gauge: Element, reference: Params, ours: Directions) -> Params:
    """The reference in its gauge, times the directions of classes in blocks: both in one product."""
    if not ours:
        return Acted(sym, gauge, reference)
    both: dict[str, Mapping[int, Tensor]] = {}
    for name, ways in ours.items():
        if name in gauge.matrices:
            matrix = gauge.matrices[name].reshape(ways[1].shape).to(ways[1])
            both[name] = {1: ways[1] @ matrix, -1: ways[-1] @ torch.linalg.inv(matrix).mT}
        else:
            both[name] = ways
    rest = {name: matrix for name, matrix in gauge.matrices.items() if name not in both}
    return InBlocks(sym, Acted(sym, replace(gauge, matrices=rest), reference), both)


def directions(sym: Symmetry, params: Params) -> dict[str, dict[int, Tensor]]:
    """How much the directions of every class that mixes count in a network: Q^¼ for writers, P^¼ for readers."""
    found = {}
    for name, mixing in sym.continuous.items():
        if mixing.kind != "rotary":
            writers, readers = grams(sym, name, params, rounded=True)
            found[name] = {1: _root(readers), -1: _root(writers)}
    return found


def _root(gram: Tensor) -> Tensor:
    """G^¼ for Gram matrices (blocks, n, n), divided by the mean of all eigenvalues; 1 where they vanish."""
    mean = gram.diagonal(dim1=-2, dim2=-1).mean()
    if not bool(mean > 0):
        return torch.eye(gram.shape[-1], dtype=gram.dtype).expand_as(gram)
    values, vectors = torch.linalg.eigh(gram / mean)
    result: Tensor = (vectors * values.clamp(min=_LEAST)[..., None, :] ** _POWER) @ vectors.mT
    return result


def directed(sym: Symmetry, found: Directions, name: str, tensor: Tensor) -> Tensor:
    """A parameter multiplied along all its classes."""
    for owner, ways in found.items():
        if name in sym.continuous[owner].places:
            tensor = multiplied(sym, owner, name, tensor, ways)
    return tensor
