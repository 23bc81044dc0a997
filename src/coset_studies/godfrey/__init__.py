"""Godfrey et al. 2022, On the symmetries of deep learning models and their internal representations."""
