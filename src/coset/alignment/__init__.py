"""Alignment of networks modulo their symmetries, and merging."""

from coset.alignment._align import METHODS, align
from coset.alignment._many import ManyAlignment, align_many
from coset.alignment._result import Alignment, Callback, Step, Weights
from coset.alignment._samples import SamplesAlignment, align_samples
from coset.alignment._stack import StackAlignment, align_stack
from coset.alignment.averages import mean, spherical
from coset.alignment.matching.sinkhorn_operator import sinkhorn
from coset.alignment.merging._merge import Merged, merge
from coset.alignment.merging._renormalize import RENORMALIZATIONS, renormalize
from coset.alignment.merging.renormalized import Renormalized

__all__ = [
    "METHODS",
    "RENORMALIZATIONS",
    "Alignment",
    "Callback",
    "ManyAlignment",
    "Merged",
    "Renormalized",
    "SamplesAlignment",
    "StackAlignment",
    "Step",
    "Weights",
    "align",
    "align_many",
    "align_samples",
    "align_stack",
    "mean",
    "merge",
    "renormalize",
    "sinkhorn",
    "spherical",
]
