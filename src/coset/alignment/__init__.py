"""Alignment of networks modulo their symmetries, and merging."""

from coset.alignment.align import METHODS, align
from coset.alignment.averages import mean, spherical
from coset.alignment.many import ManyAlignment, align_many
from coset.alignment.merge import Merged, merge
from coset.alignment.renormalize import RENORMALIZATIONS, renormalize
from coset.alignment.renormalize_result import Renormalized
from coset.alignment.result import Alignment, Callback, Network, Step
from coset.alignment.samples import SamplesAlignment, align_samples
from coset.alignment.sinkhorn_operator import sinkhorn

__all__ = [
    "METHODS",
    "RENORMALIZATIONS",
    "Alignment",
    "Callback",
    "ManyAlignment",
    "Merged",
    "Network",
    "Renormalized",
    "SamplesAlignment",
    "Step",
    "align",
    "align_many",
    "align_samples",
    "mean",
    "merge",
    "renormalize",
    "sinkhorn",
    "spherical",
]
