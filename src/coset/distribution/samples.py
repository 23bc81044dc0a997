"""Draws as a distribution: chains of them, all equally likely."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from coset._checks import check_count, is_count
from coset._magnitudes import exponents, scaled_by
from coset._values import Frozen, freeze
from coset.distribution.contract import Distribution
from coset.distribution.density import check_draws
from coset.distribution.ties import check_alike, map_tied, once, ties
from coset.errors import InputError
from coset.symmetry.action import Action
from coset.symmetry.element import Element
from coset.symmetry.symmetry import Symmetry


@dataclass(frozen=True, eq=False)
class Samples(Distribution):
    """The empirical distribution of draws: ``params``, every tensor of shape (chains, draws, *shape), buffers too."""

    powers: ClassVar[Mapping[str, int]] = {"params": 1}

    params: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        freeze(self, "params")
        if not self.params:
            raise InputError("params is empty; expected at least one tensor of draws")
        lead: dict[str, tuple[int, ...]] = {}
        for name, tensor in self.params.items():
            if not isinstance(tensor, Tensor) or tensor.ndim < 2:
                found = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
                raise InputError(f"params['{name}'] has shape {found}; expected (chains, draws, ...)")
            lead[name] = tuple(tensor.shape[:2])
        first, (chains, draws) = next(iter(lead.items()))
        for name, axes in lead.items():
            if axes != (chains, draws):
                raise InputError(
                    f"params['{name}'] begins with the axes {axes} and '{first}' with {(chains, draws)}; expected the "
                    f"same (chains, draws)"
                )
        if chains < 1 or draws < 1:
            raise InputError(f"params has {chains} chains of {draws} draws; expected at least one of one")

    @classmethod
    def stack(cls, draws: Sequence[Mapping[str, Tensor]], chains: int = 1) -> Self:
        """From single networks, one chain after the other; what is tied in every one of them stays tied."""
        check_count("chains", chains)
        if not draws or len(draws) % chains:
            raise InputError(f"there are {len(draws)} draws; expected a positive multiple of the {chains} chains")
        check_alike([f"draw {number}" for number in range(len(draws))], draws)

        def stacked(name: str) -> Tensor:
            return torch.stack([draw[name] for draw in draws]).reshape(chains, -1, *draws[0][name].shape)

        return cls(map_tied(stacked, ties(*draws)))

    @cached_property
    def _first(self) -> dict[str, str]:
        return ties(self.params)

    def _each(self, function: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        return map_tied(lambda name: function(self.params[name]), self._first)

    @property
    def chains(self) -> int:
        """The number of chains."""
        return int(next(iter(self.params.values())).shape[0])

    @property
    def draws(self) -> int:
        """The number of draws in each chain."""
        return int(next(iter(self.params.values())).shape[1])

    def __len__(self) -> int:
        return self.chains * self.draws

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """The draws as single networks, one chain after the other."""
        return (self.draw(chain, number) for chain in range(self.chains) for number in range(self.draws))

    def draw(self, chain: int, number: int) -> dict[str, Tensor]:
        """One network, as views; negative numbers count from the end."""
        for what, index, count in (("chain", chain, self.chains), ("number", number, self.draws)):
            if isinstance(index, bool) or not isinstance(index, int) or not -count <= index < count:
                raise InputError(f"{what} is {index!r}; expected a whole number from {-count} to {count - 1}")
        return self._each(lambda tensor: tensor[chain, number])

    @property
    def flat(self) -> dict[str, Tensor]:
        """All draws on one leading axis, (chains·draws, *shape), one chain after the other."""
        return self._each(lambda tensor: tensor.flatten(0, 1))

    @property
    def networks(self) -> Mapping[str, Tensor]:
        """The draws, as ``flat`` has them."""
        return self.flat

    def at(self, networks: Mapping[str, Tensor]) -> Self:
        """Other draws, (chains·draws, *shape), in as many chains."""
        lead = self.chains, self.draws
        return type(self)({name: tensor.reshape(*lead, *tensor.shape[1:]) for name, tensor in networks.items()})

    @property
    def random_names(self) -> tuple[str, ...]:
        """The names of floating point tensors; of tied names the first."""
        return tuple(name for name in once(self.params, self._first) if self.params[name].is_floating_point())

    @cached_property
    def mean(self) -> Mapping[str, Tensor]:
        """The mean of all draws, summed in float64; tensors of whole numbers are the first draw's."""

        def averaged(tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point():
                return tensor[0, 0]
            return tensor.mean((0, 1), dtype=torch.float64).to(tensor.dtype)

        return Frozen(self._each(averaged))

    @cached_property
    def std(self) -> Mapping[str, Tensor]:
        """The deviations of the draws as a distribution, √(Σ(θ − m)²/N), of every floating point tensor."""
        first = {name: one for name, one in self._first.items() if self.params[name].is_floating_point()}

        def deviation(name: str) -> Tensor:
            tensor = self.params[name]
            wide = tensor.double()
            # Of each entry on its own scale, so that squares are numbers.
            by = exponents(wide, (0, 1))
            return scaled_by(scaled_by(wide, by).std((0, 1), correction=0), -by).to(tensor.dtype)

        return Frozen(map_tied(deviation, first))

    def thin(self, every: int, skip: int = 0) -> Self:
        """Without the first ``skip`` draws of each chain, and of the others only one in ``every``."""
        check_count("every", every)
        if not is_count(skip, 0) or skip >= self.draws:
            raise InputError(f"skip is {skip!r}; expected a whole number from 0 to {self.draws - 1}")
        return type(self)(self._each(lambda tensor: tensor[:, skip::every]))

    def sample(self, n: int, generator: torch.Generator) -> dict[str, Tensor]:
        """n of the draws, each chosen at random from all of them, on a leading axis of every tensor."""
        check_draws(n, generator)
        chosen = torch.randint(len(self), (n,), generator=generator, device=generator.device)
        return self._each(lambda tensor: tensor.flatten(0, 1)[chosen.to(tensor.device)])

    def transformed(self, action: Action, *, partial: bool) -> Self:
        """θ → g·θ, for every draw with the same g."""
        return type(self)(action(self.params, partial=partial))


def act_each(sym: Symmetry, elements: Sequence[Element], samples: Samples) -> Samples:
    """g_i·θ_i: every draw moved by its own element, one chain after the other."""
    if len(elements) != len(samples):
        raise InputError(f"there are {len(elements)} elements for {len(samples)} draws; expected one for each")
    moved = [sym.act(g, draw) for g, draw in zip(elements, samples, strict=True)]
    return Samples.stack(moved, samples.chains)
