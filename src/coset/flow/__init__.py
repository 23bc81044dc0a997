"""Flows over weights: sampling networks, with densities on the manifold of canonical weights."""

from coset.flow._coupling_fits import fit_coupling_flow, fit_coupling_flow_to_draws
from coset.flow._coupling_flow import CouplingFlow
from coset.flow._couplings import COUPLINGS
from coset.flow._divergence import divergence
from coset.flow._evidence import Evidence, evidence
from coset.flow._fields import FIELDS
from coset.flow._fitting import fit_flow
from coset.flow._flow import Flow
from coset.flow._frame import ORDERS
from coset.flow._likelihood import log_density, push
from coset.flow._paths import GEOMETRIES, Path
from coset.flow._solvers import Solver, Trajectory, Velocity, integrate, trajectory
from coset.flow._sources import SOURCES, Source
from coset.flow._space import Space, euclidean
from coset.flow._stochastic import integrate_stochastic
from coset.flow._tableaus import SOLVERS
from coset.flow._training import FlowRecipe
from coset.flow._transport import WAYS, PosteriorTarget, carry, transport

__all__ = [
    "COUPLINGS",
    "FIELDS",
    "GEOMETRIES",
    "ORDERS",
    "SOLVERS",
    "SOURCES",
    "WAYS",
    "CouplingFlow",
    "Evidence",
    "Flow",
    "FlowRecipe",
    "Path",
    "PosteriorTarget",
    "Solver",
    "Source",
    "Space",
    "Trajectory",
    "Velocity",
    "carry",
    "divergence",
    "euclidean",
    "evidence",
    "fit_coupling_flow",
    "fit_coupling_flow_to_draws",
    "fit_flow",
    "integrate",
    "integrate_stochastic",
    "log_density",
    "push",
    "trajectory",
    "transport",
]
