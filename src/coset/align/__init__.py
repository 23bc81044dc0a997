"""Alignment of networks modulo their symmetries, and merging."""

from coset.align.align import METHODS, align
from coset.align.result import Alignment, Callback, Network, Step

__all__ = ["METHODS", "Alignment", "Callback", "Network", "Step", "align"]
