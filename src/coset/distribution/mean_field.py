"""Independent Gaussians, one a weight (Rossi et al. 2023, section 2)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from coset._values import freeze, transformed_by_functorch
from coset.distribution.contract import Normal
from coset.distribution.density import check_draws, repeated, rows, standard_normal
from coset.distribution.ties import map_tied, once
from coset.errors import InputError
from coset.symmetry.action import Action

_LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True, eq=False)
class MeanField(Normal):
    """q = N(m, diag(s²)): ``mean`` m and standard deviations ``std`` s, each a dict with names as in ``state_dict()``.

    Names of ``mean`` without a deviation (batch-norm statistics, frozen layers) are points. Names under which one
    tensor of means stands (tied weights) are one parameter: drawn once, counted once.
    Under a monomial g: m → g·m and s → |g|·s; signs flip the mean, never the deviation.
    """

    independent: ClassVar[bool] = True
    powers: ClassVar[Mapping[str, int]] = {"mean": 1, "std": 1}

    mean: Mapping[str, Tensor]
    std: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        freeze(self, "mean", "std")
        for name, deviation in self.std.items():
            if not isinstance(deviation, Tensor):
                raise InputError(f"std['{name}'] is a {type(deviation).__name__}; expected a tensor")
            if name not in self.mean:
                raise InputError(f"std has '{name}', which mean has not")
            if deviation.shape != self.mean[name].shape:
                raise InputError(
                    f"std['{name}'] has shape {tuple(deviation.shape)}; its mean has {tuple(self.mean[name].shape)}"
                )
            if not (deviation.is_floating_point() and self.mean[name].is_floating_point()):
                raise InputError(
                    f"'{name}' has means of type {self.mean[name].dtype} and deviations of type {deviation.dtype}; "
                    f"expected real floating point numbers"
                )
            # Inside vmap and grad values cannot be looked at; there they are the caller's to check before.
            if transformed_by_functorch(deviation):
                continue
            if not bool(torch.isfinite(deviation).all()) or bool((deviation < 0).any()):
                raise InputError(
                    f"std['{name}'] has values that are negative or not finite; standard deviations are ≥ 0"
                )

    @cached_property
    def _spread(self) -> dict[str, Tensor]:
        """First name of a random tensor → its deviations."""
        _check_tied(self.std, self._first)
        return {self._first[name]: deviation for name, deviation in self.std.items()}

    @property
    def random_names(self) -> tuple[str, ...]:
        """What varies, in the order of ``mean``; of tied names the first."""
        return tuple(name for name in once(self.mean, self._first) if name in self._spread)

    @property
    def marginals(self) -> Self:
        """All of it: nothing is correlated."""
        return self

    def sample(self, n: int, generator: torch.Generator) -> dict[str, Tensor]:
        """m + s·ε, ε ~ N(0, 1): n draws on a leading axis of every tensor, points as views.

        Differentiable in m and s.
        """
        check_draws(n, generator)

        def drawn(name: str) -> Tensor:
            mean = self.mean[name]
            if name not in self._spread:
                return repeated(mean, n)
            return mean + self._spread[name].to(mean) * standard_normal((n, *mean.shape), mean, generator)

        return map_tied(drawn, self._first)

    def log_prob(self, params: Mapping[str, Tensor]) -> Tensor:
        """log q(θ) = −½ Σ [((θ − m)/s)² + log s² + log 2π] over what varies, in nats; points are not looked at.

        ``params``: a dict with every random name, its tensors with the same leading axes (…) or none. Returns (…).
        """
        self._require_density()
        total: Tensor | None = None
        for name in self.random_names:
            mean = self.mean[name]
            spread = self._spread[name].to(mean).reshape(-1)
            scaled = (rows(params, name, mean) - mean.reshape(-1)) / spread
            part = -0.5 * scaled.square().sum(-1) - spread.log().sum() - 0.5 * _LOG_2PI * mean.numel()
            total = part if total is None else total + part
        assert total is not None, "a density runs over at least one name"
        return total

    def entropy(self) -> Tensor:
        """H(q) = Σ log s + (D/2)(1 + log 2π) over what varies, in nats."""
        self._require_density()
        parts = [self._spread[name].to(self.mean[name]) for name in self.random_names]
        terms = [part.log().sum() + 0.5 * (1 + _LOG_2PI) * part.numel() for part in parts]
        return torch.stack([term.to(terms[0].device) for term in terms]).sum()

    def transformed(self, action: Action, *, partial: bool) -> Self:
        """m → g·m, s → |g|·s."""
        return type(self)(action(self.mean, partial=partial), action.spread(self.std, self.mean))

    def _require_density(self) -> None:
        if not self.random_names:
            raise InputError("no name has deviations: all are points and have no density; expected a std")
        for name in self.random_names:
            deviation = self._spread[name]
            if not transformed_by_functorch(deviation) and bool((deviation == 0).any()):
                raise InputError(f"std['{name}'] has values of 0, where there is no density; expected values > 0")


def _check_tied(std: Mapping[str, Tensor], first: Mapping[str, str]) -> None:
    """Raise if one tensor of means has two deviations."""
    known: dict[str, str] = {}
    for name, deviation in std.items():
        other = known.setdefault(first[name], name)
        if other != name and not transformed_by_functorch(deviation) and not torch.equal(deviation, std[other]):
            raise InputError(
                f"mean has one tensor under '{other}' and '{name}', and std has two different ones; expected the "
                f"same deviations, or means that do not share memory"
            )
