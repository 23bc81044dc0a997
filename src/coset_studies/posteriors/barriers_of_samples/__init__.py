"""Barriers between posteriors that are draws or dense Gaussians."""
