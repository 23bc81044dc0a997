"""Random elements of groups on channels, as matrices."""

import torch
from torch import Tensor

from coset.represent.unit_groups import Part, UnitGroup


def random_element(group: UnitGroup, generator: torch.Generator, *, spread: float = 1.0) -> Tensor:
    """A random matrix (C, C) of the group, in float64: uniform permutations and signs, log-normal scales.

    ``spread``: the deviation of the logarithms of scales. Of O(C) it is uniform (Haar measure).
    """
    if group.rotates:
        return random_rotation(group.size, generator)
    matrix = _side_by_side(group.parts, generator, spread)
    if group.sign:
        matrix = matrix * _signs(1, generator)
    if group.order is None:
        return matrix
    arranged = torch.eye(group.size, dtype=torch.float64)[torch.tensor(group.order)]
    return arranged.T @ matrix @ arranged


def random_rotation(channels: int, generator: torch.Generator) -> Tensor:
    """A uniform element of O(C): the orthogonal factor of a Gaussian matrix, with a positive diagonal in the other."""
    q, r = torch.linalg.qr(torch.randn(channels, channels, generator=generator, dtype=torch.float64))
    rotation: Tensor = q * torch.sign(r.diagonal())
    return rotation


def _side_by_side(parts: tuple[Part, ...], generator: torch.Generator, spread: float) -> Tensor:
    return _diagonal([_element(part, generator, spread) for part in parts])


def _element(part: Part, generator: torch.Generator, spread: float) -> Tensor:
    """Pieces with a factor each, and places changed: block i of the outputs reads piece order[i]."""
    factors = torch.ones(part.count, dtype=torch.float64)
    if part.scales:
        factors = torch.exp(spread * torch.randn(part.count, generator=generator, dtype=torch.float64))
    if part.signs:
        factors = factors * _signs(part.count, generator)
    one = torch.ones(1, 1, dtype=torch.float64)
    pieces = [
        factor * (_side_by_side(part.inside, generator, spread) if part.inside else one) for factor in factors.unbind()
    ]
    order = torch.randperm(part.count, generator=generator) if part.permutes else torch.arange(part.count)
    rows = _diagonal(pieces).reshape(part.count, part.width, part.size)
    return rows[order].reshape(part.size, part.size)


def _diagonal(blocks: list[Tensor]) -> Tensor:
    matrix: Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
    return matrix


def _signs(count: int, generator: torch.Generator) -> Tensor:
    return 2.0 * torch.randint(2, (count,), generator=generator).double() - 1.0
