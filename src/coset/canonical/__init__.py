"""Canonical forms: one network of every orbit, and what is computed with it."""

from coset.canonical._form import Canonical, canonicalize, decanonicalize

__all__ = ["Canonical", "canonicalize", "decanonicalize"]
