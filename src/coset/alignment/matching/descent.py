"""Descent on free matrices, one per class, whose nearest permutations are the alignment."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coset._batches import Labelled, is_pair, labelled_batches
from coset._checks import check_count, check_positive
from coset._show.progress import progress
from coset.alignment._agreement import agreement
from coset.alignment._result import Alignment, Callback, Params, Step, T, points
from coset.alignment.inputs import check_pair, check_start
from coset.alignment.matching.losses import Batch, Criterion, Loss, Objective, Setting, objective_of
from coset.alignment.matching.sinkhorn_operator import permutation_of
from coset.alignment.matching.soft_action import soft_act
from coset.errors import InputError
from coset.symmetry import Element, Symmetry
from coset.symmetry.preserving import check_model_of

Relaxation = Callable[[Tensor], Tensor]
"""From a free matrix (…, n, n) to the matrix that stands in for a permutation, differentiable."""


@dataclass(frozen=True)
class Options:
    """How to descend: what the methods have in common.

    ``objective``, ``model``, ``data``, ``criterion``: see ``losses``. ``scales``: whether the free scales
    of the group are learned, too, each within a factor ``largest_scale`` of what it was (None: any factor) and, if
    ``balanced``, with the geometric mean 1 over the units of a class. ``steps`` of Adam at ``learning_rate`` for the
    matrices and ``scale_rate`` for the logarithms of scales, both falling to 0 along half a cosine; data come in
    batches of ``batch_size``. Every ``every`` steps the nearest element of the group is measured, by a loss on data on
    ``examples`` fixed examples.

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
    largest_scale: float | None
    balanced: bool
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
        if self.largest_scale is not None:
            check_positive("largest_scale", self.largest_scale)
            if self.largest_scale < 1:
                raise InputError(f"largest_scale is {self.largest_scale!r}; expected a number ≥ 1, or None")


@dataclass(frozen=True)
class _Free:
    """What is descended on: ``matrices``, class → (sizes around it; n, n); ``logs`` of scales, family → its shape."""

    matrices: Mapping[str, Tensor]
    logs: Mapping[str, Tensor]

    @property
    def leaves(self) -> list[Tensor]:
        return [*self.matrices.values(), *self.logs.values()]

    def element(self, sym: Symmetry) -> Element:
        """The nearest element of the group: the best assignment of every matrix, the scales as they are."""
        permutations = {name: permutation_of(matrix).cpu() for name, matrix in self.matrices.items()}
        return sym.element(permutations, {key: log.detach().double().exp().cpu() for key, log in self.logs.items()})


@dataclass(frozen=True)
class _Problem:
    """Bring ``b`` to ``a``: the group, both networks, what is minimised, and the batches by which it is measured."""

    sym: Symmetry
    a: Params
    b: Params
    objective: Objective
    fixed: list[Batch | None]

    @torch.no_grad()
    def loss(self, g: Element) -> float:
        """The loss of g·b on the fixed batches, weighted by their sizes."""
        moved = self.sym.act(g, self.b)
        sizes = [1 if batch is None else len(batch[0]) for batch in self.fixed]
        losses = [float(one_number(self.objective.value(self.a, moved, batch))) for batch in self.fixed]
        return sum(size * loss for size, loss in zip(sizes, losses, strict=True)) / sum(sizes)


@torch.enable_grad()
def descend(
    sym: Symmetry, reference: T, other: T, method: str, relaxation: Relaxation, options: Options
) -> Alignment[T]:
    """Minimise the objective over free matrices, begun at the identity behind ``start``; the best element seen.

    The objective sees the soft action of ``relaxation`` of the matrices, and is measured at the nearest elements of the
    group. The result is never worse than ``start`` (or the identity) as measured; ``Alignment.objective`` is minus that
    loss. Signs, and scales that are not learned, are those of ``start``.
    """
    began = time.perf_counter()
    check_pair(sym, reference, other)
    if options.model is not None:
        check_model_of(sym, options.model)
    start = sym.identity() if options.start is None else options.start
    check_start(sym, start)
    generator = torch.Generator().manual_seed(options.seed)
    problem, batches = _problem(sym, points(reference), sym.act(start, points(other)), options, generator)
    best, lowest = sym.identity(), problem.loss(sym.identity())
    if not math.isfinite(lowest):
        raise InputError(f"objective: the loss of the start is {lowest}; expected a finite number")
    history, stopped, measuring = [-lowest], False, time.perf_counter() - began
    free = _identity(sym, problem.a, options.scales)
    with progress(f"aligning ({method})", total=options.steps, show=options.show) as bar:
        for number, loss in _steps(problem, free, batches, generator, relaxation, options):
            bar.advance(1, note=f"loss {loss:.4g}")
            if number % options.every and number < options.steps:
                continue
            tick = time.perf_counter()
            found = free.element(sym)
            here = problem.loss(found)
            if here < lowest:
                best, lowest = found, here
            history.append(-lowest)
            measuring += time.perf_counter() - tick
            what = f"step {number} of {options.steps}, loss {here:.6g} at the nearest element"
            if options.callback is not None and options.callback(Step(number, -lowest, what)):
                stopped = True
            if stopped or lowest <= problem.objective.least:
                break
    element = sym.compose(best, start)
    network: Any = other
    aligned: T = sym.act(element, network)
    return Alignment(
        symmetry=sym, method=method, element=element, aligned=aligned, objective=-lowest, history=tuple(history),
        agreement=agreement(sym, points(reference), points(aligned)),
        before=agreement(sym, points(reference), points(other)),
        seconds={"measuring": measuring, "descent": time.perf_counter() - began - measuring},
        stopped=stopped, notes=_notes(sym, options),
    )  # fmt: skip


