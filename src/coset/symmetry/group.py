"""The group law: elements, products, inverses, subgroups, and what counts as a member."""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coset.errors import InputError
from coset.symmetry.element import Element, check_values, unit_map
from coset.symmetry.gather import is_plain
from coset.symmetry.incidence import appearances
from coset.symmetry.mixing import check_matrices, conjugated, matrices_shape, random_matrices
from coset.symmetry.structure import ancestors, with_followers
from coset.symmetry.turning import carried_turns, check_turns, random_turns, summed_turns

if TYPE_CHECKING:
    from coset.symmetry.symmetry import Symmetry


def element(
    sym: "Symmetry",
    permutations: Mapping[str, Tensor] | None = None,
    scales: Mapping[str, Tensor] | None = None,
    signs: Mapping[str, Tensor] | None = None,
    matrices: Mapping[str, Tensor] | None = None,
    turns: Mapping[str, Tensor] | None = None,
) -> Element:
    """An element from its parts, checked; what is left out is neutral."""

    def ones(key: str, dtype: torch.dtype) -> Tensor:
        return torch.ones(sym.shape(sym.families[key].owner), dtype=dtype)

    result = Element(
        {name: _in_order(sym, name) for name in sym.permuting} | dict(permutations or {}),
        {key: ones(key, torch.float64) for key in sym.scaling} | dict(scales or {}),
        {key: ones(key, torch.int8) for key in sym.flipping} | dict(signs or {}),
        dict(matrices or {}),
        dict(turns or {}),
    )
    check(sym, result)
    return result


def _in_order(sym: "Symmetry", name: str) -> Tensor:
    shape = sym.shape(name)
    return torch.arange(shape[-1]).expand(shape).contiguous()


def random(sym: "Symmetry", generator: torch.Generator, spread: float, turns: int) -> Element:
    """Uniform permutations and signs; scales exp(spread·N(0, 1)); matrices and turns as their rooms say."""
    if not isinstance(generator, torch.Generator):
        raise InputError(f"random needs a torch.Generator, found {type(generator).__name__}")
    device = generator.device

    def uniform(shape: tuple[int, ...]) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64, device=device)

    def normal(key: str) -> Tensor:
        shape = sym.shape(sym.families[key].owner)
        return torch.randn(shape, generator=generator, dtype=torch.float64, device=device)

    # Sorting independent uniform numbers gives a uniform permutation of every block at once.
    # In the order of their names: equal symmetries give equal elements, however they were declared.
    permutations = {name: uniform(sym.shape(name)).argsort(-1) for name in sorted(sym.permuting)}
    scales = {key: torch.exp(spread * normal(key)) for key in sorted(sym.scaling)}
    signs = {key: torch.where(normal(key) < 0, -1, 1).to(torch.int8) for key in sorted(sym.flipping)}
    matrices = {
        name: random_matrices(sym.continuous[name].kind, matrices_shape(sym, name), generator, spread)
        for name in sorted(sym.continuous)
    }
    numbers = {
        key: random_turns(sym.turns[key], sym.shape(sym.turns[key].owner), generator, turns)
        for key in sorted(sym.turns)
    }
    return Element(permutations, scales, signs, matrices, numbers)


def full_map(sym: "Symmetry", g: Element, name: str) -> Tensor:
    """Where each unit of a class comes from under g, over all blocks: old number for every new one, (∏shape,)."""
    permutations = with_followers(g.permutations, sym.classes) if sym.classes[name].parent else g.permutations
    return unit_map(permutations, name, ancestors(name, sym.classes), sym.shape(name))


def in_order(sym: "Symmetry", g: Element, name: str) -> bool:
    """Whether no unit of a class comes from elsewhere under g; False where transforms follow its permutations."""
    for outer in (*ancestors(name, sym.classes), name):
        other = sym.classes[outer].follows
        p = g.permutations.get(outer if other is None or other not in g.permutations else other)
        if p is None:
            continue
        if not is_plain(p) or not torch.equal(p, torch.arange(p.shape[-1], device=p.device).expand_as(p)):
            return False
    return True


def _block_map(sym: "Symmetry", g: Element, name: str) -> Tensor:
    """Where the blocks around a class come from; a single block for a class that is not nested."""
    parent = sym.classes[name].parent
    return full_map(sym, g, parent) if parent is not None else torch.zeros(1, dtype=torch.long)


