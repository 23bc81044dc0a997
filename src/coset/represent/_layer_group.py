"""The group that acts on the channels of a named layer, read from the symmetry of the whole network by experiment.

The network is moved by random elements of its group, in float64. The layer's output then has its channels re-ordered,
scaled and flipped; how, says which classes of units stand on its channel axis, in which blocks, and what else acts.
No type of layer is known here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coset.alignment.matching.feature_calls import Watch, fitted, run
from coset.alignment.matching.feature_layouts import ANY, resolved
from coset.alignment.matching.feature_search import TOLERANCE, Search, describe, enough_elements
from coset.alignment.matching.feature_signs import factors_of_units
from coset.alignment.matching.features import check_model
from coset.errors import InputError
from coset.represent._features import ChannelAxis, channels_second
from coset.represent._layer_layout import parts_of
from coset.represent.unit_groups import Part, UnitGroup
from coset.running import check_layers, recording
from coset.symmetry import Symmetry
from coset.symmetry.axes import Fixed, Node
from coset.symmetry.discovery.general_position import general_position

_EXAMPLES, _DRAWS = 4, 4
"""So many inputs are run, and so many elements without permutations tried, none of which may hide a sign by chance."""

_Factors = NDArray[np.float64]


def layer_group(
    sym: Symmetry,
    model: nn.Module,
    layer: str,
    inputs: Tensor,
    *,
    channel_axis: ChannelAxis = None,
    seed: int = 0,
) -> UnitGroup:
    """The group that moves the channels of ``layer`` while the network's function stays the same.

    ``sym``: the symmetry of ``model``, as ``discover`` finds it; ``inputs``: some inputs of the model, of which a few
    are run. ``cka`` and ``procrustes`` take the group as ``group``: they are then the same for all networks of an
    orbit. Where the group has single signs or scales for many channels, these are told by ``sign``, or not at all: one
    scale for everything is always divided out. Raises where channels do not move one by one or block by block.
    """
    return layer_groups(sym, model, [layer], inputs, channel_axis=channel_axis, seed=seed)[layer]


def layer_groups(
    sym: Symmetry,
    model: nn.Module,
    layers: Sequence[str],
    inputs: Tensor,
    *,
    channel_axis: ChannelAxis = None,
    seed: int = 0,
) -> dict[str, UnitGroup]:
    """``layer_group`` of several layers, from the same runs of the network: name → group."""
    check_model(sym, model)
    names = check_layers(model, layers)
    generator = torch.Generator().manual_seed(seed)
    runs = _Runs(model, names, inputs[:_EXAMPLES], channel_axis)
    theta = general_position(fitted(model, model.state_dict()), sym, generator)
    before = runs.outputs(theta)
    shuffling, fixed = sym.restrict(scales=False, signs=False), sym.restrict(permutations=False)
    search = Search(sym, tuple(shuffling.random(generator) for _ in range(enough_elements(sym))))
    shuffled = [runs.outputs(shuffling.act(g, theta)) for g in search.elements] if shuffling.permuting else []
    moved = [runs.outputs(fixed.act(fixed.random(generator), theta)) for _ in range(_DRAWS)] if fixed.families else []
    groups = {}
    for name in names:
        node = _channels(search, name, before[name], [outputs[name] for outputs in shuffled])
        parts, order = parts_of(node, sym.classes, name)
        factors = [_factors(name, before[name], outputs[name]) for outputs in moved]
        groups[name] = _with_factors(UnitGroup(parts, order), factors)
    return groups


def named_group(group: UnitGroup) -> str:
    """The smallest group of ``GROUPS`` that contains ``group``: a measure modulo it is invariant under both."""
    if group.rotates:
        return "orthogonal"
    if not group.permutes and not group.scales and not group.signs:
        return "trivial"
    rigid = "" if group.scales else "rigid-"
    return f"{rigid}signed-permutation" if group.signs else f"{rigid}permutation"


@dataclass(frozen=True)
class _Runs:
    """Runs of a model on a few inputs, in float64, that leave the outputs of some layers."""

    model: nn.Module
    names: tuple[str, ...]
    inputs: Tensor
    channel_axis: ChannelAxis

    def outputs(self, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Outputs (N, C, *positions) with these weights."""
        own = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        still = {name: tensor.detach().double() for name, tensor in own.items() if tensor.is_floating_point()}
        x = self.inputs.to(next(iter(params.values())).device)
        x = x.double() if x.is_floating_point() else x
        with recording(self.model, self.names) as outputs:
            run(self.model, fitted(self.model, still | dict(params)), x, Watch(_unseen, widen=True))
            found = dict(outputs)
        return {
            name: channels_second(tensor.double().cpu(), name, len(x), self.channel_axis)
            for name, tensor in found.items()
        }


