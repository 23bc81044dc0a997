"""Many points of a path at once, as tensors with a leading axis for τ."""

from collections.abc import Sequence, Sized
from typing import Any

import torch

from coset.distribution import Samples
from coset.errors import InputError
from coset.landscape._path import Path, check_tau
from coset.posterior.prediction.draws import draws_of


@torch.no_grad()
def along(path: Path[Any], taus: Sequence[float], *, samples: int = 1, seed: int = 0) -> Samples:
    """Networks all along a path, tensors (T, M, *shape): T chains for the τ, of M draws each.

    A point is one draw. Of posteriors there are ``samples``, under common random numbers: draw j of every τ depends on
    ``seed`` and j alone, as in ``barrier``; of ``Samples`` so many evenly spaced ones. So one network of ``torch.func``
    evaluates them all: ``vmap(vmap(f))(dict(along(path, taus).params))``.
    """
    if not callable(path):
        raise InputError(f"path is a {type(path).__name__}; expected a function of τ, as linear(a, b)")
    if not isinstance(taus, Sized) or len(taus) == 0:
        raise InputError(f"taus is {taus!r}; expected at least one number from 0 to 1")
    rows = []
    for tau in taus:
        draws = draws_of(path(check_tau(tau)), samples, seed)
        rows.append([draws.draw(number) for number in range(draws.count)])
    if len({len(row) for row in rows}) > 1:
        counts = ", ".join(str(len(row)) for row in rows)
        raise InputError(f"the path has {counts} draws at the τ asked for; expected as many at each")
    names = rows[0][0]
    return Samples({name: torch.stack([torch.stack([one[name] for one in row]) for row in rows]) for name in names})
