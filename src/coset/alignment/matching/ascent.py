"""Coordinate ascent: exact steps over the classes in random order, until no step helps."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from coset.alignment.assignment import WarmAssignment
from coset.alignment.matching.class_places import ClassLayout, ClassMove
from coset.alignment.matching.scores import Scoring
from coset.alignment.matching.step import TreeStep, move_scores
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
    moves: Sequence[ClassMove] | None = None,
    report: Report | None = None,
    clock: Clock | None = None,
) -> Climb:
    """Maximise Σ ⟨left | g·right⟩ by one move after the other, the rest held, until none improves.

    Each step is the exact optimum of its move given the others (Ainsworth et al. 2023, algorithm 1; Rossi et al. 2023,
    algorithm 1). Where a class stands on two axes of a parameter the step maximises a linearisation, and is taken only
    if the objective itself rises. A tree of blocks with several moves is in the end arranged anew, and that is taken if
    it helps.
    """
    ascent = _Ascent(scoring, scoring.layout.moves if moves is None else moves, generator, clock or Clock())
    g, objective = start, scoring.objective(start)
    history = [objective]
    for g, gain, root in ascent.steps(start):
        objective += gain
        history.append(objective)
        if report is not None and report(objective, f"assigned {root}"):
            return Climb(g, scoring.objective(g), tuple(history), stopped=True)
    return Climb(g, scoring.objective(g), tuple(history))


def followers(scoring: Scoring, moves: Sequence[ClassMove]) -> list[frozenset[int]]:
    """For each move, those to be tried again when it has helped: its scores enter theirs, or they are of one tree."""
    trees = [frozenset(scoring.layout.tree(move.root)) for move in moves]
    depends = [frozenset().union(*(scoring.depends(name) for name in tree)) for tree in trees]
    every = range(len(moves))
    # Moves of one tree share its blocks.
    return [
        frozenset(m for m in every if depends[m] & trees[n] or (moves[m].root == moves[n].root and m != n))
        for n in every
    ]


class _Ascent:
    """The moves of an ascent: what each depends on, and the prices its assignments begin with."""

    def __init__(self, scoring: Scoring, moves: Sequence[ClassMove], generator: torch.Generator, clock: Clock) -> None:
        self.scoring = scoring
        self.moves = list(moves)
        self.generator = generator
        self.clock = clock
        self.solvers = [WarmAssignment() for _ in self.moves]
        self.trees = [frozenset(scoring.layout.tree(move.root)) for move in self.moves]
        self.followers = followers(scoring, self.moves)
        roots = [move.root for move in self.moves]
        every = range(len(self.moves))
        self.several = {
            root: frozenset(n for n in every if roots[n] == root) for root in roots if roots.count(root) > 1
        }

    def steps(self, g: Element) -> Iterator[tuple[Element, float, str]]:
        """Every step that helps: where it leads, what it adds to the objective, the root of its tree."""
        waiting, anew = set(range(len(self.moves))), set(self.several)
        while waiting or anew:
            for settled, gain, number in self._settle(g, waiting):
                g = settled
                anew |= {root for root, own in self.several.items() if own & self.followers[number]}
                yield g, gain, self.moves[number].root
            if anew:
                root = min(anew)
                anew.discard(root)
                g, gain = self._renew(root, g)
                if gain > 0.0:
                    waiting |= self.followers[min(self.several[root])]
                    yield g, gain, root

    def _settle(
        self, g: Element, waiting: set[int], within: frozenset[int] | None = None
    ) -> Iterator[tuple[Element, float, int]]:
        """Take the waiting moves, and those that depend on one that helped, in random order until none helps."""
        while waiting:
            for number in torch.randperm(len(self.moves), generator=self.generator).tolist():
                if number not in waiting:
                    continue
                waiting.discard(number)
                g, gain = self._step(number, g)
                if gain > 0.0:
                    waiting |= self.followers[number] & within if within is not None else self.followers[number]
                    yield g, gain, number

    def _step(self, number: int, g: Element) -> tuple[Element, float]:
        """The best element for a move and what it adds to the objective; ``g`` and 0 if that is only rounding."""
        since = time.perf_counter()
        move = self.moves[number]
        step = TreeStep(self.scoring.layout, move, g, move_scores(self.scoring, move, g))
        since = self.clock.add("scores", since)
        candidate = step.best(self.solvers[number])
        since = self.clock.add("assignment", since)
        gain = _gain(self.scoring, step, g, candidate)
        if gain > 0.0:
            self.scoring.changed(sorted(self.trees[number]))
        self.clock.add("scores", since)
        return (candidate, gain) if gain > 0.0 else (g, 0.0)

    def _renew(self, root: str, g: Element) -> tuple[Element, float]:
        """Arrange a tree with several moves anew: the best that is found, and what it adds; ``g`` and 0 if nothing.

        Classes at the same entries settle each other: one that is wrong keeps the others wrong. So all are assigned in
        one step, each on average over the classes beside it; then each of the moves is once the first to follow.
        """
        own, layout = self.several[root], self.scoring.layout
        tree = layout.tree(root)
        names = carrying(self.scoring.layout, self.scoring.terms, tree)
        value = self.scoring.objective(g, names)
        best, most = g, ROUNDING * _precision(self.scoring) * abs(value)
        whole = ClassMove(root, frozenset().union(*(self.moves[number].active for number in own)))
        scores = {name: self.scoring.scores(name, g, apart=True) for name in tree}
        together = TreeStep(layout, whole, g, scores).best()
        for number in sorted(own):
            h = together
            self.scoring.changed(tree)
            for waiting in ({number}, set(own)):
                for settled, _, _ in self._settle(h, waiting, own):
                    h = settled
            if (gain := self.scoring.objective(h, names) - value) > most:
                best, most = h, gain
        self.scoring.changed(tree)
        return (best, most) if best is not g else (g, 0.0)


def _gain(scoring: Scoring, step: TreeStep, g: Element, candidate: Element) -> float:
    """What a step adds to the objective; 0 if that is no more than rounding."""
    before, size = step.value(g)
    after, _ = step.value(candidate)
    noise = ROUNDING * _precision(scoring) * size
    if after - before <= noise:
        return 0.0
    if step.move.root not in scoring.layout.quadratic:
        return after - before
    names = carrying(scoring.layout, scoring.terms, step.tree)
    gain = scoring.objective(candidate, names) - scoring.objective(g, names)
    return gain if gain > noise else 0.0


def _precision(scoring: Scoring) -> float:
    dtype = next((term.left.dtype for terms in scoring.terms.values() for term in terms), torch.float32)
    return torch.finfo(dtype).eps


def carrying(layout: ClassLayout, matched: Iterable[str], tree: Sequence[str]) -> list[str]:
    """The matched parameters that carry a class of a tree."""
    carriers = {name for label in tree for name in layout.sym.carriers(label)}
    return [name for name in matched if name in carriers]
