"""The network of two weights: mean-field VI and symmetrized VI against a posterior that is known."""