def _notes(sym: Symmetry, options: Options) -> tuple[str, ...]:
    if not sym.flipping or options.start is not None:
        return ()
    return ("signs were not searched: they are those of the start, of which none was given",)


def _problem(
    sym: Symmetry, reference: Params, moved: Params, options: Options, generator: torch.Generator
) -> tuple[_Problem, Iterator[Batch | None]]:
    """What is minimised, and the batches for it."""
    a = {name: tensor.detach() for name, tensor in reference.items()}
    b = {name: tensor.detach().to(a[name]) for name, tensor in moved.items()}
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


def _identity(sym: Symmetry, params: Params, scales: bool) -> _Free:
    """Free matrices at the identity and scales of 1, of the type of the parameters but at least float32."""
    like = next((tensor for tensor in params.values() if tensor.is_floating_point()), torch.zeros(()))
    dtype = torch.promote_types(like.dtype, torch.float32)

    def eye(shape: tuple[int, ...]) -> Tensor:
        return torch.eye(shape[-1], dtype=dtype, device=like.device).repeat(*shape[:-1], 1, 1).requires_grad_()

    def zeros(key: str) -> Tensor:
        shape = sym.shape(sym.families[key].owner)
        return torch.zeros(shape, dtype=dtype, device=like.device, requires_grad=True)

    learned = sym.scaling if scales else ()
    return _Free({name: eye(sym.shape(name)) for name in sym.permuting}, {key: zeros(key) for key in learned})


def _steps(
    problem: _Problem,
    free: _Free,
    batches: Iterator[Batch | None],
    generator: torch.Generator,
    relaxation: Relaxation,
    options: Options,
) -> Iterator[tuple[int, float]]:
    """Adam, step by step: the number of the step and the relaxed loss before it. Changes ``free``."""
    leaves = free.leaves
    if not leaves:
        return
    rates = [options.learning_rate] * len(free.matrices) + [options.scale_rate] * len(free.logs)
    groups = [{"params": [leaf], "lr": rate} for leaf, rate in zip(leaves, rates, strict=True)]
    optimizer = torch.optim.Adam(groups, betas=(0.9, 0.99))
    for number in range(1, options.steps + 1):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * (1 + math.cos(math.pi * (number - 1) / options.steps)) / 2
        loss = _relaxed_loss(problem, free, next(batches), generator, relaxation)
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
        for log in free.logs.values():
            log.data.copy_(_allowed(log.detach(), options))
        yield number, float(loss.detach())


def _allowed(log: Tensor, options: Options) -> Tensor:
    """The nearest logarithms of scales within the bound and, if balanced, of mean 0: clamp(z − μ), μ by bisection."""
    limit = math.inf if options.largest_scale is None else math.log(options.largest_scale)
    if not options.balanced:
        return log.clamp(-limit, limit)
    low, high = float(log.min()), float(log.max())
    for _ in range(60):
        shift = (low + high) / 2
        mean = float((log - shift).clamp(-limit, limit).mean())
        low, high = (shift, high) if mean > 0 else (low, shift)
    return (log - high).clamp(-limit, limit)


def _relaxed_loss(
    problem: _Problem, free: _Free, batch: Batch | None, generator: torch.Generator, relaxation: Relaxation
) -> Tensor:
    """The objective at the soft action of the relaxed matrices on the scaled network."""
    b = problem.b
    if free.logs:
        b = problem.sym.act(problem.sym.element(scales={key: log.exp() for key, log in free.logs.items()}), b)
    matrices = {name: relaxation(matrix) for name, matrix in free.matrices.items()}
    return one_number(problem.objective.step(problem.a, soft_act(problem.sym, matrices, b), batch, generator))


def one_number(loss: Any) -> Tensor:
    """The value of an objective, if it is one."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"type {type(loss).__name__}"
        raise InputError(f"objective gives a value of {found}; expected one number as a tensor")
    return loss
