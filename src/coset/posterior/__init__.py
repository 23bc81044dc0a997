"""Posteriors over weights: likelihoods, priors, and the inference that makes them."""

from coset.posterior.fit import Fit, Trace
from coset.posterior.likelihoods import Bernoulli, Categorical, GaussianNoise, LearnedNoise, NoiseParameter
from coset.posterior.mean_field import fit_mean_field
from coset.posterior.priors import Density, FanIn, Isotropic, Named

__all__ = [
    "Bernoulli",
    "Categorical",
    "Density",
    "FanIn",
    "Fit",
    "GaussianNoise",
    "Isotropic",
    "LearnedNoise",
    "Named",
    "NoiseParameter",
    "Trace",
    "fit_mean_field",
]
