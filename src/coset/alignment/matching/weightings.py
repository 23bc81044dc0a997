"""What counts how much when networks are matched on their weights over the whole group.

⟨θ₀ | g·θ₁⟩ is a sum over all entries. Of large matrices between units that are matched themselves most of what agrees
does so by chance; embeddings and read-outs agree only where the streams do. And of all directions of a class those
matter that are both written and read.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.alignment.matching.rotations import Params, grams
from coset.symmetry import Symmetry
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
class Weighed(Mapping[str, Tensor]):
    """``params``, each multiplied along its ``directions`` and by its ``factors`` when it is asked for."""

    sym: Symmetry
    params: Params
    directions: Directions
    factors: Mapping[str, tuple[float, float]]

    def __getitem__(self, name: str) -> Tensor:
        tensor = directed(self.sym, self.directions, name, self.params[name])
        one, two = self.factors.get(name, (1.0, 1.0))
        return (tensor * one).mul_(two) if name in self.factors else tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.params)

    def __len__(self) -> int:
        return len(self.params)


Counting = Callable[[dict[str, Tensor]], None]
"""Multiplies the parameters of a network, in place of those in a dict."""


def weighed(sym: Symmetry, weighting: str, free: list[str], left: Params, right: Params) -> tuple[Params, Counting]:
    """The reference as it counts, and what makes another network of the gauge, ``right``, count alike.

    "plain": as they are. "even": each parameter of n entries multiplied by n/(‖θ₀‖·‖θ₁‖), as if entries of all had one
    size, and by ``_STREAMS`` where it tells how the streams ``free`` turn with no other class. "directed": besides, on
    every class that mixes what writes is multiplied by Q^¼ and what reads by P^¼, P the Gram matrix of the writers and
    Q of the readers of the same network, both of mean eigenvalue 1. A rotation A takes P to A·P·Aᵀ and Q to A·Q·Aᵀ, so
    that networks which differ by one still do, and the best rotation is found by the same steps.
    """
    if weighting == "plain":
        return left, lambda params: None
    ours, theirs = ({}, {}) if weighting == "even" else (directions(sym, left), directions(sym, right))

    def count(params: dict[str, Tensor]) -> None:
        same: dict[tuple[int, int], list[str]] = {}
        for name in sym.structures.keys() & params.keys():
            same.setdefault((id(params[name]), id(sym.structures[name])), []).append(name)
        for names in same.values():  # one after the other, so that there are never two of all
            params.update(dict.fromkeys(names, directed(sym, theirs, names[0], params[names[0]])))

    alike = Weighed(sym, left, ours, {}), Weighed(sym, right, theirs, {})
    return Weighed(sym, left, ours, _factors(sym, set(free), *alike)), count


def _factors(sym: Symmetry, free: set[str], left: Params, right: Params) -> dict[str, tuple[float, float]]:
    """The two factors n·e/(‖θ₀‖·‖θ₁‖) of each parameter, apart, so that none of them is out of range."""
    factors = {}
    single = {name for name, item in sym.classes.items() if item.size == 1}
    for name, tensor in left.items():
        norms = [float(torch.linalg.vector_norm(side.double())) for side in (tensor, right[name])]
        classes = {item.name for _, item in appearances(sym, name)} - single
        more = _STREAMS if len(classes) == 1 and classes <= free else 1.0
        factors[name] = (1 / norms[0], more * tensor.numel() / norms[1]) if min(norms) > 0 else (1.0, 1.0)
    return factors


def directions(sym: Symmetry, params: Params) -> dict[str, dict[int, Tensor]]:
    """How much the directions of every class that mixes count in a network: Q^¼ for writers, P^¼ for readers."""
    found = {}
    for name, mixing in sym.continuous.items():
        if mixing.kind != "rotary":
            writers, readers = grams(sym, name, params)
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
