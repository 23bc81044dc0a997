"""Pairs of transformers, the ways to bring one to the other, and the loss on the line between them."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

from torch import Tensor, nn

from coset.alignment import Alignment, align
from coset.data import Dataset
from coset.landscape import Profile, barrier, linear, loss
from coset.models import build, example_input
from coset.store import Entry
from coset.study import Context
from coset.symmetry import Symmetry, discover
from coset.train import Recipe

Params = Mapping[str, Tensor]

SCHEMA = 3
"""Version of what is stored of an alignment: to be raised where the same configuration comes to mean another one."""


@dataclass(frozen=True)
class Learning:
    """How an element is learned on the training loss halfway: options of the method "ste", for either group."""

    whole: Mapping[str, Any]
    permutations: Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """What all settings share: the kind of ``model``, data, training, learning, measuring.

    Of as many ``networks`` every two are a pair. Activations are compared on the first ``compared`` examples of the
    training part. The loss is measured at ``points`` τ on the first ``validated`` examples of the test part.
    """

    model: str
    data: str
    data_options: Mapping[str, Any]
    recipe: Recipe
    networks: int
    learning: Learning
    compared: int
    validated: int
    points: int


@dataclass(frozen=True)
class Case:
    """One architecture: the model, its group, and what is done with it."""

    context: Context
    task: Task
    options: Mapping[str, Any]
    model: nn.Module
    sym: Symmetry

    @property
    def dataset(self) -> Dataset:
        """The data."""
        return self.context.data(self.task.data, **self.task.data_options)

    def network(self, number: int) -> Entry:
        """The network of this number: its seed follows from it and from the study's."""
        return self.context.trained(
            model=self.task.model,
            data=self.task.data,
            recipe=self.task.recipe,
            seed=1000 * self.context.seed + number,
            options=self.options,
            data_options=self.task.data_options,
        )


@dataclass(frozen=True)
class Line:
    """The line from a network to another that was brought to it: its end, the loss along it, processor seconds."""

    end: Params
    profile: Profile
    seconds: float


def open_case(context: Context, task: Task, options: Mapping[str, Any]) -> Case:
    """The architecture with these ``options``, and its group."""
    model = build(task.model, seed=context.seed, **options).eval()
    return Case(context, task, options, model, discover(model, example_input(model)))


def _on_weights(case: Case, first: Params, second: Params, *, continuous: bool) -> Alignment[Params]:
    return align(case.sym, first, second, continuous=continuous, show=False)


def _on_activations(case: Case, first: Params, second: Params, *, continuous: bool) -> Alignment[Params]:
    inputs = case.dataset.train.x[: case.task.compared]
    options = {"model": case.model, "data": inputs, "continuous": continuous}
    return align(case.sym, first, second, "activations", show=False, **options)


def _learned(case: Case, first: Params, second: Params, *, continuous: bool) -> Alignment[Params]:
    """Descend the training loss halfway, from the element that activations give."""
    train, learning = case.dataset.train, case.task.learning
    options = {
        "model": case.model,
        "data": (train.x, train.y),
        "objective": "midpoint",
        "start": _on_activations(case, first, second, continuous=continuous).element,
        "seed": case.context.seed,
        **(learning.whole if continuous else learning.permutations),
    }
    return align(case.sym, first, second, "ste", continuous=continuous, show=case.context.show, **options)


Way = Callable[[Case, Params, Params], Alignment[Params]]

NAIVE, WEIGHTS, LEARNED = "naive", "whole group on weights", "whole group, learned"
PERMUTED = ("permutations on weights", "permutations on activations", "permutations, learned")
METHODS: dict[str, Way | None] = {
    NAIVE: None,
    PERMUTED[0]: partial(_on_weights, continuous=False),
    PERMUTED[1]: partial(_on_activations, continuous=False),
    PERMUTED[2]: partial(_learned, continuous=False),
    WEIGHTS: partial(_on_weights, continuous=True),
    "whole group on activations": partial(_on_activations, continuous=True),
    LEARNED: partial(_learned, continuous=True),
}
"""Ways to bring the second network of a pair to the first; None leaves it where it is."""


def line(case: Case, pair: tuple[int, int], method: str) -> Line:
    """The line between the two networks of ``pair`` by ``method``; found in the store, or made."""
    first, second = (case.network(number) for number in pair)
    task = case.task
    config: dict[str, object] = {
        "kind": "theus-line",
        "schema": SCHEMA,
        "networks": [first.key, second.key],
        "method": method,
        "learning": {LEARNED: task.learning.whole, PERMUTED[2]: task.learning.permutations}.get(method),
        "compared": None if method in (NAIVE, WEIGHTS, PERMUTED[0]) else task.compared,
        "validated": task.validated,
        "points": task.points,
        "seed": case.context.seed,
    }

    def make() -> tuple[Params, Mapping[str, object]]:
        clock, way = time.process_time(), METHODS[method]
        end = second.params if way is None else dict(way(case, first.params, second.params).params)
        seconds = time.process_time() - clock
        test = case.dataset.test
        measured = loss(case.model, (test.x[: task.validated], test.y[: task.validated]), batch_size=64)
        profile = barrier(linear(first.params, end), measured, points=task.points, show=False)
        return end, {"taus": list(profile.taus), "values": list(profile.values), "seconds": seconds}

    entry = case.context.store.get_or_make(config, make)
    info = entry.info
    profile = Profile("validation loss", tuple(info["taus"]), tuple(info["values"]), unit="nats")
    return Line(entry.params, profile, info["seconds"])


Found = Mapping[str, Mapping[str, Mapping[tuple[int, int], Line]]]
"""Setting → method → pair → the line between its two networks."""


def all_lines(
    context: Context, task: Task, settings: Mapping[str, Mapping[str, Any]]
) -> tuple[Mapping[str, Case], Found]:
    """Every pair of networks of every setting, options of the model by name, by every method."""
    pairs = list(combinations(range(task.networks), 2))
    cases = {name: open_case(context, task, options) for name, options in settings.items()}
    found: dict[str, dict[str, dict[tuple[int, int], Line]]] = {
        name: {method: {} for method in METHODS} for name in settings
    }
    with context.progress("lines", len(cases) * len(pairs) * len(METHODS)) as bar:
        for name, case in cases.items():
            for pair in pairs:
                for method in METHODS:
                    found[name][method][pair] = line(case, pair, method)
                    bar.advance(note=f"{name}, {pair[0]} and {pair[1]}: {method}")
    return cases, found
