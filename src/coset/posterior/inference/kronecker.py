"""Laplace with a Kronecker-factored precision, by the optional package laplace-torch (Ritter et al. 2018)."""

import copy
import importlib
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset

from coset._show.progress import progress
from coset.distribution.contract import require
from coset.distribution.samples import Samples
from coset.errors import InputError
from coset.posterior.fit import device_stream
from coset.posterior.inference.chains import samples_of
from coset.posterior.likelihoods import Bernoulli, Categorical, GaussianNoise
from coset.posterior.priors import GaussianPrior
from coset.posterior.problem import Problem

BATCH_SIZE = 256
"""Data points for which factors are computed at a time."""


def kronecker_posterior(
    problem: Problem, flat: Tensor, draws: int, seed: int, show: bool | None
) -> tuple[Samples, float]:
    """θ* + √T·(draws of N(0, (KFAC + P)⁻¹)) as one chain, and log det(KFAC + P).

    The covariance is a pair of factors for each layer in the eigenbasis of both: a distribution nothing else here can
    hold for large networks, so it is returned as draws. The prior must be Gaussian with one deviation for each tensor.
    """
    package = _package()
    model = copy.deepcopy(problem.model)
    vector_to_parameters(flat, [parameter for parameter in model.parameters() if parameter.requires_grad])
    settings: dict[str, float] = {}
    if isinstance(problem.likelihood, GaussianNoise):
        settings = {"sigma_noise": problem.likelihood.std}
    elif isinstance(problem.likelihood, Bernoulli):
        model = _TwoClasses(model)
    elif not isinstance(problem.likelihood, Categorical):
        raise InputError(
            f"structure is 'kron' and the likelihood a {type(problem.likelihood).__name__}; laplace-torch expects "
            f"Categorical, Bernoulli or GaussianNoise"
        )
    prior = require(problem.prior, GaussianPrior, "prior", "a Gaussian prior")
    deviations = [prior.moments(name, shape)[1] for name, shape in problem.layout.shapes.items()]
    approximation = package.Laplace(
        model,
        "regression" if settings else "classification",
        subset_of_weights="all",
        hessian_structure="kron",
        prior_precision=flat.new_tensor([std**-2 for std in deviations]),
        **settings,
    )
    loader = DataLoader(TensorDataset(problem.x, problem.y), batch_size=BATCH_SIZE)
    with progress("curvature", 1, show=show) as bar:
        try:
            approximation.fit(loader)
            bar.advance()
        except (RuntimeError, ValueError, NotImplementedError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise InputError(f"laplace-torch finds no Kronecker factors for this model: {reason}") from error
    drawn = approximation.sample(draws, generator=device_stream("draws", seed, 0, flat)).detach()
    spread = flat + math.sqrt(problem.temperature) * (drawn - flat)
    return samples_of(problem, spread.unsqueeze(0)), float(approximation.log_det_posterior_precision)


class _TwoClasses(nn.Module):
    """Logits (0, f) of a network with one output f: its sigmoid as a softmax."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        logit = self.network(x)
        return torch.cat([torch.zeros_like(logit), logit], -1)


def _package() -> Any:
    try:
        return importlib.import_module("laplace")
    except ImportError as error:
        raise InputError(
            f"structure is 'kron', for which the package laplace-torch is needed and cannot be imported ({error}); "
            f"expected: pip install coset[laplace], or structure 'diagonal' or 'full'"
        ) from error
