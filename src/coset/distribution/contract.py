"""What a distribution over weights is: the members of every kind, and rules that are found by kind.

The library asks a distribution for its members and looks up in plain dicts, kind → rule, what differs from kind to
kind: ``coset.distribution.files.KINDS``, ``coset.distribution.divergences.KL`` and ``WASSERSTEIN``,
``coset.posterior.prediction.draws.DRAWS``, ``coset.landscape.GEODESICS``. A kind from outside adds its own entries.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

import torch
from torch import Tensor

from coset.distribution.ties import once, ties
from coset.errors import InputError
from coset.symmetry.action import Action

K = TypeVar("K")
T = TypeVar("T")
Rule = TypeVar("Rule")


class Absent(InputError, AttributeError):
    """A member that a kind of distribution does not have."""


class Distribution(ABC):
    """A distribution over the weights of a network, as a value that does not change.

    A kind has ``mean``, a dict with names as in ``state_dict()``, ``sample`` and ``transformed``. It may have ``std``,
    the marginal deviations, and ``log_prob`` and ``entropy`` if it has a density; what it lacks is refused by name.
    """

    centred: ClassVar[bool] = False
    """Whether the mean is a network that stands for all of them: that of draws or of a mixture is not."""

    powers: ClassVar[Mapping[str, int]] = {}
    """Fields of the dataclass that change where weights are multiplied by a number c → the power of c they take."""

    if TYPE_CHECKING:
        # Not at run time: a property here would stand in the way of a dataclass's field.
        @property
        def mean(self) -> Mapping[str, Tensor]:
            """The mean of every tensor."""

        @property
        def std(self) -> Mapping[str, Tensor]:
            """The marginal standard deviations of what varies."""
    else:

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):
                # A property that has failed comes here, too: it says best what is missing.
                return object.__getattribute__(self, name)
            raise Absent(f"a {type(self).__name__} has no '{name}'; expected a kind of distribution that has it")

    @cached_property
    def _first(self) -> dict[str, str]:
        """Name → the first of the names it is tied to."""
        return ties(self.mean)

    @property
    def random_names(self) -> tuple[str, ...]:
        """What varies, of tied names the first: all floating point tensors, unless a kind says otherwise."""
        mean = self.mean
        return tuple(name for name in once(mean, self._first) if mean[name].is_floating_point())

    @property
    def networks(self) -> Mapping[str, Tensor] | None:
        """The networks of which it consists: of a point this one, of draws all, on a leading axis; None for others."""
        return None

    def at(self, networks: Mapping[str, Tensor]) -> Self:
        """The same distribution with the ``networks`` of which it consists elsewhere."""
        raise InputError(f"a {type(self).__name__} consists of no networks; expected a Delta or Samples")

    @abstractmethod
    def sample(self, n: int, generator: torch.Generator) -> dict[str, Tensor]:
        """n draws on a leading axis of every tensor; all that is random comes from the generator."""

    @abstractmethod
    def transformed(self, action: Action, *, partial: bool) -> Self:
        """The distribution of g·θ; ``action(params, partial=partial)`` is g·params."""

    def log_prob(self, params: Mapping[str, Tensor]) -> Tensor:
        """log q(θ) in nats over what varies; an InputError where there is no density."""
        raise self._no_density("log_prob")

    def entropy(self) -> Any:
        """H(q) in nats; an InputError where there is no density."""
        raise self._no_density("entropy")

    def _no_density(self, what: str) -> InputError:
        kind = type(self).__name__
        return InputError(f"a {kind} has no density, so {what} is not defined; expected a MeanField or a Gaussian")


class Normal(Distribution):
    """A Gaussian, whatever the form of its covariance: deviations and entropy are known in closed form."""

    centred = True

    independent: ClassVar[bool] = False
    """Whether no weight is correlated with another, so that ``mean`` and ``std`` say all."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """H(q) in nats over what varies."""


def unwrapped(value: T) -> T:
    """What an inference found, of its result; anything else as it is given."""
    found = getattr(value, "posterior", None) if not isinstance(value, Mapping) else None
    return cast(T, found) if isinstance(found, Distribution) else value


def centre_of(value: object) -> Mapping[str, Tensor] | None:
    """The network that stands for what is given: a dict itself, the mean of what is ``centred``; None for all else."""
    if isinstance(value, Distribution):
        return value.mean if value.centred else None
    return value if isinstance(value, Mapping) else None


def networks_of(value: T | Distribution) -> T | Mapping[str, Tensor] | None:
    """The ``networks`` of a distribution, None where there are none; anything else as it is given."""
    return value.networks if isinstance(value, Distribution) else value


def require(q: Any, kind: Callable[..., K], what: str, expected: str) -> K:
    """``q``, if it is of the ``kind`` for which a function is defined; else an InputError.

    The kind is typed as what makes one, since ``type[K]`` is for classes that are not abstract.
    """
    found: K = q
    if not isinstance(q, cast(type, kind)):
        raise InputError(f"{what} is a {type(q).__name__}; expected {expected}")
    return found


def rule_for(rules: Mapping[Any, Rule], *qs: object) -> Rule | None:
    """The rule for the kind of ``q``, or for the pair of kinds of two; else for what they inherit from, if any."""
    for kinds in itertools.product(*(type(q).__mro__ for q in qs)):
        key = kinds if len(kinds) > 1 else kinds[0]
        if key in rules:
            return rules[key]
    return None
