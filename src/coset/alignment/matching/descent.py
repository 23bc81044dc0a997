"""Descent on what is free in a group: matrices whose nearest permutations count, scales, generators of matrices."""

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from coset._batches import Labelled, is_pair, labelled_batches
from coset._checks import check_count, check_positive
from coset._show.progress import progress
from coset.alignment._agreement import agreement
from coset.alignment._result import (
    Alignment,
    Callback,
    Params,
    Step,
    T,
    carried,
    deviations,
    named_pivots,
    points,
)
from coset.alignment.inputs import check_pair, check_start
from coset.alignment.matching.activations import match_activations
from coset.alignment.matching.free_parts import Free, Rates, Relaxation, free_parts
from coset.alignment.matching.losses import Batch, Criterion, Loss, Objective, Setting, objective_of
from coset.alignment.matching.rotations import NoGauge, matching_gauge, reflection
from coset.alignment.matching.turns import nearest_turns
from coset.alignment.matching.weights import match_weights, untranslated
from coset.errors import InputError
from coset.symmetry import Element, Symmetry
from coset.symmetry.preserving import check_model_of


@dataclass(frozen=True)
class Options:
    """How to descend: what the methods have in common.

    ``objective``, ``model``, ``data``, ``criterion``: see ``losses``. ``scales``: whether the free scales
    of the group are learned, too, each within a factor ``largest_scale`` of what it was (None: any factor) and, if
    ``balanced``, with the geometric mean 1 over the units of a class. ``steps`` of Adam at ``learning_rate`` for the
    matrices and ``scale_rate`` for the logarithms of scales, both falling to 0 along half a cosine; data come in
    batches of ``batch_size``. Every ``every`` steps the nearest element of the group is measured, by a loss on data on
    ``examples`` fixed examples.

    ``continuous``: classes that mix are turned by matrices A ← A·exp(S), their generators S learned at
    ``generator_rate``, and the default start is a match over the whole group. Half-turns are matched again wherever an
    element is measured. The distance "l2" is that of the networks without translations; losses on data are those of
    the networks as they are, so that what is learned is what the aligned network has. ``both``: the reference has
    scales and matrices of its own, too.

    Why balanced: before a batch norm the scale of a unit's weights only tells how much it counts in an average with
    another network. A common factor moves the midpoint towards one of the two, where any loss is low, and the barrier
    to another place on the segment.
    """

    objective: str | Loss
    model: nn.Module | None
    data: Labelled | None
    criterion: str | Criterion
    scales: bool
    steps: int
    learning_rate: float
    scale_rate: float
    generator_rate: float
    largest_scale: float | None
    balanced: bool
    continuous: bool
    both: bool
    batch_size: int
    every: int
    examples: int
    start: Element | None
    seed: int
    callback: Callback | None
    show: bool | None

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "every", "examples"):
            value = getattr(self, name)
            check_count(name, value)
        check_positive("learning_rate", self.learning_rate)
        check_positive("scale_rate", self.scale_rate)
        check_positive("generator_rate", self.generator_rate)
        if self.largest_scale is not None:
            check_positive("largest_scale", self.largest_scale)
            if self.largest_scale < 1:
                raise InputError(f"largest_scale is {self.largest_scale!r}; expected a number ≥ 1, or None")


Pair = tuple[Element, Element]
"""What the reference and the other network are moved by."""


@dataclass(frozen=True)
class _Ends:
    """What is free at either end; at the reference mostly nothing."""

    reference: Free
    other: Free

    @property
    def pair(self) -> Pair:
        return self.reference.element(), self.other.element()

    def leaves(self, rates: Rates) -> list[tuple[Tensor, float]]:
        return [*self.reference.leaves(rates), *self.other.leaves(rates)]


@dataclass(frozen=True)
class _Problem:
    """Bring ``b`` to ``a``: the group, both networks, what is minimised, and the batches by which it is measured."""

    sym: Symmetry
    a: Params
    b: Params
    objective: Objective
    fixed: list[Batch | None]

    @torch.no_grad()
    def loss(self, pair: Pair) -> float:
        """The loss of (g₀·a, g·b) on the fixed batches, weighted by their sizes."""
        still, moved = self.sym.act(pair[0], self.a), self.sym.act(pair[1], self.b)
        sizes = [1 if batch is None else len(batch[0]) for batch in self.fixed]
        losses = [float(one_number(self.objective.value(still, moved, batch))) for batch in self.fixed]
        return sum(size * loss for size, loss in zip(sizes, losses, strict=True)) / sum(sizes)


