"""The networks that a reader is audited on, as one stack, whichever way they were given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coset._values import ties
from coset.alignment.inputs import check_network, check_same_names
from coset.distribution import Samples
from coset.errors import InputError
from coset.symmetry import Symmetry
from coset.symmetry.stacks import leading
from coset.zoo import Zoo

Networks = Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]] | Samples | Zoo


@dataclass(frozen=True, eq=False)
class Stack:
    """N networks of one architecture: tensors (N, …), and what each network is called.

    ``first``: name → the name under which the same tensor stands first, for weights that are tied.
    """

    tensors: Mapping[str, Tensor]
    names: tuple[str, ...]
    first: Mapping[str, str]

    def __len__(self) -> int:
        return len(self.names)

    @property
    def size(self) -> int:
        """How many numbers one network has, tied ones once."""
        return sum(tensor[0].numel() for name, tensor in self.numbers.items() if self.first[name] == name)

    @property
    def numbers(self) -> dict[str, Tensor]:
        """The tensors that are not whole numbers."""
        return {name: t for name, t in self.tensors.items() if t.is_floating_point() or t.is_complex()}

    @property
    def dtype(self) -> torch.dtype:
        """The coarsest type of the numbers."""
        return max((tensor.dtype for tensor in self.numbers.values()), key=lambda dtype: torch.finfo(dtype).eps)

    def rows(self, numbers: Sequence[int]) -> "Stack":
        """Some of the networks, each as often as it is named."""
        picked = self.tied({name: tensor[list(numbers)] for name, tensor in self.tensors.items()})
        return Stack(picked, tuple(self.names[number] for number in numbers), self.first)

    def tied(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of these networks, or of others, in which tied ones are one as long as they are equal."""
        made: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            first = made.get(self.first[name], tensor)
            made[name] = first if first is tensor or torch.equal(first, tensor) else tensor
        return made

    def moved(self, tensors: Mapping[str, Tensor], how: str) -> "Stack":
        """The same networks at another place, ``how`` they came there; refused if numbers overflow."""
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                number = int((~torch.isfinite(flat(tensor))).any(1).nonzero()[0])
                raise InputError(
                    f"'{name}' of {self.names[number]} has NaN or infinite entries after it was moved by {how}; "
                    f"expected numbers that {tensor.dtype} holds: give a smaller spread"
                )
        return Stack(self.tied(tensors), tuple(f"{name} moved by {how}" for name in self.names), self.first)


def flat(tensor: Tensor) -> Tensor:
    """(N, …) as (N, d), also where d is 0 or 1."""
    return tensor.reshape(len(tensor), tensor[0].numel())


def stacked(sym: Symmetry, networks: Networks) -> Stack:
    """One network, a list, a stack with a leading axis, ``Samples`` or a ``Zoo`` as a stack of checked networks."""
    names: list[str] | None = None
    tensors: Mapping[str, Tensor]
    if isinstance(networks, Zoo):
        # The error for a zoo of several architectures, or without usable networks, says which they are.
        tensors = networks.stack()
        names = [f"network {index} of {networks.folder}" for index in networks.indices]
    elif isinstance(networks, Samples):
        names = [f"draw {d} of chain {c}" for c in range(networks.chains) for d in range(networks.draws)]
        networks = tensors = networks.flat
    elif isinstance(networks, Mapping):
        tensors = networks
    elif isinstance(networks, list | tuple):
        tensors = _listed(sym, networks)
    else:
        raise InputError(
            f"networks is a {type(networks).__name__}; expected a dict of parameters, a list of them, a stack with a "
            f"leading axis, Samples or a Zoo"
        )
    count = leading(sym, tensors, "networks")
    if count is None:
        tensors = {name: tensor[None] for name, tensor in tensors.items()}
    names = names or (["the network"] if count is None else [f"network {number}" for number in range(count)])
    first = _first(sym, tensors if isinstance(networks, Zoo) else networks, tensors)
    tensors = {name: tensor.detach() for name, tensor in tensors.items()}
    _check_finite(tensors, names)
    if not any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors.values()):
        raise InputError("networks have no numbers in floating point; expected weights")
    stack = Stack(tensors, tuple(names), first)
    return Stack(stack.tied(tensors), stack.names, first)


def _listed(sym: Symmetry, networks: Sequence[Any]) -> dict[str, Tensor]:
    """A list of networks on a leading axis."""
    if not networks:
        raise InputError("networks is empty; expected at least one network")
    for number, network in enumerate(networks):
        if not isinstance(network, Mapping):
            raise InputError(f"network {number} is a {type(network).__name__}; expected a dict of parameters")
        check_network(sym, network, f"network {number}")
        check_same_names(networks[0], network, "network 0", f"network {number}")
        for name, tensor in network.items():
            like = networks[0][name]
            if (tensor.dtype, tensor.device) != (like.dtype, like.device):
                raise InputError(
                    f"'{name}' of network {number} is {tensor.dtype} on {tensor.device} and that of network 0 "
                    f"{like.dtype} on {like.device}; expected the same for all"
                )
    return {name: torch.stack([network[name].detach() for network in networks]) for name in networks[0]}


def _check_finite(tensors: Mapping[str, Tensor], names: Sequence[str]) -> None:
    for name, tensor in tensors.items():
        bad = ~torch.isfinite(flat(tensor))
        if bool(bad.any()):
            number = int(bad.any(1).nonzero()[0])
            raise InputError(
                f"'{name}' of {names[number]} has {int(bad[number].sum())} entries that are NaN or infinite"
            )


def _first(sym: Symmetry, given: Any, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The name under which every tensor stands first: as the symmetry says, or as it is in all networks that are
    ``given``. What moves in different ways is tied by accident.
    """
    parts = given if isinstance(given, list | tuple) else [given]
    first = {}
    for name, other in ties(*parts).items():
        known = sym.parameters[name].tied if name in sym.parameters else None
        if known is not None and known in tensors and torch.equal(tensors[known], tensors[name]):
            other = known
        first[name] = other if sym.structures.get(other) is sym.structures.get(name) else name
    return first
