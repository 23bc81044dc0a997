"""Canonical forms: one network of every orbit, the manifold they are on, and distances modulo the group."""

from coset.canonical._distance import Distances, distance, distances, triangle_violations
from coset.canonical._form import canonicalize
from coset.canonical._value import Canonical, decanonicalize
from coset.geometry import Manifold, manifold

__all__ = [
    "Canonical",
    "Distances",
    "Manifold",
    "canonicalize",
    "decanonicalize",
    "distance",
    "distances",
    "manifold",
    "triangle_violations",
]
