"""Mixtures of any distributions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from coset._checks import check_count
from coset._magnitudes import exponents, scaled_by
from coset._values import Frozen
from coset.distribution.contract import Distribution, require
from coset.distribution.density import check_draws
from coset.distribution.ties import check_alike, map_tied, ties
from coset.errors import InputError
from coset.symmetry.action import Action

_CHUNK = 256
"""So many draws are held at once while an entropy is estimated."""


class Estimate(NamedTuple):
    """A Monte Carlo estimate and its standard error."""

    value: float
    error: float

    @classmethod
    def of(cls, values: Tensor) -> Self:
        """The mean of independent values (n,), n ≥ 2."""
        return cls(float(values.mean()), float(values.std()) / math.sqrt(len(values)))


def check_samples(samples: int) -> None:
    """Raise unless an estimate by so many draws has an error."""
    check_count("samples", samples)
    if samples < 2:
        raise InputError("samples is 1; expected two or more, for a standard error")


@dataclass(frozen=True, eq=False, init=False)
class Mixture(Distribution):
    """q = Σ w_k q_k: ``components`` q_k over the same names, and ``weights`` w_k ≥ 0, which are made to sum to 1.

    Names of different tensors are tied only where they are tied in every component.
    """

    powers: ClassVar[Mapping[str, int]] = {"components": 1}

    components: tuple[Distribution, ...]
    weights: Tensor

    def __init__(self, components: Sequence[Distribution], weights: Tensor | Sequence[float] | None = None) -> None:
        """``weights``: by default all are equal; kept in float64."""
        object.__setattr__(self, "components", tuple(components))
        if not self.components:
            raise InputError("components is empty; expected at least one distribution")
        for number, component in enumerate(self.components):
            require(component, Distribution, f"component {number}", "a distribution")
        labels = [f"component {number}" for number in range(len(self.components))]
        check_alike(labels, [component.mean for component in self.components])
        object.__setattr__(self, "weights", _normalized(weights, len(self.components)))

    @cached_property
    def _first(self) -> dict[str, str]:
        return ties(*(component.mean for component in self.components))

    @cached_property
    def mean(self) -> Mapping[str, Tensor]:
        """Σ w_k m_k, summed in float64; tensors of whole numbers are those of the first component."""
        means = [component.mean for component in self.components]

        def averaged(name: str) -> Tensor:
            like = means[0][name]
            return (
                self._weighted([part[name].double() for part in means]).to(like) if like.is_floating_point() else like
            )

        return Frozen(map_tied(averaged, self._first))

    @cached_property
    def std(self) -> Mapping[str, Tensor]:
        """√(Σ w_k (s_k² + (m_k − m)²)), of every floating point tensor: 0 for what no component varies."""
        means = [component.mean for component in self.components]
        spreads = [component.std for component in self.components]
        first = {name: one for name, one in self._first.items() if means[0][name].is_floating_point()}

        def deviation(name: str) -> Tensor:
            mine = [part[name].double() for part in means]
            own = [part[name].double() if name in part else None for part in spreads]
            # Of each entry on its own scale, so that squares are numbers.
            by = exponents(torch.stack([part.to(mine[0]) for part in (*mine, *own) if part is not None]), 0)
            centre = scaled_by(self._weighted(mine), by)
            squares = [
                (scaled_by(mean, by) - centre).square() + (0.0 if spread is None else scaled_by(spread, by).square())
                for mean, spread in zip(mine, own, strict=True)
            ]
            return scaled_by(self._weighted(squares).sqrt(), -by).to(means[0][name])

        return Frozen(map_tied(deviation, first))

    @property
    def random_names(self) -> tuple[str, ...]:
        """What varies within the components, in the order of the first."""
        varying = {name for component in self.components for name in component.random_names}
        return tuple(name for name in self._first if name in varying)

    def sample(self, n: int, generator: torch.Generator) -> dict[str, Tensor]:
        """n draws, each from a component chosen with probability w_k, on a leading axis of every tensor."""
        check_draws(n, generator)
        probabilities = self.weights.detach().to(generator.device)
        chosen = torch.multinomial(probabilities, n, replacement=True, generator=generator)
        counts = torch.bincount(chosen, minlength=len(self.components)).tolist()
        # Component by component, then each draw to the place its component was chosen for.
        places = chosen.argsort(stable=True).argsort()
        drawn = [q.sample(count, generator) for q, count in zip(self.components, counts, strict=True) if count]

        def gathered(name: str) -> Tensor:
            together = torch.cat([part[name] for part in drawn])
            return together[places.to(together.device)]

        return map_tied(gathered, self._first)

    def log_prob(self, params: Mapping[str, Tensor]) -> Tensor:
        """log Σ w_k q_k(θ), in nats, over what varies: the same names in every component.

        ``params``: a dict with every random name, its tensors with the same leading axes (…) or none. Returns (…).
        """
        first, *others = (component.random_names for component in self.components)
        for number, names in enumerate(others, start=1):
            if odd := sorted(set(first) ^ set(names)):
                varies, fixed = (0, number) if odd[0] in first else (number, 0)
                raise InputError(
                    f"'{odd[0]}' varies in component {varies} and not in component {fixed}: the mixture has no density"
                )
        logs = torch.stack([component.log_prob(params) for component in self.components])
        weights = self.weights.to(logs).reshape(-1, *(1,) * (logs.ndim - 1))
        return torch.logsumexp(weights.log() + logs, dim=0)

    @torch.no_grad()
    def entropy(self, samples: int, generator: torch.Generator) -> Estimate:  # type: ignore[override]
        """E[−log q(θ)] in nats by so many ``samples``, with its standard error; there is no closed form."""
        check_samples(samples)
        sizes = [min(_CHUNK, samples - start) for start in range(0, samples, _CHUNK)]
        values = torch.cat([-self.log_prob(self.sample(size, generator)).double() for size in sizes])
        return Estimate.of(values)

    def transformed(self, action: Action, *, partial: bool) -> Self:
        """Every component by the same g."""
        return type(self)([part.transformed(action, partial=partial) for part in self.components], self.weights)

    def _weighted(self, parts: Sequence[Tensor]) -> Tensor:
        total = torch.zeros_like(parts[0])
        for weight, part in zip(self.weights.unbind(), parts, strict=True):
            total = total + weight.to(part.device) * part
        return total


def _normalized(weights: Tensor | Sequence[float] | None, count: int) -> Tensor:
    given = torch.ones(count) if weights is None else torch.as_tensor(weights)
    if given.shape != (count,):
        raise InputError(f"weights has shape {tuple(given.shape)}; expected ({count},), one for each component")
    given = given.double()
    if not bool(torch.isfinite(given).all()) or bool((given < 0).any()) or not float(given.detach().sum()) > 0:
        raise InputError(f"weights are {given.tolist()}; expected finite numbers ≥ 0 with a positive sum")
    return given / given.sum()
