"""Merging: averages, and renormalisation of what an average lost."""
