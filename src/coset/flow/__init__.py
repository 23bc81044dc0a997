"""Flows over weights: sampling networks, with densities on the manifold of canonical weights."""

from coset.flow._space import Space, euclidean

__all__ = ["Space", "euclidean"]
