"""The group that acts on the channels of a named layer, read from the graph of the network's symmetry.

``sym.graph`` says which classes of units stand on the channel axis of a layer's output, in which blocks, and which
scales and signs they carry. No type of layer is known here. Which matrices mix the channels is seen in a run of the
network whose weights they have moved.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coset.errors import InputError
from coset.represent._features import ChannelAxis, channel_position, features
from coset.represent._layer_layout import parts_of
from coset.represent.unit_groups import Part, UnitGroup
from coset.running import check_layers
from coset.symmetry import Element, Parameter, Symmetry, with_graph
from coset.symmetry.axes import Node, size_of, units_of
from coset.symmetry.layers import Activation
from coset.symmetry.mixing import Mixed, Mixing
from coset.symmetry.preserving import check_model_of

_EXAMPLES, _DRAWS = 4, 4
"""So many inputs are run, and so many elements without permutations tried, none of which may hide a sign by chance."""

_CLOSE = 1e-6
"""Outputs in float64 that differ by less, relative to the largest, are equal; models may be single inside."""

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

    ``sym``: the symmetry of ``model``, as ``discover`` finds it; one that was declared knows nothing of layers, and is
    replaced by what is found. ``inputs``: some inputs of the model, of which a few
    are run. ``cka`` and ``procrustes`` take the group as ``group``: they are then the same for all networks of an
    orbit. Where the group has single signs or scales for many channels, these are told by ``sign``, or not at all: one
    scale for everything is always divided out. Raises where channels do not move one by one or block by block.

    Channels of a class that mixes have O(n), O(n − 1) or GL(n), blocks of heads each its own. Behind a norm with a gain
    γ rotations are diag(γ)·A·diag(γ)⁻¹, and channels have scales: what contains both for all networks is GL(n).
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
    check_model_of(sym, model)
    names = check_layers(model, layers)
    few = inputs[:_EXAMPLES]
    sym = with_graph(sym, model, few)
    generator = torch.Generator().manual_seed(seed)
    fixed = sym.restrict(permutations=False)
    elements = [fixed.random(generator) for _ in range(_DRAWS)] if fixed.families else []
    outputs = features(model, few, names, channel_axis=channel_axis, show=False)
    axes = {
        name: _axes(sym, sym.graph.activation(name), name, tuple(outputs[name].shape), channel_axis) for name in names
    }
    mixing = _mixing(sym, model, few, axes, channel_axis, generator) if sym.continuous else {}
    groups = {}
    for name in names:
        parts, order = parts_of(axes[name][1], sym.classes, name, mixing.get(name))
        factors = [_factors(fixed, name, axes[name], g) for g in elements]
        groups[name] = _with_factors(UnitGroup(parts, order), factors)
    return groups


def _mixing(
    sym: Symmetry,
    model: nn.Module,
    inputs: Tensor,
    axes: Mapping[str, tuple[Node, ...]],
    channel_axis: ChannelAxis,
    generator: torch.Generator,
) -> dict[str, dict[str, str]]:
    """For each layer, the classes on its channels that matrices mix, and of which kind: from a run for each class.

    Outputs that become A·x, or A⁻ᵀ·x, have the kind of the class; behind gains it is "general".
    """
    carried = {name: {unit.name for unit in units_of(own[1])} & set(sym.continuous) for name, own in axes.items()}
    found: dict[str, dict[str, str]] = {name: {} for name in axes}
    wanted = [name for name in sym.continuous if any(name in own for own in carried.values())]
    if not wanted:
        return found
    wide = copy.deepcopy(model).double()
    theta = {name: tensor.detach() for name, tensor in wide.state_dict().items()}
    before = features(wide, inputs, tuple(axes), channel_axis=channel_axis, show=False)
    for name in wanted:
        g = sym.element(matrices={name: sym.restrict([name]).random(generator).matrices[name]})
        layers = tuple(layer for layer, own in carried.items() if name in own)
        after = features(wide, inputs, layers, params=sym.act(g, theta), channel_axis=channel_axis, show=False)
        for layer in layers:
            found[layer][name] = _kind(sym, name, layer, axes[layer], g, theta, before[layer], after[layer])
    return found


def _kind(
    sym: Symmetry,
    name: str,
    layer: str,
    axes: tuple[Node, ...],
    g: Element,
    theta: Mapping[str, Tensor],
    before: Tensor,
    after: Tensor,
) -> str:
    """The kind of the matrices by which the channels of a layer (N, C, *positions) were multiplied."""
    mixing = sym.continuous[name]
    frames = dict.fromkeys([(), *(place.gains for places in mixing.places.values() for place in places)])
    count = sum(unit.name == name for node in axes for unit in units_of(node))
    for gains in frames:
        known = {gain: sym.parameters[gain] for gain in gains}
        stay = {gain: mixing.places[gain] for gain in gains}
        for way in (1, -1):
            places = {layer: (Mixed(way, gains),) * count, **stay}
            output = Symmetry(
                sym.classes,
                sym.families,
                {layer: Parameter(tuple(before.shape), axes), **known},
                continuous={name: Mixing(mixing.kind, places)},
            )
            values = {layer: before, **{gain: theta[gain] for gain in gains}}
            moved = output.act(g, values)[layer]
            if torch.allclose(moved, after, rtol=_CLOSE, atol=_CLOSE * float(before.abs().max())):
                return "general" if gains else mixing.kind
    raise InputError(
        f"matrices mix the units of '{name}', but not the channels of layer '{layer}' on which they stand: expected a "
        f"layer that is linear in them"
    )


def named_group(group: UnitGroup) -> str:
    """The smallest group of ``GROUPS`` that contains ``group``: a measure modulo it is invariant under both."""
    if group.kinds:
        return "general" if group.scales else "orthogonal"
    if not group.permutes and not group.scales and not group.signs:
        return "trivial"
    rigid = "" if group.scales else "rigid-"
    return f"{rigid}signed-permutation" if group.signs else f"{rigid}permutation"


def _axes(
    sym: Symmetry, activation: Activation, layer: str, shape: tuple[int, ...], channel_axis: ChannelAxis
) -> tuple[Node, ...]:
    """What stands on the axes of an output (N, C, *positions); units anywhere but on its channels are an error."""
    at = channel_position((shape[0], *activation.shape[1:]), layer, shape[0], channel_axis)
    positions = [*shape[:1], *shape[2:]]
    sizes = {name: item.size for name, item in sym.classes.items()}
    whole = activation.fitted((*positions[:at], shape[1], *positions[at:]), sizes, f"the output of layer '{layer}'")
    axes = (*whole[:1], whole[at], *(node for axis, node in enumerate(whole) if axis not in (0, at)))
    for axis, node in enumerate(axes):
        if axis != 1 and any(sizes[unit.name] > 1 for unit in units_of(node)):
            raise InputError(
                f"the output of layer '{layer}' has units on axis {axis} (channels counted as axis 1); expected units "
                f"on the channel axis alone: is channel_axis right?"
            )
    return axes


def _factors(sym: Symmetry, layer: str, axes: tuple[Node, ...], g: Element) -> _Factors:
    """By what an element without permutations multiplies each channel; (C,)."""
    shape = tuple(size_of(node, {name: item.size for name, item in sym.classes.items()}) for node in axes)
    output = Symmetry(sym.classes, sym.families, {layer: Parameter(shape, axes)})
    moved = output.act(g, {layer: torch.ones(shape, dtype=torch.float64)})[layer]
    return np.asarray(moved.transpose(0, 1).flatten(1)[:, 0].numpy(), dtype=np.float64)


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
        if part.mixes is not None:
            flagged.append(_with_scale(part, own[0]))
            continue
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


def _with_scale(part: Part, sizes: _Factors | None) -> Part:
    """Channels that rotations mix, with scales: one for all of them, or their own, and then linear maps mix them."""
    if sizes is None or part.mixes == "general" or not bool((np.abs(np.nan_to_num(sizes, nan=1.0) - 1) > _FINE).any()):
        return part
    if bool((_spread(sizes) <= _FINE).all()):
        return Part(1, scales=True, inside=(part,))
    return replace(part, mixes="general")