@torch.enable_grad()
def descend(
    sym: Symmetry, reference: T, other: T, method: str, relaxation: Relaxation, options: Options
) -> Alignment[T]:
    """Minimise the objective over what is free, begun at the identity behind a start; the best element seen.

    The objective sees the soft action of ``relaxation`` of the matrices, and is measured at the nearest elements of the
    group. The result is never worse than the start as measured; ``Alignment.objective`` is minus that loss. The start
    is ``start`` or, over the whole group, the match on the activations of the fixed examples (without data: on the
    weights), otherwise the identity. Signs, reflections, and scales that are not learned, are those of the start.
    """
    began = time.perf_counter()
    check_pair(sym, reference, other)
    if options.model is not None:
        check_model_of(sym, options.model)
    if options.start is not None:
        check_start(sym, options.start)
    continuous, notes = _continuous(sym, reference, other, options)
    whole = options.continuous and not deviations(reference) and not deviations(other)
    turning = whole and bool(sym.turns)
    generator = torch.Generator().manual_seed(options.seed)
    (a, b), more = _pair(sym, points(reference), points(other), whole, options)
    problem, batches = _problem(sym, a, b, options, generator)
    start = _start(problem, b, continuous or turning, options)
    problem = _begun(problem, sym.act(start, b), options)
    if continuous and options.start is None:
        start = sym.compose(_reflected(problem), start)
        problem = _begun(problem, sym.act(start, b), options)
    if turning:
        as_begun = sym.identity(), sym.identity()
        start = sym.compose(_turned(problem, as_begun, problem.loss(as_begun))[0][1], start)
        problem = _begun(problem, sym.act(start, b), options)
    best = sym.identity(), sym.identity()
    lowest = problem.loss(best)
    if not math.isfinite(lowest):
        raise InputError(f"objective: the loss of the start is {lowest}; expected a finite number")
    history, stopped, measuring = [-lowest], False, time.perf_counter() - began
    free = _ends(sym, problem.a, continuous, options)
    with progress(f"aligning ({method})", total=options.steps, show=options.show) as bar:
        for number, loss in _steps(problem, free, batches, generator, relaxation, options):
            bar.advance(1, note=f"loss {loss:.4g}")
            if number % options.every and number < options.steps:
                continue
            tick = time.perf_counter()
            found = free.pair
            here = problem.loss(found)
            if turning:
                found, here = _turned(problem, found, here)
            if here < lowest:
                best, lowest = found, here
            history.append(-lowest)
            measuring += time.perf_counter() - tick
            what = f"step {number} of {options.steps}, loss {here:.6g} at the nearest element"
            if options.callback is not None and options.callback(Step(number, -lowest, what)):
                stopped = True
            if stopped or lowest <= problem.objective.least:
                break
    element = sym.compose(best[1], start)
    aligned, still = carried(sym, element, other), carried(sym, best[0], reference) if options.both else reference
    return Alignment(
        symmetry=sym, method=method, element=element, aligned=aligned, objective=-lowest, history=tuple(history),
        agreement=agreement(sym, points(still), points(aligned)),
        before=agreement(sym, points(reference), points(other)),
        seconds={"measuring": measuring, "descent": time.perf_counter() - began - measuring},
        stopped=stopped, notes=(*notes, *more, *_notes(sym, continuous or turning, options)),
        reference_element=best[0] if options.both else None, reference=still if options.both else None,
    )  # fmt: skip


def _continuous(sym: Symmetry, reference: T, other: T, options: Options) -> tuple[bool, tuple[str, ...]]:
    """Whether matrices are learned: of points, where both have a gauge in which they are matched; else what to tell."""
    if not (options.continuous and sym.continuous) or deviations(reference) or deviations(other):
        return False, ()
    try:
        for network in (reference, other):
            matching_gauge(sym, points(network))
    except NoGauge as error:
        return False, (f"{error}: no matrices were learned",)
    return True, ()


