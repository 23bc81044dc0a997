"""Many networks at once: parameters and elements of the group with a leading axis of networks.

A stack of N networks is a dict of tensors (N, *shape). N elements are one ``Element`` whose tensors all have the
leading axis N; it is no member of the group itself, and is made and read by the functions here.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from coset._values import memory_of
from coset.errors import InputError
from coset.symmetry.action import Action, check_names, check_tensor
from coset.symmetry.element import Element
from coset.symmetry.group import check_shapes
from coset.symmetry.incidence import other_stretches
from coset.symmetry.structure import Stretch, Structure, ancestors
from coset.symmetry.symmetry import Symmetry

Stack = Mapping[str, Tensor]
"""Parameters of N networks: every tensor has a leading axis."""

_KINDS = ("permutations", "scales", "signs", "matrices", "turns")


def leading(sym: Symmetry, params: Stack, what: str = "the stack") -> int | None:
    """The number of networks on a leading axis, None for a single network; checked for all parameters."""
    check_names(sym, {name: tensor for name, tensor in params.items() if name not in sym.unsaved}, partial=False)
    leads: dict[tuple[int, ...], str] = {}
    for name, tensor in params.items():
        if name in sym.parameters:
            check_tensor(name, tensor, sym.parameters[name].shape)
            leads.setdefault(tuple(tensor.shape[: tensor.ndim - len(sym.parameters[name].shape)]), name)
    if len(leads) > 1:
        (one, first), (two, second), *_ = leads.items()
        raise InputError(
            f"'{first}' of {what} has the leading axes {one} and '{second}' {two}; expected the same for all"
        )
    lead = next(iter(leads), ())
    if len(lead) > 1:
        raise InputError(f"'{leads[lead]}' of {what} has the leading axes {lead}; expected none, or one of networks")
    if lead == (0,):
        raise InputError(f"{what} holds no network")
    return lead[0] if lead else None


def network_of(stack: Stack, number: int) -> dict[str, Tensor]:
    """One of the networks of a stack."""
    return {name: tensor[number] for name, tensor in stack.items()}


def one_of(elements: Element, number: int | slice | Tensor) -> Element:
    """One of stacked elements; with a slice or a tensor of numbers several of them, stacked."""
    return Element(*({name: tensor[number] for name, tensor in getattr(elements, kind).items()} for kind in _KINDS))


def stacked_elements(elements: Sequence[Element]) -> Element:
    """Elements with all the same parts as one, with a leading axis."""
    return Element(*(
        {name: torch.stack([getattr(g, kind)[name] for g in elements]) for name in getattr(elements[0], kind)}
        for kind in _KINDS
    ))  # fmt: skip


def count_of(elements: Element) -> int | None:
    """How many elements are stacked; None for one without any parts, which is the neutral one of any stack."""
    counts = {len(tensor) for kind in _KINDS for tensor in getattr(elements, kind).values()}
    if len(counts) > 1:
        raise InputError(f"the parts of stacked elements have leading axes of {sorted(counts)}; expected one length")
    return next(iter(counts), None)


def act_stack(sym: Symmetry, elements: Element, stack: Stack) -> dict[str, Tensor]:
    """g_i·θ_i for stacked elements and networks, as ``sym.act`` for each; tied tensors stay one."""
    count, own = leading(sym, stack), count_of(elements)
    if count is None:
        raise InputError("the stack is a single network; expected a leading axis of networks on every tensor")
    if own is not None and own != count:
        raise InputError(f"there are {own} elements and {count} networks; expected as many of both")
    if elements.matrices or elements.turns:
        singles = [sym.act(one_of(elements, number), network_of(stack, number)) for number in range(count)]
        return {name: torch.stack([single[name] for single in singles]) for name in singles[0]}
    check_shapes(sym, one_of(elements, 0))
    # vmap does not see that two names are one tensor.
    seen: dict[tuple[object, ...], str] = {}
    first = {
        name: seen.setdefault((*memory_of(tensor), id(sym.structures.get(name))), name)
        for name, tensor in stack.items()
    }
    known = {name: stack[name] for name in first.values() if name not in sym.unsaved}
    found = move_stack(sym, elements, known)
    return {name: tensor if name in sym.unsaved else found[first[name]] for name, tensor in stack.items()}


def move_stack(sym: Symmetry, parts: Element, stack: Stack) -> dict[str, Tensor]:
    """g_i·θ_i for some of the parameters and some parts of elements, all with a leading axis; nothing is checked."""
    kinds = {"permutations": dict(parts.permutations), "scales": dict(parts.scales), "signs": dict(parts.signs)}

    def one(own: dict[str, dict[str, Tensor]], params: dict[str, Tensor]) -> dict[str, Tensor]:
        return Action(sym, Element(**own), whole=False)(params, partial=True)

    if all(len(tensor) == 1 for part in (*kinds.values(), stack) for tensor in part.values()):
        single = one({kind: network_of(part, 0) for kind, part in kinds.items()}, network_of(stack, 0))
        return {name: tensor[None] for name, tensor in single.items()}
    result: dict[str, Tensor] = torch.vmap(one)(kinds, dict(stack))
    return result


def inverse_stack(sym: Symmetry, elements: Element) -> Element:
    """g_i⁻¹ for every one of stacked elements."""
    return _for_each(sym, sym.inverse, elements)


def compose_stack(sym: Symmetry, first: Element, second: Element) -> Element:
    """The products g_i·h_i of stacked elements, h_i acting first."""
    return _for_each(sym, sym.compose, first, second)


def random_stack(sym: Symmetry, count: int, generator: torch.Generator) -> Element:
    """``count`` elements as ``sym.random`` draws them one after the other."""
    return stacked_elements([sym.random(generator) for _ in range(count)])


def _for_each(sym: Symmetry, function: Callable[..., Element], *elements: Element) -> Element:
    """A function of single elements, of each of stacked ones."""
    if any(g.matrices or g.turns for g in elements):
        count = count_of(elements[0]) or 0
        return stacked_elements([function(*(one_of(g, number) for g in elements)) for number in range(count)])

    def parts(g: Element) -> tuple[dict[str, Tensor], ...]:
        return dict(g.permutations), dict(g.scales), dict(g.signs)

    if all(count_of(g) is None for g in elements):
        return Element()
    found = torch.vmap(lambda *own: parts(function(*(Element(*part) for part in own))))(*map(parts, elements))
    return Element(*found)


class StackedAction:
    """Stacked elements, ready to act: index and factor of every stretch, (m, n), are computed once."""

    def __init__(self, sym: Symmetry, g: Element) -> None:
        self.sym = sym
        self.g = g
        self._moves: dict[int, tuple[Tensor | None, Tensor | None]] = {}

    def move(self, stretch: Stretch) -> tuple[Tensor | None, Tensor | None]:
        """new[i] = factor[i]·old[index[i]] along a stretch; None stands for nothing to do."""
        if id(stretch) not in self._moves:
            self._moves[id(stretch)] = self._plain(stretch) if stretch.plain else self._joint(stretch)
        return self._moves[id(stretch)]

    def _plain(self, stretch: Stretch) -> tuple[Tensor | None, Tensor | None]:
        (one,) = stretch.appearances
        index, factor = self.g.permutations.get(one.name), None
        for key in one.signs:
            if key in self.g.signs:
                flips = self.g.signs[key]
                flips = flips if index is None else flips.gather(1, index)
                factor = flips if factor is None else factor * flips
        return index, factor

    def _joint(self, stretch: Stretch) -> tuple[Tensor | None, Tensor | None]:
        flips = any(key in self.g.signs for item in stretch.appearances for key in item.signs)
        standing = (item.name for item in stretch.appearances)
        names = {outer for name in standing for outer in (name, *ancestors(name, self.sym.classes))}
        if not flips and self.g.permutations.keys().isdisjoint(names):
            return None, None

        def one(permutations: dict[str, Tensor], signs: dict[str, Tensor]) -> tuple[Tensor, ...]:
            move = Action(self.sym, Element(permutations, {}, signs), whole=False).move(stretch)
            index = torch.arange(stretch.size) if move.index is None else move.index
            return (index,) if move.factor is None else (index, move.factor)

        found = torch.vmap(one)(dict(self.g.permutations), dict(self.g.signs))
        return found[0], found[1] if len(found) > 1 else None

    def moved(self, tensor: Tensor, structure: Structure, without: int | None) -> Tensor:
        """One parameter of all networks, (m, *sizes) as its structure takes it apart, moved along all stretches but
        one.
        """
        for stretch in other_stretches(structure, without):
            tensor = _gathered(tensor, stretch.dims, *self.move(stretch))
        return tensor


def _gathered(tensor: Tensor, dims: tuple[int, ...], index: Tensor | None, factor: Tensor | None) -> Tensor:
    """new[…, i, …] = factor[i]·old[…, index[i], …] along ``dims`` behind the axis of networks, taken as one."""
    if index is None and factor is None:
        return tensor
    first, count = 1 + dims[0], len(dims)
    adjacent, own = tuple(range(first, first + count)), tuple(1 + dim for dim in dims)
    joined = tensor.movedim(own, adjacent)
    sizes = joined.shape
    networks, n = len(tensor), math.prod(sizes[first : first + count])
    outer = math.prod(sizes[1:first])
    rows = joined.reshape(networks, outer, n, -1)
    shape = rows.shape
    if index is not None:
        # Rows of all networks as one matrix: a row is copied as a whole.
        start = torch.arange(networks * outer).reshape(networks, outer, 1) * n
        at = (start + index.cpu()[:, None, :]).reshape(-1).to(tensor.device)
        rows = rows.reshape(networks * outer * n, -1).index_select(0, at).reshape(shape)
    if factor is not None:
        rows = rows * factor.to(rows)[:, None, :, None]
    return rows.reshape(sizes).movedim(adjacent, own)
