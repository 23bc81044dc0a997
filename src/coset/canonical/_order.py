"""A data-free order of units: by sums over their weights, which do not depend on the order of any other units."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from coset.canonical._stacked import fixed_marks, plain, rank_marks, signed_square, unit_sums, witnesses
from coset.symmetry import Symmetry
from coset.symmetry.incidence import appearances, rows_along, spread, sums_by_unit
from coset.symmetry.stacks import Stack


def canonical_order(
    sym: Symmetry, stack: Stack, leave: tuple[str, ...] = (), rounding: float = 1e-9
) -> dict[str, Tensor]:
    """For every class that permutes the order of its units within each block, (N, *shape): unit i is unit p[i].

    Descending by Σw over the weights of a unit, parameter by parameter, those with most axes first, then by Σ w·|w|;
    keys whose difference is such a part of the largest in their class as ``rounding`` are equal. Units that all of
    these leave equal are told apart by which of the units that are told apart already, and which fixed positions, their
    weights go to. Units with the same weights stay as they stand. Where others are still equal, in all of this, one of
    them is put first and the rest told apart by it: they are exchanged by a symmetry of the network, as a rule, and
    then it does not matter which. Classes in ``leave`` stay.
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
            ranks[name] = _refined(ranks[name], key.reshape(shape), bound.reshape(shape), rounding)
            if not _has_ties(ranks[name]):
                break
    _tell_apart(sym, stack, ranks, sorting, rounding)
    return {name: _stable_order(ranks[name]) for name in sorting}


def _keys(sym: Symmetry, name: str, stack: Stack) -> Iterator[tuple[Tensor, Tensor]]:
    """Σ f(w) and Σ |f(w)| per unit, (N, ∏shape), one after the other."""
    for function in (plain, signed_square):
        for parameter in witnesses(sym, stack):
            for place in appearances(sym, parameter, name):
                tensor = stack[parameter]
                bound = unit_sums(sym, parameter, place, tensor.abs(), function)
                yield unit_sums(sym, parameter, place, tensor, function), bound


def _refined(ranks: Tensor, key: Tensor, bound: Tensor, rounding: float) -> Tensor:
    """Ranks (…, n) with ties broken by a key, the largest first; what is equal up to rounding stays tied.

    The rank of a unit is the number of units before it. ``bound``: the sizes of what keys are sums of.
    """
    largest = bound.amax(-1, keepdim=True)
    order = key.argsort(dim=-1, descending=True, stable=True)
    order = torch.gather(order, -1, torch.gather(ranks, -1, order).argsort(dim=-1, stable=True))
    sorted_ranks, sorted_keys = torch.gather(ranks, -1, order), torch.gather(key, -1, order)
    fresh = sorted_ranks[..., 1:] != sorted_ranks[..., :-1]
    fresh |= (sorted_keys[..., 1:] - sorted_keys[..., :-1]).abs() > rounding * largest
    places = torch.arange(1, ranks.shape[-1]).expand(fresh.shape)
    begins = torch.where(fresh, places, 0).cummax(-1).values
    begins = torch.cat([torch.zeros_like(begins[..., :1]), begins], -1) if ranks.shape[-1] > 1 else ranks
    return torch.zeros_like(ranks).scatter(-1, order, begins)


def _tied(ranks: Tensor) -> Tensor:
    """Whether each row of ranks (…, n) holds one twice."""
    return (ranks.sort(-1).values != torch.arange(ranks.shape[-1])).any(-1)


def _has_ties(ranks: Tensor) -> bool:
    return bool(_tied(ranks).any())


def _stable_order(ranks: Tensor) -> Tensor:
    return ranks.argsort(dim=-1, stable=True)


def _tell_apart(sym: Symmetry, stack: Stack, ranks: dict[str, Tensor], sorting: list[str], rounding: float) -> None:
    """Break ties, network by network."""
    numbers = {
        number
        for name in sorting
        for number in _tied(ranks[name]).reshape(len(ranks[name]), -1).any(1).nonzero().flatten().tolist()
    }
    for number in sorted(numbers):
        params = {key: item[number] for key, item in stack.items()}
        own = {name: values[number] for name, values in ranks.items()}
        while True:
            _refine_until_stable(sym, params, own, sorting, rounding)
            if not _put_one_first(sym, params, own, sorting, rounding):
                break
        for name in sorting:
            ranks[name][number] = own[name]


def _refine_until_stable(
    sym: Symmetry, params: Stack, ranks: dict[str, Tensor], sorting: list[str], rounding: float
) -> None:
    """Sums in which every weight counts with the ranks and positions along all other axes, until they tell nothing."""
    changed = True
    while changed:
        changed = False
        for name in sorting:
            before, shape = ranks[name], sym.shape(name)
            if _has_ties(before):
                for key, bound in _marked_keys(sym, name, params, ranks):
                    ranks[name] = _refined(ranks[name], key.reshape(shape), bound.reshape(shape), rounding)
                changed |= not torch.equal(before, ranks[name])


def _put_one_first(sym: Symmetry, params: Stack, ranks: dict[str, Tensor], sorting: list[str], rounding: float) -> bool:
    """Put the first of tied units that have not the same weights before the others; False if there are none."""
    for name in sorting:
        if not _has_ties(ranks[name]):
            continue
        flat = ranks[name].reshape(-1, ranks[name].shape[-1])
        alike = [(key.reshape(flat.shape), bound.max()) for key, bound in _own_keys(sym, name, params)]
        for block, row in enumerate(flat):
            for rank in row.unique().tolist():
                group = (row == rank).nonzero().flatten()
                if len(group) > 1 and any(
                    bool(((key[block, group] - key[block, group[0]]).abs() > rounding * top).any())
                    for key, top in alike
                ):
                    changed = flat.clone()
                    changed[block, group[1:]] += 1
                    ranks[name] = changed.reshape(ranks[name].shape)
                    return True
    return False


def _own_keys(sym: Symmetry, name: str, params: Stack) -> Iterator[tuple[Tensor, Tensor]]:
    """Σ w·mark and Σ |w| per unit, with a mark of its own for every place beside the unit: alike for equal units."""
    for parameter in witnesses(sym, params):
        structure = sym.structures[parameter]
        for stretch, item in appearances(sym, parameter, name):
            rows = rows_along(params[parameter].reshape(structure.sizes), structure, stretch)
            marks = torch.cos(1.0 + torch.arange(rows.shape[1], dtype=torch.float64))
            yield sums_by_unit(sym, rows @ marks, item), sums_by_unit(sym, rows.abs().sum(1), item)


def _marked_keys(
    sym: Symmetry, name: str, params: Stack, ranks: Mapping[str, Tensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Σ w·∏φ and Σ |w|·∏φ per unit of one network, (∏shape,), with φ(r) = 1/(1 + r) of the rank or position r along
    every other axis.
    """
    for parameter in witnesses(sym, params):
        structure = sym.structures[parameter]
        fixed = fixed_marks(sym, parameter)
        for stretch, item in appearances(sym, parameter, name):
            marks = fixed
            for other, there in appearances(sym, parameter):
                if other is not stretch and there.name in ranks:
                    own = ranks[there.name].flatten()[there.unit.clamp(min=0)]
                    marks = marks * spread(torch.where(there.unit >= 0, rank_marks(own), 1.0), structure, other)
            marked = rows_along(params[parameter].reshape(structure.sizes) * marks, structure, stretch)
            yield sums_by_unit(sym, marked.sum(1), item), sums_by_unit(sym, marked.abs().sum(1), item)
