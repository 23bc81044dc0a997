"""Scales removed from the entries of a graph, with derivatives; activations of units in the same gauge."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from coset.errors import InputError
from coset.geometry.scales import counted, with_norms
from coset.metanet._blocks import RESULT, Block, Carried, Layout
from coset.running import check_layers, outputs_with, recording, suited
from coset.symmetry.axes import Node, Product, Units, factors_of, units_of


def unit_norms(layout: Layout, raw: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """‖incoming weights‖ of every unit, family by family, from the input on: (N, units), differentiable; and the
    families of silent units.

    As ``normalize_scales`` measures units. One that nothing comes in to is silent, and its scale is seen by other
    weights alone, those that go out: these count in no norm of others, and have the norm 1 afterwards. It keeps its
    scale where there are none.
    """
    families = with_norms(layout.sym)[0]
    by_source = {block.source: block for block in layout.blocks if not block.shifts}
    whole = {block.name: raw[block.name] + _shift(layout, block) for block in layout.blocks}
    current, found = dict(whole), dict[str, Tensor]()
    for key, ranks in families:
        norms = torch.zeros((), dtype=torch.float64)
        for rank in counted(layout.sym, ranks, "outside"):
            carrying = [by_source[name] for name in rank if name in by_source]
            own = _norms_of(layout, current, key, carrying, 1)
            # The next parameters decide where there is nothing.
            norms = torch.where(norms == 0, own, norms.to(own))
        found[key] = norms
        current |= _divided_all(layout, current, key, norms)
    silent = {key: norms == 0 for key, norms in found.items()}
    found = {key: torch.where(silent[key], 1.0, norms) for key, norms in found.items()}
    some = tuple(key for key, mask in silent.items() if bool(mask.any()))
    if not some:
        return found, some
    current = {block.name: _divided(block, whole[block.name], found) for block in layout.blocks}
    for key, _ in reversed(families):
        powers = {item.scale for block in layout.blocks for item in block.carried if item.family == key} - {0, 1}
        norms = torch.where(silent[key], 0.0, found[key])
        for power in sorted(powers):
            own = _norms_of(layout, current, key, layout.blocks, power)
            root = torch.where(own > 0, torch.where(own > 0, own, 1.0) ** (1 / power), 0.0)
            norms = torch.where(norms == 0, root, norms)
        found[key] = torch.where(norms == 0, 1.0, norms)
        current |= _divided_all(layout, current, key, torch.where(silent[key], found[key], 1.0))
    return found, some


def _norms_of(layout: Layout, entries: Mapping[str, Tensor], key: str, blocks: Sequence[Block], power: int) -> Tensor:
    """The norm of all entries that carry each unit's scale with this power, (N, units)."""
    like = next(iter(entries.values()))
    shape = (len(like), math.prod(layout.sym.shape(layout.sym.families[key].owner)))
    carried = [
        (block, item)
        for block in blocks
        if not block.shifts
        for item in block.carried
        if item.family == key and item.scale == power
    ]
    # Over the largest entry of each unit, so that squares of very small and very large numbers stay numbers.
    largest, squares = like.new_zeros(shape), like.new_zeros(shape)
    for block, item in carried:
        here, units = _units(item, like)
        rows = _along(block, entries[block.name].detach().abs(), item.slot).amax(-1)
        largest = largest.scatter_reduce(1, units.expand(len(like), -1), rows[:, here], "amax")
    largest = torch.where(largest > 0, largest, 1.0)
    for block, item in carried:
        here, units = _units(item, like)
        rows = _along(block, entries[block.name], item.slot)[:, here]
        squares = squares.index_add(1, units, (rows / largest[:, units, None]).square().sum(-1))
    # Where there is nothing the root has no derivative.
    present = squares > 0
    return torch.where(present, torch.where(present, squares, 1.0).sqrt() * largest, 0.0)


