"""What many networks do on data: losses, accuracies, averaged predictions, and how far predictions differ."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional

from coset._checks import check_choice, check_count
from coset.errors import InputError
from coset.running import outputs_of_stack, suited, whole_weights, with_weights
from coset.symmetry.stacks import Stack
from coset.train.check import check_pair, probe
from coset.train.loss import LOSSES, Loss
from coset.train.metrics import evaluation_mode

Data = tuple[Tensor, Tensor]

_HELD = 2**22
"""Numbers of all networks that are held at once."""

_POINTS = 512
"""Points at a time, at most."""

_HALVINGS = 50
"""The search of a factor ends at an interval of 2 log(_LARGEST)/2^50."""

_LARGEST = 1e4
"""Factors are looked for between 1/_LARGEST and _LARGEST."""


def _softmax(outputs: Tensor) -> Tensor:
    return outputs.softmax(-1)


def _bits(outputs: Tensor) -> Tensor:
    return torch.stack([(-outputs).sigmoid(), outputs.sigmoid()], -1)


def _mean_classes(outputs: Tensor) -> Tensor:
    return outputs.log_softmax(-1).logsumexp(0) - math.log(len(outputs))


def _mean_bits(outputs: Tensor) -> Tensor:
    return functional.logsigmoid(outputs).logsumexp(0) - functional.logsigmoid(-outputs).logsumexp(0)


def _mean(outputs: Tensor) -> Tensor:
    return outputs.mean(0)


@dataclass(frozen=True)
class Reading:
    """What outputs of a loss predict.

    ``predictions``: outputs → probabilities (…, classes), or numbers where there are no ``classes``; ``averaged``:
    outputs of several networks (k, …) → outputs that give their averaged prediction.
    """

    predictions: Callable[[Tensor], Tensor]
    averaged: Callable[[Tensor], Tensor]
    classes: bool


READINGS: dict[str, Reading] = {
    "cross-entropy": Reading(_softmax, _mean_classes, True),
    "binary-cross-entropy": Reading(_bits, _mean_bits, True),
    "mse": Reading(lambda outputs: outputs, _mean, False),
    "shares": Reading(torch.sigmoid, _mean_bits, False),
}
"""Name of a loss → what its outputs predict."""


@dataclass(frozen=True)
class Averaged:
    """Averaged predictions of ``networks`` of them: means over ``groups`` of disjoint networks, in their order."""

    networks: int
    groups: int
    loss: float
    measure: float


@dataclass(frozen=True, eq=False)
class Evaluation:
    """N networks on data, in float64.

    ``losses`` (N,); ``measures`` (N,): the accuracy, or what ``measure`` says. Both are NaN of the networks that give
    anything but finite numbers, which are in no average. ``averages``: of 1, 2, 4, … networks. ``factors`` and
    ``refitted`` (N,): by what outputs are multiplied to have the least loss on calibration data, and the loss then.
    ``predictions`` (N, points, …): on the fixed points.
    """

    measure: str
    losses: Tensor
    measures: Tensor
    averages: tuple[Averaged, ...]
    predictions: Tensor
    factors: Tensor | None = None
    refitted: Tensor | None = None

    def __len__(self) -> int:
        return len(self.losses)

    @cached_property
    def usable(self) -> Tensor:
        """Which networks give finite numbers, (N,)."""
        return self.losses.isfinite() & self.measures.isfinite()

    def __repr__(self) -> str:
        bad = len(self) - int(self.usable.sum())
        lost = f", {bad} without finite outputs" if bad else ""
        mean = float(self.measures[self.usable].mean())
        return f"Evaluation({len(self)} networks, mean {self.measure} {mean:.4f}{lost})"


@dataclass(frozen=True, eq=False)
class Task:
    """Data on which networks of a model are measured, checked; ``points``: the fixed inputs, ``x`` (N, …), ``y``."""

    model: nn.Module
    loss: str
    x: Tensor
    y: Tensor
    points: Tensor
    calibration: Data | None

    @property
    def rule(self) -> Loss:
        """The loss itself."""
        return LOSSES[self.loss]

    @property
    def reading(self) -> Reading:
        """What outputs predict."""
        return READINGS[self.loss]


def task_of(model: nn.Module, network: Stack, data: Data, *, loss: str, points: int, calibration: Data | None) -> Task:
    """Check that data suit a model with the weights of one ``network``."""
    check_choice("loss", loss, READINGS)
    check_count("points", points)
    given = {"data": data} if calibration is None else {"data": data, "calibration": calibration}
    parts = [_fitted(model, network, pair, loss, what) for what, pair in given.items()]
    if calibration is not None and not READINGS[loss].classes:
        raise InputError(f"calibration is given and the loss is {loss!r}; expected one of classes, whose outputs scale")
    x, y = parts[0]
    # Evenly spaced: data in the order of their labels are all seen.
    spaced = torch.linspace(0, len(x) - 1, min(points, len(x)), dtype=torch.float64).round().long()
    return Task(model, loss, x, y, x[spaced.to(x.device)], parts[1] if len(parts) > 1 else None)


def _fitted(model: nn.Module, network: Stack, pair: object, loss: str, what: str) -> Data:
    """Inputs and targets as the loss takes them; what does not suit the weights, the model or the loss is refused."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise InputError(f"{what} is a {type(pair).__name__}; expected tensors (x, y): accuracies need labels")
    x, y = pair
    check_pair(x, y, f"x of {what}", f"y of {what}")
    weights = whole_weights(model, network)
    with evaluation_mode(model):
        outputs = with_weights(model, weights, lambda run: probe(run, suited(x[:2], weights), f"x of {what}"))
    return x, LOSSES[loss].fit_targets(y, outputs, f"y of {what}")


