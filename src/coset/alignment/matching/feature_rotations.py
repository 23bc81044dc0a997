"""Matrices of classes that mix from what units compute on data: Procrustes of streams, and of heads in pairs.

Both networks stand in the gauge of ``matching_gauge``: gains are 1 and GL(n) is balanced, so that features of a class
turn by the same rotation wherever they are seen.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from coset.alignment._agreement import is_trained
from coset.alignment._result import Params
from coset.alignment.assignment import assign
from coset.alignment.matching.feature_assignment import Scores
from coset.alignment.matching.feature_places import common_families
from coset.alignment.matching.rotations import Rotations, inner_product, polar
from coset.running.moments import PairMoments
from coset.symmetry import Element, Symmetry
from coset.symmetry.group import full_map

_LEVEL = 1e-6
"""Likenesses of features that differ by less, relative to their size, are the same."""


def alike(of: PairMoments, statistic: str) -> Tensor:
    """How alike features are under rotations, (N, N): covariances, or these with N in all where features are equal."""
    if statistic == "covariance":
        return of.cross / of.count
    size = float(of.squares.sum(1).prod().sqrt())
    return of.cross * (len(of.cross) / size if size > 0 else 0.0)


def turn_features(
    sym: Symmetry, scores: Scores, reference: Params, other: Params, later: Mapping[str, int] | None = None
) -> tuple[Element, float]:
    """The rotations under which features of classes that mix are most alike, and how alike; blocks go in pairs.

    A sign that many units share is not among the rotations that leave 1 where it is: both are tried. Features that have
    gone through a norm do not tell them apart but by what the units have in common: then the weights do.
    ``later``: signs of this sort by which the other network will be flipped afterwards.
    """
    keys, none = _tried(sym, scores), sym.identity()
    found = []
    for choice in product((1, -1), repeat=len(keys)):
        signs = dict(zip(keys, choice, strict=True))
        every = {**signs, **(later or {})}
        pairs = {name: _joined(sym, name, scores[name], every) for name in _varying(sym, scores)}
        g, value = _turned(sym, pairs)
        flips = {key: torch.full_like(none.signs[key], sign) for key, sign in signs.items()}
        found.append((replace(g, signs={**g.signs, **flips}), value))
    highest = max(value for _, value in found)
    level = [g for g, value in found if value >= highest - _LEVEL * abs(highest)]
    if len(level) == 1:
        return level[0], highest
    return max(level, key=lambda g: _nearness(sym, reference, sym.act(g, other))), highest


def _nearness(sym: Symmetry, reference: Params, other: Params) -> float:
    """⟨θ₀ | θ₁⟩ over trained weights."""
    names = [name for name in reference if is_trained(sym, name, reference)]
    return inner_product(reference, other, names)


def _tried(sym: Symmetry, scores: Scores) -> list[str]:
    """The signs that many units share, where features of classes that fix 1 show them."""
    fixing = [name for name, mixing in sym.continuous.items() if mixing.kind == "centred"]
    shown = {key for name in fixing for flips in scores.get(name, {}) for key in flips}
    return [key for key in common_families(sym) if key in shown]


def _varying(sym: Symmetry, scores: Scores) -> list[str]:
    """The classes that mix and vary on the data; of pairs features tell no angles: both coordinates are summed."""
    whole = [name for name, mixing in sym.continuous.items() if mixing.kind != "rotary"]
    return [name for name in whole if any(bool(part.any()) for part in scores.get(name, {}).values())]


def _joined(sym: Symmetry, name: str, parts: Mapping[frozenset[str], Tensor], signs: Mapping[str, int]) -> Tensor:
    """Scores of all pairs of blocks, (B, B, n, n); signs of single units are among the rotations, or fixed by gains."""
    *outer, n = sym.shape(name)
    blocks = math.prod(outer)
    total = torch.zeros(blocks * n, blocks * n, dtype=torch.float64)
    for flips, score in parts.items():
        total += score * math.prod(signs[key] for key in flips if key in signs)
    return total.reshape(blocks, n, blocks, n).transpose(1, 2)


def _turned(sym: Symmetry, pairs: Mapping[str, Tensor]) -> tuple[Element, float]:
    """The best exchanges and rotations, and how alike features then are."""
    permutations, matrices, total = {}, {}, 0.0
    for parent, names in _by_parent(sym, pairs):
        polars = {name: polar(pairs[name], sym.continuous[name].kind) for name in names}
        values = torch.stack([value for _, value in polars.values()]).sum(0)
        rows = torch.arange(len(values))
        order = rows if parent is None else torch.from_numpy(assign(values.numpy()))
        if parent is not None:
            permutations[parent] = order
        for name, (turned, _) in polars.items():
            matrices[name] = turned[rows, order].reshape(*sym.shape(name), -1)
        total += float(values[rows, order].sum())
    return sym.element(permutations, matrices=matrices), total


def _by_parent(sym: Symmetry, pairs: Mapping[str, Tensor]) -> Iterator[tuple[str | None, list[str]]]:
    """Classes that lie in one class of blocks that permute, together; all others one by one."""
    inside: dict[str, list[str]] = {}
    for name in pairs:
        parent = sym.classes[name].parent
        if parent is not None and parent in exchanged(sym):
            inside.setdefault(parent, []).append(name)
        else:
            yield None, [name]
    yield from inside.items()


def exchanged(sym: Symmetry) -> set[str]:
    """The classes of blocks that move with what is mixed in them."""
    around = {sym.classes[name].parent for name in sym.continuous}
    return {name for name in around if name and sym.classes[name].permutes and sym.classes[name].parent is None}


def unturned(sym: Symmetry, scores: Scores) -> Symmetry:
    """What is left to be matched: units of classes that neither mix nor are blocks of such, without scales."""
    still = {*sym.continuous, *exchanged(sym)}
    classes = {name: replace(item, permutes=item.permutes and name not in still) for name, item in sym.classes.items()}
    kept = [key for key in sym.flipping if sym.families[key].owner not in sym.continuous]
    families = {key: replace(sym.families[key], scales=False) for key in kept if key not in _tried(sym, scores)}
    return replace(sym, classes=classes, families=families, continuous={})


def carried_scores(sym: Symmetry, g: Element, scores: Scores, part: Symmetry) -> Scores:
    """Scores of the classes that permute in ``part``, with the other network moved by g, and signs that are left."""
    result: dict[str, dict[frozenset[str], Tensor]] = {}
    for name in part.permuting:
        source, moved = full_map(sym, g, name), result.setdefault(name, {})
        for flips, score in scores.get(name, {}).items():
            left = frozenset(key for key in flips if key in part.flipping)
            sign = math.prod(int(g.signs[key].reshape(-1)[0]) for key in flips - left)
            new = score[:, source] * sign
            moved[left] = moved[left] + new if left in moved else new
    return result


def turn_on_weights(
    sym: Symmetry, reference: Params, other: Params, names: Collection[str], settled: Collection[str] | None = None
) -> Element:
    """The best rotations of some classes on the weights, in whole blocks where nothing in these was seen.

    ``settled``: other classes on parameters of these alone.
    """
    steps = Rotations(sym, reference)
    inside = {parent: [n for n in sym.continuous if sym.classes[n].parent == parent] for parent in exchanged(sym)}
    whole = [parent for parent, members in inside.items() if set(members) <= set(names)]
    g = sym.identity()
    for parent in whole:
        g = sym.compose(steps.exchange(parent, sym.act(g, other)), g)
    alone = [name for name in names if sym.classes[name].parent not in whole]
    return sym.compose(steps.turn(alone, sym.act(g, other), settled), g)
