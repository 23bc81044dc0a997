"""Distributions over weights as values on which symmetries act, and the gauge that removes scales."""

from coset.distribution.contract import Distribution, Normal
from coset.distribution.delta import Delta
from coset.distribution.divergences import kl, wasserstein2, wasserstein2_squared
from coset.distribution.files import load_distribution, load_metadata, save_distribution
from coset.distribution.gauge import normalize_scales
from coset.distribution.gaussian import Gaussian
from coset.distribution.low_rank import LowRank
from coset.distribution.mean_field import MeanField
from coset.distribution.mixture import Estimate, Mixture
from coset.distribution.samples import Samples, act_each

__all__ = [
    "Delta",
    "Distribution",
    "Estimate",
    "Gaussian",
    "LowRank",
    "MeanField",
    "Mixture",
    "Normal",
    "Samples",
    "act_each",
    "kl",
    "load_distribution",
    "load_metadata",
    "normalize_scales",
    "save_distribution",
    "wasserstein2",
    "wasserstein2_squared",
]
