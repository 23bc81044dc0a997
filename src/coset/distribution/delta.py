"""A plain weight vector as a distribution."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from coset.symmetry.action import Action
from coset.values import Frozen


@dataclass(frozen=True, eq=False)
class Delta:
    """All mass on one point: ``params``, names as in ``state_dict()``."""

    params: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        object.__setattr__(self, "params", Frozen(self.params))

    @property
    def mean(self) -> Mapping[str, Tensor]:
        """The point itself."""
        return self.params

    def transformed(self, action: Action, *, partial: bool) -> Self:
        """θ → g·θ."""
        return type(self)(action(self.params, partial=partial))
