"""Landscapes: paths between networks, functionals along them, barriers."""

from coset.landscape.barrier import barrier
from coset.landscape.criterion import Criterion
from coset.landscape.curves import Bezier, PolygonalChain
from coset.landscape.fitting import Callback, CurveStep, FittedCurve, fit_curve
from coset.landscape.functionals import DataFunctional, Functional, accuracy, error, evaluate, loss, on
from coset.landscape.geodesic import geodesic, mixture
from coset.landscape.path import Linear, Path, Point, linear
from coset.landscape.plot import plot_barriers
from coset.landscape.posteriors import predictive_likelihood
from coset.landscape.profile import Midpoint, Profile, Profiles

__all__ = [
    "Bezier",
    "Callback",
    "Criterion",
    "CurveStep",
    "DataFunctional",
    "FittedCurve",
    "Functional",
    "Linear",
    "Midpoint",
    "Path",
    "Point",
    "PolygonalChain",
    "Profile",
    "Profiles",
    "accuracy",
    "barrier",
    "error",
    "evaluate",
    "fit_curve",
    "geodesic",
    "linear",
    "loss",
    "mixture",
    "on",
    "plot_barriers",
    "predictive_likelihood",
]
