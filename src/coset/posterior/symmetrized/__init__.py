"""Posteriors averaged over the permutations of an architecture: exact densities, entropies, draws, nearest modes."""

from coset.posterior.symmetrized.enumeration import all_permutations, permutation_count
from coset.posterior.symmetrized.exact import (
    METHODS,
    entropy_symmetrized,
    log_prob_symmetrized,
    mutual_information,
    sample_symmetrized,
)
from coset.posterior.symmetrized.modes import NearestMode, nearest_mode, pair_bound, volume_bound
from coset.posterior.symmetrized.pairs import pair_matrix
from coset.posterior.symmetrized.permanent import log_permanent, permutation_marginals, sample_permutations

__all__ = [
    "METHODS",
    "NearestMode",
    "all_permutations",
    "entropy_symmetrized",
    "log_permanent",
    "log_prob_symmetrized",
    "mutual_information",
    "nearest_mode",
    "pair_bound",
    "pair_matrix",
    "permutation_count",
    "permutation_marginals",
    "sample_permutations",
    "sample_symmetrized",
    "volume_bound",
]
