"""Whether a prior is invariant under the permutations, without which q^G is no better a posterior than q."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from coset.errors import InputError
from coset.posterior.priors import Prior
from coset.symmetry import Symmetry

_ELEMENTS = 4
_DEVIATION = 0.5
_TOLERANCE = 1e-9


def check_invariant_prior(sym: Symmetry, prior: Prior, like: Mapping[str, Tensor]) -> None:
    """Refuse a prior whose log-density at random weights changes by a random permutation of ``sym`` (prop. 2.2).

    Every class that permutes is tried alone, so that the error can name it. ``like``: trained weights of one network.
    """
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: tensor.detach().double().cpu()
        + _DEVIATION * torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        for name, tensor in like.items()
    }
    value = float(prior.log_prob(weights))
    for name in sym.permuting:
        one = sym.restrict([name], scales=False, signs=False)
        for _ in range(_ELEMENTS):
            moved = float(prior.log_prob(one.act(one.random(generator), weights, partial=True)))
            if not math.isclose(moved, value, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
                raise InputError(
                    f"prior: its log-density changes from {value:.6g} to {moved:.6g} when units of the class '{name}' "
                    f"change places; expected a prior that is invariant under the permutations of sym"
                )
