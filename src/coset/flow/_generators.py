"""Cheap generators of networks, made from trained ones: what a flow has to beat.

Each is a ``Distribution`` over weights, in whatever frame the networks are given: raw, aligned or canonical.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from coset._checks import check_choice, check_count, check_positive, check_seed
from coset._values import Frozen, freeze
from coset.distribution import Distribution, LowRank, MeanField, Mixture, Samples
from coset.distribution.density import check_draws, pieces, vector
from coset.distribution.ties import map_tied, once, ties
from coset.errors import InputError
from coset.symmetry.action import Action
from coset.symmetry.stacks import Stack
from coset.train.randomness import stream


def _equal(n: int, count: int, generator: torch.Generator) -> Tensor:
    return torch.full((n, count), 1 / count, dtype=torch.float64, device=generator.device)


def _uniform(n: int, count: int, generator: torch.Generator) -> Tensor:
    waits = torch.empty(n, count, dtype=torch.float64, device=generator.device).exponential_(generator=generator)
    return waits / waits.sum(1, keepdim=True)


SHARES: dict[str, tuple[Callable[[int, int, torch.Generator], Tensor], Callable[[int], float]]] = {
    "equal": (_equal, lambda count: 1 / count),
    "uniform": (_uniform, lambda count: 2 / (count + 1)),
}
"""How networks share in a blend → the shares (n, count), and E Σ w²: all equal, or uniform on the simplex."""


@dataclass(frozen=True, eq=False)
class Blends(Distribution):
    """Σ_j w_j θ_(i_j) of ``count`` different networks i_1, i_2, … of a ``stack``, chosen at random, with random shares.

    ``stack``: tensors (N, *shape); whole numbers are those of the first network chosen. ``shares``: "equal", or
    "uniform" on the simplex: of two networks a point of the line between them at t ~ U(0, 1).
    """

    powers: ClassVar[Mapping[str, int]] = {"stack": 1}

    stack: Mapping[str, Tensor]
    count: int = 2
    shares: str = "uniform"

    def __post_init__(self) -> None:
        freeze(self, "stack")
        check_count("count", self.count)
        check_choice("shares", self.shares, SHARES)
        size = _count(self.stack)
        if self.count > size:
            raise InputError(f"count is {self.count}; expected at most the {size} networks that there are")

    @cached_property
    def _first(self) -> dict[str, str]:
        return ties(self.stack)

    @cached_property
    def _all(self) -> Samples:
        return Samples({name: tensor[None] for name, tensor in self.stack.items()})

    @property
    def mean(self) -> Mapping[str, Tensor]:
        """The mean of all networks."""
        return self._all.mean

    @cached_property
    def std(self) -> Mapping[str, Tensor]:
        """s·√((N·q − 1)/(N − 1)), s the deviations of the N networks and q = E Σ w²."""
        size = _count(self.stack)
        share = SHARES[self.shares][1](self.count)
        factor = math.sqrt(max(0.0, size * share - 1) / (size - 1)) if size > 1 else 0.0
        return Frozen(map_tied(lambda name: factor * self._all.std[name], ties(self._all.std)))

    def sample(self, n: int, generator: torch.Generator) -> dict[str, Tensor]:
        """n blends on a leading axis of every tensor."""
        check_draws(n, generator)
        size = _count(self.stack)
        order = torch.rand(n, size, generator=generator, dtype=torch.float64, device=generator.device)
        chosen = order.argsort(1)[:, : self.count]
        weights = SHARES[self.shares][0](n, self.count, generator)

        def drawn(name: str) -> Tensor:
            tensor = self.stack[name]
            own, share = chosen.to(tensor.device), weights.to(tensor.device)
            if not tensor.is_floating_point():
                return tensor[own[:, 0]]
            parts = share.to(tensor.dtype).reshape(n, self.count, *[1] * (tensor.ndim - 1))
            total = parts[:, 0] * tensor[own[:, 0]]
            for number in range(1, self.count):
                total = total + parts[:, number] * tensor[own[:, number]]
            return total

        return map_tied(drawn, self._first)

    def transformed(self, action: Action, *, partial: bool) -> Self:
        """The blends of g·θ_i: g acts linearly on what is not told by a network's own variances."""
        return type(self)(action(self.stack, partial=partial), self.count, self.shares)


def noisy_networks(networks: Stack, *, scale: float = 0.1, names: Collection[str] | None = None) -> Mixture:
    """A random network and noise on it: (1/N) Σ_i N(θ_i, (scale·s)²), s the deviations of the networks.

    ``names``: the parameters that vary (default: all of floating point numbers); the others are the network's own.
    """
    check_positive("scale", scale)
    size, own = _count(networks, 2), _varying(networks, names)
    deviations = Samples({name: tensor[None] for name, tensor in networks.items()}).std
    spread = {name: scale * deviations[name] for name in own}
    return Mixture([MeanField(_network(networks, number), spread) for number in range(size)])


def interpolations(networks: Stack) -> Blends:
    """Points of the lines between two random networks, at t ~ U(0, 1)."""
    return Blends(_least(networks, 2), 2, "uniform")


def midpoints(networks: Stack) -> Blends:
    """The middle between two random networks."""
    return Blends(_least(networks, 2), 2, "equal")


def soups(networks: Stack, *, count: int = 16) -> Blends:
    """The mean of ``count`` random networks."""
    return Blends(networks, count, "equal")


