"""Interpretable units of networks in rotated bases (Godfrey et al. 2022, section 6)."""
