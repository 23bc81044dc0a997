"""What the studies of Rossi et al. 2023 share: pairs of posteriors, the MLPs, and reports of barriers."""
