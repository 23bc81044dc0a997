"""Averages over the whole group: where a unit comes from when every arrangement is as likely as any other."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coset.symmetry.incidence import other_stretches
from coset.symmetry.structure import Appearance, Stretch, Structure, ancestors

if TYPE_CHECKING:
    from coset.symmetry.symmetry import Symmetry


def over_group(sym: "Symmetry", tensor: Tensor, structure: Structure, without: int | None, signed: bool) -> Tensor:
    """The mean of g·tensor, each stretch averaged by itself, the one of number ``without`` not: orbit means, 0 where a
    sign is free. ``tensor``: a parameter taken apart into ``structure.sizes``, with any other axes behind.
    """
    for stretch in other_stretches(structure, without):
        dims = stretch.dims
        moved = tensor.movedim(dims, tuple(range(len(dims))))
        rows = moved.reshape(stretch.size, -1)
        labels, odd = _orbits(sym, stretch)
        rows = mean_by(rows, labels)
        if signed and bool(odd.any()):
            rows = torch.where(
                odd.to(rows.device)[:, None], torch.zeros((), dtype=rows.dtype, device=rows.device), rows
            )
        tensor = rows.reshape(moved.shape).movedim(tuple(range(len(dims))), dims)
    return tensor


def _orbits(sym: "Symmetry", stretch: Stretch) -> tuple[Tensor, Tensor]:
    """For each position the number of its orbit, and whether a free sign flips it. (n,) both."""
    labels = torch.arange(stretch.size)
    odd = torch.zeros(stretch.size, dtype=torch.bool)
    for item in stretch.appearances:
        here = item.unit >= 0
        if sym.classes[item.name].permutes:
            labels = labels - torch.where(here, item.stride * (item.unit % sym.classes[item.name].size), 0)
        # Two free signs at one entry do not cancel: each is as likely as its opposite.
        odd |= here & has_free_sign(sym, item)
    return labels, odd


def has_free_sign(sym: "Symmetry", item: Appearance) -> bool:
    """Whether a free sign flips the units of a class where it stands."""
    return any(key in sym.flipping for key in item.signs)


def mean_by(rows: Tensor, labels: Tensor) -> Tensor:
    """Every row replaced by the mean over the rows of its label."""
    _, label = torch.unique(labels, return_inverse=True)
    label = label.to(rows.device)
    count = int(label.max()) + 1
    sums = torch.zeros(count, rows.shape[1], dtype=rows.dtype, device=rows.device).index_add_(0, label, rows)
    sizes = torch.bincount(label, minlength=count).to(rows)
    return (sums / sizes[:, None])[label]


def unit_orbits(sym: "Symmetry", name: str) -> Tensor:
    """For each unit of a class over all blocks, the number of the set of units it may be exchanged with. (N,)."""
    label = torch.zeros(1, dtype=torch.long)
    local: dict[str, Tensor] = {}
    for outer in (*ancestors(name, sym.classes), name):
        size, followed = sym.classes[outer].size, sym.classes[outer].follows
        own = torch.arange(size).expand(len(label), size)
        if followed in local:
            # Units of one class twice: all that permutations keep is whether they are the same.
            told = (own == local[followed][:, None]).long() if sym.classes[followed].permutes else own
        else:
            told = own * (not sym.classes[followed or outer].permutes)
        local = {known: index.repeat_interleave(size) for known, index in local.items()} | {outer: own.reshape(-1)}
        label = (label[:, None] * size + told).reshape(-1)
    _, number = torch.unique(label, return_inverse=True)
    orbits: Tensor = number
    return orbits
