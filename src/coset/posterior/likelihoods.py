"""Likelihoods p(y | f(x; θ)): what a network's outputs say about a target (Rossi et al. 2023, appendix C).

Everything is a logarithm in nats, per data point; outputs may carry leading axes of samples or chains.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coset._checks import check_choice
from coset.errors import InputError

Task = Literal["classification", "regression"]

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


@runtime_checkable
class Likelihood(Protocol):
    """p(y | outputs); ``task`` says which of ``probabilities`` and ``moments`` it has."""

    @property
    def task(self) -> Task:
        """ "classification" or "regression"."""
        ...

    def fit_targets(self, targets: Tensor, outputs: Tensor, name: str = "y") -> Tensor:
        """Targets (N, …) in the form ``log_prob`` takes; raises unless they suit ``outputs`` (n, …) of the network."""
        ...

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """log p(y_i | outputs_i): outputs (…, N, ·), targets (N, ·) → (…, N)."""
        ...


@runtime_checkable
class Classification(Likelihood, Protocol):
    """A likelihood of labels."""

    def log_probabilities(self, outputs: Tensor) -> Tensor:
        """log p(y = c): (…, N, ·) → (…, N, C)."""
        ...


@runtime_checkable
class Regression(Likelihood, Protocol):
    """A likelihood of real targets: Gaussian, independent in each coordinate."""

    def moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of y: (…, N, ·) → two of (…, N, D)."""
        ...


@dataclass(frozen=True)
class Categorical:
    """log p(y) = log softmax(outputs)_y; outputs (…, N, C), targets (N,) whole numbers in [0, C)."""

    task: ClassVar[Task] = "classification"

    def fit_targets(self, targets: Tensor, outputs: Tensor, name: str = "y") -> Tensor:
        if outputs.ndim != 2 or outputs.shape[1] < 2:
            raise InputError(
                f"the model's outputs have shape {tuple(outputs.shape)}; the categorical likelihood expects "
                f"(examples, classes) with two classes or more"
            )
        if targets.ndim != 1 or targets.is_floating_point() or targets.dtype == torch.bool or targets.is_complex():
            raise InputError(
                f"{name} has shape {tuple(targets.shape)} and type {targets.dtype}; expected labels, whole numbers (N,)"
            )
        low, high = int(targets.min()), int(targets.max())
        if low < 0 or high >= outputs.shape[1]:
            raise InputError(f"{name} has labels from {low} to {high}; the model has {outputs.shape[1]} classes")
        return targets.long()

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        index = targets.expand(outputs.shape[:-1]).unsqueeze(-1)
        return outputs.log_softmax(-1).gather(-1, index).squeeze(-1)

    def log_probabilities(self, outputs: Tensor) -> Tensor:
        """log softmax(outputs)."""
        # For few classes this is several times as fast as log_softmax, and does the same.
        return outputs - outputs.logsumexp(-1, keepdim=True)


@dataclass(frozen=True)
class Bernoulli:
    """log p(y) = log sigmoid(±output); outputs (…, N, 1), targets (N,) or (N, 1) of 0 and 1."""

    task: ClassVar[Task] = "classification"

    def fit_targets(self, targets: Tensor, outputs: Tensor, name: str = "y") -> Tensor:
        if outputs.ndim != 2 or outputs.shape[1] != 1:
            raise InputError(
                f"the model's outputs have shape {tuple(outputs.shape)}; the Bernoulli likelihood expects (examples, 1)"
            )
        if targets.ndim not in (1, 2) or targets.shape[1:] not in ((), (1,)):
            raise InputError(f"{name} has shape {tuple(targets.shape)}; expected (N,) or (N, 1)")
        if not bool(((targets == 0) | (targets == 1)).all()):
            raise InputError(f"{name} has values other than 0 and 1; the Bernoulli likelihood expects those")
        return targets.reshape(-1).long()

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.logsigmoid((2 * targets - 1) * outputs.squeeze(-1))

    def log_probabilities(self, outputs: Tensor) -> Tensor:
        """(log p(0), log p(1))."""
        return F.logsigmoid(torch.cat([-outputs, outputs], -1))


