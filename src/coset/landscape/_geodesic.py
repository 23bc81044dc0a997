"""Paths between posteriors: Wasserstein geodesics, and mixtures (Rossi et al. 2023, section 3)."""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from coset._magnitudes import exponent, scaled
from coset.distribution import Delta, Distribution, Gaussian, LowRank, MeanField, Mixture, Normal, Samples
from coset.distribution.contract import rule_for
from coset.errors import InputError
from coset.landscape._path import Path, between, check_joinable, check_tau, linear, params_of
from coset.posterior.fit import Fit


@dataclass(frozen=True, eq=False)
class MeanFieldGeodesic:
    """m_τ = (1−τ)m₀ + τm₁ and s_τ = (1−τ)s₀ + τs₁ (eq. 7 for diagonal covariances); the ends are the ends."""

    start: MeanField
    end: MeanField

    def __post_init__(self) -> None:
        check_joinable((self.start.mean, self.end.mean), ("the start", "the end"))
        for name in self.start.std.keys() ^ self.end.std.keys():
            has, lacks = ("the start", "the end") if name in self.start.std else ("the end", "the start")
            raise InputError(f"'{name}' has deviations in {has} and not in {lacks}; expected the same in both")

    def __call__(self, tau: float, /) -> MeanField:
        tau = check_tau(tau)
        if tau in (0, 1):
            return self.end if tau == 1 else self.start
        return MeanField(between(self.start.mean, self.end.mean, tau), between(self.start.std, self.end.std, tau))


@dataclass(frozen=True, eq=False)
class GaussianGeodesic:
    """N(m_τ, S_τ), S_τ = (1−τ)²S₀ + τ²S₁ + τ(1−τ)(C + Cᵀ), C = S₀^{1/2}(S₀^{1/2} S₁ S₀^{1/2})^{1/2} S₀^{-1/2}.

    Eq. 6-7 with their indices corrected; C = S₀T for the optimal map T from the start to the end, so that commuting
    covariances are a special case. Needs one of the covariances to be regular; square roots are taken in float64. At an
    end that is singular the factor draws are made with is another one than beside it, and so are they.
    """

    start: Gaussian
    end: Gaussian

    def __post_init__(self) -> None:
        check_joinable((self.start.mean, self.end.mean), ("the start", "the end"))
        if self.start.names != self.end.names:
            raise InputError(
                f"the start's covariance is over {', '.join(self.start.names)} and the end's over "
                f"{', '.join(self.end.names)}; expected the same names in the same order"
            )

    @cached_property
    def _cross(self) -> Tensor:
        """E[(x₀ − m₀)(x₁ − m₁)ᵀ] of the optimal coupling, (D, D) in float64."""
        a, b = self.start.covariance.double(), self.end.covariance.double()
        # Products of both are numbers, and what comes out scales as each does.
        by = exponent(a, b)
        a, b = scaled(a, by), scaled(b, by)
        turned = bool(_smallest(a) < _smallest(b))
        first, second = (b, a) if turned else (a, b)
        if _smallest(first) <= 0:
            raise InputError("both covariances are singular; the geodesic expects one of them to be regular")
        root, inverse = _power(first, 0.5), _power(first, -0.5)
        cross = root @ _power(root @ second @ root, 0.5) @ inverse
        return scaled(cross.mT if turned else cross, -by)

    def __call__(self, tau: float, /) -> Gaussian:
        tau = check_tau(tau)
        if tau in (0, 1):
            return self.end if tau == 1 else self.start
        a, b = self.start.covariance.double(), self.end.covariance.double()
        both = self._cross + self._cross.mT
        covariance = (1 - tau) ** 2 * a + tau**2 * b + tau * (1 - tau) * both
        mean = between(self.start.mean, self.end.mean, tau)
        return Gaussian(mean, covariance.to(self.start.covariance.dtype), self.start.names)


@dataclass(frozen=True, eq=False)
class SamplesGeodesic:
    """Every draw on a straight line to its partner in the optimal assignment of draws to draws.

    Minimises Σ_j ‖θ₀ⱼ − θ₁π(j)‖² over permutations π of the end's draws, chain and draw counted together. At τ = 1
    these are the draws of the end in the order of their partners: draw j is on one line all along the path.
    """

    start: Samples
    end: Samples

    def __post_init__(self) -> None:
        if (self.start.chains, self.start.draws) != (self.end.chains, self.end.draws):
            raise InputError(
                f"the start has {self.start.chains} × {self.start.draws} draws and the end {self.end.chains} × "
                f"{self.end.draws}; expected as many"
            )
        check_joinable((self.start.params, self.end.params), ("the start", "the end"))

    @cached_property
    def partners(self) -> Tensor:
        """π: draw j of the start goes to draw π[j] of the end, both counted over chains × draws."""
        a, b = (self._matrix(samples) for samples in (self.start, self.end))
        by = exponent(a, b)
        cost = torch.cdist(scaled(a, by), scaled(b, by)).square()
        return torch.as_tensor(linear_sum_assignment(cost.cpu().numpy())[1])

    def _matrix(self, samples: Samples) -> Tensor:
        count = samples.chains * samples.draws
        parts = [tensor for name, tensor in samples.flat.items() if name in samples.random_names]
        return torch.cat([tensor.reshape(count, -1).double() for tensor in parts], 1)

    def __call__(self, tau: float, /) -> Samples:
        tau = check_tau(tau)
        if tau == 0:
            return self.start
        order = self.partners
        ends = {name: tensor[order.to(tensor.device)] for name, tensor in self.end.flat.items()}
        moved = between(self.start.flat, ends, tau)
        shape = (self.start.chains, self.start.draws)
        return Samples({name: tensor.reshape(*shape, *tensor.shape[1:]) for name, tensor in moved.items()})


