"""Posteriors averaged over the permutations of an architecture: inference, densities, entropies, draws, modes."""

from coset.posterior.symmetrized.bounds import Bounds, entropy_bounds, information_bounds
from coset.posterior.symmetrized.exact import (
    METHODS,
    all_permutations,
    entropy_symmetrized,
    information_by_draws,
    log_prob_symmetrized,
    mutual_information,
    permutation_count,
    sample_symmetrized,
)
from coset.posterior.symmetrized.fitting import fit_symmetrized
from coset.posterior.symmetrized.modes import NearestMode, nearest_mode, pair_bound, volume_bound
from coset.posterior.symmetrized.objective import SymmetrizedELBO, SymmetrizedValue
from coset.posterior.symmetrized.permanent import log_permanent, permutation_marginals, sample_permutations
from coset.posterior.symmetrized.proposals import PROPOSALS
from coset.posterior.symmetrized.units import pair_matrix

__all__ = [
    "METHODS",
    "PROPOSALS",
    "Bounds",
    "NearestMode",
    "SymmetrizedELBO",
    "SymmetrizedValue",
    "all_permutations",
    "entropy_bounds",
    "entropy_symmetrized",
    "fit_symmetrized",
    "information_bounds",
    "information_by_draws",
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
