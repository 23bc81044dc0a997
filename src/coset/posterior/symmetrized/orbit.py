"""How permutations move a vector of weights, on any discovered symmetry, for many of them at once.

A weight that one class alone moves enters through a matrix of that class's units against each other, made once for all
g: each further permutation then costs one sum over units. What several classes move (weights between two hidden layers,
blocks within blocks) is gathered for each g.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.distribution.density import pieces, vector
from coset.errors import InputError
from coset.posterior.symmetrized.units import is_separable, normal_log_prob, unit_entries, unit_log_probs
from coset.symmetry import Element, Symmetry

Moves = Mapping[str, Tensor]
"""For every class that permutes, permutations (…, *shape of the class): many elements of the group at once."""


@dataclass(frozen=True, eq=False)
class PermutedClass:
    """A class of one block each of whose weights belongs to one unit: ``owned`` (n, k), row i the places of unit i's.

    ``others`` (k,): for each column the further classes that move those weights, as a set of names.
    """

    name: str
    owned: Tensor
    others: tuple[frozenset[str], ...]

    @property
    def units(self) -> int:
        """n, the number of units."""
        return len(self.owned)

    def columns(self, assigned: frozenset[str]) -> Tensor:
        """The columns of ``owned`` (n, k') that no class beside this one and those ``assigned`` moves."""
        keep = [number for number, names in enumerate(self.others) if names <= assigned]
        return self.owned[:, keep]


@dataclass(frozen=True, eq=False)
class Orbit:
    """How the permutations of ``sym`` move a vector of weights (D,): the named parameters one after the other.

    ``classes``: those that permute more than one unit, with their shapes. ``simple``: those of them whose weights
    belong to one unit each. ``alone``: of each simple class the weights (n, k) that no other class moves. ``shared``
    (s,): the places of all other weights that move.
    """

    sym: Symmetry
    names: tuple[str, ...]
    like: Mapping[str, Tensor]
    classes: Mapping[str, tuple[int, ...]]
    simple: Mapping[str, PermutedClass]
    alone: Mapping[str, Tensor]
    shared: Tensor
    numbers: Mapping[str, Tensor]
    """The places of the parameters that hold ``shared``, in their shapes."""

    @property
    def log_order(self) -> float:
        """log |G|, the number of permutations."""
        return sum(self.log_size(name) for name in self.classes)

    def log_size(self, name: str) -> float:
        """The logarithm of the number of permutations of one class."""
        shape = self.classes[name]
        return math.prod(shape[:-1]) * math.lgamma(shape[-1] + 1)

    def identity(self) -> dict[str, Tensor]:
        """The identity, as moves without leading axes."""
        return {name: torch.arange(shape[-1]).expand(shape) for name, shape in self.classes.items()}

    def uniform(self, lead: Sequence[int], generator: torch.Generator, names: Sequence[str] = ()) -> dict[str, Tensor]:
        """Uniform permutations (*lead, *shape) of the named classes, by default all."""
        device = generator.device
        return {
            name: torch.rand(*lead, *self.classes[name], generator=generator, device=device).argsort(-1)
            for name in names or self.classes
        }

    def places(self, moves: Moves) -> Tensor:
        """Where g·v takes its ``shared`` entries from, (…, s), for moves (…, *shape)."""
        return self._gathered(moves, self.numbers)[..., _positions(self.shared, self.numbers)]

    def moved_places(self, moves: Moves, wanted: Tensor) -> Tensor:
        """Where g·v takes its entries at ``wanted`` from, (…, *wanted.shape); classes that are missing stay."""
        held, lead = self._holding(wanted), _lead(moves, self.classes)
        still = {name: order.expand(*lead, *order.shape) for name, order in self.identity().items()}
        found = self._gathered({**still, **moves}, held)
        places = found[..., _positions(wanted.reshape(-1), held)]
        return places.reshape(*places.shape[:-1], *wanted.shape)

    def apart_from(self, units: PermutedClass) -> Tensor:
        """The places of what moves and does not belong to a simple class."""
        moving = torch.cat([self.shared, *(owned.reshape(-1) for owned in self.alone.values())])
        return moving[~torch.isin(moving, units.owned)].sort().values

    def _holding(self, wanted: Tensor) -> dict[str, Tensor]:
        every = numbered(self.names, self.like)
        present = torch.zeros(sum(part.numel() for part in every.values()), dtype=torch.bool)
        present[wanted.reshape(-1)] = True
        return {name: part for name, part in every.items() if bool(present[part.reshape(-1).long()].any())}

    def _gathered(self, moves: Moves, numbers: Mapping[str, Tensor]) -> Tensor:
        lead = _lead(moves, self.classes)
        flat = {
            name: order.expand(*lead, *self.classes[name]).reshape(-1, *self.classes[name]).cpu()
            for name, order in moves.items()
        }
        names = list(flat)
        # Classes of one unit.
        still = {
            name: torch.zeros(self.sym.shape(name), dtype=torch.long)
            for name in self.sym.permuting
            if name not in self.classes
        }

        def moved(*orders: Tensor) -> Tensor:
            g = Element({**dict(zip(names, orders, strict=True)), **still})
            found = self.sym.act(g, numbers, partial=True)
            return torch.cat([found[name].reshape(-1) for name in numbers])

        found: Tensor = torch.vmap(moved)(*flat.values())
        return found.round().long().reshape(*lead, -1)


def orbit(sym: Symmetry, names: Sequence[str], like: Mapping[str, Tensor]) -> Orbit:
    """The orbit of vectors that hold the named parameters one after the other; ``like`` has their shapes."""
    finite = sym.restrict(scales=False, signs=False)
    shapes = {name: finite.shape(name) for name in finite.permuting if finite.shape(name)[-1] > 1}
    if not shapes:
        raise InputError("sym permutes no class of two or more units; expected one")
    every = numbered(names, like)
    movers = {name: _moved_by(finite, name, shape, every, like) for name, shape in shapes.items()}
    moving = torch.stack(list(movers.values())).any(0)
    simple, alone = {}, {}
    singles = torch.zeros(sum(part.numel() for part in every.values()), dtype=torch.bool)
    for name in shapes:
        if not is_separable(finite, name, names):
            continue
        owned = unit_entries(finite, name, like, names).owned
        others = tuple(
            frozenset(other for other in shapes if other != name and bool(movers[other][place])) for place in owned[0]
        )
        simple[name] = PermutedClass(name, owned, others)
        alone[name] = simple[name].columns(frozenset())
        singles[alone[name].reshape(-1)] = True
    shared = (moving & ~singles).nonzero().reshape(-1)
    held = {name: part for name, part in every.items() if bool(torch.isin(part.reshape(-1).long(), shared).any())}
    return Orbit(finite, tuple(names), like, shapes, simple, alone, shared, held)


def numbered(names: Sequence[str], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameters that hold the places of their entries in the vector; whole numbers to 2⁵³ are exact in float64."""
    size = sum(like[name].numel() for name in names)
    exact = {name: torch.empty(like[name].shape, dtype=torch.float64) for name in names}
    return pieces(torch.arange(size, dtype=torch.float64), names, exact)


def picked(matrix: Tensor, order: Tensor) -> Tensor:
    """Σ_i A[i, p[i]] − Σ_i A[i, i], (…, K), of matrices (…, n, n) and permutations (…, K, n)."""
    order = order.to(matrix.device).expand(*matrix.shape[:-2], *order.shape[-2:])
    own = matrix.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)
    return matrix.gather(-1, order.mT).sum(-2) - own


def _moved_by(
    sym: Symmetry, name: str, shape: tuple[int, ...], every: Mapping[str, Tensor], like: Mapping[str, Tensor]
) -> Tensor:
    """Which entries a class moves, (D,): those that a cyclic shift of all its units takes from elsewhere."""
    shift = (torch.arange(shape[-1]) + 1) % shape[-1]
    found = sym.act(sym.element({name: shift.expand(shape).contiguous()}), every, partial=True)
    return vector(found, tuple(every), like) != vector(every, tuple(every), like)


def _positions(wanted: Tensor, numbers: Mapping[str, Tensor]) -> Tensor:
    """Where the wanted places stand among the entries of ``numbers``, one parameter after the other."""
    held = torch.cat([part.reshape(-1) for part in numbers.values()]).long()
    return torch.searchsorted(held, wanted)


def _lead(moves: Moves, classes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    shapes = [order.shape[: order.ndim - len(classes[name])] for name, order in moves.items()]
    return tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


class Drawn:
    """Weights ``x`` (…, D) and q = N(``mean``, diag ``std``²), both (D,), as ``orbit`` orders them; in float64.

    ``matrices``: what ``units`` gives, where it is there already; of the rest only the means may then be asked for.
    """

    def __init__(
        self, orbit: Orbit, x: Tensor, mean: Tensor, std: Tensor, matrices: Mapping[str, Tensor] | None = None
    ) -> None:
        self.orbit = orbit
        self.x, self.mean, self.std = x, mean, std
        self._matrices = dict(matrices or {})

    @property
    def lead(self) -> tuple[int, ...]:
        """The leading axes of x."""
        return tuple(self.x.shape[:-1])

    def with_densities_held(self) -> "Drawn":
        """The same weights beside the same q, through which no gradient flows."""
        return Drawn(self.orbit, self.x, self.mean.detach(), self.std.detach())

    def units(self, name: str) -> Tensor:
        """A_ij (…, n, n): unit i of x under unit j of q, by the weights that no other class moves."""
        if name not in self._matrices:
            owned = self.orbit.alone[name].to(self.x.device)
            self._matrices[name] = unit_log_probs(owned, self.x, self.mean, self.std)
        return self._matrices[name]

    def log_ratios(self, moves: Moves) -> Tensor:
        """log q(g⁻¹·ω) − log q(ω), (…, K), for permutations (…, K, *shape) with leading axes as those of x, or 1."""
        parts = [picked(self.units(name), moves[name]) for name in self.orbit.alone]
        if len(self.orbit.shared) or not parts:
            parts.append(self._shared_ratios(moves))
        return sum(parts[1:], parts[0])

    def _shared_ratios(self, moves: Moves) -> Tensor:
        shared = self.orbit.shared.to(self.x.device)
        places = self.orbit.places(moves).to(self.x.device)
        # q(g⁻¹·ω) is the density of N(g·mean, diag (g·std)²) at ω.
        moved = normal_log_prob(self.x[..., None, shared], self.mean[places], self.std[places])
        return moved - normal_log_prob(self.x[..., shared], self.mean[shared], self.std[shared])[..., None]
