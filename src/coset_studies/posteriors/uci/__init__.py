"""Posteriors of small networks on UCI regression sets."""
