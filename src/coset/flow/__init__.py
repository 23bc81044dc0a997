"""Flows over weights: sampling networks, with densities on the manifold of canonical weights."""

from coset.flow._comparison import Comparison, compare_generators
from coset.flow._evaluation import Averaged, Evaluation, divergences
from coset.flow._generators import (
    GENERATORS,
    Blends,
    cheap_samples,
    gaussian,
    interpolation,
    midpoint,
    noise,
    principal,
    soup,
)
from coset.flow._measured_zoo import MeasuredZoo, measure_zoo
from coset.flow._scores import SampleScores, per_weight, score_against, score_samples
from coset.flow._space import Space, euclidean
from coset.flow._two_samples import (
    TwoSamples,
    discrepancy_of_distances,
    energy_distance,
    energy_of_distances,
    mean_discrepancy,
)

__all__ = [
    "GENERATORS",
    "Averaged",
    "Blends",
    "Comparison",
    "Evaluation",
    "MeasuredZoo",
    "SampleScores",
    "Space",
    "TwoSamples",
    "cheap_samples",
    "compare_generators",
    "discrepancy_of_distances",
    "divergences",
    "energy_distance",
    "energy_of_distances",
    "euclidean",
    "gaussian",
    "interpolation",
    "mean_discrepancy",
    "measure_zoo",
    "midpoint",
    "noise",
    "per_weight",
    "principal",
    "score_against",
    "score_samples",
    "soup",
]
