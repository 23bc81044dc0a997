"""Comparing representations modulo symmetry: features of named layers, Procrustes distances and CKA."""

from coset.represent.cka import cka, cka_of_batches
from coset.represent.features import feature_chunks, features
from coset.represent.hsic import ESTIMATORS, hsic
from coset.represent.kernels import KERNELS
from coset.represent.layer_group import layer_group, layer_groups, named_group
from coset.represent.layer_matrix import MEASURES, LayerMatrix, compare_layers
from coset.represent.layers import layer_names, recording, replacing
from coset.represent.procrustes import Procrustes, procrustes
from coset.represent.resampling import (
    Interval,
    PermutationTest,
    cka_interval,
    cka_test,
    procrustes_interval,
    procrustes_test,
)
from coset.represent.unit_groups import GROUPS, Part, UnitGroup

__all__ = [
    "ESTIMATORS",
    "GROUPS",
    "KERNELS",
    "MEASURES",
    "Interval",
    "LayerMatrix",
    "Part",
    "PermutationTest",
    "Procrustes",
    "UnitGroup",
    "cka",
    "cka_interval",
    "cka_of_batches",
    "cka_test",
    "compare_layers",
    "feature_chunks",
    "features",
    "hsic",
    "layer_group",
    "layer_groups",
    "layer_names",
    "named_group",
    "procrustes",
    "procrustes_interval",
    "procrustes_test",
    "recording",
    "replacing",
]
