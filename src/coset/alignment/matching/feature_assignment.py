"""The permutations and signs that maximise how alike the units of two networks are, blocks within blocks."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from coset.alignment.matching.feature_signs import common_families, signs_at, solve
from coset.symmetry import Element, Symmetry
from coset.symmetry.group import full_map

Scores = Mapping[str, Mapping[frozenset[str], Tensor]]
"""For each class, how alike each unit of the reference is to each of the other network, (units, units) over all blocks;
kept apart by the families of signs that multiply what was seen."""

Matrix = NDArray[np.float64]


def objective(sym: Symmetry, scores: Scores, g: Element) -> float:
    """Σ over classes and units of the score of the pairs that ``g`` makes, signs included."""
    total = 0.0
    for name, parts in scores.items():
        source = full_map(sym, g, name)
        for flips, score in parts.items():
            pairs = score.gather(1, source[:, None]).squeeze(1)
            for key in flips:
                pairs = pairs * signs_at(sym, g, key, name)[source]
            total += float(pairs.sum())
    return total


def assign(sym: Symmetry, scores: Scores) -> Iterator[tuple[str, Element]]:
    """Match the outermost classes one after the other, each with all that is nested in it.

    After each: its name and the element so far. Outermost classes depend on one another only by single signs that they
    share: these are chosen first, so the last element maximises ``objective``.
    """
    matching = _Matching(sym, scores)
    roots = [name for name, item in sym.classes.items() if item.parent is None and matching.is_scored(name)]
    common = dict.fromkeys(common_families(sym), 1)
    for keys, names in _components({name: matching.binding(name) for name in roots}):
        if keys:
            choices = [dict(zip(keys, signs, strict=True)) for signs in product((1, -1), repeat=len(keys))]
            totals = [sum(matching.total(name, 0, 0, common | choice) for name in names) for choice in choices]
            common |= choices[int(np.argmax(totals))]
    for key, sign in common.items():
        matching.signs[key].fill_(sign)
    for name in roots:
        matching.settle(name, 0, 0, common)
        yield name, matching.element()


def _components(binding: Mapping[str, frozenset[str]]) -> list[tuple[list[str], list[str]]]:
    """Classes that depend on one another, with the single signs by which they do."""
    found: list[tuple[frozenset[str], list[str]]] = []
    for name, keys in binding.items():
        joined = [part for part in found if part[0] & keys]
        found = [part for part in found if not part[0] & keys]
        found.append((keys.union(*(part[0] for part in joined)), [*(n for part in joined for n in part[1]), name]))
    return [(sorted(keys), names) for keys, names in found]


@dataclass(frozen=True)
class _Matching:
    """The permutations and signs so far, one row a block, and what they are to maximise."""

    sym: Symmetry
    scores: Scores
    permutations: dict[str, Tensor] = field(default_factory=dict)
    signs: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        start = self.sym.identity()
        self.permutations.update({name: p.clone() for name, p in start.permutations.items()})
        self.signs.update({key: s.clone() for key, s in start.signs.items()})

    def element(self) -> Element:
        return self.sym.element(
            {name: p.clone() for name, p in self.permutations.items()},
            signs={key: s.clone() for key, s in self.signs.items()},
        )

    def is_scored(self, name: str) -> bool:
        """Whether the class, or one nested in it, has been seen."""
        return bool(self.scores.get(name)) or any(self.is_scored(child) for child in self._children(name))

    def _children(self, name: str) -> list[str]:
        return [child for child, item in self.sym.classes.items() if item.parent == name and self.is_scored(child)]

    def binding(self, name: str) -> frozenset[str]:
        """The single signs that matter to a class or to what is nested in it: not where own signs make up for them."""
        common = frozenset(common_families(self.sym))
        shown = list(self.scores.get(name, {}))
        children = self._children(name)
        free = not children and _are_independent([self._own(name, flips) for flips in shown])
        mine = (flips & common for flips in shown if not (free and self._own(name, flips)))
        return frozenset().union(*mine, *(self.binding(child) for child in children))

    def _own(self, name: str, flips: frozenset[str]) -> frozenset[str]:
        return frozenset(key for key in flips if self.sym.families[key].owner == name)

    def parts(self, name: str, a: int, b: int, around: Mapping[str, int]) -> dict[frozenset[str], Matrix]:
        """The scores of the units of block ``a`` of the reference with those of block ``b`` of the other network.

        By the class's own families; ``around`` are the signs of the blocks they stand in.
        """
        size = self.sym.classes[name].size
        result: dict[frozenset[str], Matrix] = {}
        for flips, score in self.scores.get(name, {}).items():
            block = score[a * size : (a + 1) * size, b * size : (b + 1) * size].numpy()
            own = self._own(name, flips)
            sign = math.prod(around[key] for key in flips - own)
            result[own] = result.get(own, 0.0) + sign * block
        return result

    def values(self, name: str, a: int, b: int, around: Mapping[str, int]) -> Matrix:
        """The best score of every pair of units of two blocks, over signs and over what is nested in the units."""
        parts = self.parts(name, a, b, around)
        if not self._children(name) and _are_independent(list(parts)):
            total: Matrix = np.add.reduce([np.abs(part) if own else part for own, part in parts.items()])
            return total
        every = [self._with(name, a, b, around, choice, parts) for choice in self._choices(name)]
        best: Matrix = np.maximum.reduce(every)
        return best

    def _choices(self, name: str) -> list[dict[str, int]]:
        """All signs of a unit in the families that it, or what is nested in it, shows."""
        shown = {key for inner in self.scores for flips in self.scores[inner] for key in flips}
        keys = sorted(key for key in shown if self.sym.families[key].owner == name)
        return [dict(zip(keys, signs, strict=True)) for signs in product((1, -1), repeat=len(keys))]

    def _with(
        self,
        name: str,
        a: int,
        b: int,
        around: Mapping[str, int],
        choice: Mapping[str, int],
        parts: Mapping[frozenset[str], Matrix],
    ) -> Matrix:
        """The score of every pair of units of two blocks if the signs of the other network's are ``choice``."""
        size = self.sym.classes[name].size
        total = np.zeros((size, size))
        for own, part in parts.items():
            total += math.prod(choice[key] for key in own) * part
        for child in self._children(name):
            for u, v in product(range(size), repeat=2):
                total[u, v] += self.total(child, a * size + u, b * size + v, {**around, **choice})
        return total

    def total(self, name: str, a: int, b: int, around: Mapping[str, int]) -> float:
        """The best score of two blocks."""
        values = self.values(name, a, b, around)
        return float(values[np.arange(len(values)), self.best(name, values)].sum())

    def best(self, name: str, values: Matrix) -> NDArray[np.int64]:
        """For each unit of the reference, the other network's."""
        if not self.sym.classes[name].permutes:
            return np.arange(len(values))
        return np.asarray(linear_sum_assignment(values, maximize=True)[1], dtype=np.int64)

    def settle(self, name: str, a: int, b: int, around: Mapping[str, int]) -> None:
        """Match the units of block ``b`` of the other network to those of block ``a``, and all that is nested there."""
        size = self.sym.classes[name].size
        matched = self.best(name, self.values(name, a, b, around))
        if name in self.permutations:
            self.permutations[name].view(-1, size)[b] = torch.from_numpy(matched)
        parts = self.parts(name, a, b, around)
        children = self._children(name)
        if not children and _are_independent(list(parts)):
            self._settle_signs(name, b, matched, parts)
            return
        choices = self._choices(name)
        every = np.stack([self._with(name, a, b, around, choice, parts) for choice in choices])
        for u, v in enumerate(matched.tolist()):
            choice = choices[int(every[:, u, v].argmax())]
            for key, sign in choice.items():
                self.signs[key].view(-1)[b * size + v] = sign
            for child in children:
                self.settle(child, a * size + u, b * size + v, {**around, **choice})

    def _settle_signs(
        self, name: str, b: int, matched: NDArray[np.int64], parts: Mapping[frozenset[str], Matrix]
    ) -> None:
        """The signs that make every score of the matched pairs positive, where families are seen independently."""
        odd = [own for own in parts if own]
        keys = sorted({key for own in odd for key in own})
        matrix = np.array([[key in own for key in keys] for own in odd], dtype=bool).reshape(len(odd), len(keys))
        size = len(matched)
        for u, v in enumerate(matched.tolist()):
            bits = solve(matrix, np.array([parts[own][u, v] < 0 for own in odd], dtype=bool))
            assert bits is not None, "independent rows have a solution"
            for key, bit in zip(keys, bits, strict=True):
                self.signs[key].view(-1)[b * size + v] = -1 if bit else 1


def _are_independent(flips: Sequence[frozenset[str]]) -> bool:
    """Whether signs can be chosen so that each of these products of families, none empty, has any sign wanted."""
    odd = [own for own in flips if own]
    keys = sorted({key for own in odd for key in own})
    matrix = np.array([[key in own for key in keys] for own in odd], dtype=bool).reshape(len(odd), len(keys))
    every = (solve(matrix, row) for row in np.eye(len(odd), dtype=bool))
    return all(solution is not None for solution in every)
