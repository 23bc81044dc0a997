"""Scores at an average of group elements, as the relaxation needs them, in little memory."""

from dataclasses import dataclass

import torch
from torch import Tensor

from coset.alignment.matching.places import Move, Place, sym_units
from coset.alignment.matching.scores import Scores, Scoring, add_product
from coset.alignment.matching.step import counted_places
from coset.alignment.matching.terms import Term
from coset.symmetry import Element
from coset.symmetry.action import Action


@dataclass
class _Factor:
    """Scores left · rightᵀ of one place, not multiplied out."""

    place: Place
    term: Term
    right: Tensor


class MeanScores:
    """The scores of a move's tree at X = Σ_k w_k g_k: Σ_k w_k · (scores at g_k); X begins as the mean of the group.

    A class's matrix is kept, unless it is larger than all the weights it is made of: then their average is, and the
    matrix is made anew for every use. So a network's means are never larger than the network, times the axes of its
    parameters.
    """

    def __init__(self, scoring: Scoring, move: Move) -> None:
        self.scoring = scoring
        self._whole: dict[str, Scores] = {}
        self._factors: dict[str, list[_Factor]] = {}
        self._places = {name: counted_places(scoring.layout, move, name) for name in scoring.layout.tree(move.root)}
        for name, places in self._places.items():
            terms = [(place, term) for place in places for term in scoring.terms.get(place.parameter, ())]
            if sym_units(scoring.layout.sym, name) ** 2 <= sum(term.right.numel() for _, term in terms):
                self._whole[name] = scoring.scores(name, None, places)
            else:
                self._factors[name] = [_Factor(place, term, scoring.right(place, term, None)) for place, term in terms]

    def matrices(self) -> dict[str, Scores]:
        """The scores of each class of the tree; to be read, not written."""
        return {
            name: self._whole[name] if name in self._whole else self._product(self._factors[name])
            for name in self._places
        }

    def approach(self, vertex: Element, step: float) -> None:
        """X ← (1 − γ)X + γ·vertex; the scoring must have been told of the classes that are others there."""
        for name, parts in self._whole.items():
            _mix(parts, self.scoring.scores(name, vertex, self._places[name]), step)
        action = Action(self.scoring.layout.sym, vertex, whole=False)
        for factor in (factor for factors in self._factors.values() for factor in factors):
            if not self.scoring.is_constant(factor.place):
                right = self.scoring.right(factor.place, factor.term, action)
                factor.right = torch.lerp(factor.right, right, step)

    def _product(self, factors: list[_Factor]) -> Scores:
        total: Scores = {}
        for factor in factors:
            add_product(total, factor.place, factor.term, self.scoring.left(factor.place, factor.term), factor.right)
        return total


def _mix(scores: Scores, new: Scores, step: float) -> None:
    """scores ← (1 − γ)·scores + γ·new, in place."""
    for parity in scores.keys() | new.keys():
        if parity in scores and parity in new:
            scores[parity].lerp_(new[parity], step)
        elif parity in scores:
            scores[parity].mul_(1 - step)
        else:
            scores[parity] = step * new[parity]