def _unseen(_call: int, _argument: int, _name: str, _tensor: Tensor) -> None:
    """Nothing is looked at: the model is only run in float64 throughout."""


def _channels(search: Search, layer: str, before: Tensor, after: list[Tensor]) -> Node:
    """What stands on the channel axis of an output: its classes, in their layout."""
    limit = TOLERANCE * before.abs().max()
    if all(bool(((part - before).abs() <= limit).all()) for part in after):
        return Fixed(before.shape[1])
    axes = describe(search, before, after)
    if axes is None:
        raise InputError(
            f"the units of layer '{layer}' are not re-ordered as a whole when the network's units are; expected a "
            f"layer whose output has channels"
        )
    if elsewhere := [axis for axis, node in enumerate(axes) if node != ANY and axis != 1]:
        raise InputError(
            f"the output of layer '{layer}' has units on axis {elsewhere[0]} (channels counted as axis 1); expected "
            f"units on the channel axis alone: is channel_axis right?"
        )
    sizes = {name: item.size for name, item in search.sym.classes.items()}
    return resolved(axes[1], before.shape[1], sizes)


def _factors(layer: str, before: Tensor, after: Tensor) -> _Factors:
    """By what each channel was multiplied, NaN for dead ones; (C,)."""
    rows = [tensor.transpose(0, 1).flatten(1) for tensor in (before, after)]
    found = factors_of_units(*rows)
    if found is None:
        raise InputError(
            f"the units of layer '{layer}' are not multiplied one by one when the network's units are scaled; expected "
            f"a layer whose output has channels"
        )
    if not bool(found.any()):
        raise InputError(f"layer '{layer}' gives 0 for all of the first {len(before)} inputs; expected inputs it tells")
    return np.asarray(torch.where(found == 0, torch.nan, found).numpy(), dtype=np.float64)


def _with_factors(group: UnitGroup, factors: list[_Factors]) -> UnitGroup:
    """The group with the scales and signs that the factors (C,) of several elements show."""
    if not factors:
        return group
    table = np.stack(factors)
    table = table if group.order is None else table[:, list(group.order)]
    # One scale or sign for all channels is no scale or sign of the pieces.
    sizes, signs = np.abs(table), np.sign(table)
    common = np.nanmax(signs, 1) == np.nanmin(signs, 1)
    one_scale = bool((_spread(sizes) <= _FINE).all())
    one_sign = bool(common.all())
    parts = _flagged(group.parts, None if one_scale else sizes, None if one_sign else signs)
    return replace(group, parts=parts, sign=one_sign and bool((np.nanmax(signs, 1) < 0).any()))


_FINE = 1e-7
"""Factors that differ less are equal: rounding stays far below, random scales far above."""


def _spread(values: _Factors) -> _Factors:
    """The relative difference between the largest and the smallest along the last axis; dead channels do not count."""
    alive = ~np.isnan(values).all(-1)
    spread = np.zeros(values.shape[:-1])
    high, low = np.nanmax(values[alive], -1), np.nanmin(values[alive], -1)
    spread[alive] = (high - low) / np.maximum(np.abs(high), np.abs(low))
    return spread


def _flagged(parts: tuple[Part, ...], sizes: _Factors | None, signs: _Factors | None) -> tuple[Part, ...]:
    """Parts with their scales and signs, each at the level of the pieces that it is common to; tables (draws, C)."""
    flagged, start = [], 0
    for part in parts:
        own = [None if table is None else table[:, start : start + part.size] for table in (sizes, signs)]
        start += part.size
        pieces = [None if table is None else table.reshape(-1, part.count, part.width) for table in own]
        here: list[bool] = []
        below: list[_Factors | None] = []
        for table in pieces:
            # NaN compares as equal to 1: what is dead shows nothing.
            acts = table is not None and bool((np.abs(np.nan_to_num(table, nan=1.0) - 1) > _FINE).any())
            whole = table is None or bool((_spread(table) <= _FINE).all())
            here.append(acts and (whole or not part.inside))
            below.append(None if table is None or whole else table.reshape(-1, part.width))
        inside = _flagged(part.inside, below[0], below[1]) if part.inside else ()
        flagged.append(replace(part, scales=here[0], signs=here[1], inside=inside))
    return tuple(flagged)
