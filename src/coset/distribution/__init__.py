"""Distributions over weights as values on which symmetries act, and the gauge that removes scales."""

from coset.distribution.delta import Delta
from coset.distribution.gauge import normalize_scales
from coset.distribution.mean_field import MeanField

__all__ = ["Delta", "MeanField", "normalize_scales"]