@dataclass(frozen=True)
class GaussianNoise:
    """log p(y) = Σ_d log N(y_d; output_d, ``std``²): noise of a known standard deviation; outputs (…, N, D)."""

    std: float

    def __post_init__(self) -> None:
        if not isinstance(self.std, int | float) or not 0 < self.std < math.inf:
            raise InputError(f"std is {self.std!r}; the noise of a Gaussian likelihood expects a number > 0")

    task: ClassVar[Task] = "regression"

    def fit_targets(self, targets: Tensor, outputs: Tensor, name: str = "y") -> Tensor:
        return _real_targets(targets, outputs, outputs.shape[-1], name)

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        scaled = (targets - outputs) / self.std
        constant = outputs.shape[-1] * (math.log(self.std) + _HALF_LOG_2PI)
        return -0.5 * scaled.square().sum(-1) - constant

    def moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        return outputs, torch.full_like(outputs, self.std)


@dataclass(frozen=True)
class LearnedNoise:
    """log p(y) = Σ_d log N(y_d; m_d, exp(2ℓ_d)), outputs (…, N, 2D) = (m, ℓ): the network says its own noise.

    Either ℓ depends on the input, if the network ends in twice as many units, or it is a parameter of its own, see
    ``NoiseParameter``: then it is learned, sampled, stored and moved like all other weights.
    """

    task: ClassVar[Task] = "regression"

    def fit_targets(self, targets: Tensor, outputs: Tensor, name: str = "y") -> Tensor:
        if outputs.ndim != 2 or outputs.shape[1] % 2:
            raise InputError(
                f"the model's outputs have shape {tuple(outputs.shape)}; learned noise expects (examples, 2·targets): "
                f"means and logarithms of deviations, see NoiseParameter"
            )
        return _real_targets(targets, outputs, outputs.shape[-1] // 2, name)

    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        mean, log_std = outputs.chunk(2, -1)
        return (-0.5 * ((targets - mean) * torch.exp(-log_std)).square() - log_std - _HALF_LOG_2PI).sum(-1)

    def moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = outputs.chunk(2, -1)
        return mean, log_std.exp()


class NoiseParameter(nn.Module):
    """A network and the noise of its targets: x ↦ (f(x), ℓ) with one parameter ``log_noise`` ℓ = log σ for each output.

    For ``LearnedNoise``. Discovery sees it as it sees any module, so alignment and action need not know of noise.
    """

    def __init__(self, network: nn.Module, outputs: int = 1, start: float = 0.1) -> None:
        super().__init__()
        if not isinstance(start, int | float) or not 0 < start < math.inf:
            raise InputError(f"start is {start!r}; the noise to begin with is a number > 0")
        like = next(network.parameters(), torch.zeros(()))
        self.network = network
        self.start = float(start)
        self.log_noise = nn.Parameter(torch.empty((outputs,), dtype=like.dtype, device=like.device))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The noise of the beginning; the network's own parts reset themselves."""
        nn.init.constant_(self.log_noise, math.log(self.start))

    def forward(self, x: Tensor) -> Tensor:
        mean = self.network(x)
        if mean.shape[-1:] != self.log_noise.shape:
            raise InputError(
                f"outputs of NoiseParameter is {len(self.log_noise)} and its network's outputs have shape "
                f"{tuple(mean.shape)}; expected as many in the last dimension, one noise for each"
            )
        return torch.cat([mean, self.log_noise.expand_as(mean)], -1)


LIKELIHOODS: dict[str, Likelihood] = {
    "categorical": Categorical(),
    "bernoulli": Bernoulli(),
    "learned-noise": LearnedNoise(),
}
"""Likelihoods without settings, by name."""


def as_likelihood(likelihood: Likelihood | str) -> Likelihood:
    """The likelihood of that name, or the given one."""
    if isinstance(likelihood, str):
        return LIKELIHOODS[check_choice("likelihood", likelihood, LIKELIHOODS, otherwise=", or GaussianNoise(std)")]
    if not isinstance(likelihood, Likelihood) or isinstance(likelihood, type):
        raise InputError(
            f"likelihood is a {type(likelihood).__name__}; expected a name or a likelihood such as Categorical()"
        )
    return likelihood


def _real_targets(targets: Tensor, outputs: Tensor, count: int, name: str) -> Tensor:
    if outputs.ndim != 2:
        raise InputError(
            f"the model's outputs have shape {tuple(outputs.shape)}; regression expects (examples, targets)"
        )
    if targets.ndim == 1 and count == 1:
        targets = targets.unsqueeze(1)
    if targets.ndim != 2 or targets.shape[1] != count:
        raise InputError(f"{name} has shape {tuple(targets.shape)}; the model's outputs are for (N, {count})")
    if targets.is_complex() or not bool(targets.isfinite().all()):
        raise InputError(f"{name} has values that are not finite real numbers")
    return targets.to(outputs.dtype)
