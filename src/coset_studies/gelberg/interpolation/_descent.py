"""The reverse KL of one Gaussian to a mixture of two, minimised by stochastic descent (Gelberg et al. 2024, app. A)."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.errors import InputError

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
COVARIANCES = ("full", "diagonal")


@dataclass(frozen=True, eq=False)
class Targets:
    """Mixtures ½N(0, σ²I) + ½N(αu, σ²I): ``separations`` α of shape (targets,), the unit ``direction`` u (d,)."""

    separations: Tensor
    direction: Tensor
    sigma: float

    def log_prob(self, x: Tensor) -> Tensor:
        """log p at ``x`` (targets, samples, d): (targets, samples)."""
        centres = self.separations[:, None, None] * self.direction
        squares = [(x - centre).square().sum(-1) / self.sigma**2 for centre in (torch.zeros_like(centres), centres)]
        constant = x.shape[-1] * math.log(self.sigma * math.sqrt(2 * math.pi)) + math.log(2)
        return torch.logaddexp(-squares[0] / 2, -squares[1] / 2) - constant


@dataclass(frozen=True, eq=False)
class Gaussians:
    """One N(μ, AAᵀ) for each target: ``mean`` (targets, d) and the square ``factor`` A (targets, d, d)."""

    mean: Tensor
    factor: Tensor

    def interpolation(self, targets: Targets) -> Tensor:
        """‖μ‖/α: one half at the mid-point, 0 at the component where the descent starts."""
        return self.mean.square().sum(1).sqrt() / targets.separations

    def determinant(self) -> Tensor:
        """det Σ of each."""
        volume: Tensor = torch.linalg.slogdet(self.factor).logabsdet
        return (2 * volume).exp()

    def along(self, targets: Targets) -> tuple[Tensor, Tensor]:
        """Mean and deviation along u, in units of σ."""
        deviation = (targets.direction @ self.factor).square().sum(1).sqrt()
        return self.mean @ targets.direction / targets.sigma, deviation / targets.sigma

    def kl_to_component(self, sigma: float) -> Tensor:
        """KL(q ‖ N(0, σ²I)) of each, in closed form."""
        squares = (self.factor.square().sum((1, 2)) + self.mean.square().sum(1)) / sigma**2
        volume: Tensor = torch.linalg.slogdet(self.factor / sigma).logabsdet
        return (squares - self.mean.shape[1]) / 2 - volume


@dataclass(frozen=True)
class Descent:
    """``steps`` with fresh ``samples`` each; ``covariance`` is full or diagonal (mean field)."""

    samples: int
    steps: int
    rate: float
    optimizer: str = "sgd"
    covariance: str = "full"

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise InputError(f"optimizer is {self.optimizer!r}; expected one of {', '.join(OPTIMIZERS)}")
        if self.covariance not in COVARIANCES:
            raise InputError(f"covariance is {self.covariance!r}; expected one of {', '.join(COVARIANCES)}")


def component(targets: Targets) -> Gaussians:
    """Where the paper's descent starts: N(0, σ²I), a component of every target."""
    count, size = len(targets.separations), len(targets.direction)
    zero = targets.direction.new_zeros(count, size)
    return Gaussians(zero, (targets.sigma * torch.eye(size).to(zero)).repeat(count, 1, 1))


def sampled_kl(q: Gaussians, targets: Targets, noise: Tensor) -> Tensor:
    """log q(x_i) − log p(x_i) at x_i = μ + Aε_i (targets, samples); its mean is the paper's estimate, eq. 8."""
    x = q.mean[:, None] + noise @ q.factor.mT
    volume: Tensor = torch.linalg.slogdet(q.factor).logabsdet[:, None]
    log_q = -noise.square().sum(1) / 2 - volume - noise.shape[1] * math.log(2 * math.pi) / 2
    return log_q - targets.log_prob(x)


def kl_gradients(q: Gaussians, targets: Targets, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of the mean of ``sampled_kl`` by μ and by A, for ``noise`` ε (samples, d) common to all targets.

    With log q(μ + Aε) = −½‖ε‖² − log|det A| + const and −∇log p(x) = (x − w(x) αu)/σ², where w is the second
    component's share of p(x) and depends on uᵀx only, nothing of shape (targets, samples, d) is needed.
    """
    alpha, u, variance = targets.separations, targets.direction, targets.sigma**2
    centre, second_moment = noise.mean(0), noise.T @ noise / len(noise)
    projected = (q.mean @ u)[:, None] + (u @ q.factor) @ noise.T
    share = torch.sigmoid(alpha[:, None] * (projected - alpha[:, None] / 2) / variance)
    pull = alpha[:, None] * share.mean(1, keepdim=True) * u
    twist = alpha[:, None, None] * u[:, None] * (share @ noise / len(noise))[:, None, :]
    by_mean = (q.mean + q.factor @ centre - pull) / variance
    drawn = q.mean[:, :, None] * centre + q.factor @ second_moment
    return by_mean, (drawn - twist) / variance - torch.linalg.inv(q.factor).mT


def descend(
    targets: Targets,
    descent: Descent,
    generator: torch.Generator,
    start: Gaussians | None = None,
    advance: Callable[[], object] = bool,
) -> Gaussians:
    """Minimise the sampled KL to every target at once; from ``component`` unless ``start`` is given.

    The factor A is square, not triangular: then no axis is preferred, and where Σ = AAᵀ starts at σ²I the problem
    in any dimension is the one in one dimension. Each step draws its noise, the same for all targets, from
    ``generator``; ``advance`` is called after each.
    """
    begun = component(targets) if start is None else start
    mean, factor = begun.mean.clone(), begun.factor.clone()
    size = len(targets.direction)
    # Off the diagonal a mean field has no gradient, so what is zero at the start stays so.
    free = torch.eye(size).to(factor) if descent.covariance == "diagonal" else torch.ones(size, size).to(factor)
    optimizer = OPTIMIZERS[descent.optimizer]([mean, factor], lr=descent.rate)  # type: ignore[call-arg]
    for _ in range(descent.steps):
        noise = torch.randn(descent.samples, size, generator=generator, dtype=mean.dtype).to(mean.device)
        mean.grad, by_factor = kl_gradients(Gaussians(mean, factor), targets, noise)
        factor.grad = by_factor * free
        optimizer.step()
        advance()
    return Gaussians(mean, factor)
