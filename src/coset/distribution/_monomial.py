"""An element as the matrix it is: one entry a row, on several parameters at once."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from coset.distribution.density import vector
from coset.symmetry.action import Action
from coset.symmetry.element import Element


def monomial(action: Action, mean: Mapping[str, Tensor], names: Sequence[str]) -> tuple[Tensor, Tensor]:
    """(index, factor), both (D,), with (Ax)_i = factor_i·x[index_i] on the named parameters one after the other.

    A is the linear part of θ → g·θ around ``mean``: where a gain makes up for a variance (see ``Symmetry.act``) its
    factor depends on the mean. Found by letting the action move the numbers 1…D and ones.
    """
    sizes = [mean[name].numel() for name in names]
    device = mean[names[0]].device
    numbers = torch.arange(1, 1 + sum(sizes), dtype=torch.float64, device=device).split_with_sizes(sizes)
    numbered = {name: part.reshape(mean[name].shape) for name, part in zip(names, numbers, strict=True)}
    finite = Action(action.sym, Element(action.g.permutations, signs=action.g.signs), whole=False)
    moved = vector(finite(numbered, partial=True), names, mean)
    ones = {name: torch.ones_like(part) for name, part in numbered.items()}
    magnitude = vector(action.spread(ones, mean), names, mean)
    # Rounded, because a variance is moved with its shift.
    return moved.abs().round().long() - 1, magnitude * moved.sign()
