"""Stitching: one network below a layer, a map on channels, another network above it; only the map is trained.

S(f, f̃, l, φ) = f̃_{>l} ∘ φ ∘ f_{≤l} (Godfrey et al. 2022, section 4; D.2 for the training). Both networks stay as they
are; what is frozen is computed once.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from coset._checks import check_choice, check_count, is_number
from coset._show.progress import progress
from coset.data import given_pair
from coset.errors import InputError
from coset.represent._channel_maps import as_rows, find_axis, on_channels
from coset.represent._cut import (
    CHUNK,
    KEPT_BYTES,
    Change,
    CrossingFeatures,
    Cut,
    cut,
    index_batches,
    layer_outputs,
)
from coset.represent.stitching.least_squares import products
from coset.represent.stitching.maps import MapFamily, Weights, make_family
from coset.train.check import check_pair
from coset.train.loss import LOSSES

STARTS = ("least-squares", "random")


@dataclass(frozen=True, kw_only=True)
class StitchTraining:
    """How a map is trained: plain SGD on cross-entropy (D.2.1, whose momentum 0.9 wins over the 0 that D.2 tells).

    ``head_start``: epochs in which scales stay fixed; None is half of all. ``batch_statistics``: batch normalisation
    above the cut uses the statistics of the batch in training, and those of a last pass over the data, without
    gradients and with the map in its final form, in evaluation; otherwise the second network's own in both.
    """

    epochs: int = 20
    batch_size: int = 32
    learning_rate: float = 1e-3
    momentum: float = 0.9
    head_start: int | None = None
    batch_statistics: bool = True

    def __post_init__(self) -> None:
        check_count("epochs", self.epochs, 0)
        check_count("batch_size", self.batch_size, 2)
        if self.head_start is not None:
            check_count("head_start", self.head_start, 0)
        if not isinstance(self.batch_statistics, bool):
            raise InputError(f"batch_statistics is {self.batch_statistics!r}; expected True or False")
        if not is_number(self.learning_rate) or self.learning_rate <= 0:
            raise InputError(f"learning_rate is {self.learning_rate!r}; expected a number above 0")
        if not is_number(self.momentum) or not 0 <= self.momentum < 1:
            raise InputError(f"momentum is {self.momentum!r}; expected a number in [0, 1)")


@dataclass(frozen=True)
class Stitching:
    """A stitched network: call it with inputs (N, …) for its outputs (N, classes).

    ``above``: the second network as it was given; the copy in ``cut`` has batch statistics of its own. ``matrix``
    (D, C) and ``bias`` (D): the map in its final form; ``relaxed``: the matrix in training, before a permutation took
    its place. ``losses``: the mean cross-entropy of each epoch, without the penalty of the family.
    """

    cut: Cut
    above: nn.Module
    family: MapFamily
    matrix: Tensor
    bias: Tensor | None
    relaxed: Tensor
    losses: tuple[float, ...]
    channel_axis: int

    @torch.no_grad()
    def __call__(self, inputs: Tensor) -> Tensor:
        """The outputs of the stitched network in evaluation mode."""
        features = self.cut.features(inputs)
        return self.cut.run(inputs, features, _changing(self.matrix, self.bias, self.channel_axis))


def stitch(
    below: nn.Module,
    above: nn.Module,
    layer: str,
    data: tuple[Tensor, Tensor],
    *,
    family: str | MapFamily = "g-relu",
    upper_layer: str | None = None,
    start: str = "least-squares",
    training: StitchTraining | None = None,
    channel_axis: int | None = None,
    kept_bytes: int = KEPT_BYTES,
    seed: int = 0,
    show: bool | None = None,
    **options: object,
) -> Stitching:
    """Stitch ``below``, up to ``layer``, to ``above``, from ``upper_layer`` on (the same name unless told).

    ``data``: inputs (N, …) and integer labels (N). ``family`` and ``options``: which maps, by name as in ``FAMILIES``
    ("rank" takes ``rank=4``), or a ``MapFamily``. ``start``: "least-squares", the map of the family that brings the
    features of ``below`` closest to those of ``above`` on the data, in closed form, or "random". With no epochs that
    is the result. Features of ``below`` are kept where they fit in ``kept_bytes``, and computed again otherwise.
    The same seed gives the same map; neither module is changed.
    """
    x, y = check_labelled(data, "data")
    if len(x) < 2:
        raise InputError(f"data holds {len(x)} example; expected two at least")
    training = StitchTraining() if training is None else training
    chosen = make_family(family, **options) if isinstance(family, str) else family
    if options and not isinstance(family, str):
        raise InputError(f"options {', '.join(options)} are given with a family that is made; expected none")
    check_choice("start", start, STARTS)
    joined = cut(below, above, layer, x, upper_layer=upper_layer)
    source = CrossingFeatures(joined, x, kept_bytes)
    generator = torch.Generator().manual_seed(seed)
    weights, axis = _begin(chosen, joined, source, x, start, channel_axis, generator)
    with torch.no_grad():
        first = _changing(chosen.matrix(weights), weights.get("bias"), axis)
        outputs = joined.run(*source.at(torch.arange(2)), first)
    labels = LOSSES["cross-entropy"].fit_targets(y, outputs, "labels of data")
    losses = _train(chosen, weights, joined, source, labels, axis, training, generator, show)
    with torch.no_grad():
        matrix, relaxed = chosen.settled(weights).clone(), chosen.matrix(weights).clone()
        bias = weights["bias"].detach().clone() if "bias" in weights else None
        if training.batch_statistics:
            _refresh_norms(joined, source, _changing(matrix, bias, axis), generator)
    return Stitching(joined, above, chosen, matrix, bias, relaxed, losses, axis)


def check_labelled(data: object, what: str) -> tuple[Tensor, Tensor]:
    """``data`` as a pair of tensors, as many inputs (finite) as labels; raises otherwise."""
    pair = given_pair(data, what=what)
    check_pair(*pair, f"inputs of {what}", f"labels of {what}")
    return pair


def _begin(
    family: MapFamily,
    joined: Cut,
    source: CrossingFeatures,
    x: Tensor,
    start: str,
    channel_axis: int | None,
    generator: torch.Generator,
) -> tuple[Weights, int]:
    """The first weights of the map, as the features' type and on their device, and the axis of the channels."""
    probe = source.at(torch.arange(min(2, len(x))))[1][joined.layer]
    target = next(_own_features(joined, x[:2]))
    axis, upper_axis = find_axis(probe, channel_axis), find_axis(target, channel_axis)
    c, d = probe.shape[axis], target.shape[upper_axis]
    if family.square and c != d:
        raise InputError(
            f"layer '{joined.layer}' has {c} channels and '{joined.upper_layer}' of the second model {d}; the family "
            f"'{family.name}' needs as many on both sides"
        )
    if axis != upper_axis or probe.ndim != target.ndim:
        raise InputError(
            f"features of the two models have shapes {tuple(probe.shape)} and {tuple(target.shape)}; expected channels "
            f"and positions on the same axes"
        )
    if start == "random":
        weights = family.random(d, c, generator)
    else:
        lower = (source.at(part)[1][joined.layer] for part in index_batches(len(x), CHUNK))
        upper = _own_features(joined, x)
        known = products((as_rows(a, axis), as_rows(b, axis)) for a, b in zip(lower, upper, strict=True))
        weights = family.fitted(known)
    return {name: value.to(target).requires_grad_() for name, value in weights.items()}, axis


