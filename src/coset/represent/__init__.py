"""Comparing representations modulo symmetry: features of named layers, Procrustes distances and CKA."""

from coset.represent.layers import layer_names, recording, replacing

__all__ = [
    "layer_names",
    "recording",
    "replacing",
]
