"""Geometry of weights: spheres, the gauge without scales that puts the weights of units on them, and the manifold that
they make up.
"""

from coset.geometry._arc import Arc
from coset.geometry._building import manifold
from coset.geometry._layout import Spheres, laid_out
from coset.geometry._manifold import Manifold, OppositeUnits

__all__ = ["Arc", "Manifold", "OppositeUnits", "Spheres", "laid_out", "manifold"]
