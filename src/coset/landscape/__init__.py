"""Landscapes: paths between networks, functionals along them, barriers."""

from coset.landscape._barrier import barrier, evaluate
from coset.landscape._collapse import VarianceProfile, activation_variances
from coset.landscape._criterion import Criterion
from coset.landscape._curves import Bezier, PolygonalChain
from coset.landscape._fitting import Callback, CurveStep, FittedCurve, fit_curve
from coset.landscape._functionals import DataFunctional, Functional, accuracy, error, loss, on
from coset.landscape._geodesic import DENSE, GEODESICS, PATHS, geodesic, mixture
from coset.landscape._great_circle import GreatCircle, great_circle
from coset.landscape._path import Linear, Path, Point, along, linear
from coset.landscape._plane import Plane, plane
from coset.landscape._plot import plot_barriers, plot_collapse
from coset.landscape._plot_plane import plot_plane
from coset.landscape._posteriors import (
    PosteriorFunctional,
    evidence_bound,
    expected_loss,
    predictive_accuracy,
    predictive_error,
    predictive_likelihood,
    predictive_on,
)
from coset.landscape._profile import Midpoint, Profile, Profiles
from coset.landscape._stack import ProfileStack, barriers
from coset.landscape._ways import Ways, naive_and_aligned

__all__ = [
    "DENSE",
    "GEODESICS",
    "PATHS",
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
    "ProfileStack",
    "Profiles",
    "VarianceProfile",
    "Ways",
    "accuracy",
    "activation_variances",
    "along",
    "barrier",
    "barriers",
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
    "naive_and_aligned",
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
