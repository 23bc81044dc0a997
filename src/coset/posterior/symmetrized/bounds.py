"""Bounds on I(g; ω) and on the entropy of q^G from both sides, by draws of permutations."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from coset._checks import check_count
from coset._show.progress import progress
from coset.distribution import Estimate, MeanField
from coset.errors import InputError
from coset.posterior.fit import device_stream
from coset.posterior.symmetrized.drawn import Drawn, LogWeights
from coset.posterior.symmetrized.exact import entropy_of
from coset.posterior.symmetrized.orbit import Orbit, orbit
from coset.posterior.symmetrized.proposals import Proposal, proposal_named
from coset.posterior.symmetrized.units import unknowns
from coset.symmetry import Symmetry

_ENTRIES = 2**22
"""So many numbers are held at once."""


class Bounds(NamedTuple):
    """Estimates of a ``lower`` and an ``upper`` bound, each with its standard error.

    ``lower`` is None where a proposal gives none; both are the value itself where it is exact.
    """

    lower: Estimate | None
    upper: Estimate

    def shifted(self, by: float) -> "Bounds":
        """Both, and a constant."""
        lower = None if self.lower is None else Estimate(self.lower.value + by, self.lower.error)
        return Bounds(lower, Estimate(self.upper.value + by, self.upper.error))


def information_bounds(
    sym: Symmetry,
    q: MeanField,
    K: int = 100,
    samples: int = 1000,
    seed: int = 0,
    *,
    proposal: str = "sequential",
    show: bool | None = None,
) -> Bounds:
    """Lower and upper bounds of I(g; ω) = H(q^G) − H(q) in nats, by ``samples`` draws of ω and K permutations for each.

    ``proposal``: a name in ``PROPOSALS``. Both come from the same draws and close as K grows; see ``LogWeights``.
    """
    chosen = proposal_named(proposal)
    check_count("K", K)
    check_count("samples", samples)
    if samples < 2:
        raise InputError("samples is 1; expected two or more, for a standard error")
    check_count("seed", seed, 0)
    over = unknowns(q)
    moved = orbit(sym, over.names, over.like)
    # A stream of its own: the plain one of a seed may be what the network began with.
    generator = device_stream("bounds of the information", seed, 0, over.mean)
    sides: list[tuple[Tensor, Tensor]] = []
    size = draws_at_once(moved, K, len(over.mean))
    with torch.no_grad(), progress("bounds of the information", samples, show=show) as bar:
        for start in range(0, samples, size):
            count = min(size, samples - start)
            noise = torch.randn(
                count, len(over.mean), generator=generator, dtype=torch.float64, device=over.mean.device
            )
            drawn = Drawn(moved, over.mean + over.std * noise, over.mean, over.std)
            weights = chosen.weights(drawn, K, generator)
            sides.append((weights.lower(), weights.upper()))
            bar.advance(count)
    lower, upper = (torch.cat(side) for side in zip(*sides, strict=True))
    return Bounds(_estimate(lower) if chosen.lower else None, _estimate(upper))


def entropy_bounds(
    sym: Symmetry,
    q: MeanField,
    K: int = 100,
    samples: int = 1000,
    seed: int = 0,
    *,
    proposal: str = "sequential",
    show: bool | None = None,
) -> Bounds:
    """Lower and upper bounds of H(q^G) = H(q) + I(g; ω), the first in closed form."""
    return information_bounds(sym, q, K, samples, seed, proposal=proposal, show=show).shifted(entropy_of(q))


def side_of(chosen: Proposal, weights: LogWeights) -> Tensor:
    """What stands for −log z(ω) (…) in an objective: the lower bound where there is one."""
    return weights.lower() if chosen.lower else weights.upper()


def draws_at_once(moved: Orbit, K: int, size: int) -> int:
    """How many draws of ω (D,), D = ``size``, with K permutations each are held in memory together."""
    units = max((part.units**2 for part in moved.simple.values()), default=0)
    # A class is compared given others by all of its weights, for each permutation of these.
    gathered = size if len(moved.classes) > 1 else len(moved.shared)
    return max(1, _ENTRIES // (size + K * (units + gathered)))


def _estimate(values: Tensor) -> Estimate:
    return Estimate(float(values.mean()), float(values.std()) / math.sqrt(len(values)))