def _pair(
    sym: Symmetry, reference: Params, other: Params, whole: bool, options: Options
) -> tuple[tuple[Params, Params], tuple[str, ...]]:
    """The networks between which the objective is taken, and what to tell.

    A distance between weights is that without translations, along which it may be anything. The loss between two
    networks is that of the weights they have, which the aligned network keeps.
    """
    if not (whole and sym.translations):
        return (reference, other), ()
    listed = named_pivots(sym)
    if options.objective != "l2":
        return (reference, other), (f"translations ({listed}) were kept: the loss is that of the networks as they are",)
    try:
        return (untranslated(sym, reference), untranslated(sym, other)), ()
    except NoGauge as error:
        return (reference, other), (f"{error}: translations ({listed}) were kept",)


def _turned(problem: _Problem, pair: Pair, loss: float) -> tuple[Pair, float]:
    """The element with the half-turns that bring units nearest where it is, if these lower the loss."""
    still = problem.sym.act(pair[0], problem.a)
    turned = pair[0], nearest_turns(problem.sym, still, problem.b, pair[1])
    here = problem.loss(turned)
    return (turned, here) if here < loss else (pair, loss)


def _start(problem: _Problem, other: Params, matched: bool, options: Options) -> Element:
    """Where to begin: over the whole group by what features tell where there are data, otherwise by the weights."""
    if options.start is not None:
        return options.start
    if not matched:
        return problem.sym.identity()
    inputs = [batch[0] for batch in problem.fixed if batch is not None]
    sym, seed = problem.sym, options.seed
    if not inputs or options.model is None:
        return match_weights(sym, problem.a, other, seed=seed, show=False).element
    found = match_activations(sym, problem.a, other, model=options.model, data=inputs, seed=seed, show=False)
    return found.element


def _reflected(problem: _Problem) -> Element:
    """Reflections of streams where these lower the loss: along generators a determinant keeps its sign.

    Classes in blocks stay as they are: there are many of them, and each reflection costs a measurement. Angles of pairs
    have no reflections.
    """
    sym = problem.sym
    best, lowest = sym.identity(), problem.loss((sym.identity(), sym.identity()))
    for name in sym.continuous:
        if sym.classes[name].parent is None and sym.continuous[name].kind != "rotary":
            g = sym.compose(reflection(sym, name, problem.a, sym.act(best, problem.b)), best)
            here = problem.loss((sym.identity(), g))
            if here < lowest:
                best, lowest = g, here
    return best


def _begun(problem: _Problem, moved: Params, options: Options) -> _Problem:
    """The problem with the other network where the descent begins."""
    b = {name: tensor.detach().to(problem.a[name]) for name, tensor in moved.items()}
    setting = Setting(problem.sym, problem.a, b, options.model, options.criterion)
    return replace(problem, b=b, objective=objective_of(options.objective, setting))


def _ends(sym: Symmetry, params: Params, continuous: bool, options: Options) -> _Ends:
    """All that is free at the other network; permutations of both would be one too many."""
    own = {"scales": options.scales and options.both, "continuous": continuous and options.both}
    return _Ends(
        free_parts(sym, params, permutations=False, **own),
        free_parts(sym, params, scales=options.scales, continuous=continuous),
    )


def _notes(sym: Symmetry, matched: bool, options: Options) -> tuple[str, ...]:
    if not sym.flipping or matched or options.start is not None:
        return ()
    return ("signs were not searched: they are those of the start, of which none was given",)


