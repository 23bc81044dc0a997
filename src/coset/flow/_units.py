"""Which coordinates of a row are of which unit: networks as sets of units, and of pairs of them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from coset.errors import InputError
from coset.flow._space import Space
from coset.symmetry import Symmetry
from coset.symmetry.incidence import appearances, spread

Key = tuple[str, ...]
"""The classes whose units an entry carries: none, one, or two."""


@dataclass(frozen=True, eq=False)
class Units:
    """The coordinates of rows (N, D) by the classes that they carry: ``places`` key → numbers (units…, features).

    A key of one class has what each of its units carries alone, such as its bias and its weights from inputs and to
    outputs; a key of two what each pair does; the key () what no unit carries, (features,). A permutation of a class
    exchanges positions along its axis of ``places``, and nothing else.
    """

    places: Mapping[Key, Tensor]

    @cached_property
    def sizes(self) -> dict[Key, tuple[int, ...]]:
        """The shape of the places of each key."""
        return {key: tuple(numbers.shape) for key, numbers in self.places.items()}

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many units each class has."""
        return {name: size for key, shape in self.sizes.items() for name, size in zip(key, shape[:-1], strict=True)}

    @cached_property
    def _order(self) -> Tensor:
        return torch.cat([numbers.flatten() for numbers in self.places.values()])

    @cached_property
    def _back(self) -> Tensor:
        return self._order.argsort()

    def split(self, rows: Tensor) -> dict[Key, Tensor]:
        """(N, D) → key → (N, units…, features)."""
        return split(rows[:, self._order.to(rows.device)], self.sizes)

    def join(self, parts: Mapping[Key, Tensor]) -> Tensor:
        """The rows (N, D) of their parts."""
        return joined([parts[key] for key in self.places])[:, self._back.to(next(iter(parts.values())).device)]

    def shared(self, row: Tensor) -> Tensor:
        """The mean over all units, or pairs, of every feature of a row (D,), at all of them."""
        return self.join({key: _everywhere(part) for key, part in self.split(row[None]).items()})[0]

    def carried(self, row: Tensor, other: "Units") -> Tensor:
        """The mean over units of every feature of a row (D,), in rows of another architecture."""
        other.check_alike(self)
        parts = {key: _mean(part[0]) for key, part in self.split(row[None]).items()}
        return other.join({key: part.expand(1, *other.sizes[key]) for key, part in parts.items()})[0]

    def check_alike(self, other: "Units") -> None:
        """Refuse another architecture unless it differs in how many units its classes have, and in nothing else."""
        own, its = ({key: shape[-1] for key, shape in units.sizes.items()} for units in (self, other))
        if own != its:
            odd = next(key for key in {**own, **its} if own.get(key) != its.get(key))
            what = " and ".join(odd) or "no unit"
            raise InputError(
                f"{own.get(odd, 0)} numbers are carried by {what}, and {its.get(odd, 0)} in the networks that the flow "
                f"was trained on; expected an architecture that differs in the number of units alone"
            )


def split(rows: Tensor, sizes: Mapping[Key, tuple[int, ...]]) -> dict[Key, Tensor]:
    """(N, Σ) → key → (N, *size), one after the other."""
    parts = torch.split_with_sizes(rows, [math.prod(shape) for shape in sizes.values()], 1)
    return {key: part.reshape(len(rows), *shape) for (key, shape), part in zip(sizes.items(), parts, strict=True)}


def joined(parts: list[Tensor]) -> Tensor:
    """What ``split`` took apart."""
    return torch.cat([part.flatten(1) for part in parts], 1)


def _mean(part: Tensor) -> Tensor:
    """(units…, features) → (features,)."""
    return part.reshape(-1, part.shape[-1]).mean(0) if part.ndim > 1 else part


def _everywhere(part: Tensor) -> Tensor:
    return _mean(part[0]).expand_as(part)


