"""The evidence bound of any distribution with a density, and its tightening by importance weights."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from coset._checks import check_count
from coset.distribution import Distribution, Estimate
from coset.distribution.contract import require
from coset.posterior import Fit
from coset.posterior.fit import Control
from coset.posterior.likelihoods import Likelihood
from coset.posterior.problem import Data, PriorLike, pose


class Evidence(NamedTuple):
    """What draws of q say of log p(Y), per data point.

    ``elbo``: E_q[log w], w = p(Y, θ)/q(θ), a lower bound of the log evidence in expectation. ``importance``:
    log E_q[w] by the same draws, not below the elbo; below the log evidence in expectation, and its limit for many
    draws. ``effective``: (Σw)²/Σw², as how many equally weighted draws they count: of a few, ``importance`` is one
    draw's opinion.
    """

    elbo: Estimate
    importance: float
    effective: float


@torch.no_grad()
def evidence(
    model: nn.Module,
    q: Distribution | Fit[Any],
    data: Data,
    *,
    likelihood: Likelihood | str = "categorical",
    prior: PriorLike = 1.0,
    temperature: float = 1.0,
    samples: int = 128,
    batch_size: int = 1000,
    seed: int = 0,
) -> Evidence:
    """The ELBO (1/N) E_q[log p(Y, θ) − T log q(θ)] by so many ``samples`` of q, which must have a density.

    With T ≠ 1, w = p(Y, θ)^{1/T}/q(θ), and all logarithms are multiplied by T.
    """
    given = q.posterior if isinstance(q, Fit) else q
    q = require(given, Distribution, "q", "a distribution with a density, or a Fit of one")
    Control(seed)
    check_count("samples", samples, 2)
    check_count("batch_size", batch_size)
    problem = pose(model, data, likelihood, prior, temperature, [q.sample(1, torch.Generator().manual_seed(0))])
    generator = torch.Generator(problem.start.device).manual_seed(seed)
    parts = list(zip(torch.split(problem.x, batch_size), torch.split(problem.y, batch_size), strict=True))
    values: list[Tensor] = []
    for _ in range(samples):
        draw = {name: tensor[0] for name, tensor in q.sample(1, generator).items()}
        flat = problem.layout.flatten(draw).to(problem.start)
        likely = torch.stack([problem.log_likelihood(flat, x, y).double() for x, y in parts]).sum()
        joint = likely + problem.log_prior(flat).double()
        values.append(joint / temperature - q.log_prob(draw).double())
    logs = torch.stack(values)
    scale = temperature / problem.count
    total = torch.logsumexp(logs, 0)
    effective = float(torch.exp(2 * total - torch.logsumexp(2 * logs, 0)))
    return Evidence(Estimate.of(scale * logs), scale * (float(total) - math.log(samples)), effective)
