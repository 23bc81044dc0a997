"""A relaxation that moves all classes together: Frank and Wolfe on averages of group elements."""

import math
import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coset.alignment.assignment import WarmAssignment
from coset.alignment.matching.ascent import Climb, Clock, Report, ascend
from coset.alignment.matching.class_places import ClassMove, ClassPlace
from coset.alignment.matching.products import Term
from coset.alignment.matching.scores import Scores, Scoring, add_product
from coset.alignment.matching.step import TreeStep, counted_places
from coset.symmetry import Element
from coset.symmetry.action import Action
from coset.symmetry.orbits import unit_orbits

ITERATIONS, TOLERANCE = 60, 1e-5
"""At most so many steps, until one promises less than this part of the objective."""


@dataclass
class _Factor:
    """Scores left · rightᵀ of one place, not multiplied out."""

    place: ClassPlace
    term: Term
    right: Tensor


class MeanScores:
    """The scores of a move's tree at X = Σ_k w_k g_k: Σ_k w_k · (scores at g_k); X begins as the mean of the group.

    A class's matrix is kept, unless it is larger than all the weights it is made of: then their average is, and the
    matrix is made anew for every use. So a network's means are never larger than the network, times the axes of its
    parameters.
    """

    def __init__(self, scoring: Scoring, move: ClassMove) -> None:
        self.scoring = scoring
        self._whole: dict[str, Scores] = {}
        self._factors: dict[str, list[_Factor]] = {}
        self._places = {name: counted_places(scoring.layout, move, name) for name in scoring.layout.tree(move.root)}
        for name, places in self._places.items():
            terms = [(place, term) for place in places for term in scoring.terms.get(place.parameter, ())]
            if math.prod(scoring.layout.sym.shape(name)) ** 2 <= sum(term.right.numel() for _, term in terms):
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


@dataclass(frozen=True)
class Relaxed:
    """The vertex the relaxation ended at, and the course of the relaxed objective."""

    element: Element
    history: tuple[float, ...]
    stopped: bool = False


def relax(
    scoring: Scoring,
    *,
    iterations: int = ITERATIONS,
    tolerance: float = TOLERANCE,
    report: Report | None = None,
    clock: Clock | None = None,
) -> Relaxed:
    """Frank-Wolfe from the barycentre of the group: X ← (1 − γ)X + γV, V = argmax over the group of ⟨∇f(X), V⟩.

    X is an average of elements, Σ_k w_k g_k, acting on every class independently. The objective is bilinear in the
    classes of a parameter, so its gradient at X is the average of the scores at the g_k, and on the segment to V it is
    a parabola, known from f(X), its slope and f(V): γ is exact. (A parameter that more than two classes move enters by
    its average over the g_k, and γ is then an estimate.) From the barycentre no arrangement is preferred: what is
    certain, by inputs and outputs, is settled first, and spreads.
    """
    layout, clock = scoring.layout, clock or Clock()
    since = time.perf_counter()
    gradient = _Gradient(scoring, clock)
    value = scoring.objective(None)
    mixture = _Mixture([1.0], [None])
    vertex, history = layout.sym.restrict(scales=False).identity(), [value]
    clock.add("scores", since)
    for number in range(iterations):
        vertex, slope = gradient.vertex(vertex, mixture)
        since = time.perf_counter()
        curvature = scoring.objective(vertex) - value - slope
        step = 1.0 if curvature >= 0 or -slope <= 2 * curvature else -slope / (2 * curvature)
        if slope <= tolerance * abs(value):
            clock.add("scores", since)
            break
        mixture = mixture.toward(vertex, step)
        value += step * slope + step * step * curvature
        history.append(value)
        scoring.changed(list(layout.sym.classes))
        gradient.approach(vertex, step)
        clock.add("scores", since)
        if report is not None and report(value, f"relaxation {number + 1}"):
            return Relaxed(vertex, tuple(history), stopped=True)
    return Relaxed(vertex, tuple(history))


