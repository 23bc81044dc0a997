"""What an audit found, as values that print as tables."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from coset._show.tables import text_table
from coset._values import freeze
from coset.errors import InputError
from coset.metanet.auditing.moves import OrbitPlace

INVARIANT, CHANGES, CANNOT_TELL = "invariant", "changes", "cannot tell"

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


@dataclass(frozen=True, eq=False)
class Worst:
    """The largest change that was found: of which network, at which place of its orbit, and what rounding does there.

    ``network``: its number among those audited; the network there is ``sym.translate(place.translation,
    sym.act(place.element, params))``. ``readings``: networks that the search read.
    """

    change: float
    network: int
    place: OrbitPlace
    rounding: float
    readings: int


@dataclass(frozen=True, eq=False)
class OrbitChange:
    """How far a reader changes when networks are moved by one kind of symmetry.

    ``changes`` (N, draws): d(r(g·θ), r(θ)) of N networks at random places of their orbits; of labels 1 where they
    differ. ``rounding`` (N,): how far perturbations of the size of rounding move the reader, at the network and at
    places of its orbit. ``between``: the typical distance of two networks. ``worst``: what the search found.
    ``flipped``: of labels, the share of networks for which a place with another label was found.
    """

    kind: str
    labels: bool
    changes: Tensor
    rounding: Tensor
    between: float | None
    worst: Worst
    size: float
    flipped: float | None = None

    @property
    def verdict(self) -> str:
        """ "invariant" if no change is more than rounding, "changes" if one is, "cannot tell" if rounding drowns them.

        Rounding drowns numbers if it moves them as far as other networks do, and as they are large; it drowns the
        label of a network that it flips.
        """
        if self.worst.change == 0 and not bool(self.changes.any()):
            return INVARIANT
        noise = float(self.rounding.median())
        if not self.labels and noise > 0 and noise >= max(self.between or 0.0, self.size):
            return CANNOT_TELL
        here = max(self.worst.rounding, float(self.rounding[self.worst.network]))
        if bool((self.changes > self.rounding[:, None]).any()) or self.worst.change > here:
            return CHANGES
        return CANNOT_TELL if self.labels and bool(self.rounding.all()) else INVARIANT

    @property
    def typical(self) -> float:
        """The median change; of labels the share that flips."""
        return float(self.changes.mean() if self.labels else self.changes.median())

    @property
    def relative(self) -> float | None:
        """The typical change over the typical distance of two networks: near 0 the reader sees the network, near 1 the
        place on the orbit as much. None with a single network.
        """
        if self.between is None:
            return None
        if self.between == 0:
            return 0.0 if self.verdict == INVARIANT else math.inf
        return self.typical / self.between

    def quantile(self, share: float) -> float:
        """The change that this share of all draws does not exceed."""
        if not 0 <= share <= 1:
            raise InputError(f"share is {share!r}; expected a number from 0 to 1")
        # torch's own quantile takes no more than 2^24 numbers.
        ordered = self.changes.flatten().sort().values
        where = share * (len(ordered) - 1)
        low, high = float(ordered[math.floor(where)]), float(ordered[math.ceil(where)])
        return low + (where - math.floor(where)) * (high - low)

    def to_dict(self) -> dict[str, Any]:
        """All numbers but the single changes, for machines."""
        return {
            "verdict": self.verdict,
            "typical": self.typical,
            "relative": self.relative,
            "quantiles": {f"{share:g}": self.quantile(share) for share in QUANTILES},
            "rounding": float(self.rounding.mean() if self.labels else self.rounding.median()),
            "worst": {
                "change": self.worst.change,
                "network": self.worst.network,
                "rounding": self.worst.rounding,
                "readings": self.worst.readings,
            },
            **({} if self.flipped is None else {"networks flipped": self.flipped}),
        }


@dataclass(frozen=True, eq=False)
class Audit:
    """What a reader of weights makes of the orbits of networks, kind by kind; ``print`` shows it as a table.

    ``output``: "numbers", "labels" or "parameters". ``readings`` (N, d) of the networks as they are. ``between``: the
    typical distance of two networks, the median of all pairs, of labels the share of pairs that differ; None of one.
    ``perturbation``: the relative size of rounding. ``count``: how many networks were read in all.
    """

    output: str
    readings: Tensor
    between: float | None
    kinds: Mapping[str, OrbitChange]
    draws: int
    spread: float
    seed: int
    perturbation: float
    count: int

    def __post_init__(self) -> None:
        freeze(self, "kinds")

    def __getitem__(self, kind: str) -> OrbitChange:
        """What was found for one kind of moves."""
        if kind not in self.kinds:
            raise InputError(f"'{kind}' was not audited; there are {', '.join(self.kinds)}")
        return self.kinds[kind]

    def invariant(self, kind: str | None = None) -> bool:
        """Whether the reader is invariant under one kind of moves, or under every kind that was audited."""
        chosen = self.kinds if kind is None else {kind: self[kind]}
        return all(one.verdict == INVARIANT for one in chosen.values())

    def to_dict(self) -> dict[str, Any]:
        """All numbers but single changes and readings, for machines; infinite ones are None."""
        found: dict[str, Any] = {
            "output": self.output,
            "networks": len(self.readings),
            "size": self.readings.shape[1],
            "between": self.between,
            "draws": self.draws,
            "spread": self.spread,
            "seed": self.seed,
            "perturbation": self.perturbation,
            "readings": self.count,
            "invariant": self.invariant(),
            "kinds": {kind: one.to_dict() for kind, one in self.kinds.items()},
        }
        for one in found["kinds"].values():
            one["relative"] = None if one["relative"] == math.inf else one["relative"]
        return found

    def to_json(self) -> str:
        """``to_dict`` as readable JSON."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)

    def __str__(self) -> str:
        count = len(self.readings)
        about = f"{count} network{'s' if count > 1 else ''}, {self.draws} random places on each orbit"
        labels = self.output == "labels"
        if labels:
            columns = ["moved by", "verdict", "labels that flip", "networks with a flip found", "flips / pairs apart"]
            rows = [
                [one.kind, one.verdict, _share(one.typical), _share(one.flipped or 0.0), _ratio(one.relative)]
                for one in self.kinds.values()
            ]
            apart = "" if self.between is None else f"{_share(self.between)} of pairs of networks have different labels"
        else:
            columns = [
                "moved by",
                "verdict",
                "median",
                "90 %",
                "largest",
                "worst found",
                "rounding",
                "median / between",
            ]
            rows = [
                [
                    one.kind,
                    one.verdict,
                    *(f"{value:.2g}" for value in (one.typical, one.quantile(0.9), one.quantile(1))),
                    f"{one.worst.change:.2g}",
                    f"{float(one.rounding.median()):.1g}",
                    _ratio(one.relative),
                ]
                for one in self.kinds.values()
            ]
            apart = "" if self.between is None else f"between two networks: {self.between:.3g} (median)"
        what = {"numbers": f"changes of {_numbers(self.readings.shape[1])}", "parameters": "changes of parameters"}
        title = f"{what.get(self.output, 'Labels')}: {about}"
        table = text_table(columns, rows, right=range(2, len(columns)))
        return "\n".join(line for line in (title[0].upper() + title[1:], table, apart) if line)

    def __repr__(self) -> str:
        verdicts = ", ".join(f"{kind}: {one.verdict}" for kind, one in self.kinds.items())
        return f"Audit({verdicts})"


def typical_distance(pairs: Tensor, labels: bool) -> float:
    """The median of distances of pairs; of labels the share that differ."""
    return float(pairs.mean() if labels else pairs.median())


def _numbers(size: int) -> str:
    return "a number" if size == 1 else f"a vector of {size}"


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _ratio(value: float | None) -> str:
    return "–" if value is None else "∞" if value == math.inf else f"{value:.2g}"
