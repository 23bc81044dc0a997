"""Networks of several architectures and what is to be read of them, as values that are checked once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.errors import InputError
from coset.symmetry import Symmetry
from coset.symmetry.stacks import leading

Group = tuple[Symmetry, Mapping[str, Tensor], Tensor]
"""A symmetry, a stack of N networks (a leading axis on every tensor) and their targets (N, …)."""


@dataclass(frozen=True, eq=False)
class Networks:
    """N networks of one architecture and their targets (N, …)."""

    sym: Symmetry
    stack: Mapping[str, Tensor]
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, rows: Tensor) -> "Networks":
        """Some of the networks."""
        return Networks(self.sym, {name: tensor[rows] for name, tensor in self.stack.items()}, self.targets[rows])


def networks(groups: "Group | Sequence[Group]") -> list[Networks]:
    """Groups, or a single one, once they are found to be networks with targets, all of them finite."""
    if isinstance(groups, tuple) and len(groups) == 3 and isinstance(groups[0], Symmetry):
        groups = [groups]
    if not isinstance(groups, Sequence) or not groups:
        raise InputError("groups holds no networks; expected triples (symmetry, stack, targets)")
    return [_checked(number, group) for number, group in enumerate(groups)]


def _checked(number: int, group: object) -> Networks:
    where = f"group {number}"
    if not isinstance(group, tuple | list) or len(group) != 3:
        raise InputError(f"{where} is a {type(group).__name__}; expected a triple (symmetry, stack, targets)")
    sym, stack, targets = group
    if not isinstance(sym, Symmetry) or not isinstance(stack, Mapping) or not isinstance(targets, Tensor):
        kinds = ", ".join(type(part).__name__ for part in (sym, stack, targets))
        raise InputError(f"{where} holds {kinds}; expected a Symmetry, a dict of stacked parameters and a tensor")
    count = leading(sym, stack, f"the stack of {where}")
    if count is None:
        raise InputError(f"the stack of {where} is a single network; expected a leading axis on every tensor")
    if targets.ndim == 0 or len(targets) != count:
        raise InputError(
            f"{where} has {count} networks and targets of shape {tuple(targets.shape)}; expected one for each"
        )
    for name, tensor in {**stack, "its targets": targets}.items():
        usable = torch.isfinite(tensor.detach()).reshape(count, -1).all(1)
        if not bool(usable.all()):
            raise InputError(f"{where}: {name} of network {int((~usable).nonzero()[0])} is not finite")
    return Networks(sym, {name: tensor.detach() for name, tensor in stack.items()}, targets.detach())
