"""Weights drawn from any distribution, each by its number: draw j is the same whatever else is computed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from coset._checks import check_count, check_seed
from coset.distribution.contract import rule_for, unwrapped
from coset.distribution.delta import Delta
from coset.distribution.mean_field import MeanField
from coset.distribution.mixture import Mixture
from coset.distribution.samples import Samples
from coset.distribution.ties import ties
from coset.errors import InputError
from coset.posterior.fit import Fit
from coset.train.randomness import stream

SAMPLES = 128
"""So many draws unless told otherwise."""


@runtime_checkable
class Sampled(Protocol):
    """Anything that draws weights: every distribution over weights does."""

    def sample(self, n: int, generator: torch.Generator) -> dict[str, Tensor]:
        """n draws on a leading axis of every tensor."""
        ...


Posterior = Sampled | Mapping[str, Tensor] | Fit[Any]
"""A distribution over weights, a dict of weights (a point), or what inference returned."""


@dataclass(frozen=True, eq=False)
class Draws:
    """``count`` draws of weights, ``draw(j)`` the j-th as one network; ``exact``: one is all there is to know.

    ``independent``: the draws do not depend on each other, as those of a chain do.
    """

    count: int
    exact: bool
    draw: Callable[[int], Mapping[str, Tensor]]
    independent: bool = True


def draws_of(q: Posterior, samples: int | None, seed: int | torch.Generator) -> Draws:
    """The draws by which ``q`` is represented.

    A point is drawn once. Of ``Samples`` all draws are taken, or ``samples`` of them evenly spaced over the chains, in
    an order in which any first few are spread over all. Of everything else, ``samples`` are drawn (128 if None), the
    j-th from a stream of its own that depends on the seed and on j only: distributions along a path see the same
    standard normal numbers. Draw j of a ``Mixture`` is draw j of one of its components, see ``_chosen``; if one has all
    the weight, the draws are its own. ``DRAWS`` has the rules of single kinds.
    """
    if samples is not None:
        check_count("samples", samples)
    q = unwrapped(q)
    if isinstance(q, Mapping):
        q = Delta(q)
    if isinstance(q, type) or not isinstance(q, Sampled):
        raise InputError(f"q is a {type(q).__name__}; expected a distribution over weights, a dict of them or a Fit")
    return (rule_for(DRAWS, q) or _drawn)(q, samples, seed)


def _drawn(q: Sampled, samples: int | None, seed: int | torch.Generator) -> Draws:
    root = _root(seed)

    def draw(number: int) -> dict[str, Tensor]:
        drawn = q.sample(1, stream("predictive", root, number))
        return {name: tensor[0] for name, tensor in drawn.items()}

    return Draws(samples or SAMPLES, False, draw)


def _point(q: Delta, samples: int | None, seed: int | torch.Generator) -> Draws:
    return Draws(1, True, lambda number: q.params)


def _mean_field(q: MeanField, samples: int | None, seed: int | torch.Generator) -> Draws:
    root = _root(seed)
    if not q.random_names:
        return _point(Delta(q.mean), samples, root)
    if len({(q.mean[name].dtype, q.mean[name].device) for name in q.random_names}) > 1:
        return _drawn(q, samples, root)
    return Draws(samples or SAMPLES, False, _flat(q, root))


def _flat(q: MeanField, root: int) -> Callable[[int], dict[str, Tensor]]:
    """m + s·ε of all that varies as one vector: few small operations where networks are small, one pass where large."""
    first, names = ties(q.mean), q.random_names
    spread = {first[name]: deviation for name, deviation in q.std.items()}
    mean = torch.cat([q.mean[name].detach().reshape(-1) for name in names])
    std = torch.cat([spread[name].detach().to(mean).reshape(-1) for name in names])
    sizes = [q.mean[name].numel() for name in names]
    # Written anew for every draw: fresh memory would cost as much as the arithmetic.
    noise = torch.empty_like(mean, device="cpu")

    def draw(number: int) -> dict[str, Tensor]:
        noise.normal_(generator=stream("predictive", root, number))
        parts = torch.split(torch.addcmul(mean, std, noise.to(mean.device)), sizes)
        drawn = {name: part.view(q.mean[name].shape) for name, part in zip(names, parts, strict=True)}
        return {name: drawn[one] if one in drawn else q.mean[name] for name, one in first.items()}

    return draw


def _given(q: Samples, samples: int | None, seed: int | torch.Generator) -> Draws:
    total = len(q)
    count = total if samples is None else min(samples, total)
    # The middle of each of ``count`` equal stretches.
    spaced = [(2 * number + 1) * total // (2 * count) for number in range(count)]
    order = sorted(range(count), key=_mirrored)

    def draw(number: int) -> dict[str, Tensor]:
        return q.draw(*divmod(spaced[order[number]], q.draws))

    return Draws(count, False, draw, independent=False)


def _mixed(q: Mixture, samples: int | None, seed: int | torch.Generator) -> Draws:
    """Draw j of the component chosen for j, as it is without the mixture; where there are too few, from 0 on again."""
    weights = q.weights.detach().cpu()
    present = weights.nonzero().flatten().tolist()
    if len(present) == 1:
        return draws_of(q.components[present[0]], samples, seed)
    root = _root(seed)
    parts = {number: draws_of(q.components[number], samples, root) for number in present}
    chosen = _chosen(weights, root, _height(q))

    def draw(number: int) -> Mapping[str, Tensor]:
        part = parts[chosen(number)]
        return part.draw(number % part.count)

    return Draws(samples or SAMPLES, False, draw)


def _chosen(weights: Tensor, root: int, height: int) -> Callable[[int], int]:
    """The component of draw j: the inverse of the cumulated weights at u_j = vdc(j) + shift modulo 1.

    u_j does not depend on the weights: where these change, only draws whose u_j is passed change their component. The
    van der Corput sequence is spread evenly whatever its length, the shift (by seed) makes each u_j uniform. Its base
    is a prime of each height of mixtures in mixtures, and 2 that of draws within ``Samples``: choices at different
    heights and places in chains are spread jointly (Halton 1960), where one sequence for all would tie them together.
    """
    ends = weights.cumsum(0)
    last = int(weights.nonzero().max())
    base = _odd_prime(height)
    shift = float(torch.rand((), dtype=torch.float64, generator=stream("mixture", root, height)))

    def component(number: int) -> int:
        u = (_mirrored(number, base) + shift) % 1.0
        # Rounding may leave the sum of the weights a little below 1.
        return min(int(torch.searchsorted(ends, u, right=True)), last)

    return component


DRAWS: dict[type, Callable[[Any, int | None, int | torch.Generator], Draws]] = {
    Delta: _point,
    MeanField: _mean_field,
    Samples: _given,
    Mixture: _mixed,
}
"""Kind → its draws, for (q, samples, seed); all other kinds are asked for one ``sample`` at a time."""


def _height(q: object) -> int:
    """1 for a mixture without mixtures in it, 0 for what is none; a component's is always less than the mixture's."""
    return 1 + max(map(_height, q.components)) if hasattr(q, "components") else 0


def _odd_prime(number: int) -> int:
    """3, 5, 7, 11, … for 1, 2, 3, 4, …"""
    primes: list[int] = []
    candidate = 3
    while len(primes) < number:
        if all(candidate % prime for prime in primes):
            primes.append(candidate)
        candidate += 2
    return primes[-1]


def _mirrored(number: int, base: int = 2) -> float:
    """The digits of a number mirrored behind the point (van der Corput): in base 2, 0, 1/2, 1/4, 3/4, 1/8, …"""
    value, place = 0.0, 1.0 / base
    while number:
        number, digit = divmod(number, base)
        value, place = value + place * digit, place / base
    return value


def _root(seed: int | torch.Generator) -> int:
    """The seed itself, or one number taken from a generator."""
    if isinstance(seed, torch.Generator):
        return int(torch.randint(2**63 - 1, (), generator=seed, device=seed.device))
    return check_seed(seed, otherwise=", or a torch.Generator")
