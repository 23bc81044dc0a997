"""The symmetry groups of the architectures themselves."""