@dataclass(frozen=True, eq=False)
class MixturePath:
    """(1−τ)q₀ + τq₁: mass is weighed anew and not moved, so that barriers do not show (fig. 3)."""

    start: Distribution
    end: Distribution

    def __call__(self, tau: float, /) -> Distribution:
        tau = check_tau(tau)
        if tau in (0, 1):
            return self.end if tau == 1 else self.start
        return Mixture((self.start, self.end), torch.tensor([1 - tau, tau], dtype=torch.float64))


def geodesic(q0: Any, q1: Any) -> Path[Any]:
    """The Wasserstein geodesic from ``q0`` (τ = 0) to ``q1`` (τ = 1), two posteriors of one kind.

    Points: the straight line. Mean-field and dense Gaussians: in closed form (a pair of both kinds as dense ones, and
    low-rank ones, too). Draws: by the optimal assignment of draws to draws. Other kinds: those in ``GEODESICS``.
    """
    q0, q1 = (q.posterior if isinstance(q, Fit) else q for q in (q0, q1))
    if not isinstance(q0, Distribution) and not isinstance(q1, Distribution):
        return linear(q0, q1)
    join = rule_for(GEODESICS, q0, q1)
    if join is None:
        raise InputError(
            f"q0 is a {type(q0).__name__} and q1 a {type(q1).__name__}; geodesics join two points, two Gaussians "
            f"(mean-field, low-rank or dense) or two sets of draws"
        )
    return join(q0, q1)


def mixture(q0: Any, q1: Any) -> MixturePath:
    """The path of mixtures from ``q0`` (τ = 0) to ``q1`` (τ = 1), any two distributions over the same weights."""
    q0, q1 = (q.posterior if isinstance(q, Fit) else q for q in (q0, q1))
    ends = [Delta(params_of(q, what)) if isinstance(q, Mapping) else q for q, what in ((q0, "q0"), (q1, "q1"))]
    # What cannot be mixed is refused here, not halfway.
    Mixture(tuple(ends), torch.tensor([0.5, 0.5], dtype=torch.float64))
    return MixturePath(*ends)


PATHS: dict[str, Callable[[Any, Any], Path[Any]]] = {"geodesic": geodesic, "mixture": mixture}
"""Paths that need nothing but their ends, by name."""


def _dense(q: MeanField) -> Gaussian:
    names = tuple(q.random_names)
    spread = torch.cat([q.std[name].reshape(-1) for name in names])
    variance = spread.square()
    limits = torch.finfo(variance.dtype)
    lost = (spread > 0) & ((variance < limits.tiny) | ~torch.isfinite(variance))
    if bool(lost.any()):
        raise InputError(
            f"a MeanField has deviations of {float(spread[lost][0]):.3g}, whose squares are no numbers in "
            f"{variance.dtype}; its covariance expects numbers nearer to 1, or all in float64"
        )
    return Gaussian(q.mean, variance.diag(), names)


DENSE: dict[type, Callable[[Any], Gaussian]] = {
    MeanField: _dense,
    LowRank: operator.attrgetter("dense"),
    Gaussian: lambda q: q,
}
"""Kind → the same distribution with its covariance written out."""


def _gaussians(q0: Normal, q1: Normal) -> GaussianGeodesic:
    dense = []
    for q in (q0, q1):
        rule = rule_for(DENSE, q)
        if rule is None:
            raise InputError(f"a {type(q).__name__} is not in DENSE; expected the rule that writes its covariance out")
        dense.append(rule(q))
    return GaussianGeodesic(*dense)


GEODESICS: dict[tuple[type, type], Callable[[Any, Any], Path[Any]]] = {
    (Delta, Delta): linear,
    (Samples, Samples): SamplesGeodesic,
    (MeanField, MeanField): MeanFieldGeodesic,
    (Normal, Normal): _gaussians,
}
"""Kinds of two distributions → the geodesic between them."""


def _smallest(matrix: Tensor) -> Tensor:
    """The smallest eigenvalue of a covariance, 0 where it is so small that rounding decides."""
    values = torch.linalg.eigvalsh(matrix)
    rounding = len(values) * torch.finfo(matrix.dtype).eps * values[-1].clamp(min=0)
    return torch.where(values[0] > rounding, values[0], torch.zeros_like(values[0]))


def _power(matrix: Tensor, power: float) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    result: Tensor = (vectors * values.clamp(min=0).pow(power)) @ vectors.mT
    return result
