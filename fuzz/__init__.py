"""Attacks on coset with random models and damaged files: ``./dev fuzz [models|files] --minutes N --seed S``."""
