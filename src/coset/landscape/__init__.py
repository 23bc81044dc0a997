"""Landscapes: paths between networks, functionals along them, barriers."""

from coset.landscape.along import along
from coset.landscape.barrier import barrier
from coset.landscape.collapse import VarianceProfile, activation_variances
from coset.landscape.criterion import Criterion
from coset.landscape.curves import Bezier, PolygonalChain
from coset.landscape.evaluation import evaluate
from coset.landscape.fitting import Callback, CurveStep, FittedCurve, fit_curve
from coset.landscape.functionals import DataFunctional, Functional, accuracy, error, loss, on
from coset.landscape.geodesic import geodesic, mixture
from coset.landscape.great_circle import GreatCircle, great_circle
from coset.landscape.path import Linear, Path, Point, linear
from coset.landscape.plane import Plane, plane
from coset.landscape.plot import plot_barriers
from coset.landscape.plot_collapse import plot_collapse
from coset.landscape.plot_plane import plot_plane
from coset.landscape.posteriors import (
    PosteriorFunctional,
    evidence_bound,
    expected_loss,
    predictive_accuracy,
    predictive_error,
    predictive_likelihood,
    predictive_on,
)
from coset.landscape.profile import Midpoint, Profile, Profiles

__all__ = [
    "Bezier",
    "Callback",
    "Criterion",
    "CurveStep",
    "DataFunctional",
    "FittedCurve",
    "Functional",
    "GreatCircle",
    "Linear",
    "Midpoint",
    "Path",
    "Plane",
    "Point",
    "PolygonalChain",
    "PosteriorFunctional",
    "Profile",
    "Profiles",
    "VarianceProfile",
    "accuracy",
    "activation_variances",
    "along",
    "barrier",
    "error",
    "evaluate",
    "evidence_bound",
    "expected_loss",
    "fit_curve",
    "geodesic",
    "great_circle",
    "linear",
    "loss",
    "mixture",
    "on",
    "plane",
    "plot_barriers",
    "plot_collapse",
    "plot_plane",
    "predictive_accuracy",
    "predictive_error",
    "predictive_likelihood",
    "predictive_on",
]
