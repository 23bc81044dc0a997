"""The evidence lower bound of a posterior on data, with its Monte Carlo error."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from coset._checks import check_count
from coset.distribution import Estimate, Normal
from coset.distribution.contract import require
from coset.posterior.fit import Control, Fit
from coset.posterior.likelihoods import Likelihood
from coset.posterior.problem import Data, PriorLike, pose


def elbo(
    model: nn.Module,
    q: Normal | Fit[Any],
    data: Data,
    *,
    likelihood: Likelihood | str = "categorical",
    prior: PriorLike = 1.0,
    temperature: float = 1.0,
    samples: int = 32,
    batch_size: int = 1000,
    seed: int = 0,
) -> Estimate:
    """(1/N) {E_q[log p(Y|θ) + log p(θ)] + T·H(q)}, per data point, by ``samples`` draws.

    The entropy is exact. At T = 1 this is a lower bound of log p(Y)/N, reached where q is the posterior.
    """
    given = q.posterior if isinstance(q, Fit) else q
    q = require(given, Normal, "q", "a MeanField, a LowRank or a Gaussian, or a Fit of one")
    Control(seed)
    check_count("samples", samples, 2)
    check_count("batch_size", batch_size)
    problem = pose(model, data, likelihood, prior, temperature, [q.mean])
    generator = torch.Generator(problem.start.device).manual_seed(seed)
    values = []
    for _ in range(samples):
        draw = {name: tensor[0] for name, tensor in q.sample(1, generator).items()}
        flat = problem.layout.flatten(draw).to(problem.start)
        with torch.no_grad():
            parts: list[Tensor] = [
                problem.log_likelihood(flat, x, y).double()
                for x, y in zip(torch.split(problem.x, batch_size), torch.split(problem.y, batch_size), strict=True)
            ]
            values.append(torch.stack(parts).sum() + problem.log_prior(flat).double())
    joint = torch.stack(values)
    total = float(joint.mean()) + temperature * float(q.entropy())
    return Estimate(total / problem.count, float(joint.std()) / math.sqrt(samples) / problem.count)
