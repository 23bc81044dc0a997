"""Densities with known moments, for tests of samplers."""

import math

import torch
from torch import nn

from coset.posterior.likelihoods import GaussianNoise

VARIANCES = torch.logspace(-2, 0, 5, dtype=torch.float64)
"""Of a Gaussian with condition number 100."""
ERRORS = 4.5
"""Standard errors allowed: for one normal number, exceeded once in 150,000 times."""
CENTRES = torch.tensor([[-1.5, 0.0], [1.5, 0.5]], dtype=torch.float64)
WEIGHTS = torch.tensor([0.3, 0.7], dtype=torch.float64)


def gaussian(states):
    return -0.5 * (states.square() / VARIANCES).sum(-1), -states / VARIANCES


def with_gradient(log_density):
    def density(states):
        states = states.detach().requires_grad_()
        values = log_density(states)
        (gradients,) = torch.autograd.grad(values.sum(), states)
        return values.detach(), gradients

    return density


def log_mixture(states):
    """Two unit Gaussians, 3 apart, with weights 0.3 and 0.7."""
    squares = (states.unsqueeze(1) - CENTRES).square().sum(-1)
    return torch.logsumexp(WEIGHTS.log() - 0.5 * squares, 1)


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def assert_mean(draws, expected):
    """The mean of independent draws (C, …) within its standard errors."""
    error = draws.std(0) / math.sqrt(len(draws))
    assert ((draws.mean(0) - expected).abs() <= ERRORS * error).all(), (draws.mean(0), expected, error)


def assert_mixture(draws):
    """Means, second moments and the weight of a half plane, (C, 2) independent draws."""
    assert_mean(draws, WEIGHTS @ CENTRES)
    assert_mean(draws.square(), 1 + WEIGHTS @ CENTRES.square())
    assert_mean(draws[:, 0] * draws[:, 1], (WEIGHTS * CENTRES.prod(1)).sum())
    beyond = 0.5 * torch.erfc(-CENTRES[:, 0] / math.sqrt(2))
    assert_mean((draws[:, 0] > 0).double(), WEIGHTS @ beyond)


def regression(count=40):
    x = normal(count, 2, seed=3)
    y = x @ torch.tensor([[1.0], [-2.0]], dtype=torch.float64) + 0.5 + 0.5 * normal(count, 1, seed=4)
    torch.manual_seed(0)
    return nn.Linear(2, 1).double(), (x, y)


LINEAR = {"likelihood": GaussianNoise(0.5), "prior": 2.0, "show": False}


def mixture_draws(count):
    """Exact draws of the mixture."""
    chosen = torch.multinomial(WEIGHTS, count, replacement=True, generator=torch.Generator().manual_seed(5))
    return CENTRES[chosen] + normal(count, 2, seed=6)


def rosenbrock(states):
    """x ~ N(1, 1), y | x ~ N(x², 0.1²), for each pair of coordinates."""
    x, y = states.view(len(states), -1, 2).unbind(-1)
    return (-0.5 * (x - 1).square() - 50 * (y - x.square()).square()).sum(-1)


def rosenbrock_draws(count, pairs=3):
    x = 1 + normal(count, pairs, seed=7)
    return torch.stack([x, x.square() + 0.1 * normal(count, pairs, seed=8)], -1).flatten(1)


def linear_posterior(x, y, temperature):
    """Mean and covariance of (weights, bias) of a linear model with ``LINEAR``."""
    design = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    precision = design.T @ design / 0.25 + torch.eye(design.shape[1], dtype=x.dtype) / 4
    mean = torch.linalg.solve(precision, design.T @ y.squeeze(1) / 0.25)
    return mean, temperature * torch.linalg.inv(precision)
