"""Flows over weights: sampling networks, with densities on the manifold of canonical weights."""

from coset.flow._comparison import Comparison, compare_generators
from coset.flow._coupling_fits import fit_coupling_flow, fit_coupling_flow_to_draws
from coset.flow._coupling_flow import CouplingFlow
from coset.flow._couplings import COUPLINGS
from coset.flow._divergence import divergence
from coset.flow._drawn import draws_of_flow
from coset.flow._evaluated_flow import evaluate_flow
from coset.flow._evaluation import Averaged, Evaluation, jensen_shannon
from coset.flow._evidence import Evidence, evidence
from coset.flow._fields import FIELDS
from coset.flow._files import load_flow, save_flow
from coset.flow._fitting import fit_flow
from coset.flow._flow import Flow
from coset.flow._frame import ORDERS
from coset.flow._generators import (
    GENERATORS,
    Blends,
    cheap_samples,
    fitted_gaussian,
    interpolations,
    midpoints,
    noisy_networks,
    principal_gaussian,
    soups,
)
from coset.flow._guidance import NetworkLoss, task_loss
from coset.flow._likelihood import log_density, push
from coset.flow._measured_zoo import MeasuredZoo, measure_zoo
from coset.flow._modulo import log_prob_modulo
from coset.flow._paths import GEOMETRIES, Path
from coset.flow._scores import SampleScores, per_weight, score_against, score_samples
from coset.flow._solvers import Solver, Trajectory, Velocity, integrate, trajectory
from coset.flow._sources import SOURCES, Source
from coset.flow._space import Space, euclidean
from coset.flow._stochastic import integrate_stochastic
from coset.flow._tableaus import SOLVERS
from coset.flow._training import FlowRecipe
from coset.flow._transport import WAYS, PosteriorTarget, carry, transport
from coset.flow._two_samples import (
    TwoSamples,
    discrepancy_of_distances,
    energy_distance,
    energy_of_distances,
    mean_discrepancy,
)
from coset.flow._widths import for_architecture
from coset.posterior.prediction.draws import DRAWS

DRAWS[Flow] = draws_of_flow

__all__ = [
    "COUPLINGS",
    "FIELDS",
    "GENERATORS",
    "GEOMETRIES",
    "ORDERS",
    "SOLVERS",
    "SOURCES",
    "WAYS",
    "Averaged",
    "Blends",
    "Comparison",
    "CouplingFlow",
    "Evaluation",
    "Evidence",
    "Flow",
    "FlowRecipe",
    "MeasuredZoo",
    "NetworkLoss",
    "Path",
    "PosteriorTarget",
    "SampleScores",
    "Solver",
    "Source",
    "Space",
    "Trajectory",
    "TwoSamples",
    "Velocity",
    "carry",
    "cheap_samples",
    "compare_generators",
    "discrepancy_of_distances",
    "divergence",
    "energy_distance",
    "energy_of_distances",
    "euclidean",
    "evaluate_flow",
    "evidence",
    "fit_coupling_flow",
    "fit_coupling_flow_to_draws",
    "fit_flow",
    "fitted_gaussian",
    "for_architecture",
    "integrate",
    "integrate_stochastic",
    "interpolations",
    "jensen_shannon",
    "load_flow",
    "log_density",
    "log_prob_modulo",
    "mean_discrepancy",
    "measure_zoo",
    "midpoints",
    "noisy_networks",
    "per_weight",
    "principal_gaussian",
    "push",
    "save_flow",
    "score_against",
    "score_samples",
    "soups",
    "task_loss",
    "trajectory",
    "transport",
]
