"""Groups small enough to be written out: symmetries of every kind of structure, and all of their elements."""

import itertools
import math
from collections.abc import Collection

import torch
from torch import Tensor

from coset.symmetry import Element, Symmetry

# name -> (axes of each parameter, its shape, families, sizes)
_DECLARED = {
    # Two layers between input and output, the second with signs.
    "two layers": (
        {"a": ("h", (3, 2)), "b": ("k /h", (3, 3)), "c": ("- /k", (2, 3))}, {"h": "positive", "k": "sign"}, {},
    ),
    # As an RMS norm on a stream: s before it, n behind its gain, and what carries both.
    "signs with a hub": (
        {"a": ("s", (3, 2)), "gain": ("s{n:1}", (3,)), "b": ("u s^1{n:-1}", (2, 3)), "c": ("- s^0{n:1}", (2, 3)),
         "d": ("- u", (2, 2))},
        {"s": "sign", "s:n": "nonzero", "u": "sign"}, {},
    ),
    "signs with two hubs": (
        {"a": ("s", (2, 2)), "b": ("s{n:1}", (2,)), "c": ("s^0{n:1,m:1}", (2,)), "d": ("- s^1{m:1}", (2, 2)),
         "e": ("s^1{l:1,m:1}", (2, 2))},
        {"s": "sign", "s:n": "sign", "s:m": "sign", "s:l": "sign"}, {},
    ),
    "one sign": ({"a": ("h^0*one", (3, 2)), "b": ("h*one", (3,)), "c": ("- h^0", (2, 3))},
                 {"h": "positive", "one": "sign"}, {"h": 3}),
    # Blocks with units inside, signs on both.
    "blocks": (
        {"a": ("n^1[c]", (4, 3)), "b": ("n^1[c^0]", (4,)), "c": ("- n^0[c]", (2, 4)), "d": ("n", (2, 2))},
        {"n": "sign", "c": "sign"}, {"n": 2},
    ),
    # Blocks keep their order, their insides do not; and the other way round.
    "ordered blocks": ({"a": ("n^1[c]", (4, 3)), "b": ("- n^0[c]", (2, 4))}, {"n": "sign", "c": "sign"}, {"n": 2}),
    "ordered insides": ({"a": ("n^1[c]", (6, 2)), "b": ("- n^0[c]", (2, 6))}, {"n": "sign", "c": "sign"}, {"n": 3}),
    "blocks in blocks": (
        {"a": ("o^0[m^1[c]]", (8, 2)), "b": ("- o^1[m^1[c^0]]", (2, 8)), "c": ("o^0[m]", (4, 3)), "d": ("o", (2,))},
        {"o": "sign", "m": "sign", "c": "positive"}, {"o": 2, "m": 2},
    ),
    # Inputs and outputs of groups: two classes inside one block at the same entries.
    "coupled": (
        {"a": ("g^0[i]", (4, 2)), "w": ("g^0[o] /i", (4, 2, 2)), "b": ("- g^0[/o]", (2, 4))},
        {"i": "positive", "o": "sign"}, {"g": 2},
    ),
    # The same with a sign on the block: the class that waits must see it.
    "coupled, signed blocks": (
        {"a": ("g^0[i]", (4, 2)), "w": ("g^1[o] /i", (4, 2)), "b": ("- g^1[/o]", (2, 4)), "c": ("g", (2, 2))},
        {"i": "sign", "o": "positive", "g": "sign"}, {"g": 2},
    ),
    # One of the coupled classes has blocks of its own.
    "coupled, one with blocks": (
        {"a": ("g^0[i]", (4, 2)), "w": ("g^0[o^1[x]] /i", (8, 2)), "b": ("- g^0[o^0[x]]", (2, 8)),
         "c": ("g^0[o]", (4, 2))},
        {"o": "sign"}, {"g": 2, "o": 2},
    ),
    # Grouped queries: heads, and what queries and keys, values and outputs share.
    "grouped queries": (
        {"q": ("g^0[h^0*qk]", (4, 3)), "kv": ("g^0[/qk+vo]", (6, 2)), "o": ("g^0[h] /vo", (4, 2, 2)),
         "gain": ("g^0[/h]", (4,))},
        {"qk": "sign", "vo": "positive", "h": "sign"}, {"g": 2, "h": 2, "qk": 1, "vo": 2},
    ),
    # A flattened image, concatenated with another class.
    "segments": (
        {"a": ("h", (3, 2)), "b": ("k", (2, 2)), "c": ("- 1+/h*2+k*2", (2, 11))}, {"h": "sign", "k": "sign"}, {},
    ),
    # One class twice along an axis, at different entries.
    "class twice": ({"a": ("h", (3, 2)), "b": ("- h+2+h", (2, 8)), "c": ("h+h^0", (6,))}, {"h": "sign"}, {}),
    # One class on both axes of a parameter: the objective is quadratic in it.
    "recurrent": ({"a": ("h", (3, 2)), "w": ("h /h", (3, 3)), "b": ("- /h", (2, 3))}, {"h": "sign"}, {}),
    "recurrent blocks": (
        {"a": ("n^0[c]", (4, 2)), "w": ("n^0[c] n^0[/c]", (4, 4)), "b": ("- n^0[/c]", (2, 4))}, {"c": "sign"}, {"n": 2},
    ),
}  # fmt: skip
_ORDERED = {"ordered blocks": ["n"], "ordered insides": ["c"]}

