"""Scales removed from the entries of a graph, with derivatives; activations of units in the same gauge."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from coset.errors import InputError
from coset.geometry.scales import counted, with_norms
from coset.metanet._blocks import Block, Layout
from coset.running import check_layers, outputs_with, recording, suited
from coset.symmetry.axes import Node, Product, Units, factors_of, units_of


def unit_norms(layout: Layout, raw: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """‖incoming weights‖ of every unit, family by family, from the input on: (N, units), differentiable.

    As ``normalize_scales`` measures units; those without any incoming weights keep their scale.
    """
    sym = layout.sym
    current = dict(raw)
    by_source = {block.source: block for block in layout.blocks if not block.shifts}
    found: dict[str, Tensor] = {}
    for key, ranks in with_norms(sym)[0]:
        units = math.prod(sym.shape(sym.families[key].owner))
        like = next(iter(current.values()))
        norms = like.new_zeros(len(like), units)
        for rank in counted(sym, ranks, "outside"):
            squares = like.new_zeros(len(like), units)
            for block in (by_source[name] for name in rank if name in by_source):
                for item in block.carried:
                    if item.family == key and item.scale == 1:
                        rows = _rows(block, current[block.name].square(), item.slot)
                        here = item.unit >= 0
                        squares = squares.index_add(1, item.unit[here].to(rows.device), rows[:, here])
            # Where there is nothing the root has no derivative, and the next parameters decide.
            present = squares > 0
            own = torch.where(present, torch.where(present, squares, 1.0).sqrt(), 0.0)
            norms = torch.where(norms == 0, own, norms)
        found[key] = torch.where(norms == 0, 1.0, norms)
        for block in layout.blocks:
            if any(item.family == key and item.scale for item in block.carried):
                current[block.name] = _divided(block, current[block.name], {key: found[key]})
    return found


def without_scales(layout: Layout, raw: Mapping[str, Tensor], norms: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Entries divided by the norms of their units to the power of their charge.

    Variances, which are multiplied with their ε, are given by log(var + ε); biases that half-turns shift by c by the
    cosine and the sine of πb/c.
    """
    entries = {}
    for block in layout.blocks:
        parameter = layout.sym.parameters.get(block.source)
        shift = parameter.shift if parameter is not None else 0.0
        value = raw[block.name] + shift if shift else raw[block.name]
        value = _divided(block, value, norms)
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
            factor = torch.where((item.unit >= 0).to(entries.device), norm ** (way * item.scale), 1.0)
            entries = entries * block.along(factor, item.slot)[..., None]
    return entries


def _rows(block: Block, entries: Tensor, slot: int) -> Tensor:
    """Sums over all but one slot, (N, n)."""
    rest = [dim for dim in range(1, entries.ndim) if dim != 1 + slot]
    return entries.sum(rest) if rest else entries


def probes_in(
    layout: Layout,
    gauge: str,
    model: nn.Module | None,
    stack: Mapping[str, Tensor],
    inputs: Tensor | None,
    norms: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Class → (N, units, examples): the mean over positions of every unit, on the first layer whose output has it."""
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
    if not chosen:
        raise InputError("no layer of the model has an output on which units stand without signs; leave probes out")
    layers = check_layers(model, tuple(dict.fromkeys(name for name, _ in chosen.values())))
    count = len(next(iter(stack.values())))
    rows: dict[str, list[Tensor]] = {name: [] for name in chosen}
    for number in range(count):
        own = {name: tensor[number] for name, tensor in stack.items()}
        with recording(model, layers) as outputs:
            outputs_with(model, own, suited(inputs, own))
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
