"""Network dissection: units that answer to concepts, in any basis."""

from coset.represent.dissection._dissect import LEAST_IOU, SHARE, dissect
from coset.represent.dissection.bases import rotation_powers, special_rotation
from coset.represent.dissection.colours import COLOURS, with_colours
from coset.represent.dissection.examples import Example, plot_examples, top_examples
from coset.represent.dissection.images import (
    AnnotatedImages,
    Concept,
    joined_images,
    masks_of_labels,
    plain_images,
    present_concepts,
    transformed_images,
)
from coset.represent.dissection.placement import Placement, receptive_placement
from coset.represent.dissection.plot import plot_concepts, plot_dissections
from coset.represent.dissection.quantiles import TailThreshold
from coset.represent.dissection.result import Dissection
from coset.represent.dissection.rotations_of_bases import RotatedDissections, dissect_rotations
from coset.represent.dissection.shapes import shape_images

__all__ = [
    "COLOURS",
    "LEAST_IOU",
    "SHARE",
    "AnnotatedImages",
    "Concept",
    "Dissection",
    "Example",
    "Placement",
    "RotatedDissections",
    "TailThreshold",
    "dissect",
    "dissect_rotations",
    "joined_images",
    "masks_of_labels",
    "plain_images",
    "plot_concepts",
    "plot_dissections",
    "plot_examples",
    "present_concepts",
    "receptive_placement",
    "rotation_powers",
    "shape_images",
    "special_rotation",
    "top_examples",
    "transformed_images",
    "with_colours",
]