def _own_features(joined: Cut, x: Tensor) -> Iterator[Tensor]:
    """The second network's own features at its layer, chunk by chunk."""
    for indices in index_batches(len(x), CHUNK):
        yield layer_outputs(joined.above, [joined.upper_layer], x[indices])[joined.upper_layer]


def _train(
    family: MapFamily,
    weights: Weights,
    joined: Cut,
    source: CrossingFeatures,
    labels: Tensor,
    axis: int,
    training: StitchTraining,
    generator: torch.Generator,
    show: bool | None,
) -> tuple[float, ...]:
    """Train the weights of the map in place; returns the mean loss of each epoch."""
    velocity = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    head_start = training.epochs // 2 if training.head_start is None else training.head_start
    steps = len(training_batches(len(labels), training.batch_size, None))
    losses: list[float] = []
    with (
        torch.enable_grad(),
        _batch_statistics(joined, training.batch_statistics),
        progress(f"stitching at {joined.layer}", training.epochs * steps, show=show) as bar,
    ):
        for epoch in range(training.epochs):
            for name in family.late:
                weights[name].requires_grad_(epoch >= head_start)
            total, count = 0.0, 0
            for indices in training_batches(len(labels), training.batch_size, generator):
                inputs, features = source.at(indices)
                change = _changing(family.matrix(weights), weights.get("bias"), axis)
                outputs = joined.run(inputs, features, change)
                loss = F.cross_entropy(outputs, labels[indices].to(outputs.device))
                extra = family.penalty(weights)
                _step(weights, velocity, loss if extra is None else loss + extra, training)
                with torch.no_grad():
                    family.project(weights)
                total, count = total + float(loss.detach()) * len(indices), count + len(indices)
                bar.advance(note=f"loss {total / count:.3f}")
            losses.append(total / count)
            if not math.isfinite(losses[-1]):
                raise InputError(
                    f"the loss is {losses[-1]} in epoch {epoch + 1} of stitching; expected a learning_rate below "
                    f"{training.learning_rate:g}"
                )
    return tuple(losses)


