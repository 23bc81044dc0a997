"""The permutations and signs that maximise how alike the units of two networks are, blocks within blocks."""

from collections.abc import Iterator, Mapping
from itertools import product

import numpy as np
from torch import Tensor

from coset.alignment.matching.class_places import ClassLayout, ClassMove
from coset.alignment.matching.feature_places import common_families
from coset.alignment.matching.step import TreeStep, picked_scores
from coset.symmetry import Element, Symmetry

Scores = Mapping[str, Mapping[frozenset[str], Tensor]]
"""For each class, how alike each unit of the reference is to each of the other network, (units, units) over all blocks;
kept apart by the families of signs that multiply what was seen."""


def objective(sym: Symmetry, scores: Scores, g: Element) -> float:
    """Σ over classes and units of the score of the pairs that ``g`` makes, signs included."""
    return picked_scores(sym, scores, g)[0]


def assign(sym: Symmetry, scores: Scores) -> Iterator[tuple[str, Element]]:
    """Match the outermost classes one after the other, each with all that is nested in it.

    After each: its name and the element so far. Outermost classes depend on one another only by single signs that they
    share: these are chosen first, so the last element maximises ``objective``.
    """
    layout = ClassLayout(sym, {})
    trees = {name: layout.tree(name) for name, item in sym.classes.items() if item.parent is None}
    roots = {name: tree for name, tree in trees.items() if any(scores.get(inner) for inner in tree)}
    common = dict.fromkeys(common_families(sym), 1)
    shared = {
        name: frozenset(key for inner in tree for flips in scores.get(inner, {}) for key in flips if key in common)
        for name, tree in roots.items()
    }
    for keys, names in _components(shared):
        choices = [dict(zip(keys, signs, strict=True)) for signs in product((1, -1), repeat=len(keys))]
        totals = []
        for choice in choices if keys else ():
            steps = [_step(layout, name, scores, common | choice, sym.identity()) for name in names]
            totals.append(sum(step.value(step.best())[0] for step in steps))
        common |= choices[int(np.argmax(totals))] if totals else {}
    signs = {key: sym.identity().signs[key].fill_(sign) for key, sign in common.items()}
    g = sym.element(signs=signs)
    for name in roots:
        g = _step(layout, name, scores, common, g).best()
        yield name, g


def _step(layout: ClassLayout, root: str, scores: Scores, common: Mapping[str, int], g: Element) -> TreeStep:
    """The assignment of a class and all that is nested in it, given the single signs that several classes share."""
    tree = layout.tree(root)
    given: dict[str, dict[frozenset[str], Tensor]] = {}
    for name in tree:
        parts = given.setdefault(name, {})
        for flips, score in scores.get(name, {}).items():
            own = frozenset(key for key in flips if key not in common)
            signed = score * int(np.prod([common[key] for key in flips - own]))
            parts[own] = parts[own] + signed if own in parts else signed
    active = {name for name in tree if any(scores.get(inner) for inner in layout.tree(name))}
    return TreeStep(layout, ClassMove(root, frozenset(active)), g, given)


def _components(binding: Mapping[str, frozenset[str]]) -> list[tuple[list[str], list[str]]]:
    """Classes that depend on one another, with the single signs by which they do."""
    found: list[tuple[frozenset[str], list[str]]] = []
    for name, keys in binding.items():
        joined = [part for part in found if part[0] & keys]
        found = [part for part in found if not part[0] & keys]
        found.append((keys.union(*(part[0] for part in joined)), [*(n for part in joined for n in part[1]), name]))
    return [(sorted(keys), names) for keys, names in found]
