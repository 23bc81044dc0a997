"""Maps of the group that acts on a layer (``layer_group``): the family of stitching by the layer's own symmetry.

M is made of blocks, one for each unit of the outputs: a rotation, any matrix, or a factor. Which unit of the inputs an
output reads is chosen once, by assignment; training moves what is continuous and is brought back into the group.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from coset.alignment.assignment import assign
from coset.errors import InputError
from coset.represent.stitching.least_squares import LEAST_SCALE, Products, full_map, polar
from coset.represent.unit_groups import Part, UnitGroup, random_element
from coset.symmetry.mixing import centred_basis


@dataclass(frozen=True)
class _Fit:
    """The best map (n, n) of a part or piece, and by how much it lowers the squared distance."""

    gain: float
    matrix: Tensor


@dataclass(frozen=True)
class OwnMaps:
    """The members of a group as matrices (C, C)."""

    group: UnitGroup
    places: Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "places", torch.tensor(self.group.places))

    def check(self, outputs: int, inputs: int) -> None:
        """Raise unless the group acts on so many channels."""
        if not self.group.size == outputs == inputs:
            raise InputError(
                f"group acts on {self.group.size} channels ({self.group}); the layers have {inputs} and {outputs}"
            )

    def random(self, generator: torch.Generator) -> Tensor:
        """A random member."""
        return random_element(self.group, generator)

    def fitted(self, known: Products) -> Tensor:
        """argmin over the group of ‖X·Mᵀ − Y‖², exact: blocks of different outputs are chosen independently."""
        places = self.places.to(known.xx.device)
        xx, yx = known.xx[places][:, places], known.yx[places][:, places]
        found = _side_by_side(self.group.parts, xx, yx)
        if self.group.sign:
            other = _side_by_side(self.group.parts, xx, -yx)
            found = found if found.gain >= other.gain else _Fit(other.gain, -other.matrix)
        return self._by_channel(found.matrix)

    def projected(self, matrix: Tensor) -> Tensor:
        """The nearest member that reads the same blocks: rotations by their polar factors, factors above 0."""
        places = self.places.to(matrix.device)
        nearest = _nearest(self.group.parts, matrix[places][:, places], sign=self.group.sign)
        return self._by_channel(nearest)

    def _by_channel(self, matrix: Tensor) -> Tensor:
        places = self.places.to(matrix.device)
        result = torch.empty_like(matrix)
        result[places[:, None], places] = matrix
        return result


def _side_by_side(parts: tuple[Part, ...], xx: Tensor, yx: Tensor) -> _Fit:
    found, start = [], 0
    for part in parts:
        own = slice(start, start + part.size)
        found.append(_part(part, xx[own, own], yx[own, own]))
        start += part.size
    return _Fit(sum(fit.gain for fit in found), _diagonal([fit.matrix for fit in found]))


def _diagonal(blocks: list[Tensor]) -> Tensor:
    whole: Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
    return whole


def _part(part: Part, xx: Tensor, yx: Tensor) -> _Fit:
    """The pieces of one part: every pair that may meet is fitted, then the best order taken."""
    if part.mixes is not None:
        return _mixed(part.mixes, xx, yx)
    n, width = part.count, part.width
    own = [slice(a * width, (a + 1) * width) for a in range(n)]
    pairs = {
        (a, b): _piece(part, xx[own[b], own[b]], yx[own[a], own[b]])
        for a in range(n)
        for b in (range(n) if part.permutes else (a,))
    }
    order = list(range(n))
    if part.permutes:
        table = torch.tensor([[pairs[a, b].gain for b in range(n)] for a in range(n)], dtype=torch.float64)
        order = [int(b) for b in assign(table.numpy())]
    matrix = torch.zeros_like(xx)
    for a, b in enumerate(order):
        matrix[own[a], own[b]] = pairs[a, b].matrix
    return _Fit(sum(pairs[a, b].gain for a, b in enumerate(order)), matrix)


def _piece(part: Part, xx: Tensor, yx: Tensor) -> _Fit:
    """One piece of x mapped to one of y: the best of its insides, then its own sign and scale."""
    ways = [(sign, _inside(part, xx, sign * yx)) for sign in ((1.0, -1.0) if part.signs else (1.0,))]
    sign, best = max(ways, key=lambda way: way[1].gain)
    matrix = sign * best.matrix
    if not part.scales:
        return _Fit(best.gain, matrix)
    # ‖sMx − y‖² falls by 2s⟨y, Mx⟩ − s²‖Mx‖².
    product, energy = float((matrix * yx).sum()), float((matrix.T @ matrix * xx).sum())
    if energy <= 0:
        return _Fit(0.0, matrix)
    scale = max(product / energy, LEAST_SCALE)
    return _Fit(max(product, 0.0) ** 2 / energy, scale * matrix)


def _inside(part: Part, xx: Tensor, yx: Tensor) -> _Fit:
    if part.inside:
        return _side_by_side(part.inside, xx, yx)
    return _Fit(float(2 * yx.sum() - xx.sum()), torch.ones_like(xx))


def _mixed(kind: str, xx: Tensor, yx: Tensor) -> _Fit:
    if kind == "general":
        matrix = full_map(Products(xx, yx, xx[0], xx[0], 1))
    else:
        matrix = _rotation(kind, yx)
    return _Fit(float(2 * (matrix * yx).sum() - (matrix.T @ matrix * xx).sum()), matrix)


def _rotation(kind: str, matrix: Tensor) -> Tensor:
    """The nearest rotation; of those that leave 1 where it is, for "centred"."""
    if kind == "orthogonal":
        return polar(matrix)
    basis = centred_basis(len(matrix)).to(matrix)
    return basis @ polar(basis.T @ matrix @ basis) @ basis.T + 1 / len(matrix)


def _nearest(parts: tuple[Part, ...], matrix: Tensor, *, sign: bool = False) -> Tensor:
    if sign and float(matrix.sum()) < 0:
        return -_nearest(parts, -matrix)
    result, start = torch.zeros_like(matrix), 0
    for part in parts:
        own = slice(start, start + part.size)
        result[own, own] = _nearest_part(part, matrix[own, own])
        start += part.size
    return result


def _nearest_part(part: Part, matrix: Tensor) -> Tensor:
    if part.mixes == "general":
        return matrix
    if part.mixes is not None:
        return _rotation(part.mixes, matrix)
    n, width = part.count, part.width
    blocks = matrix.reshape(n, width, n, width).movedim(2, 1)
    read = blocks.square().sum((2, 3)).argmax(1)
    result = torch.zeros_like(matrix).reshape(n, width, n, width)
    for a, b in enumerate(read.tolist()):
        result[a, :, b] = _nearest_piece(part, blocks[a, b])
    return result.reshape(matrix.shape)


def _nearest_piece(part: Part, block: Tensor) -> Tensor:
    negative = part.signs and float(block.sum()) < 0
    block = -block if negative else block
    member = _nearest(part.inside, block) if part.inside else torch.ones_like(block)
    if part.scales:
        energy = member.square().sum()
        member = member * ((member * block).sum() / energy).clamp(min=LEAST_SCALE)
    return -member if negative else member
