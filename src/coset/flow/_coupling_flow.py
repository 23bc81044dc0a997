"""A static normalizing flow over weights, with exact densities: coupling layers on a Gaussian."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from coset._values import Frozen, freeze, transformed_by_functorch
from coset.distribution import Distribution, Estimate
from coset.distribution.density import check_draws, check_generator, monomial, pieces, standard_normal, vector
from coset.distribution.files import KINDS, Kind
from coset.distribution.mixture import check_samples
from coset.distribution.ties import map_tied, ties
from coset.errors import InputError
from coset.flow._coupling_layers import HALF_LOG_2PI, Couplings, Parts, couplings_of, log_normal, pull, push
from coset.symmetry.action import Action
from coset.train.randomness import stream

MOMENTS = 4096
"""So many draws tell mean and deviations."""
_CHUNK = 512
"""So many draws are held at once."""


@dataclass(frozen=True, eq=False)
class CouplingFlow(Distribution):
    """θ = m + s·T(ε)[order], ε ~ N(0, I), T affine coupling layers: log q(θ) = log N(ε) − log|det ∂θ/∂ε| (3.19).

    With T the identity it is N(m, diag s²). ``location``: m, and points, names as in ``state_dict()``; ``names``: what
    varies, of tied names one; ``scale`` s ≠ 0 and ``order``, which entry of T's output each takes: (D,), the ``names``
    one after the other; ``conditioners``: the tensors of T, see ``Couplings``; ``bound``: of its log-scales.
    Under a monomial g with matrix A: m → g·m, and A goes into s and order; T stays. Draws are moved exactly.
    Mean and deviations have no closed form: they are those of ``MOMENTS`` draws, from a fixed seed, in mirrored pairs
    of unit variance; exact where T is the identity, the mean where it is linear.
    """

    powers: ClassVar[Mapping[str, int]] = {"location": 1, "scale": 1}

    location: Mapping[str, Tensor]
    scale: Tensor
    order: Tensor
    conditioners: Mapping[str, Tensor]
    names: tuple[str, ...]
    bound: float

    def __post_init__(self) -> None:
        freeze(self, "location", "conditioners")
        object.__setattr__(self, "names", tuple(self.names))
        size = _check_names(self.location, self.names, self._first)
        for what, tensor in (("scale", self.scale), ("order", self.order)):
            if not isinstance(tensor, Tensor) or tensor.shape != (size,):
                found = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
                raise InputError(f"{what} has shape {found}; expected ({size},), the entries of names")
        if not self.scale.is_floating_point():
            raise InputError(f"scale is of type {self.scale.dtype}; expected real floating point numbers")
        if not transformed_by_functorch(self.scale) and not bool((self.scale.isfinite() & (self.scale != 0)).all()):
            raise InputError("scale has values that are 0 or not finite; expected others, without which is no density")
        if not torch.equal(self.order.sort().values, torch.arange(size, device=self.order.device)):
            raise InputError(f"order is no permutation of 0…{size - 1}")
        _ = self.couplings

    @cached_property
    def couplings(self) -> Couplings:
        """The layers of T."""
        return couplings_of(self.conditioners, len(self.scale), self.bound)

    @cached_property
    def _first(self) -> dict[str, str]:
        return ties(self.location)

    @cached_property
    def _parts(self) -> Parts:
        location = vector(self.location, self.names, self.location).to(self.scale)
        return Parts(location, self.scale, self.order, self.conditioners)

    @property
    def random_names(self) -> tuple[str, ...]:
        """What varies, in the order of ``scale``."""
        return self.names

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation of T(ε), (D,) each, in float64."""
        total = torch.zeros(len(self.scale), dtype=torch.float64, device=self.scale.device)
        squares = total.clone()
        with torch.no_grad():
            for number in range(MOMENTS // _CHUNK):
                half = standard_normal((_CHUNK // 2, len(self.scale)), self.scale, stream("moments", 0, number))
                half = half / half.square().mean(0).sqrt()
                u = self.couplings(self.conditioners, torch.cat([half, -half]))[0].double()
                total += u.sum(0)
                squares += u.square().sum(0)
        mean = total / MOMENTS
        return mean, (squares / MOMENTS - mean.square()).clamp(min=0).sqrt()

    @cached_property
    def mean(self) -> Mapping[str, Tensor]:
        """m + s·E[T(ε)][order], by ``MOMENTS`` draws; points as they are."""
        away = (self._moments[0][self.order] * self.scale.double()).to(self.scale)
        return Frozen(self._whole(self._parts.location + away))

    @cached_property
    def std(self) -> Mapping[str, Tensor]:
        """|s|·std[T(ε)][order], by ``MOMENTS`` draws, of every name that varies."""
        spread = (self._moments[1][self.order] * self.scale.double().abs()).to(self.scale)
        parts = pieces(spread, self.names, self.location)
        known = {self._first[name]: part for name, part in parts.items()}
        return Frozen({name: known[one] for name, one in self._first.items() if one in known})

    def from_noise(self, noise: Tensor) -> dict[str, Tensor]:
        """ε (…, D) → weights (…, *shape), with points as views; differentiable."""
        if noise.shape[-1:] != self.scale.shape:
            raise InputError(f"noise has shape {tuple(noise.shape)}; expected (…, {len(self.scale)})")
        return self._whole(push(self.couplings, self._parts, noise.to(self.scale))[0])

    def to_noise(self, params: Mapping[str, Tensor]) -> Tensor:
        """Weights (…, *shape) → ε (…, D), which ``from_noise`` takes back to them; points are not looked at."""
        return pull(self.couplings, self._parts, self._away(params))[0]

    def sample(self, n: int, generator: torch.Generator) -> dict[str, Tensor]:
        """n draws on a leading axis of every tensor, points as views; differentiable in all that is trained."""
        check_draws(n, generator)
        return self.from_noise(standard_normal((n, len(self.scale)), self.scale, generator))

    def log_prob(self, params: Mapping[str, Tensor]) -> Tensor:
        """log q(θ) = log N(ε) − log|det ∂θ/∂ε| over what varies, in nats; points are not looked at.

        ``params``: a dict with every one of ``names``, its tensors with the same leading axes (…) or none. Returns (…).
        """
        noise, volume = pull(self.couplings, self._parts, self._away(params))
        return log_normal(noise) - volume

    @torch.no_grad()
    def entropy(self, samples: int, generator: torch.Generator) -> Estimate:  # type: ignore[override]
        """H(q) = (D/2)(1 + log 2π) + E log|det ∂θ/∂ε| in nats, by so many ``samples``, with its standard error.

        Only the volume is estimated: where T is linear there is no error.
        """
        check_samples(samples)
        check_generator(generator)
        sizes = [min(_CHUNK, samples - start) for start in range(0, samples, _CHUNK)]
        noises = (standard_normal((size, len(self.scale)), self.scale, generator) for size in sizes)
        volumes = torch.cat([push(self.couplings, self._parts, noise)[1].double() for noise in noises])
        return Estimate.of(volumes + (0.5 + HALF_LOG_2PI) * len(self.scale))

    def transformed(self, action: Action, *, partial: bool) -> Self:
        """m → g·m, s → A·s, and every weight takes from T what it took where it came from."""
        index, factor = monomial(action, self.location, self.names)
        index, factor = index.to(self.order.device), factor.to(self.scale)
        location = action(self.location, partial=partial)
        moved = factor * self.scale[index], self.order[index]
        return type(self)(location, *moved, self.conditioners, self.names, self.bound)

    def _away(self, params: Mapping[str, Tensor]) -> Tensor:
        location = vector(self.location, self.names, self.location)
        return (vector(params, self.names, self.location) - location).to(self.scale)

    def _whole(self, flat: Tensor) -> dict[str, Tensor]:
        """(…, D) → all that a ``state_dict`` holds, ties kept."""
        drawn = pieces(flat, self.names, self.location)
        varying = {self._first[name]: part for name, part in drawn.items()}

        def named(name: str) -> Tensor:
            own = self.location[name]
            return varying[name] if name in varying else own.expand((*flat.shape[:-1], *own.shape))

        return map_tied(named, self._first)


KINDS["coupling-flow"] = Kind(CouplingFlow, ("location", "conditioners"), ("scale", "order"), ("names", "bound"))


def _check_names(location: Mapping[str, Tensor], names: tuple[str, ...], first: Mapping[str, str]) -> int:
    """D; raises unless ``names`` are real tensors of ``location``, each tied one once."""
    if len({first.get(name, name) for name in names}) != len(names):
        raise InputError(f"names has one tensor twice: {', '.join(names)}; expected it once")
    for name in names:
        if name not in location:
            raise InputError(f"names has '{name}', which location has not")
        if not location[name].is_floating_point():
            raise InputError(f"'{name}' is of type {location[name].dtype}; expected real floating point numbers")
    return sum(location[name].numel() for name in names)
