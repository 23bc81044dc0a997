"""Chains of a small network side by side against a loop over single networks."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.measure import Ratio, ratio
from coset.models import MLP
from coset.posterior.inference.hmc import fit_hmc
from coset.posterior.inference.sgmcmc import fit_sgmcmc
from coset.posterior.likelihoods import GaussianNoise

NOISE, FRICTION, LEAPFROG = 0.1, 0.1, 10


def run(small: bool) -> list[Ratio]:
    """64 chains of a 1-50-50-1 network, 100 gradients each: SGHMC and HMC, against one network after the other."""
    chains, widths, gradients, repeat = (4, [8], 20, 2) if small else (64, [50, 50], 100, 7)
    generator = torch.Generator().manual_seed(0)
    x = torch.linspace(-2, 2, 100).unsqueeze(1)
    y = torch.sin(3 * x) + NOISE * torch.randn(100, 1, generator=generator)
    model = MLP(1, widths, 1)
    label = f"{chains} chains of {'-'.join(map(str, (1, *widths, 1)))}, {gradients} gradients"

    def sghmc() -> object:
        return fit_sgmcmc(
            model, (x, y), step_size=1e-7, friction=FRICTION, batch_size=50, draws=gradients // 2,
            burn_in=gradients // 2, chains=chains, spread=0.1, likelihood=GaussianNoise(NOISE), show=False,
        )  # fmt: skip

    def hmc() -> object:
        return fit_hmc(
            model, (x, y), step_size=1e-4, leapfrog_steps=LEAPFROG, jitter=0.0, warmup=0, draws=gradients // LEAPFROG,
            chains=chains, spread=0.1, likelihood=GaussianNoise(NOISE), show=False,
        )  # fmt: skip

    def each(single: Callable[[nn.Module, Tensor, Tensor, int], object]) -> object:
        return [single(MLP(1, widths, 1), x, y, gradients) for _ in range(chains)]

    plain = "loop over networks"
    return [
        ratio(f"chains, SGHMC: {label}", sghmc, plain, lambda: each(_sghmc), bound=0.25, repeat=repeat),
        ratio(f"chains, HMC: {label}", hmc, plain, lambda: each(_hmc), bound=0.25, repeat=repeat),
    ]


def _gradient(model: nn.Module, weights: list[Tensor], x: Tensor, y: Tensor, total: int) -> tuple[float, list[Tensor]]:
    """Log-joint with a standard normal prior, and its gradient, as one would write them for one network."""
    joint = -total / len(x) * 0.5 * ((model(x) - y) / NOISE).square().sum()
    joint = joint - 0.5 * sum((weight.square().sum() for weight in weights), torch.zeros(()))
    return float(joint.detach()), list(torch.autograd.grad(joint, weights))


def _sghmc(model: nn.Module, x: Tensor, y: Tensor, steps: int, rate: float = 1e-7) -> list[list[Tensor]]:
    weights = list(model.parameters())
    velocity = [torch.zeros_like(weight) for weight in weights]
    draws = []
    for number in range(steps):
        rows = torch.randperm(len(x))[:50]
        _, gradient = _gradient(model, weights, x[rows], y[rows], len(x))
        with torch.no_grad():
            torch._foreach_mul_(velocity, 1 - FRICTION)
            torch._foreach_add_(velocity, gradient, alpha=rate)
            noise = [torch.randn_like(weight) for weight in weights]
            torch._foreach_add_(velocity, noise, alpha=math.sqrt(2 * FRICTION * rate))
            torch._foreach_add_(weights, velocity)
            if number >= steps // 2:
                draws.append([weight.clone() for weight in weights])
    return draws


def _hmc(model: nn.Module, x: Tensor, y: Tensor, steps: int, step: float = 1e-4) -> list[list[Tensor]]:
    weights = list(model.parameters())
    value, gradient = _gradient(model, weights, x, y, len(x))
    draws = []
    for _ in range(steps // LEAPFROG):
        momentum = [torch.randn_like(weight) for weight in weights]
        before = [weight.detach().clone() for weight in weights], value, gradient
        energy = _kinetic(momentum) - value
        for _ in range(LEAPFROG):
            with torch.no_grad():
                torch._foreach_add_(momentum, gradient, alpha=step / 2)
                torch._foreach_add_(weights, momentum, alpha=step)
            value, gradient = _gradient(model, weights, x, y, len(x))
            torch._foreach_add_(momentum, gradient, alpha=step / 2)
        if float(torch.rand(()).log()) > energy - (_kinetic(momentum) - value):
            with torch.no_grad():
                torch._foreach_copy_(weights, before[0])
            _, value, gradient = before
        draws.append([weight.detach().clone() for weight in weights])
    return draws


def _kinetic(momentum: list[Tensor]) -> float:
    return 0.5 * sum(float(part.square().sum()) for part in momentum)
