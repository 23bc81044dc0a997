"""Posteriors over weights: likelihoods, priors, the inference that makes them, predictions and their scores."""

from collections.abc import Callable
from typing import Any

from coset.posterior._calibration import ReliabilityCurve, ece, plot_reliability, reliability
from coset.posterior._diagnostics import Diagnostics, Mixing, diagnose
from coset.posterior._exports import to_arviz, to_frame
from coset.posterior._plots import plot_predictive, plot_ranks, plot_trace
from coset.posterior.fit import Fit, Round, Trace
from coset.posterior.inference.ensemble import fit_ensemble
from coset.posterior.inference.ensemble_chains import fit_ensemble_chains
from coset.posterior.inference.hmc import fit_hmc
from coset.posterior.inference.laplace import fit_laplace, linearized
from coset.posterior.inference.mclmc import fit_mclmc
from coset.posterior.inference.mean_field import fit_mean_field
from coset.posterior.inference.negative_elbo import elbo
from coset.posterior.inference.point import fit_map
from coset.posterior.inference.sgmcmc import fit_sgmcmc
from coset.posterior.inference.svgd import fit_svgd
from coset.posterior.inference.swag import fit_swag
from coset.posterior.likelihoods import Bernoulli, Categorical, GaussianNoise, LearnedNoise, NoiseParameter
from coset.posterior.prediction._predictive import predictive, predictive_log_likelihood
from coset.posterior.prediction.results import ClassPredictive, Predictive, RealPredictive, TargetLikelihood
from coset.posterior.priors import Density, FanIn, Isotropic, Named
from coset.posterior.scores import Scores, score
from coset.posterior.symmetrized import SymmetrizedELBO, fit_symmetrized

FITS: dict[str, Callable[..., Fit[Any]]] = {
    "map": fit_map,
    "ensemble": fit_ensemble,
    "mean-field": fit_mean_field,
    "symmetrized": fit_symmetrized,
    "swag": fit_swag,
    "svgd": fit_svgd,
    "sgmcmc": fit_sgmcmc,
    "hmc": fit_hmc,
    "mclmc": fit_mclmc,
    "ensemble-chains": fit_ensemble_chains,
    "laplace": fit_laplace,
}
"""The methods of inference by name; all take a module, data, likelihood, prior, temperature and seed."""

__all__ = [
    "FITS",
    "Bernoulli",
    "Categorical",
    "ClassPredictive",
    "Density",
    "Diagnostics",
    "FanIn",
    "Fit",
    "GaussianNoise",
    "Isotropic",
    "LearnedNoise",
    "Mixing",
    "Named",
    "NoiseParameter",
    "Predictive",
    "RealPredictive",
    "ReliabilityCurve",
    "Round",
    "Scores",
    "SymmetrizedELBO",
    "TargetLikelihood",
    "Trace",
    "diagnose",
    "ece",
    "elbo",
    "fit_ensemble",
    "fit_ensemble_chains",
    "fit_hmc",
    "fit_laplace",
    "fit_map",
    "fit_mclmc",
    "fit_mean_field",
    "fit_sgmcmc",
    "fit_svgd",
    "fit_swag",
    "fit_symmetrized",
    "linearized",
    "plot_predictive",
    "plot_ranks",
    "plot_reliability",
    "plot_trace",
    "predictive",
    "predictive_log_likelihood",
    "reliability",
    "score",
    "to_arviz",
    "to_frame",
]
