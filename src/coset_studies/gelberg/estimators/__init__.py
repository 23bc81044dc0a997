"""Estimators of the entropy that averaging over permutations adds."""
