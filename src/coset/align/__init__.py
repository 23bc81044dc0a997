"""Alignment of networks modulo their symmetries, and merging."""

from coset.align.align import METHODS, align
from coset.align.averages import mean, spherical
from coset.align.many import ManyAlignment, align_many
from coset.align.merge import Merged, merge
from coset.align.renormalize import RENORMALIZATIONS, renormalize
from coset.align.renormalize_result import Renormalized
from coset.align.result import Alignment, Callback, Network, Step
from coset.align.sinkhorn_operator import sinkhorn

__all__ = [
    "METHODS",
    "RENORMALIZATIONS",
    "Alignment",
    "Callback",
    "ManyAlignment",
    "Merged",
    "Network",
    "Renormalized",
    "Step",
    "align",
    "align_many",
    "mean",
    "merge",
    "renormalize",
    "sinkhorn",
    "spherical",
]
