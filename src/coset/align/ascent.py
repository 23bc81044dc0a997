"""Coordinate ascent: exact steps over the classes in random order, until no step helps."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from coset.align.assignment import WarmAssignment
from coset.align.places import Move
from coset.align.scores import Scoring
from coset.align.step import TreeStep, move_scores
from coset.symmetry import Element

ROUNDING = 16.0
"""A step must gain more than this many units of rounding of the scores it picks: less may be noise."""


@dataclass
class Clock:
    """Seconds spent by what they were spent on."""

    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, what: str, since: float) -> float:
        """Count the time since ``since`` for ``what``; returns now."""
        now = time.perf_counter()
        self.seconds[what] = self.seconds.get(what, 0.0) + now - since
        return now


@dataclass(frozen=True)
class Climb:
    """Where an ascent came to: the element, its objective, and the objective after every step that helped."""

    element: Element
    objective: float
    history: tuple[float, ...]
    stopped: bool = False


Report = Callable[[float, str], bool]
"""Told the objective and what was done after each step; True stops."""


def ascend(
    scoring: Scoring,
    start: Element,
    generator: torch.Generator,
    *,
    moves: Sequence[Move] | None = None,
    report: Report | None = None,
    clock: Clock | None = None,
) -> Climb:
    """Maximise Σ ⟨left | g·right⟩ by one move after the other, the rest held, until none improves.

    Each step is the exact optimum of its move given the others (Ainsworth et al. 2023, algorithm 1; Rossi et al. 2023,
    algorithm 1). Where a class stands on two axes of a parameter the step maximises a linearisation, and is taken only
    if the objective itself rises. A move is tried again when something its scores depend on has changed.
    """
    layout, clock = scoring.layout, clock or Clock()
    chosen = list(layout.moves if moves is None else moves)
    trees = [set(layout.tree(move.root)) for move in chosen]
    depends = [frozenset().union(*(scoring.depends(name) for name in tree)) for tree in trees]
    solvers = [WarmAssignment() for _ in chosen]
    g, objective = start, scoring.objective(start)
    history = [objective]
    waiting = set(range(len(chosen)))
    while waiting:
        for number in torch.randperm(len(chosen), generator=generator).tolist():
            if number not in waiting:
                continue
            waiting.discard(number)
            move = chosen[number]
            since = time.perf_counter()
            step = TreeStep(layout, move, g, move_scores(scoring, move, g))
            since = clock.add("scores", since)
            candidate = step.best(solvers[number])
            since = clock.add("assignment", since)
            gain = _gain(scoring, step, g, candidate)
            clock.add("scores", since)
            if gain > 0.0:
                g, objective = candidate, objective + gain
                history.append(objective)
                scoring.changed(sorted(trees[number]))
                waiting |= {other for other, names in enumerate(depends) if names & trees[number]}
                # Moves of one tree share its blocks.
                waiting |= {o for o, other in enumerate(chosen) if other.root == move.root and o != number}
                if report is not None and report(objective, f"assigned {move.root}"):
                    return Climb(g, scoring.objective(g), tuple(history), stopped=True)
    return Climb(g, scoring.objective(g), tuple(history))


def _gain(scoring: Scoring, step: TreeStep, g: Element, candidate: Element) -> float:
    """What a step adds to the objective; 0 if that is no more than rounding."""
    before, size = step.value(g)
    after, _ = step.value(candidate)
    dtype = next((term.left.dtype for terms in scoring.terms.values() for term in terms), torch.float32)
    noise = ROUNDING * torch.finfo(dtype).eps * size
    if after - before <= noise:
        return 0.0
    if step.move.root not in scoring.layout.quadratic:
        return after - before
    tree = set(scoring.layout.tree(step.move.root))
    names = [name for name in scoring.terms if any(name in scoring.layout.sym.carriers(c) for c in tree)]
    gain = scoring.objective(candidate, names) - scoring.objective(g, names)
    return gain if gain > noise else 0.0