def _carried(sym: "Symmetry", g: Element, matrices: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """p·M·p⁻¹ for the permutations, scales and signs p of g."""
    return {
        name: conjugated(sym, full_map(sym, g, name), _factors(sym, g, name), name, matrix)
        for name, matrix in matrices.items()
    }


def _turned(sym: "Symmetry", g: Element, turns: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """p·T·p⁻¹ for the permutations and signs p of g."""
    return {key: carried_turns(sym, g, key, k, full_map(sym, g, sym.turns[key].owner)) for key, k in turns.items()}


def _factors(sym: "Symmetry", g: Element, name: str) -> Tensor:
    """By what g multiplies the units of a class that mixes, at its old units: as where it is written without gains."""
    mixing = sym.continuous[name]
    total = torch.ones(math.prod(sym.shape(name)), dtype=torch.float64)
    for parameter, places in mixing.places.items():
        items = [item for _, item in appearances(sym, parameter, name)]
        for item, place in zip(items, places, strict=True):
            if place.way and not place.gains:
                for key, power in item.scales.items():
                    if key in g.scales:
                        total = total * g.scales[key].reshape(-1).double().cpu() ** (power * place.way)
                for key in item.signs:
                    if key in g.signs:
                        total = total * g.signs[key].reshape(-1).double().cpu()
                return total
    return total


def compose(sym: "Symmetry", g: Element, h: Element) -> Element:
    """gh, h first. With A = P·D: p = p_h[p_g] and d = d_g[p_h⁻¹]·d_h, in every block that h has moved where it is."""
    check_shapes(sym, g)
    check_shapes(sym, h)
    permutations = {}
    for name in sym.permuting:
        shape = sym.shape(name)
        inner_g, inner_h = (part.permutations[name].reshape(-1, shape[-1]) for part in (g, h))
        came_from = _block_map(sym, h, name).to(inner_g.device).argsort()
        permutations[name] = torch.gather(inner_h, 1, inner_g[came_from]).reshape(shape)
    undoing: dict[str, Tensor | None] = {}

    def product(key: str, mine: Tensor, theirs: Tensor) -> Tensor:
        owner = sym.families[key].owner
        if owner not in undoing:
            undoing[owner] = None if in_order(sym, h, owner) else full_map(sym, h, owner).argsort()
        undo = undoing[owner]
        return (mine if undo is None else mine.reshape(-1)[undo.to(mine.device)].reshape(mine.shape)) * theirs

    matrices, turns = _carried(sym, g, h.matrices), _turned(sym, g, h.turns)
    for key, k in g.turns.items():
        turns[key] = summed_turns(sym.turns[key], k + turns[key].to(k.device)) if key in turns else k
    return Element(
        permutations,
        {key: product(key, g.scales[key], h.scales[key]) for key in sym.scaling},
        {key: product(key, g.signs[key], h.signs[key]) for key in sym.flipping},
        {**matrices, **{name: m @ matrices[name] if name in matrices else m for name, m in g.matrices.items()}},
        turns,
    )


def inverse(sym: "Symmetry", g: Element) -> Element:
    """g⁻¹: in block a the inverse of what g does in the block it takes a from; d⁻¹ carried along."""
    check_shapes(sym, g)
    permutations = {}
    for name in sym.permuting:
        shape = sym.shape(name)
        inner = g.permutations[name].reshape(-1, shape[-1])
        permutations[name] = inner[_block_map(sym, g, name).to(inner.device)].argsort(-1).reshape(shape)

    def carried(key: str, values: Tensor) -> Tensor:
        return values.reshape(-1)[full_map(sym, g, sym.families[key].owner).to(values.device)].reshape(values.shape)

    undone = Element(
        permutations,
        {key: 1 / carried(key, g.scales[key]) for key in sym.scaling},
        {key: carried(key, g.signs[key]) for key in sym.flipping},
    )
    inverted = {
        name: torch.linalg.inv(matrix) if sym.continuous[name].kind == "general" else matrix.mT
        for name, matrix in g.matrices.items()
    }
    back = {key: summed_turns(sym.turns[key], -k) for key, k in g.turns.items()}
    return replace(undone, matrices=_carried(sym, undone, inverted), turns=_turned(sym, undone, back))


def restrict(
    sym: "Symmetry",
    names: Collection[str] | None,
    *,
    permutations: bool,
    scales: bool,
    signs: bool,
    continuous: bool,
) -> "Symmetry":
    """The subgroup that moves only some classes, and of these only some parts.

    Matrices permute, scale and flip, and turns carry what is flipped: where one of these is left out, they are.
    """
    if isinstance(names, str):
        raise InputError(f"restrict takes a collection of class names, found the string '{names}'; use ['{names}']")
    wanted = set(sym.classes if names is None else names)
    if unknown := wanted - set(sym.classes):
        raise InputError(f"no class is called '{sorted(unknown)[0]}'; the classes are: {', '.join(sym.classes)}")
    classes = {
        name: replace(item, permutes=item.permutes and permutations and name in wanted)
        for name, item in sym.classes.items()
    }
    families = {
        key: replace(item, scales=item.scales and scales, signs=item.signs and signs)
        for key, item in sym.families.items()
        if item.owner in wanted
    }
    free = {key: item for key, item in families.items() if item.scales or item.signs}
    kept = wanted if permutations and scales and signs and continuous else set[str]()
    mixing = {name: item for name, item in sym.continuous.items() if name in kept}
    turns = {key: item for key, item in sym.turns.items() if item.owner in kept}
    whole = names is None and permutations and scales and signs and continuous
    translations = sym.translations if whole else ()
    return sym.subgroup(classes, free, mixing, turns, translations)


def check_shapes(sym: "Symmetry", g: Element) -> None:
    """Raise unless ``g`` has exactly the parts of an element of ``sym``, each of the right shape."""
    parts = (
        ("permutation", g.permutations, {name: name for name in sym.permuting}),
        ("scale", g.scales, {key: sym.families[key].owner for key in sym.scaling}),
        ("sign", g.signs, {key: sym.families[key].owner for key in sym.flipping}),
    )
    for kind, found, expected in parts:
        if found.keys() != expected.keys():
            odd = sorted(found.keys() ^ expected.keys())[0]
            problem = "is not free in this symmetry" if odd in found else "is missing"
            raise InputError(
                f"the {kind} of '{odd}' {problem}; expected {kind}s of: {', '.join(expected) or 'nothing'}"
            )
        for key, owner in expected.items():
            if not isinstance(found[key], Tensor):
                raise InputError(f"the {kind} of '{key}' is a {type(found[key]).__name__}; expected a tensor")
            if tuple(found[key].shape) != sym.shape(owner):
                raise InputError(
                    f"the {kind} of '{key}' has shape {tuple(found[key].shape)}; expected {sym.shape(owner)}"
                )


def check(sym: "Symmetry", g: Element) -> None:
    """Raise unless ``g`` is a member: shapes, permutations that are permutations, positive scales, signs ±1, matrices
    of their kinds, turns of units that turn.
    """
    check_shapes(sym, g)
    check_values(g)
    check_matrices(sym, g)
    check_turns(sym, g)
