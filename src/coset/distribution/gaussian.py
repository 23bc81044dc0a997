"""A Gaussian with a dense covariance, for small models."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from coset._values import freeze, transformed_by_functorch
from coset.distribution.contract import Normal
from coset.distribution.density import check_draws, monomial, pieces, repeated, standard_normal, vector
from coset.distribution.mean_field import MeanField
from coset.distribution.ties import map_tied
from coset.errors import InputError
from coset.symmetry.action import Action
from coset.symmetry.mixing import mix

_LOG_2PI = math.log(2 * math.pi)
_ROUNDING = 64.0
"""A covariance may miss symmetry and positivity by so many units of rounding for each of its rows."""


@dataclass(frozen=True, eq=False)
class Gaussian(Normal):
    """q = N(m, S): ``mean`` m as a dict, ``covariance`` S (D, D) of the parameters ``names``, one after the other.

    Names of ``mean`` that are not in ``names`` are points, unless they are tied to one that is: one tensor under two
    names is one parameter and stands in ``names`` once. S may be singular; then there is no density.
    Under g with matrix A: m → g·m, S → A S Aᵀ; here signs do count. Matrices that mix units behind gains that vary are
    refused: there g is not linear in the weights.
    """

    powers: ClassVar[Mapping[str, int]] = {"mean": 1, "covariance": 2}

    mean: Mapping[str, Tensor]
    covariance: Tensor
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        freeze(self, "mean")
        object.__setattr__(self, "names", tuple(self.names))
        _check_names(self.mean, self.names, self._first)
        _check_covariance(self.covariance, sum(self.mean[name].numel() for name in self.names))
        if not transformed_by_functorch(self.covariance):
            _ = self._factor

    @cached_property
    def _factor(self) -> tuple[Tensor, bool]:
        """F with S = F Fᵀ, and whether it is a Cholesky factor: of a singular S it is V·√λ."""
        triangle, info = torch.linalg.cholesky_ex(self.covariance)
        if transformed_by_functorch(self.covariance) or int(info) == 0:
            return triangle, True
        values, vectors = torch.linalg.eigh(self.covariance)
        lowest, highest = float(values[0]), float(values[-1])
        noise = _noise(self.covariance, max(highest, 0.0))
        if lowest < -noise:
            raise InputError(
                f"covariance is not positive semidefinite: its eigenvalues lie between {lowest:.3g} and {highest:.3g}"
            )
        # Rounding of an eigenvalue of 0 is not small under the root.
        return vectors * values.where(values > noise, 0.0).sqrt(), False

    @property
    def random_names(self) -> tuple[str, ...]:
        """What varies, in the order of the covariance."""
        return self.names

    @cached_property
    def std(self) -> Mapping[str, Tensor]:
        """The marginal deviations √S_ii, of every name that varies."""
        parts = pieces(self.covariance.diagonal().clamp(min=0).sqrt(), self.names, self.mean)
        known = {self._first[name]: part for name, part in parts.items()}
        return {name: known[one] for name, one in self._first.items() if one in known}

    @property
    def marginals(self) -> MeanField:
        """The same means and marginal deviations without the correlations."""
        return MeanField(self.mean, self.std)

    def sample(self, n: int, generator: torch.Generator) -> dict[str, Tensor]:
        """m + F·ε with F Fᵀ = S, ε ~ N(0, I): n draws on a leading axis of every tensor, points as views.

        Differentiable in m and, where S is regular, in S.
        """
        check_draws(n, generator)
        factor, _ = self._factor
        noise = standard_normal((n, len(factor)), factor, generator)
        drawn = pieces(noise @ factor.mT, self.names, self.mean)
        away = {self._first[name]: part for name, part in drawn.items()}

        def moved(name: str) -> Tensor:
            return self.mean[name] + away[name] if name in away else repeated(self.mean[name], n)

        return map_tied(moved, self._first)

    def log_prob(self, params: Mapping[str, Tensor]) -> Tensor:
        """log q(θ) = −½ [(θ − m)ᵀ S⁻¹ (θ − m) + log det S + D log 2π], in nats; points are not looked at.

        ``params``: a dict with every one of ``names``, its tensors with the same leading axes (…) or none. Returns (…).
        """
        triangle = self._cholesky()
        away = vector(params, self.names, self.mean) - vector(self.mean, self.names, self.mean)
        away = away.to(triangle)
        flat = away.reshape(-1, away.shape[-1])
        scaled = torch.linalg.solve_triangular(triangle, flat.mT, upper=False)
        volume = triangle.diagonal().log().sum() + 0.5 * _LOG_2PI * len(triangle)
        logs: Tensor = -0.5 * scaled.square().sum(0) - volume
        return logs.reshape(away.shape[:-1])

    def entropy(self) -> Tensor:
        """H(q) = ½ log det S + (D/2)(1 + log 2π), in nats."""
        triangle = self._cholesky()
        return triangle.diagonal().log().sum() + 0.5 * (1 + _LOG_2PI) * len(triangle)

    def transformed(self, action: Action, *, partial: bool) -> Self:
        """m → g·m, S → A S Aᵀ."""
        matrices = action.g.matrices
        self._check_gains(action)
        mean = action(self.mean, partial=partial)
        plain = Action(action.sym, replace(action.g, matrices={})) if matrices else action
        index, factor = monomial(plain, self.mean, self.names)
        index, factor = index.to(self.covariance.device), factor.to(self.covariance)
        moved = self.covariance[index][:, index] * factor[:, None] * factor
        for _ in range(2 if matrices else 0):
            # A acts on rows, one after the other, and then on columns; gains are points, and as they were.
            like = {name: mean[name].to(moved) for name in self.names}
            rows = {**mean, **pieces(moved, self.names, like)}
            mix(action.sym, matrices, rows)
            moved = vector(rows, self.names, mean).mT
        return type(self)(mean, moved, self.names)

    def _check_gains(self, action: Action) -> None:
        """Raise where units are mixed in the frame of a gain that varies."""
        varying = {one for name, one in self._first.items() if name in self.names}
        behind = ((name, gain) for name in action.g.matrices for gain in action.sym.continuous[name].gains)
        for name, gain in behind:
            if self._first.get(gain) in varying:
                raise InputError(
                    f"the element mixes the units of '{name}' behind '{gain}', which varies: that is not linear in the "
                    f"weights, and a Gaussian does not stay one; act on points or samples, or let '{gain}' be a point"
                )

    def _cholesky(self) -> Tensor:
        factor, regular = self._factor
        if not regular:
            raise InputError("covariance is singular, so there is no density; expected one that is positive definite")
        return factor


def _check_names(mean: Mapping[str, Tensor], names: tuple[str, ...], first: Mapping[str, str]) -> None:
    if not names:
        raise InputError("names is empty; expected at least one parameter that varies")
    seen: dict[str, str] = {}
    for name in names:
        if name not in mean:
            raise InputError(f"names has '{name}', which mean has not")
        if not mean[name].is_floating_point():
            raise InputError(f"'{name}' has means of type {mean[name].dtype}; expected real floating point numbers")
        if first[name] in seen:
            raise InputError(f"names has '{seen[first[name]]}' and '{name}', which are one tensor; expected it once")
        seen[first[name]] = name


def _check_covariance(covariance: object, size: int) -> None:
    if not isinstance(covariance, Tensor) or not covariance.is_floating_point():
        found = covariance.dtype if isinstance(covariance, Tensor) else type(covariance).__name__
        raise InputError(f"covariance is of type {found}; expected a tensor of real floating point numbers")
    if covariance.shape != (size, size):
        raise InputError(
            f"covariance has shape {tuple(covariance.shape)}; expected ({size}, {size}), the entries of names"
        )
    # Inside vmap and grad values cannot be looked at; there they are the caller's to check before.
    if transformed_by_functorch(covariance):
        return
    if not bool(torch.isfinite(covariance).all()):
        raise InputError("covariance has entries that are NaN or infinite")
    odd = float((covariance - covariance.mT).abs().max()) if size else 0.0
    if odd > _noise(covariance, float(covariance.abs().max()) if size else 0.0):
        raise InputError(f"covariance is not symmetric: entries differ from their mirror images by up to {odd:.3g}")


def _noise(covariance: Tensor, scale: float) -> float:
    """What rounding may do to a covariance with entries, or eigenvalues, of that size."""
    return _ROUNDING * len(covariance) * torch.finfo(covariance.dtype).eps * scale