def evaluated(task: Task, stack: Stack, *, most: int = 64) -> Evaluation:
    """All networks of a stack on the data; averages of up to ``most`` of them."""
    usable = finite_networks(stack)
    factors = None if task.calibration is None else _factors(task, stack)
    while True:
        sums, averages = _pass(task, stack, usable, factors, most)
        bad = ~sums[:2].isfinite().all(0) & usable
        if not bool(bad.any()):
            break
        # What one network spoils on a late batch is in averages already.
        usable = usable & ~bad
    losses, measures, refitted = torch.where(usable, sums, torch.nan)
    if task.rule.measure == "rmse":
        measures = measures.sqrt()
    predictions = task.reading.predictions(_outputs(task, stack, task.points).double()).cpu()
    return Evaluation(
        task.rule.measure,
        losses,
        measures,
        averages,
        predictions,
        None if factors is None else torch.where(usable, factors, torch.nan),
        None if factors is None else refitted,
    )


def finite_networks(stack: Stack) -> Tensor:
    """Which networks of a stack have finite numbers only, (N,)."""
    known = [t.detach().reshape(len(t), -1).isfinite().all(1).cpu() for t in stack.values() if t.is_floating_point()]
    return torch.stack(known).all(0)


def _outputs(task: Task, stack: Stack, x: Tensor) -> Tensor:
    with evaluation_mode(task.model):
        return outputs_of_stack(task.model, stack, x, batch_size=_POINTS)


