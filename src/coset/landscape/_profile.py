"""The values of functionals along a path, and the barriers they show."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from coset._show.tables import csv_table, text_table
from coset._values import Frozen
from coset.errors import InputError
from coset.landscape._functionals import Better


@dataclass(frozen=True)
class Midpoint:
    """The middle of a path, τ = 1/2: the ``value`` there, and by how much it is worse than the mean of the ends."""

    value: float
    excess: float


@dataclass(frozen=True)
class Profile:
    """A functional f along a path: ``values`` at ``taus``, from 0 to 1 and 1/2 among them.

    ``better``: which values of f are good. Whatever it is, an excess above 0 is to the worse. Of values that come from
    random draws, ``errors`` are their standard errors and ``excess_errors`` those of the excess, in which draws that
    all points have in common partly cancel; None where they are not known.
    """

    name: str
    taus: tuple[float, ...]
    values: tuple[float, ...]
    better: Better = "lower"
    unit: str = ""
    errors: tuple[float, ...] | None = None
    excess_errors: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for what in ("errors", "excess_errors", "values"):
            numbers = getattr(self, what)
            if numbers is not None and len(numbers) != len(self.taus):
                raise InputError(f"'{self.name}' has {len(numbers)} {what} at {len(self.taus)} τ; expected one each")
        if list(self.taus) != sorted({*self.taus, 0.0, 0.5, 1.0}) or self.taus[0] < 0 or self.taus[-1] > 1:
            raise InputError(f"taus of '{self.name}' are {self.taus}; expected them to rise from 0 over 1/2 to 1")

    @cached_property
    def excess(self) -> tuple[float, ...]:
        """f(τ) − ((1−τ)f(0) + τf(1)), how far f lies above the chord; below it, where higher values are better."""
        first, last, sign = self.values[0], self.values[-1], self._sign
        pairs = zip(self.taus, self.values, strict=True)
        return tuple(sign * (value - ((1 - tau) * first + tau * last)) for tau, value in pairs)

    @property
    def barrier(self) -> float:
        """max_τ of the excess (Entezari et al. 2022, definition 2.2): 0 where no point is worse than the chord."""
        # At the ends it may be −0.
        return max(self.excess) + 0.0

    @property
    def barrier_error(self) -> float | None:
        """The standard error of the excess at ``argmax``: that of the draws, not of the finite data or the few τ."""
        return None if self.excess_errors is None else self.excess_errors[self.taus.index(self.argmax)]

    def convexity(self, distance_squared: float) -> float:
        """λ = min over τ inside of 2[(1−τ)ℓ(0) + τℓ(1) − ℓ(τ)] / (τ(1−τ)W₂²), for ℓ = f, or −f if higher is better.

        Along a geodesic of squared length ``distance_squared`` = W₂²(q₀, q₁), ℓ is λ-convex for this λ at these points
        and for none larger (Rossi et al. 2023, definition 2). It may be negative: then there is a barrier of at most
        |λ|W₂²/8.
        """
        if not distance_squared > 0:
            raise InputError(f"distance_squared is {distance_squared!r}; expected W₂² > 0 between the ends")
        inside = [(tau, excess) for tau, excess in zip(self.taus, self.excess, strict=True) if 0 < tau < 1]
        return min(-2 * excess / (tau * (1 - tau) * distance_squared) for tau, excess in inside)

    @property
    def argmax(self) -> float:
        """The first τ at which the excess is largest."""
        return self.taus[self.excess.index(max(self.excess))]

    @property
    def instability(self) -> float:
        """The worst value less the mean of both ends, max_τ f(τ) − (f(0) + f(1))/2 (Frankle et al. 2020, section 2)."""
        sign = self._sign
        return max(sign * value for value in self.values) - sign * (self.values[0] + self.values[-1]) / 2

    @property
    def midpoint(self) -> Midpoint:
        """The value and the excess at τ = 1/2."""
        at = self.taus.index(0.5)
        return Midpoint(self.values[at], self.excess[at])

    @property
    def _sign(self) -> float:
        return 1.0 if self.better == "lower" else -1.0

    def to_dict(self) -> dict[str, object]:
        """All numbers, ready for JSON."""
        return {
            "name": self.name,
            "better": self.better,
            "unit": self.unit,
            "taus": list(self.taus),
            "values": list(self.values),
            "errors": None if self.errors is None else list(self.errors),
            "excess_errors": None if self.excess_errors is None else list(self.excess_errors),
            "barrier": self.barrier,
            "barrier_error": self.barrier_error,
            "argmax": self.argmax,
            "instability": self.instability,
            "midpoint": {"value": self.midpoint.value, "excess": self.midpoint.excess},
        }

    def to_csv(self) -> str:
        """A line for each τ."""
        return Profiles({self.name: self}).to_csv()

    def __str__(self) -> str:
        return _table({self.name: self})


class Profiles(Frozen[str, Profile]):
    """Several functionals along one path, by name."""

    __slots__ = ()

    @property
    def taus(self) -> tuple[float, ...]:
        """The points of the path, the same for all."""
        return next(iter(self.values())).taus

    @property
    def barriers(self) -> dict[str, float]:
        """The barrier of each functional."""
        return {name: profile.barrier for name, profile in self.items()}

    def to_dict(self) -> dict[str, object]:
        """All numbers, ready for JSON."""
        return {name: profile.to_dict() for name, profile in self.items()}

    def to_csv(self) -> str:
        """A line for each τ, a column for each functional and for errors that are not 0; numbers in full."""
        columns: dict[str, tuple[float, ...]] = {"tau": self.taus}
        for name, profile in self.items():
            columns[name] = profile.values
            if profile.errors is not None and any(profile.errors):
                columns[f"{name}, standard error"] = profile.errors
        return csv_table(columns, zip(*columns.values(), strict=True))

    def __str__(self) -> str:
        return _table(self)


def _table(profiles: Mapping[str, Profile]) -> str:
    rows = []
    for name, profile in profiles.items():
        numbers = (profile.values[0], profile.midpoint.value, profile.values[-1], profile.barrier)
        shown = [f"{100 * x:.2f} %" if profile.unit == "fraction" else f"{x:.4f}" for x in numbers]
        rows.append([name, *shown, f"{profile.argmax:.3g}"])
    return text_table(["", "τ = 0", "τ = 1/2", "τ = 1", "barrier", "at τ"], rows, right=range(1, 6))