def _problem(
    sym: Symmetry, reference: Params, other: Params, options: Options, generator: torch.Generator
) -> tuple[_Problem, Iterator[Batch | None]]:
    """What is minimised, and the batches for it."""
    a = {name: tensor.detach() for name, tensor in reference.items()}
    b = {name: tensor.detach().to(a[name]) for name, tensor in other.items()}
    objective = objective_of(options.objective, Setting(sym, a, b, options.model, options.criterion))
    if options.data is None or not (objective.needs_data or callable(options.objective)):
        if objective.needs_data:
            raise InputError(f"data are not given; the objective '{objective.name}' is a loss on data")
        return _Problem(sym, a, b, objective, [None]), iter(lambda: None, 0)
    like = next(tensor for tensor in a.values() if tensor.is_floating_point())

    def here(batch: Batch) -> Batch:
        x, y = batch
        return x.to(like) if x.is_floating_point() else x.to(like.device), y.to(like.device)

    data = _again(options.data)
    if is_pair(data):
        # As many inputs as targets, before any are drawn.
        next(labelled_batches(data, options.batch_size))
    measured = [here(batch) for batch in _fixed(data, options.batch_size, options.examples, generator)]
    return _Problem(sym, a, b, objective, [*measured]), map(here, _endless(data, options.batch_size, generator))


def _again(data: Labelled) -> Labelled:
    """The same data, such that one can go through them as often as one likes: an iterator is read into a list."""
    if not isinstance(data, tuple) and isinstance(data, Iterable) and iter(data) is data:
        return list(data)
    return data


def _endless(data: Labelled, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
    """Batch after batch: tensors shuffled anew for every pass, without a smaller last batch; a loader over and over."""
    while True:
        if not is_pair(data):
            yield from labelled_batches(data, batch_size)
            continue
        x, y = data
        order = torch.randperm(len(x), generator=generator)
        whole = order[: max(len(order) - len(order) % batch_size, min(batch_size, len(order)))]
        for first in range(0, len(whole), batch_size):
            chosen = whole[first : first + batch_size]
            yield x[chosen.to(x.device)], y[chosen.to(y.device)]


def _fixed(data: Labelled, batch_size: int, examples: int, generator: torch.Generator) -> list[Batch]:
    """Batches with ``examples`` examples in all: a random draw from tensors, the first batches of a loader."""
    if is_pair(data):
        x, y = data
        chosen = torch.randperm(len(x), generator=generator)[:examples]
        data = x[chosen.to(x.device)], y[chosen.to(y.device)]
    batches: list[Batch] = []
    for batch in labelled_batches(data, batch_size):
        batches.append(batch)
        if sum(len(x) for x, _ in batches) >= examples:
            break
    return batches


def _steps(
    problem: _Problem,
    free: _Ends,
    batches: Iterator[Batch | None],
    generator: torch.Generator,
    relaxation: Relaxation,
    options: Options,
) -> Iterator[tuple[int, float]]:
    """Adam, step by step: the number of the step and the relaxed loss before it. Changes ``free``."""
    pairs = free.leaves(Rates(options.learning_rate, options.scale_rate, options.generator_rate))
    if not pairs:
        return
    leaves = [leaf for leaf, _ in pairs]
    optimizer = torch.optim.Adam([{"params": [leaf], "lr": rate} for leaf, rate in pairs], betas=(0.9, 0.99))
    for number in range(1, options.steps + 1):
        for group, (_, rate) in zip(optimizer.param_groups, pairs, strict=True):
            group["lr"] = rate * (1 + math.cos(math.pi * (number - 1) / options.steps)) / 2
        still, moved = free.reference.act(problem.a, relaxation), free.other.act(problem.b, relaxation)
        loss = one_number(problem.objective.step(still, moved, next(batches), generator))
        if not bool(torch.isfinite(loss)):
            raise InputError(
                f"learning_rate is {options.learning_rate} and scale_rate {options.scale_rate}: the loss became "
                f"{float(loss.detach())} in step {number}; expected rates at which it stays finite"
            )
        if not loss.requires_grad:
            raise InputError("objective: the loss does not depend on the permuted parameters in a differentiable way")
        for leaf, gradient in zip(leaves, torch.autograd.grad(loss, leaves, allow_unused=True), strict=True):
            leaf.grad = gradient
        optimizer.step()
        for end in (free.reference, free.other):
            end.settle(options.largest_scale, options.balanced)
        yield number, float(loss.detach())


def one_number(loss: Any) -> Tensor:
    """The value of an objective, if it is one."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"type {type(loss).__name__}"
        raise InputError(f"objective gives a value of {found}; expected one number as a tensor")
    return loss
