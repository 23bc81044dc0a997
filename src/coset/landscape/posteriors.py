"""Functionals of posteriors: what their predictions are worth on data (Rossi et al. 2023, section 3)."""

from typing import Any

from torch import nn

from coset.landscape.functionals import Functional
from coset.posterior import predictive_log_likelihood
from coset.posterior.likelihoods import Likelihood
from coset.posterior.problem import Data, data_tensors

SAMPLES = 32
"""Draws of a posterior at every point of a path, unless told otherwise."""


def predictive_likelihood(
    model: nn.Module,
    data: Data,
    *,
    likelihood: Likelihood | str = "categorical",
    samples: int = SAMPLES,
    seed: int = 0,
    name: str = "predictive log-likelihood",
) -> Functional:
    """L(q) = (1/N) Σ_i log (1/M) Σ_j p(y_i | x_i, θ_j), θ_j ~ q: a likelihood, so its barrier is a drop.

    Under common random numbers: draw j depends on ``seed`` and j alone, so that along a path the value moves because
    the posterior does, and the ends of a path have the values of the posteriors they are.
    """
    x, y = data_tensors(data)

    def value(q: Any) -> float:
        settings: dict[str, Any] = {"likelihood": likelihood, "samples": samples, "seed": seed}
        return predictive_log_likelihood(model, q, x, y, **settings, show=False).mean

    return Functional(name, value, better="higher", unit="nats")