def _pass(
    task: Task, stack: Stack, usable: Tensor, factors: Tensor | None, most: int
) -> tuple[Tensor, tuple[Averaged, ...]]:
    """Means over the data of loss, score and loss with factors, (3, N), and averages over the usable networks."""
    rule, count, good = task.rule, len(usable), int(usable.sum())
    sums = torch.zeros(3, count, dtype=torch.float64)
    sizes = [2**power for power in range(most.bit_length()) if 2**power <= min(most, good)]
    together = torch.zeros(len(sizes), 2, dtype=torch.float64)
    mean = vmap(lambda outputs, y: rule.mean(outputs, y, 0.0), in_dims=(0, None))
    score = vmap(rule.score, in_dims=(0, None))
    start = 0
    while start < len(task.x):
        rows = slice(start, start + _rows(task, stack))
        outputs = _outputs(task, stack, task.x[rows]).double()
        y = task.y[rows].to(outputs.device)
        y = y.double() if y.is_floating_point() else y
        here = len(y)
        sums[0] += here * mean(outputs, y).cpu()
        sums[1] += score(outputs, y).double().cpu()
        if factors is not None:
            scaled = outputs * factors.to(outputs.device).reshape(-1, *[1] * (outputs.ndim - 1))
            sums[2] += here * mean(scaled, y).cpu()
        chosen = outputs[usable.to(outputs.device)]
        for number, size in enumerate(sizes):
            groups = good // size
            parts = chosen[: groups * size].reshape(groups, size, *chosen.shape[1:])
            blends = torch.stack([task.reading.averaged(part) for part in parts])
            together[number, 0] += here * mean(blends, y).mean().cpu()
            together[number, 1] += score(blends, y).double().mean().cpu()
        start += here
    together /= len(task.x)
    if rule.measure == "rmse":
        together[:, 1] = together[:, 1].sqrt()
    averages = tuple(Averaged(size, good // size, *line) for size, line in zip(sizes, together.tolist(), strict=True))
    return sums / len(task.x), averages


def _rows(task: Task, stack: Stack) -> int:
    """So many points at a time that outputs of all networks are held."""
    one = {name: tensor[:1] for name, tensor in stack.items()}
    size = _outputs(task, one, task.x[:1]).numel() * len(next(iter(stack.values())))
    return max(1, min(_POINTS, _HELD // max(1, size)))


def _factors(task: Task, stack: Stack) -> Tensor:
    """Of every network the s > 0 with the least loss of s·f(x) on the calibration data, (N,).

    The loss is convex in s, so its slope has one change of sign, which is found by halving an interval of log s.
    """
    assert task.calibration is not None
    x, y = task.calibration
    count = len(next(iter(stack.values())))
    size = _outputs(task, {name: t[:1] for name, t in stack.items()}, x[:1]).numel() * len(x)
    at_once = max(1, _HELD // size)
    found = []
    for start in range(0, count, at_once):
        outputs = _outputs(task, {name: t[start : start + at_once] for name, t in stack.items()}, x).double()
        targets = y.to(outputs.device)
        targets = targets.double() if targets.is_floating_point() else targets
        slope = vmap(grad(lambda s, o, t: task.rule.mean(s * o, t, 0.0)), in_dims=(0, 0, None))
        low = torch.full((len(outputs),), -math.log(_LARGEST), dtype=torch.float64, device=outputs.device)
        high = -low
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            rises = slope(middle.exp(), outputs, targets) > 0
            low, high = torch.where(rises, low, middle), torch.where(rises, middle, high)
        found.append(((low + high) / 2).exp().cpu())
    return torch.cat(found)


def jensen_shannon(probabilities: Tensor, others: Tensor | None = None) -> Tensor:
    """Jensen-Shannon divergences of predictions (N, …, C) and (M, …, C), means over all points in nats: (N, M).

    H((p + q)/2) − (H(p) + H(q))/2, from 0 to log 2.
    """
    p = probabilities.double().flatten(1, -2)
    q = p if others is None else others.double().flatten(1, -2)
    own, their = (torch.special.entr(part).sum(-1).mean(1) for part in (p, q))
    values = torch.zeros(len(p), len(q), dtype=torch.float64, device=p.device)
    at_once = max(1, _HELD // max(1, p[0].numel()))
    for row in range(len(p)):
        first = row if others is None else 0
        for start in range(first, len(q), at_once):
            columns = slice(start, min(start + at_once, len(q)))
            middle = torch.special.entr((p[row] + q[columns]) / 2).sum(-1).mean(1)
            values[row, columns] = middle - (own[row] + their[columns]) / 2
    if others is None:
        # Only the upper triangle was filled.
        values = values.triu() + values.triu(1).mT
    return values.clamp(min=0)


def mean_of_pairs(values: Tensor) -> float:
    """The mean of a symmetric matrix over pairs of two different ones; NaN where there are none."""
    count = len(values)
    if count < 2:
        return math.nan
    return float((values.sum() - values.diagonal().sum()) / (count * (count - 1)))
