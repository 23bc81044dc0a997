"""A plain weight vector as a distribution."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from coset._checks import check_count
from coset._values import Frozen, freeze
from coset.distribution.contract import Distribution
from coset.distribution.density import repeated
from coset.distribution.ties import map_tied
from coset.symmetry.action import Action


@dataclass(frozen=True, eq=False)
class Delta(Distribution):
    """All mass on one point: ``params``, names as in ``state_dict()``."""

    centred: ClassVar[bool] = True
    powers: ClassVar[Mapping[str, int]] = {"params": 1}

    params: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        freeze(self, "params")

    @property
    def mean(self) -> Mapping[str, Tensor]:
        """The point itself."""
        return self.params

    @property
    def std(self) -> Mapping[str, Tensor]:
        """Empty: nothing varies."""
        return Frozen({})

    @property
    def random_names(self) -> tuple[str, ...]:
        """Empty: nothing varies."""
        return ()

    @property
    def networks(self) -> Mapping[str, Tensor]:
        """The point itself."""
        return self.params

    def at(self, networks: Mapping[str, Tensor]) -> Self:
        """All mass on another point."""
        return type(self)(networks)

    def sample(self, n: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """The point n times: views with a leading axis n on every tensor."""
        check_count("n", n)
        return map_tied(lambda name: repeated(self.params[name], n), self._first)

    @property
    def marginals(self) -> Self:
        """The point itself."""
        return self

    def transformed(self, action: Action, *, partial: bool) -> Self:
        """θ → g·θ."""
        return type(self)(action(self.params, partial=partial))