def fitted_gaussian(networks: Stack, *, names: Collection[str] | None = None) -> MeanField:
    """N(m, diag(s²)) with the means and deviations of the networks: the most likely one of its kind.

    ``names``: as in ``noisy_networks``; the others are at their mean.
    """
    own = _varying(_least(networks, 2), names)
    whole = Samples({name: tensor[None] for name, tensor in networks.items()})
    return MeanField(whole.mean, {name: whole.std[name] for name in own})


def principal_gaussian(
    networks: Stack, *, count: int | None = None, remainder: bool = False, names: Collection[str] | None = None
) -> LowRank:
    """A Gaussian along ``count`` principal components (default: all N − 1, with all covariances of the networks).

    With eigenvalues λ of the covariance and their vectors u: N(m, Σ_k λ_k u_k u_kᵀ); with the ``remainder``
    N(m, σ²I + Σ_k (λ_k − σ²) u_k u_kᵀ), σ² the mean of all other D − count eigenvalues, which has a density (Tipping &
    Bishop 1999). ``names``: as in ``fitted_gaussian``.
    """
    size, own = _count(networks, 2), _varying(networks, names)
    mean = Samples({name: tensor[None] for name, tensor in networks.items()}).mean
    rows = vector(networks, own, mean).double()
    most = min(size - 1, rows.shape[1])
    rank = most if count is None else check_count("count", count)
    if rank > most:
        raise InputError(f"count is {rank}; expected at most {most}, for {size} networks of {rows.shape[1]} weights")
    _, values, directions = torch.linalg.svd((rows - rows.mean(0)) / math.sqrt(size), full_matrices=False)
    variances = values.square()
    left = 0.0
    if remainder:
        others = variances[rank:most]
        # Squares of singular values that are 0 up to rounding.
        none = (torch.finfo(rows.dtype).eps * max(rows.shape)) ** 2 * float(variances[0])
        if len(others) == 0 or not float(others.sum()) > none:
            raise InputError(f"nothing remains beside {rank} components; expected a smaller count for a remainder")
        left = float(others.sum()) / (rows.shape[1] - rank)
    factors = (variances[:rank] - left).clamp(min=0).sqrt()[:, None] * directions[:rank]
    diagonal = torch.full_like(rows[0], math.sqrt(left))
    return LowRank(mean, pieces(diagonal, own, mean), pieces(factors, own, mean))


GENERATORS: dict[str, Callable[..., Distribution]] = {
    "noise": noisy_networks,
    "interpolation": interpolations,
    "midpoint": midpoints,
    "soup": soups,
    "gaussian": fitted_gaussian,
    "principal": principal_gaussian,
}
"""Name → a distribution made of a stack of trained networks, and options."""


def cheap_samples(
    networks: Stack,
    n: int,
    *,
    seed: int = 0,
    generators: Collection[str] = tuple(GENERATORS),
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, dict[str, Tensor]]:
    """n networks of each of the ``generators``, with ``options`` by generator; each has a stream of its own."""
    check_count("n", n)
    check_seed(seed)
    for name in (*generators, *(options or {})):
        check_choice("generators", name, GENERATORS)
    given = options or {}
    return {
        name: GENERATORS[name](networks, **given.get(name, {})).sample(n, stream(f"cheap {name}", seed, 0))
        for name in generators
    }


def _count(networks: Stack, least: int = 1) -> int:
    """How many networks are stacked; refuses what is no stack of so many, of finite real numbers."""
    if not isinstance(networks, Mapping) or not networks:
        raise InputError(
            f"networks is a {type(networks).__name__}; expected a dict of tensors (networks, …), not empty"
        )
    counts: dict[int, str] = {}
    for name, tensor in networks.items():
        if not isinstance(tensor, Tensor) or tensor.ndim == 0:
            raise InputError(f"networks['{name}'] has no leading axis of networks; expected a stack")
        if tensor.is_complex():
            raise InputError(f"networks['{name}'] is of {tensor.dtype}; expected real numbers")
        counts.setdefault(len(tensor), name)
    if len(counts) > 1:
        (one, first), (two, second), *_ = counts.items()
        raise InputError(f"'{first}' is of {one} networks and '{second}' of {two}; expected the same for all")
    found = next(iter(counts))
    if found < least:
        raise InputError(f"there are {found} networks; expected at least {least}")
    for name, tensor in networks.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise InputError(f"'{name}' of the networks has entries that are NaN or infinite")
    return found


def _least(networks: Stack, least: int) -> Stack:
    _count(networks, least)
    return networks


def _network(networks: Stack, number: int) -> dict[str, Tensor]:
    """One of them; names that are tied in the stack stay tied."""
    return map_tied(lambda name: networks[name][number], ties(networks))


def _varying(networks: Stack, names: Collection[str] | None) -> tuple[str, ...]:
    """The parameters that vary, of tied ones the first, in their order."""
    known = [name for name, tensor in networks.items() if tensor.is_floating_point()]
    if names is not None and (odd := [name for name in names if name not in known]):
        raise InputError(f"names has '{odd[0]}', which is no parameter of floating point numbers of the networks")
    first = ties(networks)
    chosen = {first[name] for name in (known if names is None else names)}
    if not chosen:
        raise InputError("names is empty; expected at least one parameter that varies")
    return once((name for name in networks if name in chosen), first)