TINY = tuple(_DECLARED)
LINEAR = tuple(name for name in TINY if not name.startswith("recurrent"))
"""Those whose objective is linear in every step."""


def tiny(name: str) -> Symmetry:
    """A symmetry by its name."""
    rows, scales, sizes = _DECLARED[name]
    like = {key: torch.zeros(shape) for key, (_, shape) in rows.items()}
    axes = {key: text for key, (text, _) in rows.items()}
    return Symmetry.from_axes(axes, like, scales=scales, sizes=sizes, ordered=_ORDERED.get(name, ()))


def weights(sym: Symmetry, generator: torch.Generator) -> dict[str, Tensor]:
    """Standard normal weights in float64."""
    shapes = {name: parameter.shape for name, parameter in sym.parameters.items()}
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


def numbered(sym: Symmetry, number: int, g: Element | None = None, active: Collection[str] | None = None) -> Element:
    """An element of the finite part of a group by its number in ``inner_products``."""
    parts = _parts(sym, g, active)
    chosen = {}
    for key, choices in reversed(parts.items()):
        number, at = divmod(number, len(choices))
        chosen[key] = choices[at]
    return _element(sym, chosen)


def inner_products(
    sym: Symmetry,
    left: dict[str, Tensor],
    right: dict[str, Tensor],
    g: Element | None = None,
    active: Collection[str] | None = None,
) -> Tensor:
    """Σ ⟨left | h·right⟩ for every h of the finite part of a group; of ``active`` classes only, the rest as ``g``."""
    return orbit(sym, right, g, active) @ torch.cat([left[name].reshape(-1) for name in sym.structures])


def orbit(
    sym: Symmetry, params: dict[str, Tensor], g: Element | None = None, active: Collection[str] | None = None
) -> Tensor:
    """h·θ for the same elements, in rows, all parameters that move one after the other.

    By the action of their parts one after the other: an element is its signs, then the permutations, inner ones first.
    """
    parts = _parts(sym, g, active)
    axis = {key: number for number, key in enumerate(parts)}
    flat = torch.cat([params[name].reshape(-1) for name in sym.structures])
    moved = flat.reshape(*[1] * len(parts), -1)
    flipped = [key for key in parts if key[0] == "sign"]
    permuted = [key for key in reversed(list(parts)) if key[0] == "permutation"]
    for key in (*flipped, *permuted):
        tables = [_table(sym, _element(sym, {key: choice})) for choice in parts[key]]
        index, factor = (torch.stack(rows) for rows in zip(*tables, strict=True))
        moved = (moved[..., index] * factor).movedim(-2, axis[key]).squeeze(len(parts))
    return moved.reshape(-1, len(flat))


_Key = tuple[str, str]


def _parts(sym: Symmetry, g: Element | None, active: Collection[str] | None) -> dict[_Key, list[Tensor]]:
    """All that each permutation and each family of signs may be."""
    start = sym.identity() if g is None else g
    names = set(sym.classes if active is None else active)
    parts: dict[_Key, list[Tensor]] = {}
    for name in sym.permuting:
        p = start.permutations[name]
        orders = list(itertools.permutations(range(p.shape[-1])))
        every = itertools.product(orders, repeat=p.numel() // p.shape[-1])
        free = [torch.tensor(rows).reshape(p.shape) for rows in every] if name in names else [p]
        parts["permutation", name] = free
    for key in sym.flipping:
        s = start.signs[key]
        every = itertools.product((1, -1), repeat=s.numel())
        free = [torch.tensor(row, dtype=s.dtype).reshape(s.shape) for row in every]
        parts["sign", key] = free if sym.families[key].owner in names else [s]
    return parts


def _element(sym: Symmetry, parts: dict[_Key, Tensor]) -> Element:
    return sym.element(
        permutations={name: value for (kind, name), value in parts.items() if kind == "permutation"},
        signs={name: value for (kind, name), value in parts.items() if kind == "sign"},
    )


def _table(sym: Symmetry, g: Element) -> tuple[Tensor, Tensor]:
    """Where each entry of all parameters together comes from, and with which sign."""
    sizes = [math.prod(sym.parameters[name].shape) for name in sym.structures]
    numbers = torch.arange(1, 1 + sum(sizes), dtype=torch.float64).split(sizes)
    shaped = {
        name: part.reshape(sym.parameters[name].shape) for name, part in zip(sym.structures, numbers, strict=True)
    }
    moved = sym.act(g, shaped, partial=True)
    signed = torch.cat([moved[name].reshape(-1) for name in sym.structures])
    return signed.abs().long() - 1, signed.sign()


def inner_product(sym: Symmetry, left: dict[str, Tensor], g: Element, right: dict[str, Tensor]) -> float:
    """Σ ⟨left | g·right⟩ over the parameters that move, by the action itself."""
    moved = sym.act(g, right)
    return sum(float((left[name] * moved[name]).sum()) for name in sym.structures)
