"""The sign of every unit by a rule: Σ w·|w| over the first weights that know of it is positive."""

import math
from collections.abc import Collection, Iterator

import torch
from torch import Tensor

from coset.canonical._stacked import fixed_marks, signed_square, size, unit_sums, witnesses
from coset.symmetry import Element, Symmetry
from coset.symmetry.incidence import Carrier, appearances, spread, together
from coset.symmetry.stacks import Stack, move_stack


def canonical_signs(
    sym: Symmetry, stack: dict[str, Tensor], rounding: float = 1e-9
) -> tuple[dict[str, Tensor], list[str]]:
    """The signs of all families that flip, (N, *shape), and the families that no rule settles.

    Family by family: first those on a parameter that carries no other sign that is still free (from the fixed inputs
    on), by Σ w·|w| > 0 over the unit's entries there, a sum that knows nothing of the order of other units; where it is
    0 the next such parameter decides, where all are 0 the same sums with entries that count less from position to
    position along fixed axes, and where these are 0 as well the sign stays. A sum is 0 if it is such a part of Σ w² as
    ``rounding``. Where only products of signs are seen,
    M[i, j] = Σ w·|w| over the entries of units i and j of two families, the signs of one are those of the leading left
    singular vector of M, which moves as the units do. ``stack`` is flipped along.
    """
    return _signs(sym, stack, list(sym.flipping), rounding)


def _signs(
    sym: Symmetry, stack: dict[str, Tensor], open_ones: list[str], rounding: float
) -> tuple[dict[str, Tensor], list[str]]:
    signs: dict[str, Tensor] = {}
    undecided: list[str] = []
    while open_ones:
        key = next((key for key in open_ones if any(True for _ in _flipped_alone(sym, key, stack, open_ones))), None)
        if key is None:
            rest, unsettled = _coupled(sym, stack, open_ones, rounding)
            return signs | rest, [*undecided, *unsettled]
        open_ones.remove(key)
        signs[key], decided = _settled(sym, key, stack, open_ones, rounding)
        undecided += [] if decided else [key]
        _flip(sym, key, signs[key], stack)
    return signs, undecided


def _flip(sym: Symmetry, key: str, signs: Tensor, stack: dict[str, Tensor]) -> None:
    if bool((signs < 0).any()):
        touched = {name: stack[name] for name in _carriers(sym, key) if name in stack}
        stack.update(move_stack(sym, Element(signs={key: signs}), touched))


def _coupled(
    sym: Symmetry, stack: dict[str, Tensor], open_ones: list[str], rounding: float
) -> tuple[dict[str, Tensor], list[str]]:
    """The signs of families of which only products are seen."""
    for key in open_ones:
        first = _leading_signs(sym, key, stack, open_ones)
        if first is None:
            continue
        # A singular vector has no sign of its own: the family is settled where both give the same network.
        rest = [other for other in open_ones if other != key]
        results = []
        for signs in (first, -first):
            moving = dict(stack)
            _flip(sym, key, signs, moving)
            found, unsettled = _signs(sym, moving, list(rest), rounding)
            results.append(({key: signs} | found, unsettled, moving))
        (found, unsettled, one), (_, _, two) = results
        stack.update(one)
        known = all(torch.equal(one[name], two[name]) for name in one)
        return found, unsettled if known else [key, *unsettled]
    key, *rest = open_ones
    count = len(next(iter(stack.values())))
    found, unsettled = _signs(sym, stack, rest, rounding)
    stays = torch.ones(count, *sym.shape(sym.families[key].owner), dtype=torch.int8)
    return {key: stays} | found, [key, *unsettled]


def _leading_signs(sym: Symmetry, key: str, stack: Stack, open_ones: Collection[str]) -> Tensor | None:
    """The signs of the leading left singular vector of Σ w·|w| over entries of a family and of one other free one."""
    shape = sym.shape(sym.families[key].owner)
    count = len(next(iter(stack.values())))
    offsets, total = {}, 0
    for other in open_ones:
        offsets[other] = total
        total += math.prod(sym.shape(sym.families[other].owner))
    for name in witnesses(sym, stack):
        labels = {k: _labels(sym, name, k) for k in open_ones if name in _carriers(sym, k)}
        if key not in labels:
            continue
        both = (labels[key] >= 0) & (sum((label >= 0).long() for label in labels.values()) == 2)
        if not bool(both.any()):
            continue
        beside = torch.zeros_like(labels[key])
        for other, label in labels.items():
            if other != key:
                beside = torch.where(label >= 0, label + offsets[other], beside)
        entries = labels[key][both] * total + beside[both]
        sums = torch.zeros(count, math.prod(shape) * total, dtype=torch.float64)
        sums.index_add_(1, entries, signed_square(stack[name].reshape(count, -1))[:, both])
        left = torch.linalg.svd(sums.reshape(count, -1, total), full_matrices=False).U[..., 0]
        return torch.where(left < 0, -1, 1).to(torch.int8).reshape(count, *shape)
    return None


def _labels(sym: Symmetry, name: str, key: str) -> Tensor:
    """The unit whose sign each entry of a parameter carries, −1 for none, flattened."""
    structure = sym.structures[name]
    found = torch.full(structure.sizes, -1)
    for stretch, item in appearances(sym, name):
        if key in item.signs:
            found = torch.maximum(found, spread(item.unit, structure, stretch))
    return found.flatten()


def _carriers(sym: Symmetry, key: str) -> list[str]:
    return [name for name in sym.structures if any(key in item.signs for _, item in appearances(sym, name))]


def _flipped_alone(sym: Symmetry, key: str, stack: Stack, others: Collection[str]) -> Iterator[tuple[str, Carrier]]:
    """Parameters, and the appearances there, whose entries change with the sign of one unit and no other free one."""
    free = {key, *others}
    for name in witnesses(sym, stack):
        everywhere = list(appearances(sym, name))
        for stretch, item in appearances(sym, name, sym.families[key].owner):
            if key in item.signs and free.isdisjoint(other for other in item.signs if other != key):
                beside = (
                    set(there.signs)
                    for other, there in everywhere
                    if there is not item and (other is not stretch or together(item, there))
                )
                if all(free.isdisjoint(signs) for signs in beside):
                    yield name, (stretch, item)


def _settled(sym: Symmetry, key: str, stack: Stack, others: Collection[str], rounding: float) -> tuple[Tensor, bool]:
    """±1 for every unit, (N, *shape), and whether a rule has decided on all that have weights there."""
    owner = sym.families[key].owner
    count = len(next(iter(stack.values())))
    found = torch.zeros(count, *sym.shape(owner)).flatten(1)
    alive = torch.zeros(found.shape, dtype=torch.bool)
    places = list(_flipped_alone(sym, key, stack, others))
    for marked in (False, True):
        for name, place in places:
            marks = fixed_marks(sym, name) if marked else None
            total = unit_sums(sym, name, place, stack[name], signed_square, marks)
            sizes = unit_sums(sym, name, place, stack[name], size, marks)
            alive |= sizes > 0
            decided = torch.where(total.abs() > rounding * sizes, total.sign(), 0.0)
            found = torch.where(found == 0, decided, found)
            if bool((found != 0).all()):
                break
    signs = torch.where(found < 0, -1, 1).to(torch.int8).reshape(count, *sym.shape(owner))
    return signs, not bool((alive & (found == 0)).any())
