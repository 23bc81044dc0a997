"""Numbers and tables of the study ``barriers-of-samples``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coset.landscape import Profile, Profiles
from coset.study import Scalar, Table
from coset_studies.posteriors.barriers_of_samples._page import ALIGNED, LABELS, METHODS, NAIVE

Networks = Sequence[tuple[int, ...]]
"""The widths of the hidden layers of each network, the one on which all methods are run first."""


@dataclass(frozen=True, eq=False)
class Way:
    """A path between the two posteriors of a method on a network: W₂ of its ends, and profiles on both parts."""

    network: tuple[int, ...]
    weights: int
    method: str
    alignment: str
    length: float
    profiles: Profiles

    def log_likelihood(self, part: str) -> Profile:
        """The predictive log-likelihood on "train" or "test"."""
        return self.profiles[f"{part} log-likelihood"]


def _key(method: str) -> str:
    return method.replace("-", "_")


def words(widths: tuple[int, ...]) -> str:
    """The widths of a network in words."""
    return " and ".join(str(width) for width in widths)


def numbers_of(data: str, networks: Networks, ways: Sequence[Way]) -> dict[str, Any]:
    """Barriers of the first network, and of the last one under names that begin with "widest_"."""
    numbers: dict[str, Any] = {"data": data, "weights": ways[0].weights}
    numbers["widest"] = f"{words(networks[-1])} hidden units"
    for network, prefix in ((networks[0], ""), (networks[-1], "widest_")):
        draws = [way for way in ways if (way.network, way.method) == (network, "sgmcmc")]
        numbers |= {f"{prefix}w2_{LABELS[way.alignment]}": way.length for way in draws}
        for part, suffix in (("test", ""), ("train", "_train")):
            for way in ways:
                if way.network == network:
                    name = f"{prefix}{_key(way.method)}_{LABELS[way.alignment]}{suffix}"
                    numbers[name] = way.log_likelihood(part).barrier
            for method in METHODS:
                name = f"{prefix}{_key(method)}"
                if f"{name}_naive{suffix}" in numbers:
                    naive, aligned = (numbers[f"{name}_{label}{suffix}"] for label in (NAIVE, ALIGNED))
                    # No barrier to begin with: alignment takes nothing of it away.
                    numbers[f"{name}_share{suffix}"] = aligned / naive if naive > 0 else 1.0
    return numbers


def table(ways: Sequence[Way]) -> Table:
    """A row for each path."""
    rows: list[list[Scalar]] = []
    for way in ways:
        train, test, error = way.log_likelihood("train"), way.log_likelihood("test"), way.profiles["test error"]
        row: list[Scalar] = [words(way.network), way.weights, METHODS[way.method], way.alignment, way.length]
        for profile in (train, test):
            row += [(profile.values[0] + profile.values[-1]) / 2, profile.barrier, profile.barrier_error]
        rows.append([*row, 50 * (error.values[0] + error.values[-1]), 100 * error.midpoint.value])
    columns = (
        "hidden units", "weights", "method", "path", "W₂", "train, ends", "train barrier", "± train", "test, ends",
        "test barrier", "± test", "test error, ends, %", "halfway, %",
    )  # fmt: skip
    return Table(columns, rows)


def profile_table(networks: Networks, ways: Sequence[Way]) -> Table:
    """The values along the paths of the first network, a row for each τ."""
    shown = {
        f"{METHODS[way.method]}, {way.alignment}, {part}": way.log_likelihood(part)
        for way in ways
        if way.network == networks[0]
        for part in ("train", "test")
    }
    taus = next(iter(shown.values())).taus
    rows = list(zip(taus, *(profile.values for profile in shown.values()), strict=True))
    caption = f"Predictive log-likelihood along the paths of the network with {words(networks[0])} hidden units."
    return Table(("τ", *shown), rows, caption)
