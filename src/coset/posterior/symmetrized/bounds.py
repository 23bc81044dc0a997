"""Bounds on I(g; ω) and on the entropy of q^G from both sides, by draws of permutations."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from coset._checks import check_count
from coset._show.progress import progress
from coset.distribution import Estimate, Normal
from coset.distribution.mixture import check_samples
from coset.posterior.fit import device_stream
from coset.posterior.symmetrized.orbit import Drawn, orbit
from coset.posterior.symmetrized.proposals import proposal_named
from coset.posterior.symmetrized.units import Unknowns, unknowns
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
    q: Normal,
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
    check_samples(samples)
    check_count("seed", seed, 0)
    over = unknowns(q)
    # A stream of its own: the plain one of a seed may be what the network began with.
    generator = device_stream("bounds of the information", seed, 0, over.mean)
    sides: list[tuple[Tensor, Tensor]] = []
    with torch.no_grad(), progress("bounds of the information", samples, show=show) as bar:
        for drawn in draws_in_parts(sym, over, K, samples, generator):
            weights = chosen.weights(drawn, K, generator)
            sides.append((weights.lower(), weights.upper()))
            bar.advance(len(drawn.x))
    lower, upper = (torch.cat(side) for side in zip(*sides, strict=True))
    return Bounds(Estimate.of(lower) if chosen.lower else None, Estimate.of(upper))


def entropy_bounds(
    sym: Symmetry,
    q: Normal,
    K: int = 100,
    samples: int = 1000,
    seed: int = 0,
    *,
    proposal: str = "sequential",
    show: bool | None = None,
) -> Bounds:
    """Lower and upper bounds of H(q^G) = H(q) + I(g; ω), the first in closed form."""
    return information_bounds(sym, q, K, samples, seed, proposal=proposal, show=show).shifted(
        float(unknowns(q).entropy())
    )


def draws_in_parts(sym: Symmetry, over: Unknowns, K: int, samples: int, generator: torch.Generator) -> Iterator[Drawn]:
    """``samples`` draws of ω beside their q, as many at a time as memory holds with K permutations of each."""
    moved, size = orbit(sym, over.names, over.like), len(over.mean)
    units = max((part.units**2 for part in moved.simple.values()), default=0)
    # A class is compared given others by all of its weights, for each permutation of these.
    gathered = size if len(moved.classes) > 1 else len(moved.shared)
    most = max(1, _ENTRIES // (size + K * (units + gathered)))
    for start in range(0, samples, most):
        yield Drawn(moved, over.draw(min(most, samples - start), generator), over.mean, over.std)
