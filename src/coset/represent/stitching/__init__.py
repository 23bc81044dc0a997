"""Stitching: one network's lower half, a map, another one's upper half; and penalties of rotations."""

from coset.represent.stitching._stitch import Stitching, StitchTraining, stitch
from coset.represent.stitching.birkhoff import nearest_permutation, to_birkhoff
from coset.represent.stitching.maps import FAMILIES, MapFamily, make_family, sparsity
from coset.represent.stitching.pairs import ALPHAS, Choice, PairPenalties, cross_validate, sample_pairs, stitch_pairs
from coset.represent.stitching.penalties import Penalty, stitching_penalty
from coset.represent.stitching.rotations import Rotation, fine_tuned_above, rotation_penalties

__all__ = [
    "ALPHAS",
    "FAMILIES",
    "Choice",
    "MapFamily",
    "PairPenalties",
    "Penalty",
    "Rotation",
    "StitchTraining",
    "Stitching",
    "cross_validate",
    "fine_tuned_above",
    "make_family",
    "nearest_permutation",
    "rotation_penalties",
    "sample_pairs",
    "sparsity",
    "stitch",
    "stitch_pairs",
    "stitching_penalty",
    "to_birkhoff",
]
