"""Priors p(θ) over the trained parameters of a network (Rossi et al. 2023, section 2)."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Size, Tensor

from coset._checks import is_number
from coset._values import freeze
from coset.distribution.contract import require
from coset.errors import InputError

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def _check_deviation(what: str, value: float) -> None:
    if not is_number(value) or value <= 0:
        raise InputError(f"{what} is {value!r}; a standard deviation is a number > 0")


@runtime_checkable
class Prior(Protocol):
    """A density over dicts of parameters."""

    def log_prob(self, params: Mapping[str, Tensor]) -> Tensor:
        """log p(θ), a scalar, for the trained parameters of one network; differentiable."""
        ...


class GaussianPrior:
    """Independent Gaussians: the priors whose KL from a Gaussian posterior has a closed form."""

    def moments(self, name: str, shape: Size) -> tuple[float, float]:
        """Mean and standard deviation of every entry of a parameter."""
        raise InputError(f"the prior {type(self).__name__} says nothing of '{name}'")

    def log_prob(self, params: Mapping[str, Tensor]) -> Tensor:
        """Σ −½((θ − m)/s)² − log s − ½ log 2π."""
        total = None
        for name, tensor in params.items():
            mean, std = self.moments(name, tensor.shape)
            term = -0.5 * ((tensor - mean) / std).square().sum() - tensor.numel() * (math.log(std) + _HALF_LOG_2PI)
            total = term if total is None else total + term
        if total is None:
            raise InputError("params is empty; expected at least one parameter")
        return total


@dataclass(frozen=True)
class Isotropic(GaussianPrior):
    """N(0, ``std``² I): the paper's prior, with variance α² = ``std``²."""

    std: float = 1.0

    def __post_init__(self) -> None:
        _check_deviation("std", self.std)

    def moments(self, name: str, shape: Size) -> tuple[float, float]:
        return 0.0, self.std


@dataclass(frozen=True)
class FanIn(GaussianPrior):
    """N(0, ``gain``²/fan-in) for weights with two axes or more, N(0, ``bias_std``²) for the rest.

    Fan-in: the entries that feed one unit. Outputs of a wide network then have a variance that does not grow with it.
    """

    gain: float = 1.0
    bias_std: float = 1.0

    def __post_init__(self) -> None:
        _check_deviation("gain", self.gain)
        _check_deviation("bias_std", self.bias_std)

    def moments(self, name: str, shape: Size) -> tuple[float, float]:
        return 0.0, self.bias_std if len(shape) < 2 else self.gain / math.sqrt(max(1, math.prod(shape[1:])))


@dataclass(frozen=True)
class Named(GaussianPrior):
    """Gaussians (mean, standard deviation) for some parameters by name, and another prior for the rest."""

    special: Mapping[str, tuple[float, float]]
    otherwise: GaussianPrior = Isotropic()

    def __post_init__(self) -> None:
        freeze(self, "special")
        for name, moments in self.special.items():
            if not isinstance(moments, tuple | list) or len(moments) != 2:
                raise InputError(f"special['{name}'] is {moments!r}; expected (mean, standard deviation)")
            mean, std = moments
            if not is_number(mean):
                raise InputError(f"the mean of '{name}' is {mean!r}; expected a finite number")
            _check_deviation(f"the deviation of '{name}'", std)
        require(self.otherwise, GaussianPrior, "otherwise", "a Gaussian prior")

    def check(self, names: Collection[str]) -> None:
        """Raise on a name that is no trained parameter: a misspelt one would count for nothing."""
        for name in self.special:
            if name not in names:
                raise InputError(f"the prior names '{name}', which is not trained; there are {', '.join(names)}")
        if isinstance(self.otherwise, Named):
            self.otherwise.check(names)

    def moments(self, name: str, shape: Size) -> tuple[float, float]:
        return self.special[name] if name in self.special else self.otherwise.moments(name, shape)


@dataclass(frozen=True)
class Density:
    """A prior by its logarithm: any differentiable function of a dict of parameters, up to a constant."""

    function: Callable[[Mapping[str, Tensor]], Tensor]

    def log_prob(self, params: Mapping[str, Tensor]) -> Tensor:
        value = self.function(params)
        if not isinstance(value, Tensor) or value.ndim != 0:
            found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InputError(f"the prior's log_prob gave {found}; expected a scalar tensor")
        return value


def as_prior(prior: Prior | float | Callable[[Mapping[str, Tensor]], Tensor]) -> Prior:
    """A number is the standard deviation of an isotropic Gaussian, a function a log-density."""
    if isinstance(prior, bool):
        raise InputError(f"prior is {prior!r}; expected a prior, a standard deviation or a log-density")
    if isinstance(prior, int | float):
        return Isotropic(float(prior))
    if isinstance(prior, Prior) and not isinstance(prior, type):
        return prior
    if callable(prior) and not isinstance(prior, type):
        return Density(prior)
    raise InputError(f"prior is a {type(prior).__name__}; expected a prior, a standard deviation or a log-density")


def flat_moments(prior: GaussianPrior, shapes: Mapping[str, Size], like: Tensor) -> tuple[Tensor, Tensor]:
    """Means and standard deviations of all entries in the order of ``shapes``, two vectors (D,) like ``like``."""
    parts = [(prior.moments(name, shape), math.prod(shape)) for name, shape in shapes.items()]
    means = torch.cat([torch.full((size,), mean, dtype=like.dtype, device=like.device) for (mean, _), size in parts])
    stds = torch.cat([torch.full((size,), std, dtype=like.dtype, device=like.device) for (_, std), size in parts])
    return means, stds
