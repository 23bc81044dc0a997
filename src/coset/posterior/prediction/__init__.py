"""Predictive distributions."""
