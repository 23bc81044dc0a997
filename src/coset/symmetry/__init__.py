"""Symmetry groups of architectures: intertwiner groups of activations, ``Symmetry`` and ``Element``."""

from coset.symmetry._declare import Variance
from coset.symmetry.discovery.declared import with_graph
from coset.symmetry.discovery.discover import discover
from coset.symmetry.element import Element
from coset.symmetry.intertwiners._intertwiner import Intertwiner
from coset.symmetry.intertwiners.activations import activation_function, activation_names, intertwiner
from coset.symmetry.intertwiners.homogeneity import homogeneity_defect, homogeneity_slope
from coset.symmetry.intertwiners.inferring import infer_intertwiner
from coset.symmetry.parameters import Family, Parameter
from coset.symmetry.preserving import check_preserves
from coset.symmetry.symmetry import Symmetry

__all__ = [
    "Element",
    "Family",
    "Intertwiner",
    "Parameter",
    "Symmetry",
    "Variance",
    "activation_function",
    "activation_names",
    "check_preserves",
    "discover",
    "homogeneity_defect",
    "homogeneity_slope",
    "infer_intertwiner",
    "intertwiner",
    "with_graph",
]
