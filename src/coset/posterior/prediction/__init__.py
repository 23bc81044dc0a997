"""Predictive distributions."""

from coset.posterior.prediction._predictive import BATCH_SIZE

__all__ = ["BATCH_SIZE"]
