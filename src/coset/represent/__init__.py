"""Comparing representations modulo symmetry: features, Procrustes, CKA, stitching, rotations, dissection."""

from coset.represent.advice import Advice, advice, invariant
from coset.represent.birkhoff import nearest_permutation, to_birkhoff
from coset.represent.capacity import CAPACITIES, Grid, excess_over_rank, log_capacity
from coset.represent.cka import cka, cka_of_batches
from coset.represent.cut import Cut, cut
from coset.represent.dissection import dissect
from coset.represent.dissection_bases import rotation_powers, special_rotation
from coset.represent.dissection_colours import COLOURS, with_colours
from coset.represent.dissection_examples import Example, plot_examples, top_examples
from coset.represent.dissection_images import (
    AnnotatedImages,
    Concept,
    joined_images,
    masks_of_labels,
    plain_images,
    present_concepts,
    transformed_images,
)
from coset.represent.dissection_placement import Placement, receptive_placement
from coset.represent.dissection_plot import plot_concepts, plot_dissections
from coset.represent.dissection_quantiles import TailThreshold
from coset.represent.dissection_result import Dissection
from coset.represent.dissection_rotations import RotatedDissections, dissect_rotations
from coset.represent.dissection_shapes import shape_images
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
    "COLOURS",
    "ESTIMATORS",
    "FAMILIES",
    "GROUPS",
    "KERNELS",
    "MEASURES",
    "Advice",
    "AnnotatedImages",
    "Choice",
    "Concept",
    "Cut",
    "Dissection",
    "Example",
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
    "Placement",
    "Procrustes",
    "RotatedDissections",
    "Rotation",
    "StitchTraining",
    "Stitching",
    "TailThreshold",
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
    "dissect",
    "dissect_rotations",
    "excess_over_rank",
    "feature_chunks",
    "features",
    "fine_tuned_above",
    "hsic",
    "invariant",
    "joined_images",
    "layer_group",
    "layer_groups",
    "layer_names",
    "layers_before_weights",
    "log_capacity",
    "make_family",
    "masks_of_labels",
    "named_group",
    "nearest_permutation",
    "plain_images",
    "plot_concepts",
    "plot_dissections",
    "plot_examples",
    "plot_layers",
    "present_concepts",
    "procrustes",
    "procrustes_interval",
    "procrustes_test",
    "random_element",
    "random_rotation",
    "receptive_placement",
    "recording",
    "replacing",
    "rotation_penalties",
    "rotation_powers",
    "sample_pairs",
    "shape_images",
    "sparsity",
    "special_rotation",
    "stitch",
    "stitch_pairs",
    "stitching_penalty",
    "to_birkhoff",
    "top_examples",
    "transformed_images",
    "with_colours",
]
