"""A relaxation that moves all classes together: Frank and Wolfe on averages of group elements."""

import time
from dataclasses import dataclass

import torch

from coset.align.ascent import Clock, Report
from coset.align.assignment import WarmAssignment
from coset.align.orbit_means import unit_orbits
from coset.align.places import Move
from coset.align.scores import Scores, Scoring
from coset.align.step import TreeStep, move_scores
from coset.symmetry import Element

Gradient = list[dict[str, Scores]]


@dataclass(frozen=True)
class Relaxed:
    """The vertex the relaxation ended at, and the course of the relaxed objective."""

    element: Element
    history: tuple[float, ...]
    stopped: bool = False


def relax(
    scoring: Scoring,
    *,
    iterations: int = 60,
    tolerance: float = 1e-5,
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
    moves = layout.moves
    solvers = [WarmAssignment() for _ in moves]
    since = time.perf_counter()
    gradient = [move_scores(scoring, move, None) for move in moves]
    # What several moves of a tree count is counted once in the slope. The matrices are the gradient's own.
    once = [
        {name: parts if layout.counting[name] == move else {} for name, parts in scores.items()}
        for move, scores in zip(moves, gradient, strict=True)
    ]
    value = scoring.objective(None)
    weights, vertices = [1.0], list[Element | None]([None])
    start = layout.sym.restrict(scales=False).identity()
    vertex, history = start, [value]
    for number in range(iterations):
        since = clock.add("scores", since)
        for move, scores, solver in zip(moves, gradient, solvers, strict=True):
            vertex = TreeStep(layout, move, vertex, scores).best(solver)
        since = clock.add("assignment", since)
        slope = sum(
            _value(scoring, move, scores, vertex)
            - sum(w * _value(scoring, move, scores, g) for w, g in zip(weights, vertices, strict=True))
            for move, scores in zip(moves, once, strict=True)
        )
        there = scoring.objective(vertex)
        curvature = there - value - slope
        step = 1.0 if curvature >= 0 or -slope <= 2 * curvature else -slope / (2 * curvature)
        if slope <= tolerance * abs(value):
            break
        weights = [(1 - step) * w for w in weights] + [step]
        vertices.append(vertex)
        if step == 1.0:
            weights, vertices = [1.0], [vertex]
        value += step * slope + step * step * curvature
        history.append(value)
        scoring.changed(list(layout.sym.classes))
        for move, scores in zip(moves, gradient, strict=True):
            _mix(scores, move_scores(scoring, move, vertex), step)
        if report is not None and report(value, f"relaxation {number + 1}"):
            return Relaxed(vertex, tuple(history), stopped=True)
    clock.add("scores", since)
    return Relaxed(vertex, tuple(history))


def _mix(scores: dict[str, Scores], new: dict[str, Scores], step: float) -> None:
    """scores ← (1 − γ)·scores + γ·new, in place."""
    for name, parts in scores.items():
        for parity in parts.keys() | new[name].keys():
            if parity in parts and parity in new[name]:
                parts[parity].lerp_(new[name][parity], step)
            elif parity in parts:
                parts[parity].mul_(1 - step)
            else:
                parts[parity] = step * new[name][parity]


def _value(scoring: Scoring, move: Move, scores: dict[str, Scores], g: Element | None) -> float:
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
