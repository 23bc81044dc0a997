"""What an alignment returns, and what it reports while it runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from torch import Tensor

from coset import callbacks
from coset._magnitudes import unscaled
from coset._values import freeze
from coset.distribution import Distribution, MeanField
from coset.symmetry import Element, Symmetry

Params = Mapping[str, Tensor]
"""The tensors of a network, with names as in ``state_dict()``."""

Weights = Params | Distribution
"""A point of weight space, as a dict or a ``Delta``, or a posterior: of any kind that is ``centred``."""

T = TypeVar("T", bound=Weights)


@dataclass(frozen=True)
class Step:
    """A moment of an alignment: the ``number`` of the step, the ``objective`` after it, and what was done."""

    number: int
    objective: float
    what: str


Callback = callbacks.Callback[Step]
"""Called after every step; returning True stops the alignment there, with the best element so far."""


@dataclass
class Teller:
    """Tells a callback of one step after the other; objectives are in units of 2 to ``unit``."""

    callback: Callback | None
    unit: int = 0
    steps: int = 0
    stopped: bool = False

    def __call__(self, objective: float, what: str) -> bool:
        """Tell of a step; whether the callback has asked to stop."""
        self.steps += 1
        if self.callback is not None and self.callback(Step(self.steps, unscaled(objective, self.unit), what)):
            self.stopped = True
        return self.stopped


@dataclass(frozen=True, eq=False)
class Alignment(Generic[T]):
    """An element g of ``symmetry`` that brings the other network to the reference, and how it was found.

    ``aligned`` is g·other, of the type the other network had. ``objective`` is what the method maximised, in the gauge
    it matched in, and ``history`` its course from the start, every time it rose. ``agreement``: for every class
    that moves, the cosine between what it carries in the reference and in the aligned network (1: equal up to a
    factor); ``before``: the same before alignment. ``seconds``: where the time went. ``notes``: what the user
    should know of this run. Where both ends were moved (``both=True``), ``reference_element`` is what the reference was
    moved by and ``reference`` the result, of the same function as before; otherwise both are None.
    """

    symmetry: Symmetry
    method: str
    element: Element
    aligned: T
    objective: float
    history: tuple[float, ...]
    agreement: Mapping[str, float]
    before: Mapping[str, float]
    seconds: Mapping[str, float]
    stopped: bool = False
    notes: tuple[str, ...] = field(default=())
    reference_element: Element | None = None
    reference: T | None = None

    def __post_init__(self) -> None:
        freeze(self, "agreement", "before", "seconds")

    @property
    def params(self) -> Mapping[str, Tensor]:
        """The aligned weights; of a posterior, its means."""
        return points(self.aligned)

    def ends(self, reference: T) -> tuple[T, T]:
        """The two networks to join: the ``reference`` as given, or as it was moved, and the aligned one."""
        return (reference if self.reference is None else self.reference), self.aligned

    def __repr__(self) -> str:
        took = sum(self.seconds.values())
        return (
            f"Alignment({self.method}: objective {self.history[0]:.6g} → {self.objective:.6g}, rising "
            f"{len(self.history) - 1} times, {took:.2f} s)"
        )


def points(network: Weights) -> Mapping[str, Tensor]:
    """The weights themselves; of a posterior, its means."""
    return network if isinstance(network, Mapping) else network.mean


def marginals(network: Weights) -> Weights:
    """What is matched of a network: all of it, but of correlated Gaussians their means and marginal deviations."""
    if isinstance(network, Mapping):
        return network
    known: Weights | None = getattr(network, "marginals", None)
    return MeanField(network.mean, deviations(network)) if known is None else known


def deviations(network: Weights) -> Mapping[str, Tensor]:
    """The marginal deviations of a posterior; of a point none."""
    return getattr(network, "std", {})


def carried(sym: Symmetry, g: Element, network: T) -> T:
    """g·network, of the network's own type."""
    moved: Any = network
    return cast(T, sym.act(g, moved))


def named_pivots(sym: Symmetry) -> str:
    """Two of the pivots of translations, and how many there are."""
    pivots = list(dict.fromkeys(f"'{item.pivot}'" for item in sym.translations))
    return ", ".join(pivots[:2]) + (f" and {len(pivots) - 2} more" if len(pivots) > 2 else "")
