"""Comparing representations modulo symmetry: features, Procrustes, CKA, stitching, rotations, dissection."""

from coset.represent._cut import Cut, cut
from coset.represent._features import feature_chunks, features
from coset.represent._layer_group import layer_group, layer_groups, named_group
from coset.represent.dissection import AnnotatedImages, Dissection, dissect
from coset.represent.layer_choice import called_layers, layers_before_weights
from coset.represent.similarity import (
    Advice,
    Interval,
    LayerMatrix,
    NetworkComparison,
    Procrustes,
    advice,
    cka,
    cka_interval,
    cka_of_batches,
    compare_layers,
    compare_networks,
    hsic,
    plot_layers,
    procrustes,
    procrustes_interval,
)
from coset.represent.stitching import Stitching, StitchTraining, rotation_penalties, stitch, stitching_penalty
from coset.represent.unit_groups import GROUPS, Part, UnitGroup, random_element
from coset.running import layer_names, recording, replacing
from coset.symmetry.mixing import random_rotation

__all__ = [
    "GROUPS",
    "Advice",
    "AnnotatedImages",
    "Cut",
    "Dissection",
    "Interval",
    "LayerMatrix",
    "NetworkComparison",
    "Part",
    "Procrustes",
    "StitchTraining",
    "Stitching",
    "UnitGroup",
    "advice",
    "called_layers",
    "cka",
    "cka_interval",
    "cka_of_batches",
    "compare_layers",
    "compare_networks",
    "cut",
    "dissect",
    "feature_chunks",
    "features",
    "hsic",
    "layer_group",
    "layer_groups",
    "layer_names",
    "layers_before_weights",
    "named_group",
    "plot_layers",
    "procrustes",
    "procrustes_interval",
    "random_element",
    "random_rotation",
    "recording",
    "replacing",
    "rotation_penalties",
    "stitch",
    "stitching_penalty",
]
