"""Comparing representations modulo symmetry: features, Procrustes, CKA, stitching, rotations, dissection."""

from coset.represent._cut import Cut, cut
from coset.represent._features import feature_chunks, features
from coset.represent._layer_group import layer_group, layer_groups, named_group
from coset.represent.dissection import AnnotatedImages, dissect
from coset.represent.layer_choice import called_layers, layers_before_weights
from coset.represent.similarity import (
    Interval,
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
from coset.represent.stitching import StitchTraining, rotation_penalties, stitch, stitching_penalty
from coset.represent.unit_groups import GROUPS, Part, UnitGroup, random_element

__all__ = [
    "GROUPS",
    "AnnotatedImages",
    "Cut",
    "Interval",
    "Part",
    "StitchTraining",
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
    "layers_before_weights",
    "named_group",
    "plot_layers",
    "procrustes",
    "procrustes_interval",
    "random_element",
    "rotation_penalties",
    "stitch",
    "stitching_penalty",
]
