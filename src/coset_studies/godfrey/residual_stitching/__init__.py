"""ResNets stitched inside and outside of residual blocks (Godfrey et al. 2022, D.3)."""
