"""Theus et al. 2025, Generalized linear mode connectivity for transformers."""
