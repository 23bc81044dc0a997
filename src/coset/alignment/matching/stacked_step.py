"""One exact step in many networks at once: ``step`` with a leading axis of networks on everything."""

import itertools
import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from coset.alignment.assignment import assign
from coset.alignment.matching.class_places import ClassLayout, ClassMove
from coset.alignment.matching.scores import Scores
from coset.alignment.matching.stacked_scores import full_maps, picked
from coset.alignment.matching.step import TreeStep, sign_hubs, signed_values
from coset.symmetry import Element
from coset.symmetry.stacks import one_of, stacked_elements


class StackedStep:
    """The assignment of a move in m networks: of a class by itself together, of a tree of blocks one by one."""

    def __init__(self, layout: ClassLayout, move: ClassMove, g: Element, scores: Mapping[str, Scores]) -> None:
        """``g``: where the networks stand, ``scores``: theirs, of every class of the tree, (m, N, N)."""
        self.layout = layout
        self.move = move
        self.tree = layout.tree(move.root)
        self.g = g
        self.scores = scores

    def best(self) -> Element:
        """For each network the element that is best for this move, everything else as it is."""
        if len(self.tree) == 1:
            return self._best_class()
        found = []
        for number in range(len(next(iter((*self.g.permutations.values(), *self.g.signs.values()))))):
            scores = {
                name: {parity: matrix[number] for parity, matrix in parts.items()}
                for name, parts in self.scores.items()
            }
            found.append(TreeStep(self.layout, self.move, one_of(self.g, number), scores).best())
        return stacked_elements(found)

    def value(self, g: Element) -> tuple[Tensor, Tensor]:
        """Σ and Σ|·| of the scores of the pairs that elements make, signs included, (m,) each, in float64."""
        total = size = torch.zeros((), dtype=torch.float64)
        for name in self.tree:
            for part in picked(self.layout, self.scores[name], g, name):
                total, size = total + part.sum(1), size + part.abs().sum(1)
        return total, size

    def _best_class(self) -> Element:
        """The root alone, over its signs and its order."""
        root, flips = self.move.root, self.layout.flips[self.move.root]
        parts = self.scores[root]
        hubs, singles = sign_hubs(flips, parts)
        configs = list(itertools.product((1, -1), repeat=len(hubs)))
        tables = [signed_values(parts, dict(zip(hubs, config, strict=True)), singles) for config in configs]
        permutations, signs = dict(self.g.permutations), dict(self.g.signs)
        known = [table for table in tables if table is not None]
        if not known:
            return self.g
        # Of signs that are equally good the first.
        best, choice = torch.stack(known).max(0) if len(known) > 1 else (known[0], None)
        if self.layout.sym.classes[root].permutes:
            orders = np.stack([assign(table) for table in best.numpy(force=True)])
            permutations[root] = torch.from_numpy(orders).to(permutations[root].device)
        if flips:
            old = full_maps(self.layout.sym, Element(permutations, {}, signs), root)
            signs |= self._settled(old, configs, choice, hubs, singles)
        return Element(permutations, self.g.scales, signs)

    def _settled(
        self,
        old: Tensor,
        configs: list[tuple[int, ...]],
        choice: Tensor | None,
        hubs: tuple[str, ...],
        singles: tuple[str, ...],
    ) -> dict[str, Tensor]:
        """The signs of units that come from ``old``: of the hubs as chosen, of others those of the parts they flip."""
        index = old[..., None]
        numbers = torch.zeros_like(old) if choice is None else choice.cpu().gather(2, index)[..., 0]
        chosen = {key: torch.tensor([c[at] for c in configs])[numbers] for at, key in enumerate(hubs)}
        found = {}
        for key in (*hubs, *singles):
            before = self.g.signs[key].gather(1, old)
            if key in chosen:
                values = chosen[key]
            else:
                odd = torch.zeros(old.shape, dtype=torch.float64)
                for parity, matrix in self.scores[self.move.root].items():
                    if key in parity:
                        picked = matrix.cpu().gather(2, index)[..., 0].double()
                        odd += math.prod([chosen[other] for other in parity if other != key], start=picked)
                # Where nothing tells, the sign stays.
                values = torch.where(odd == 0, before.double(), odd.sign())
            found[key] = torch.empty_like(before).scatter_(1, old, values.to(before.dtype))
        return found
