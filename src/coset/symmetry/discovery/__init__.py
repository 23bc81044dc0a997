"""Discovery of the symmetry group of a model nobody has described."""
