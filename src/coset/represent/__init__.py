"""Comparing representations modulo symmetry: features, Procrustes distances and CKA, stitching, rotation penalties."""

from coset.represent.advice import Advice, advice, invariant
from coset.represent.birkhoff import nearest_permutation, to_birkhoff
from coset.represent.capacity import CAPACITIES, Grid, excess_over_rank, log_capacity
from coset.represent.cka import cka, cka_of_batches
from coset.represent.cut import Cut, cut
from coset.represent.features import feature_chunks, features
from coset.represent.group_elements import random_element, random_rotation
from coset.represent.heat_maps import plot_layers
from coset.represent.hsic import ESTIMATORS, hsic
from coset.represent.kernels import KERNELS
from coset.represent.layer_choice import called_layers, layers_before_weights
from coset.represent.layer_group import layer_group, layer_groups, named_group
from coset.represent.layer_matrix import MEASURES, LayerMatrix, compare_layers
from coset.represent.layers import layer_names, recording, replacing
from coset.represent.network_comparison import LayerPair, NetworkComparison, compare_networks
from coset.represent.penalties import Penalty, stitching_penalty
from coset.represent.procrustes import Procrustes, procrustes
from coset.represent.resampling import (
    Interval,
    PermutationTest,
    cka_interval,
    cka_test,
    procrustes_interval,
    procrustes_test,
)
from coset.represent.rotations import Rotation, fine_tuned_above, rotation_penalties
from coset.represent.stitching import Stitching, StitchTraining, stitch
from coset.represent.stitching_maps import FAMILIES, MapFamily, make_family, sparsity
from coset.represent.stitching_pairs import ALPHAS, Choice, PairPenalties, cross_validate, sample_pairs, stitch_pairs
from coset.represent.unit_groups import GROUPS, Part, UnitGroup

__all__ = [
    "ALPHAS",
    "CAPACITIES",
    "ESTIMATORS",
    "FAMILIES",
    "GROUPS",
    "KERNELS",
    "MEASURES",
    "Advice",
    "Choice",
    "Cut",
    "Grid",
    "Interval",
    "LayerMatrix",
    "LayerPair",
    "MapFamily",
    "NetworkComparison",
    "PairPenalties",
    "Part",
    "Penalty",
    "PermutationTest",
    "Procrustes",
    "Rotation",
    "StitchTraining",
    "Stitching",
    "UnitGroup",
    "advice",
    "called_layers",
    "cka",
    "cka_interval",
    "cka_of_batches",
    "cka_test",
    "compare_layers",
    "compare_networks",
    "cross_validate",
    "cut",
    "excess_over_rank",
    "feature_chunks",
    "features",
    "fine_tuned_above",
    "hsic",
    "invariant",
    "layer_group",
    "layer_groups",
    "layer_names",
    "layers_before_weights",
    "log_capacity",
    "make_family",
    "named_group",
    "nearest_permutation",
    "plot_layers",
    "procrustes",
    "procrustes_interval",
    "procrustes_test",
    "random_element",
    "random_rotation",
    "recording",
    "replacing",
    "rotation_penalties",
    "sample_pairs",
    "sparsity",
    "stitch",
    "stitch_pairs",
    "stitching_penalty",
    "to_birkhoff",
]
