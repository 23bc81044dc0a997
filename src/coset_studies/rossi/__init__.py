"""Rossi et al. 2023, On permutation symmetries in Bayesian neural network posteriors: a variational perspective."""
