"""A data-free order of units: by sums over their weights, which do not depend on the order of any other units."""

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from coset.canonical._stacked import placed, plain, signed_square, unit_sums, witnesses
from coset.symmetry import Symmetry
from coset.symmetry.incidence import appearances, rows_along, spread
from coset.symmetry.stacks import Stack

_TIED = 1e-9
"""Keys whose difference is such a part of the largest in their class are equal up to rounding."""


def canonical_order(sym: Symmetry, stack: Stack, leave: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """For every class that permutes the order of its units within each block, (N, *shape): unit i is unit p[i].

    Descending by Σw over the weights of a unit, parameter by parameter, those with most axes first, then by Σ w·|w|;
    units that all of these leave equal are told apart by which of the units that are told apart already, and which
    fixed positions, their weights go to. What is left then are units that may be exchanged without changing a weight,
    or nearly so: they stay as they stand. Classes in ``leave`` do.
    """
    count = len(next(iter(stack.values())))
    names = [name for name in sym.permuting if sym.classes[name].follows is None]
    ranks = {name: torch.zeros(count, *sym.shape(name), dtype=torch.long) for name in names}
    sorting = [name for name in names if name not in leave]
    for name in names:
        if name in leave:
            ranks[name] = torch.arange(sym.shape(name)[-1]).expand(count, *sym.shape(name)).clone()
    for name in sorting:
        for key, bound in _keys(sym, name, stack):
            shape = ranks[name].shape
            ranks[name] = _refined(ranks[name], key.reshape(shape), bound.reshape(shape))
            if not _has_ties(ranks[name]):
                break
    _tell_apart(sym, stack, ranks, sorting)
    return {name: _stable_order(ranks[name]) for name in sorting}


def _keys(sym: Symmetry, name: str, stack: Stack) -> Iterator[tuple[Tensor, Tensor]]:
    """Σ f(w) and Σ |f(w)| per unit, (N, ∏shape), one after the other."""
    for function in (plain, signed_square):
        for parameter in witnesses(sym, stack):
            for place in placed(sym, parameter, name):
                tensor = stack[parameter]
                bound = unit_sums(sym, name, parameter, place, tensor.abs(), function)
                yield unit_sums(sym, name, parameter, place, tensor, function), bound


def _refined(ranks: Tensor, key: Tensor, bound: Tensor) -> Tensor:
    """Ranks (…, n) with ties broken by a key, the largest first; what is equal up to rounding stays tied.

    The rank of a unit is the number of units before it. ``bound``: the sizes of what keys are sums of.
    """
    largest = bound.amax(-1, keepdim=True)
    order = key.argsort(dim=-1, descending=True, stable=True)
    order = torch.gather(order, -1, torch.gather(ranks, -1, order).argsort(dim=-1, stable=True))
    sorted_ranks, sorted_keys = torch.gather(ranks, -1, order), torch.gather(key, -1, order)
    fresh = sorted_ranks[..., 1:] != sorted_ranks[..., :-1]
    fresh |= (sorted_keys[..., 1:] - sorted_keys[..., :-1]).abs() > _TIED * largest
    places = torch.arange(1, ranks.shape[-1]).expand(fresh.shape)
    begins = torch.where(fresh, places, 0).cummax(-1).values
    begins = torch.cat([torch.zeros_like(begins[..., :1]), begins], -1) if ranks.shape[-1] > 1 else ranks
    return torch.zeros_like(ranks).scatter(-1, order, begins)


def _has_ties(ranks: Tensor) -> bool:
    return bool((ranks.sort(-1).values != torch.arange(ranks.shape[-1])).any())


def _stable_order(ranks: Tensor) -> Tensor:
    return ranks.argsort(dim=-1, stable=True)


def _tell_apart(sym: Symmetry, stack: Stack, ranks: dict[str, Tensor], sorting: list[str]) -> None:
    """Break ties by sums in which every weight counts with the ranks and positions along all other axes."""
    for _ in range(len(sorting) + 1):
        tied = [name for name in sorting if _has_ties(ranks[name])]
        before = {name: ranks[name].clone() for name in tied}
        for name in tied:
            for number in _networks_with_ties(ranks[name]):
                params = {key: item[number] for key, item in stack.items()}
                for key, bound in _marked_keys(sym, name, params, ranks, number):
                    own, shape = ranks[name][number], sym.shape(name)
                    ranks[name][number] = _refined(own, key.reshape(shape), bound.reshape(shape))
        if all(torch.equal(before[name], ranks[name]) for name in tied):
            return


def _networks_with_ties(ranks: Tensor) -> list[int]:
    uneven = ranks.sort(-1).values != torch.arange(ranks.shape[-1])
    found: list[int] = uneven.flatten(1).any(1).nonzero().flatten().tolist()
    return found


def _marked_keys(
    sym: Symmetry, name: str, params: Stack, ranks: Mapping[str, Tensor], number: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Σ w·∏φ and Σ |w|·∏|φ| per unit of one network, (∏shape,), with φ(r) = cos(1 + r) of the rank or position r along
    every other axis.
    """
    for parameter in witnesses(sym, params):
        structure = sym.structures[parameter]
        for stretch, item in placed(sym, parameter, name):
            marks = torch.ones(structure.sizes, dtype=torch.float64)
            moving = {dim for other in structure.stretches for dim in other.dims}
            for other, there in appearances(sym, parameter):
                if other is not stretch and there.name in ranks:
                    own = ranks[there.name][number].flatten()[there.unit.clamp(min=0)]
                    phi = torch.where(there.unit >= 0, torch.cos(1.0 + own.double()), 1.0)
                    marks = marks * spread(phi, structure, other)
            for dim, length in enumerate(structure.sizes):
                if dim not in moving:
                    shape = [length if at == dim else 1 for at in range(len(structure.sizes))]
                    marks = marks * torch.cos(1.0 + torch.arange(length, dtype=torch.float64)).reshape(shape)
            marked = rows_along(params[parameter].reshape(structure.sizes) * marks, structure, stretch)
            present, none = item.unit >= 0, torch.zeros(math.prod(sym.shape(name)), dtype=torch.float64)
            units = item.unit[present]
            sums = (none.index_add(0, units, rows.sum(1)[present]) for rows in (marked, marked.abs()))
            yield next(sums), next(sums)