def _step(weights: Weights, velocity: Weights, objective: Tensor, training: StitchTraining) -> None:
    """One step of SGD with momentum, in place, of the weights that are not held fixed: v ← μv + ∇, w ← w − ηv."""
    moving = [name for name, weight in weights.items() if weight.requires_grad]
    slopes = torch.autograd.grad(objective, [weights[name] for name in moving])
    with torch.no_grad():
        for name, slope in zip(moving, slopes, strict=True):
            velocity[name].mul_(training.momentum).add_(slope)
            weights[name].sub_(training.learning_rate * velocity[name])


@contextmanager
def _batch_statistics(joined: Cut, on: bool = True) -> Iterator[None]:
    """While it is open, batch normalisations above the cut are in training mode, if ``on``; then in evaluation mode."""
    try:
        for norm in joined.norms:
            norm.train(on)
        yield
    finally:
        for norm in joined.norms:
            norm.eval()


@torch.no_grad()
def _refresh_norms(joined: Cut, source: CrossingFeatures, change: Change, generator: torch.Generator) -> None:
    """Give the batch normalisations above the cut the statistics of the stitched network on the data (D.2.1).

    One pass without gradients in shuffled batches, as with a map that took another's place (a permutation, that of
    its relaxation) their own statistics are those of a network no longer in use. Means and variances are those of
    batches, averaged with the number of examples as weight. Only the copy in ``joined`` is changed.
    """
    norms = [norm for norm in joined.norms if isinstance(norm, _BatchNorm) and norm.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    if not norms:
        return
    batches = [part for part in index_batches(len(source), CHUNK, generator) if len(part) > 1]
    try:
        with _batch_statistics(joined):
            seen = 0
            for norm in norms:
                norm.reset_running_stats()
            for indices in batches:
                seen += len(indices)
                for norm in norms:
                    norm.momentum = len(indices) / seen
                inputs, features = source.at(indices)
                joined.run(inputs, features, change)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


def _changing(matrix: Tensor, bias: Tensor | None, axis: int) -> Change:
    return lambda features: on_channels(matrix, features, bias, axis)


def training_batches(count: int, batch_size: int, generator: torch.Generator | None) -> list[Tensor]:
    """Indices of ``count`` examples in batches, shuffled; a last batch of one, which has no statistics, is left out."""
    batches = index_batches(count, batch_size, generator)
    return batches[:-1] if len(batches) > 1 and len(batches[-1]) < 2 else batches
