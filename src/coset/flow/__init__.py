"""Flows over weights: sampling networks, with densities on the manifold of canonical weights."""

from coset.flow._couplings import COUPLINGS
from coset.flow._divergence import divergence
from coset.flow._fields import FIELDS
from coset.flow._files import load_flow, save_flow
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

__all__ = [
    "COUPLINGS",
    "FIELDS",
    "GEOMETRIES",
    "ORDERS",
    "SOLVERS",
    "SOURCES",
    "Flow",
    "FlowRecipe",
    "Path",
    "Solver",
    "Source",
    "Space",
    "Trajectory",
    "Velocity",
    "divergence",
    "euclidean",
    "fit_flow",
    "integrate",
    "integrate_stochastic",
    "load_flow",
    "log_density",
    "push",
    "save_flow",
    "trajectory",
]
