"""Matching: on weights, on activations, on losses."""