def units_of(space: Space, sym: Symmetry) -> Units:
    """The units of all classes that permute.

    Refused where units lie in blocks, or an entry is carried by three of them.
    """
    for name in sym.permuting:
        if sym.classes[name].parent is not None or sym.classes[name].follows is not None:
            raise InputError(
                f"the units of '{name}' lie in blocks, and the field 'units' takes all units of a class alike; "
                f"expected 'relational' or 'pna'"
            )
    found: dict[Key, list[Tensor]] = {}
    start = 0
    for name, size in zip(space.names, space.sizes, strict=True):
        for key, numbers in _of_parameter(sym, name, size):
            found.setdefault(key, []).append(start + numbers)
        start += size
    return Units({key: torch.cat(parts, -1) for key, parts in sorted(found.items(), key=lambda item: len(item[0]))})


def _of_parameter(sym: Symmetry, name: str, size: int) -> Iterator[tuple[Key, Tensor]]:
    """The entries of a parameter by the classes they carry: key, numbers (units…, features)."""
    labels: list[tuple[str, Tensor]] = []
    for stretch, item in appearances(sym, name):
        if sym.classes[item.name].permutes:
            structure = sym.structures[name]
            units = spread(item.unit, structure, stretch).expand(structure.sizes)
            labels.append((item.name, units.reshape(-1)))
    carried = sum(((units >= 0).long() << place for place, (_, units) in enumerate(labels)), torch.zeros(size).long())
    for pattern in torch.unique(carried).tolist():
        here = (carried == pattern).nonzero().flatten()
        own = [(owner, units[here]) for place, (owner, units) in enumerate(labels) if pattern >> place & 1]
        if len(own) > 2:
            raise InputError(
                f"entries of '{name}' are carried by {len(own)} units at once, and the field 'units' knows "
                f"pairs at the most; expected 'relational' or 'pna'"
            )
        shape = [sym.classes[owner].size for owner, _ in own]
        order = torch.zeros_like(here)
        for (_, units), count in zip(own, shape, strict=True):
            order = order * count + units
        yield tuple(owner for owner, _ in own), here[order.argsort(stable=True)].reshape(*shape, -1)


def units_metric(
    space: Space, sym: Symmetry, units: Units, metric: Mapping[str, Tensor]
) -> dict[Key, tuple[Tensor, Tensor]]:
    """A metric by names of parameters as one of the features of units: class → the features (n,) and a matrix (n, n).

    Refused where a parameter is not one of which every unit of a class carries n numbers alone.
    """
    found: dict[Key, tuple[Tensor, Tensor]] = {}
    starts = dict(zip(space.names, (0, *accumulate(space.sizes)), strict=False))
    for name, matrix in metric.items():
        if name not in starts:
            raise InputError(
                f"metric names '{name}', which is no parameter of the flow; expected one of {_listed(starts)}"
            )
        size = space.sizes[space.names.index(name)]
        keys = [key for key, numbers in _of_parameter(sym, name, size) if numbers.numel() == size and len(key) == 1]
        if len(keys) != 1:
            raise InputError(
                f"metric is given for '{name}', whose entries no unit of a class carries alone; expected weights "
                f"between units and inputs or outputs"
            )
        if keys[0] in found:
            raise InputError(
                f"metric is given for '{name}' of a class that has one already; expected one for each class"
            )
        places = units.places[keys[0]]
        own = ((places[0] >= starts[name]) & (places[0] < starts[name] + size)).nonzero().flatten()
        check_metric(name, matrix, len(own))
        found[keys[0]] = (own, matrix.detach().double())
    return found


def check_metric(name: str, matrix: Tensor, size: int) -> None:
    """Refuse what is no symmetric positive matrix (size, size)."""
    if not isinstance(matrix, Tensor) or tuple(matrix.shape) != (size, size):
        told = tuple(matrix.shape) if isinstance(matrix, Tensor) else type(matrix).__name__
        raise InputError(f"metric of '{name}' is {told}; expected a matrix ({size}, {size}), of second moments")
    wide = matrix.detach().double()
    if not bool(torch.isfinite(wide).all()) or not torch.allclose(
        wide, wide.T, rtol=1e-4, atol=1e-6 * float(wide.abs().max())
    ):
        raise InputError(f"metric of '{name}' is not symmetric, or not finite; expected second moments of inputs")
    least = float(torch.linalg.eigvalsh(wide)[0])
    if least < -1e-4 * float(wide.abs().max()):
        raise InputError(f"metric of '{name}' has the eigenvalue {least:.3g}; expected none below 0")


def _listed(names: Mapping[str, int]) -> str:
    return ", ".join(names)
