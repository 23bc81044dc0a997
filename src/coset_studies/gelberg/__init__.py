"""Gelberg et al. 2024, Variational inference failures under model symmetries: permutation invariant posteriors."""