def without_scales(layout: Layout, raw: Mapping[str, Tensor], norms: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Entries divided by the norms of their units to the power of their charge.

    Variances, which are multiplied with their ε, are given by log(var + ε); biases that half-turns shift by c by the
    cosine and the sine of πb/c.
    """
    entries = {}
    for block in layout.blocks:
        shift = _shift(layout, block)
        value = _divided(block, raw[block.name] + shift, norms)
        if shift:
            value = value.clamp_min(torch.finfo(value.dtype).tiny).log()
        if block.shifts:
            angle = value * (math.pi / block.shifts)
            value = angle.cos() if block.part == "cos" else angle.sin()
        entries[block.name] = value
    return entries


def charged(block: Block, entries: Tensor, norms: Mapping[str, Tensor]) -> Tensor:
    """Entries multiplied by the norms of their units to the power of their charge: the way back."""
    return _divided(block, entries, norms, way=1)


def _divided(block: Block, entries: Tensor, norms: Mapping[str, Tensor], way: int = -1) -> Tensor:
    for item in block.carried:
        if item.scale and item.family in norms:
            norm = norms[item.family][:, item.unit.clamp_min(0).to(entries.device)]
            # Units without a norm give 0.
            factor = torch.where(norm > 0, torch.where(norm > 0, norm, 1.0) ** (way * item.scale), 0.0)
            factor = torch.where((item.unit >= 0).to(entries.device), factor, 1.0)
            entries = entries * block.along(factor, item.slot)[..., None]
    return entries


def _divided_all(layout: Layout, entries: Mapping[str, Tensor], key: str, norms: Tensor) -> dict[str, Tensor]:
    """Those entries that carry a family, divided by its norms."""
    carrying = [b for b in layout.blocks if any(item.family == key and item.scale for item in b.carried)]
    return {block.name: _divided(block, entries[block.name], {key: norms}) for block in carrying}


def _shift(layout: Layout, block: Block) -> float:
    """What is added to entries before they are multiplied: the ε of a variance."""
    parameter = layout.sym.parameters.get(block.source)
    return 0.0 if parameter is None else parameter.shift


def _along(block: Block, entries: Tensor, slot: int) -> Tensor:
    """Entries by positions of one slot, (N, n, all others)."""
    return entries.movedim(1 + slot, 1).flatten(2)


def _units(item: Carried, like: Tensor) -> tuple[Tensor, Tensor]:
    """Where a charge is, and of which units."""
    here = item.unit >= 0
    return here.to(like.device), item.unit[here].to(like.device)


def probes_in(
    layout: Layout,
    gauge: str,
    model: nn.Module | None,
    stack: Mapping[str, Tensor],
    inputs: Tensor | None,
    norms: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Class → (N, units, examples): the mean over positions of every unit, on the first layer whose output has it.

    Of what the network gives the same, under ``RESULT``, where this has a node for each of its outputs.
    """
    assert model is not None
    assert inputs is not None
    sym = layout.sym
    chosen: dict[str, tuple[str, int]] = {}
    for name, activation in sym.graph.activations.items():
        for axis, node in enumerate(activation.axes):
            unit = _only_unit(node)
            signed = unit is not None and any(charge.sign for charge in unit.charges)
            if unit is None or axis == 0 or "#" in name or (gauge == "layers" and signed):
                continue
            # A class inside of another, which stands on an axis of its own, has more units than positions here.
            if activation.shape[axis] == math.prod(sym.shape(unit.name)):
                chosen.setdefault(unit.name, (name, axis))
    last = layout.by_name.get(RESULT)
    if not chosen and last is None:
        raise InputError("no layer of the model has an output on which units stand without signs; leave probes out")
    layers = check_layers(model, tuple(dict.fromkeys(name for name, _ in chosen.values())))
    count = len(next(iter(stack.values())))
    rows: dict[str, list[Tensor]] = {name: [] for name in chosen}
    for number in range(count):
        own = {name: tensor[number] for name, tensor in stack.items()}
        with recording(model, layers) as outputs:
            result = outputs_with(model, own, suited(inputs, own))
        if last is not None and result.ndim > 1 and result.shape[1] == last.count:
            rows.setdefault(RESULT, []).append(result.reshape(len(inputs), last.count, -1).mean(-1).T)
        for name, (layer, axis) in chosen.items():
            output = outputs[layer].movedim(axis, 1)
            rows[name].append(output.reshape(len(inputs), math.prod(sym.shape(name)), -1).mean(-1).T)
    found = {name: torch.stack(parts) for name, parts in rows.items()}
    for name, (layer, axis) in chosen.items():
        unit = _only_unit(sym.graph.activations[layer].axes[axis])
        for charge in unit.charges if unit is not None else ():
            if charge.scale and charge.key(name) in norms:
                found[name] = found[name] * norms[charge.key(name)][..., None] ** -charge.scale
    return found


def _only_unit(node: Node) -> Units | None:
    """The innermost class of an axis on which nothing else stands."""
    units = [part for part in factors_of(node) if isinstance(part, Units)]
    plain = len(units) == len(factors_of(node)) if isinstance(node, Product | Units) else False
    return units[-1] if plain and len(list(units_of(node))) == len(units) else None
