"""A Gaussian whose covariance is a diagonal and a few directions: correlations of large models."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from coset._magnitudes import exponents, scaled_by
from coset._values import Frozen, freeze, transformed_by_functorch
from coset.distribution.contract import Normal
from coset.distribution.density import check_draws, monomial, pieces, repeated, standard_normal, vector
from coset.distribution.gaussian import Gaussian
from coset.distribution.mean_field import MeanField
from coset.distribution.ties import map_tied, once
from coset.errors import InputError
from coset.symmetry.action import Action

_LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True, eq=False)
class LowRank(Normal):
    """q = N(m, diag(d²) + F Fᵀ): ``mean`` m, ``diagonal`` d ≥ 0 and ``factors`` F, dicts named as ``state_dict()``.

    ``factors``: every tensor (K, *shape), its K slices the columns of F, with the names of ``diagonal``; names only in
    ``mean`` are points. Names under which one tensor of means stands (tied weights) are one parameter.
    Under a monomial g with matrix A: m → g·m, d → |A|d, F → A F; in the factors signs do count.
    """

    powers: ClassVar[Mapping[str, int]] = {"mean": 1, "diagonal": 1, "factors": 1}

    mean: Mapping[str, Tensor]
    diagonal: Mapping[str, Tensor]
    factors: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        freeze(self, "mean", "factors")
        # A mean and deviations are checked where they are known best.
        object.__setattr__(self, "diagonal", MeanField(self.mean, self.diagonal).std)
        if not self.diagonal:
            raise InputError("diagonal is empty; expected at least one parameter that varies")
        if odd := sorted(self.diagonal.keys() ^ self.factors.keys()):
            has, lacks = ("diagonal", "factors") if odd[0] in self.diagonal else ("factors", "diagonal")
            raise InputError(f"{has} has '{odd[0]}', which {lacks} has not; expected the same names")
        for name, factor in self.factors.items():
            expected = (self.rank, *self.mean[name].shape)
            if tuple(factor.shape) != expected or self.rank < 1:
                raise InputError(f"factors['{name}'] has shape {tuple(factor.shape)}; expected {expected}, K ≥ 1")
            if not transformed_by_functorch(factor) and not bool(factor.isfinite().all()):
                raise InputError(f"factors['{name}'] has values that are NaN or infinite")

    @property
    def rank(self) -> int:
        """K, the number of directions."""
        first = next(iter(self.factors.values()))
        return int(first.shape[0]) if first.ndim else 0

    @cached_property
    def random_names(self) -> tuple[str, ...]:
        """What varies, in the order of ``mean``; of tied names the first."""
        varying = {self._first[name] for name in self.diagonal}
        return tuple(name for name in once(self.mean, self._first) if name in varying)

    @cached_property
    def _own(self) -> dict[str, str]:
        """First of tied names → the name under which ``diagonal`` and ``factors`` have it."""
        return {self._first[name]: name for name in reversed(tuple(self.diagonal))}

    @cached_property
    def std(self) -> Mapping[str, Tensor]:
        """The marginal deviations √(d² + Σ_k F_k²), of every name that varies."""

        def marginal(name: str) -> Tensor:
            own = self._own[name]
            both = self.diagonal[own], self.factors[own]
            if transformed_by_functorch(both[0]) or transformed_by_functorch(both[1]):
                return _marginal(*both)
            by = exponents(torch.cat([both[0][None], both[1]]), 0)
            return scaled_by(_marginal(*(scaled_by(part, by) for part in both)), -by)

        first = {name: one for name, one in self._first.items() if one in self._own}
        return Frozen(map_tied(marginal, first))

    @property
    def marginals(self) -> MeanField:
        """The same means and marginal deviations without the correlations."""
        return MeanField(self.mean, self.std)

    @property
    def dense(self) -> Gaussian:
        """The same distribution with its covariance (D, D) written out, for small models."""
        spread, directions = self._flat()
        covariance = spread.square().diag() + directions.mT @ directions
        if not transformed_by_functorch(covariance):
            lost = (spread > 0) & (covariance.diagonal() < torch.finfo(covariance.dtype).tiny)
            if bool(lost.any()) or not bool(torch.isfinite(covariance).all()):
                size = float(spread[lost].min() if bool(lost.any()) else directions.abs().max())
                raise InputError(
                    f"diagonal and factors have deviations of {size:.3g}, whose squares are no numbers in "
                    f"{covariance.dtype}; expected numbers nearer to 1, or all in float64"
                )
        return Gaussian(self.mean, covariance, self.random_names)

    def sample(self, n: int, generator: torch.Generator) -> dict[str, Tensor]:
        """m + d·ε + F·η, ε ~ N(0, I_D), η ~ N(0, I_K): n draws on a leading axis of every tensor, points as views."""
        check_draws(n, generator)
        along = standard_normal((n, self.rank), next(iter(self.factors.values())), generator)

        def drawn(name: str) -> Tensor:
            mean = self.mean[name]
            if name not in self._own:
                return repeated(mean, n)
            spread, factor = (part[self._own[name]].to(mean) for part in (self.diagonal, self.factors))
            moved = (along.to(mean) @ factor.reshape(self.rank, -1)).reshape(n, *mean.shape)
            return mean + spread * standard_normal((n, *mean.shape), mean, generator) + moved

        return map_tied(drawn, self._first)

    def log_prob(self, params: Mapping[str, Tensor]) -> Tensor:
        """log q(θ) in nats, by Woodbury: with z = (θ − m)/d, A = d⁻¹F and M = I + AᵀA,

        −½ [‖z‖² − (Aᵀz)ᵀ M⁻¹ (Aᵀz) + log det M + Σ log d² + D log 2π]; points are not looked at.
        ``params``: a dict with every random name, its tensors with the same leading axes (…) or none. Returns (…).
        """
        spread, scaled, triangle = self._woodbury()
        away = vector(params, self.random_names, self.mean) - vector(self.mean, self.random_names, self.mean)
        z = (away.to(spread) / spread).reshape(-1, len(spread))
        along = torch.linalg.solve_triangular(triangle, scaled @ z.mT, upper=False)
        square = z.square().sum(-1) - along.square().sum(0)
        value: Tensor = -0.5 * (square + len(spread) * _LOG_2PI) - _half_log_det(spread, triangle)
        return value.reshape(away.shape[:-1])

    def entropy(self) -> Tensor:
        """H(q) = ½ log det(I + AᵀA) + Σ log d + (D/2)(1 + log 2π), A = d⁻¹F, in nats."""
        spread, _, triangle = self._woodbury()
        return _half_log_det(spread, triangle) + 0.5 * (1 + _LOG_2PI) * len(spread)

    def transformed(self, action: Action, *, partial: bool) -> Self:
        """m → g·m, d → |A|d, F → A F."""
        names = self.random_names
        index, sign = monomial(action, self.mean, names)
        spread, directions = self._flat()
        index, sign = index.to(spread.device), sign.to(spread)
        moved = (
            pieces(spread[index] * sign.abs(), names, self.mean),
            pieces(directions[:, index] * sign, names, self.mean),
        )
        diagonal, factors = ({name: part[self._first[name]] for name in self.diagonal} for part in moved)
        return type(self)(action(self.mean, partial=partial), diagonal, factors)

    def _flat(self) -> tuple[Tensor, Tensor]:
        """d (D,) and Fᵀ (K, D) over ``random_names``."""
        spread = {name: self.diagonal[own] for name, own in self._own.items()}
        directions = {name: self.factors[own] for name, own in self._own.items()}
        return vector(spread, self.random_names, self.mean), vector(directions, self.random_names, self.mean)

    def _woodbury(self) -> tuple[Tensor, Tensor, Tensor]:
        """d (D,), Aᵀ (K, D) and the Cholesky factor of I + AᵀA (K, K)."""
        spread, directions = self._flat()
        if not transformed_by_functorch(spread) and bool((spread == 0).any()):
            raise InputError("diagonal has values of 0, where there is no density; expected values > 0")
        scaled = directions / spread
        inner = scaled @ scaled.mT
        return (
            spread,
            scaled,
            torch.linalg.cholesky(inner + torch.eye(len(inner), dtype=inner.dtype, device=inner.device)),
        )


def _marginal(diagonal: Tensor, factor: Tensor) -> Tensor:
    return (diagonal.square() + factor.square().sum(0)).sqrt()


def _half_log_det(spread: Tensor, triangle: Tensor) -> Tensor:
    return spread.log().sum() + triangle.diagonal().log().sum()
