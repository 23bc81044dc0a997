"""Comparing representations modulo symmetry: features of named layers, Procrustes distances and CKA."""

from coset.represent.features import feature_chunks, features
from coset.represent.layers import layer_names, recording, replacing

__all__ = [
    "feature_chunks",
    "features",
    "layer_names",
    "recording",
    "replacing",
]
