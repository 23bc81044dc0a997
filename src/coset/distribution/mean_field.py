"""Independent Gaussians, one a weight (Rossi et al. 2023, section 2)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from coset.errors import InputError
from coset.symmetry.action import Action
from coset.symmetry.gather import transformed_by_functorch
from coset.values import Frozen


@dataclass(frozen=True, eq=False)
class MeanField:
    """q = N(m, diag(s²)): ``mean`` m and standard deviations ``std`` s, each a dict with names as in ``state_dict()``.

    Names of ``mean`` without a deviation (batch-norm statistics, frozen layers) are points.
    Under a monomial g: m → g·m and s → |g|·s; signs flip the mean, never the deviation.
    """

    mean: Mapping[str, Tensor]
    std: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        for part in ("mean", "std"):
            object.__setattr__(self, part, Frozen(getattr(self, part)))
        for name, deviation in self.std.items():
            if not isinstance(deviation, Tensor):
                raise InputError(f"std['{name}'] is a {type(deviation).__name__}; expected a tensor")
            if name not in self.mean:
                raise InputError(f"std has '{name}', which mean has not")
            if deviation.shape != self.mean[name].shape:
                raise InputError(
                    f"std['{name}'] has shape {tuple(deviation.shape)}; its mean has {tuple(self.mean[name].shape)}"
                )
            _check_positive(name, deviation)

    def transformed(self, action: Action, *, partial: bool) -> Self:
        """m → g·m, s → |g|·s."""
        return type(self)(action(self.mean, partial=partial), action.spread(self.std, self.mean))


def _check_positive(name: str, deviation: Tensor) -> None:
    # Inside vmap and grad values cannot be looked at; there they are the caller's to check before.
    if transformed_by_functorch(deviation):
        return
    if not bool(torch.isfinite(deviation).all()) or bool((deviation < 0).any()):
        raise InputError(f"std['{name}'] has values that are negative or not finite; standard deviations are ≥ 0")
