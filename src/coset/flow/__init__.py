"""Flows over weights: sampling networks, with densities on the manifold of canonical weights."""

from coset.flow._divergence import divergence
from coset.flow._likelihood import log_density, push
from coset.flow._solvers import Solver, Trajectory, Velocity, integrate, trajectory
from coset.flow._space import Space, euclidean
from coset.flow._stochastic import integrate_stochastic
from coset.flow._tableaus import SOLVERS

__all__ = [
    "SOLVERS",
    "Solver",
    "Space",
    "Trajectory",
    "Velocity",
    "divergence",
    "euclidean",
    "integrate",
    "integrate_stochastic",
    "log_density",
    "push",
    "trajectory",
]
