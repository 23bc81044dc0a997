"""Merging: averages, and renormalisation of what an average lost."""

from coset.alignment.averages import mean, spherical
from coset.alignment.merging._merge import Merged, merge
from coset.alignment.merging._renormalize import RENORMALIZATIONS, options_of, renormalize
from coset.alignment.merging.renormalized import Renormalized

__all__ = [
    "RENORMALIZATIONS",
    "Merged",
    "Renormalized",
    "mean",
    "merge",
    "options_of",
    "renormalize",
    "spherical",
]
