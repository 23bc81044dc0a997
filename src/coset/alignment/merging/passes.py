"""Passes over data that measure the units of networks, each with the corrections of earlier layers in place."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coset._show.progress import Ticker
from coset.alignment._result import Params
from coset.alignment.merging.layer_statistics import LAYER_KINDS, Anatomy, Layer, LayerWatch, moments, read_anatomy, run
from coset.alignment.merging.renormalized import Correction, correction, refreshed
from coset.errors import InputError
from coset.running.moments import Moments, merged
from coset.symmetry import Symmetry
from coset.symmetry.axes import units_of


@dataclass(frozen=True)
class Task:
    """The question: which network to correct after which ends, and how: ``kind``, a name in ``RENORMALIZATIONS``.

    ``hidden_only``: not the layers whose outputs carry no class that permutes. ``batch_ends``: whether the ends' batch
    norms, too, use the statistics of the batch and not their own.
    """

    sym: Symmetry
    model: nn.Module
    merged: Params
    ends: Sequence[Params]
    weights: Sequence[float]
    kind: str
    hidden_only: bool = True
    batch_ends: bool = False


@dataclass(frozen=True)
class Known:
    """What a pass over the data has told.

    ``layers``: those to be corrected. ``found``: weight or running variance → the moments of the layer's outputs before
    correction, or of what the norm reads, in the merged network; ``ends``: the same in each end, as it is.
    """

    anatomy: Anatomy
    layers: tuple[Layer, ...]
    found: Mapping[str, Moments]
    ends: Sequence[Mapping[str, Moments]]


def first_pass(task: Task, batches: Iterable[Tensor], bar: Ticker) -> Known:
    """Correct every batch by its own statistics, and pool these."""
    anatomy: Anatomy | None = None
    layers: tuple[Layer, ...] = ()
    ends: list[dict[str, Moments]] = [{} for _ in task.ends]
    found: dict[str, Moments] = {}
    for number, inputs in enumerate(batches):
        if bad := int(inputs.isfinite().logical_not().sum()):
            raise InputError(f"batch {number} of data has {bad} entries that are NaN or infinite; expected none")
        if anatomy is None:
            anatomy = read_anatomy(task.model, task.merged, inputs)
            layers = _to_correct(task, anatomy)
        by_batch, seen = partial(_by_batch, number), list[dict[str, Moments]]()
        for end, total in zip(task.ends, ends, strict=True) if layers or task.batch_ends else ():
            normalize = by_batch if task.batch_ends else _by_itself
            seen.append(_watched(task.model, end, layers, inputs, lambda layer, own: None, normalize))
            _pool(total, seen[-1])
        change = partial(_correction, task, ends=seen)
        _pool(found, _watched(task.model, task.merged, layers, inputs, change, by_batch))
        bar.advance()
    assert anatomy is not None
    return Known(anatomy, layers, found, ends)


def next_pass(task: Task, known: Known, batches: Iterable[Tensor], bar: Ticker) -> Known:
    """Correct every batch by the statistics of the pass before, and pool what it has now."""
    found: dict[str, Moments] = {}
    changes = corrections(task, known)
    params = refreshed(task.merged, known.found, known.anatomy.norms)
    statistics = {norm.variance: (params[norm.mean], params[norm.variance]) for norm in known.anatomy.norms}

    def change(layer: Layer, own: Moments) -> Correction:
        return changes[layer.weight]

    def normalize(variance: str, call: Mapping[str, Any], own: Moments) -> Tensor:
        mean, spread = statistics[variance]
        return F.batch_norm(**{**call, "running_mean": mean, "running_var": spread, "training": False})

    for inputs in batches:
        _pool(found, _watched(task.model, task.merged, known.layers, inputs, change, normalize))
        bar.advance()
    return replace(known, found=found)


def corrections(task: Task, known: Known) -> dict[str, Correction]:
    """Weight → the correction of its outputs, from the pooled statistics."""
    return {layer.weight: _correction(task, layer, known.found[layer.weight], known.ends) for layer in known.layers}


def target(ends: Sequence[Mapping[str, Moments]], weights: Sequence[float], name: str) -> tuple[Tensor, Tensor]:
    """The weighted means of the ends' means and deviations."""
    found = [end[name] for end in ends]
    return weighted(weights, [own.mean for own in found]), weighted(weights, [own.deviation for own in found])


def weighted(weights: Sequence[float], parts: Sequence[Tensor]) -> Tensor:
    """Σ wᵢ xᵢ."""
    return torch.stack([share * part for share, part in zip(weights, parts, strict=True)]).sum(0)


def _to_correct(task: Task, anatomy: Anatomy) -> tuple[Layer, ...]:
    if task.kind == "refresh":
        return ()
    return tuple(
        layer for layer in anatomy.layers if not layer.norm and (_is_hidden(task.sym, layer) or not task.hidden_only)
    )


def _is_hidden(sym: Symmetry, layer: Layer) -> bool:
    """Whether the outputs of a layer carry a class that permutes.

    The graph tells what stands on them. Of a call that no module of torch's own makes it knows nothing: there the
    weight's axis does, which lacks the groups of a transposed convolution.
    """
    output = sym.graph.output_beside(layer.weight, LAYER_KINDS)
    node = sym.parameters[layer.weight].axes[layer.axis] if output is None else output.axes[layer.channel]
    return any(sym.classes[unit.name].permutes for unit in units_of(node))


def _correction(task: Task, layer: Layer, own: Moments, ends: Sequence[Mapping[str, Moments]]) -> Correction:
    mean, deviation = target(ends, task.weights, layer.weight)
    shifts = task.kind == "repair" and layer.bias is not None
    return correction(own, mean if shifts else None, deviation, task.merged[layer.weight].dtype)


_Change = Callable[[Layer, Moments], Correction | None]
_Normalize = Callable[[str, Mapping[str, Any], Moments], Tensor]


def _watched(
    model: nn.Module, params: Params, layers: Sequence[Layer], inputs: Tensor, change: _Change, normalize: _Normalize
) -> dict[str, Moments]:
    """Run a network on a batch with changed outputs; returns the moments before the change."""
    by_weight = {layer.weight: layer for layer in layers}
    found: dict[str, Moments] = {}

    def on_layer(weight: str, outputs: Tensor) -> Tensor:
        layer = by_weight.get(weight)
        if layer is None:
            return outputs
        own = found[weight] = moments(outputs, layer.channel, f"the outputs of '{weight}'")
        changed = change(layer, own)
        return outputs if changed is None else changed(outputs, layer.channel)

    def on_norm(variance: str, call: Mapping[str, Any]) -> Tensor:
        own = moments(call["input"], 1, f"the inputs of the norm of '{variance}'")
        _pool(found, {variance: own})
        return normalize(variance, call, own)

    run(model, params, inputs, LayerWatch(on_layer, on_norm))
    return found


def _by_itself(variance: str, call: Mapping[str, Any], own: Moments) -> Tensor:
    return F.batch_norm(**call)


def _by_batch(number: int, variance: str, call: Mapping[str, Any], own: Moments) -> Tensor:
    if own.count < 2:
        raise InputError(
            f"batch {number} of data gives the batch norm of '{variance}' one value per channel; its statistics need "
            f"two: choose another batch_size"
        )
    return F.batch_norm(**{**call, "running_mean": None, "running_var": None, "training": True})


def _pool(total: dict[str, Moments], part: Mapping[str, Moments]) -> None:
    for name, found in part.items():
        total[name] = merged(total[name], found) if name in total else found