def ascend_twice(
    scoring: Scoring,
    start: Element,
    generator: torch.Generator,
    *,
    report: Report | None = None,
    clock: Clock | None = None,
) -> Climb:
    """The higher of two ascents: one from ``start``, and one from the end of the relaxation, which knows no start."""
    climb = ascend(scoring, start, generator, report=report, clock=clock)
    if climb.stopped:
        return climb
    relaxed = relax(scoring, report=report, clock=clock)
    if relaxed.stopped:
        return replace(climb, stopped=True)
    scoring.changed(list(scoring.layout.sym.classes))
    other = ascend(scoring, relaxed.element, generator, report=report, clock=clock)
    return replace(other if other.objective > climb.objective else climb, stopped=other.stopped)


@dataclass(frozen=True)
class _Mixture:
    """X = Σ_k w_k g_k; None stands for the mean of the group."""

    weights: list[float]
    elements: list[Element | None]

    def toward(self, vertex: Element, step: float) -> "_Mixture":
        """(1 − γ)X + γ·vertex."""
        if step == 1.0:
            return _Mixture([1.0], [vertex])
        return _Mixture([*((1 - step) * w for w in self.weights), step], [*self.elements, vertex])


class _Gradient:
    """The gradient at X, tree by tree, and the vertex that is best for it."""

    def __init__(self, scoring: Scoring, clock: Clock) -> None:
        self.scoring = scoring
        self.clock = clock
        self.means = {move: MeanScores(scoring, move) for move in scoring.layout.moves}
        self.solvers = {move: WarmAssignment() for move in scoring.layout.moves}

    def approach(self, vertex: Element, step: float) -> None:
        """X ← (1 − γ)X + γ·vertex."""
        for mean in self.means.values():
            mean.approach(vertex, step)

    def vertex(self, vertex: Element, mixture: _Mixture) -> tuple[Element, float]:
        """V = argmax ⟨∇f(X), V⟩, begun at the last vertex, and the slope ⟨∇f(X), V − X⟩.

        One tree after the other: its matrices are large, and needed here only.
        """
        layout, slope = self.scoring.layout, 0.0
        for root in dict.fromkeys(move.root for move in layout.moves):
            moves = [move for move in layout.moves if move.root == root]
            since = time.perf_counter()
            scores = {move: self.means[move].matrices() for move in moves}
            since = self.clock.add("scores", since)
            for move in moves:
                vertex = TreeStep(layout, move, vertex, scores[move]).best(self.solvers[move])
            since = self.clock.add("assignment", since)
            for move in moves:
                # What several moves of a tree count is counted once in the slope.
                once = {name: part if layout.counting[name] == move else {} for name, part in scores[move].items()}
                slope += _value(self.scoring, move, once, vertex)
                for weight, g in zip(mixture.weights, mixture.elements, strict=True):
                    slope -= weight * _value(self.scoring, move, once, g)
            self.clock.add("scores", since)
        return vertex, slope


def _value(scoring: Scoring, move: ClassMove, scores: dict[str, Scores], g: Element | None) -> float:
    """⟨∇f, g⟩ over the tree of a move; None stands for the average over the group."""
    layout = scoring.layout
    if g is not None:
        return TreeStep(layout, move, g, scores).value(g)[0]
    total = 0.0
    for name in layout.tree(move.root):
        labels = unit_orbits(layout.sym, name)
        for parity, matrix in scores[name].items():
            if not parity:
                total += _orbit_average(matrix, labels)
    return total


def _orbit_average(matrix: torch.Tensor, labels: torch.Tensor) -> float:
    """Σ_ij matrix_ij / |orbit| over i, j of one orbit."""
    if int(labels.max()) == 0:
        return float(matrix.sum(dtype=torch.float64)) / len(labels)
    sizes = torch.bincount(labels).double()
    same = labels[:, None] == labels[None, :]
    return float((matrix.double().cpu() * same / sizes[labels][:, None]).sum())
