"""A canonical form as a value, and the way back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from torch import Tensor

from coset._values import freeze
from coset.canonical._last import multiplied
from coset.distribution import Distribution
from coset.distribution.contract import networks_of
from coset.errors import InputError
from coset.symmetry import Element, Symmetry
from coset.symmetry.stacks import act_stack

T = TypeVar("T", bound=Mapping[str, Tensor] | Distribution)
Params = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Canonical(Generic[T]):
    """A network in its canonical form, and what brings it back.

    ``params``: what was given, in the form. ``element``: the g with θ = offsets + g·(params with the last layer divided
    by ``factor``); for a stack every tensor of it has the leading axis of the networks, and ``factor`` is (N,).
    ``last``: the parameters that were multiplied by the factor. ``offsets``: by parameter, what translations have
    removed, and what the element alone does not bring back (variances that are small beside their ε). ``bias``: as in
    ``canonicalize``. ``free``: what the form leaves open: rotations of streams where there is no reference, signs that
    no rule settles. ``notes``: what was left out, and why.
    """

    symmetry: Symmetry
    params: T
    element: Element
    factor: Tensor
    last: tuple[str, ...] = ()
    offsets: Mapping[str, Tensor] = field(default_factory=dict)
    bias: str = "outside"
    free: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "offsets", dict(self.offsets))
        freeze(self, "offsets")

    def __repr__(self) -> str:
        many = f"{len(self.factor)} networks, " if self.factor.ndim else ""
        left = f", free: {', '.join(self.free)}" if self.free else ""
        return f"Canonical({many}{len(self.symmetry.classes)} classes{left})"


def decanonicalize(canonical: Canonical[T]) -> T:
    """The network that ``canonicalize`` was given: offsets + g·(params, their last layer divided by the factor)."""
    if not isinstance(canonical, Canonical):
        raise InputError(f"canonical is a {type(canonical).__name__}; expected what canonicalize gives")
    given = canonical.params
    networks = networks_of(given)
    if networks is None:
        return cast(T, canonical.symmetry.monomial.act(canonical.element, cast(Distribution, given)))
    return with_networks(given, _back(canonical, cast(Params, networks)))


def with_networks(given: T, networks: Params) -> T:
    """Other networks in the place of those that were given: as such, or as a distribution that consists of them."""
    return cast(T, given.at(networks) if isinstance(given, Distribution) else networks)


def acted_back(
    sym: Symmetry, element: Element, last: tuple[str, ...], factor: Tensor, given: Params
) -> dict[str, Tensor]:
    """g·(params, their last layer divided by the factor), of a point, or of a stack with factors (N,)."""
    if factor.ndim:
        return act_stack(sym, element, multiplied(last, 1 / factor, given))
    return sym.act(element, one_network(multiplied(last, 1 / factor[None], as_stack(given))))


def as_stack(params: Params) -> dict[str, Tensor]:
    """One network as a stack."""
    return {name: tensor[None] for name, tensor in params.items()}


def one_network(stack: Params) -> dict[str, Tensor]:
    """The network of a stack of one."""
    return {name: tensor[0] for name, tensor in stack.items()}


def _back(canonical: Canonical[Any], given: Params) -> dict[str, Tensor]:
    """Of a point or a stack."""
    result = acted_back(canonical.symmetry, canonical.element, canonical.last, canonical.factor, given)
    for name, offset in canonical.offsets.items():
        result[name] = result[name] + offset.to(result[name])
    return result
