"""Inference: one method a file."""
