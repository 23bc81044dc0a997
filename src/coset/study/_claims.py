"""What a study checks: a statement of the paper, a statistic with an interval, and the values that agree with it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from coset.errors import InputError
from coset.study._findings import Scalar, Table, prose


class Verdict(StrEnum):
    """What an interval says of a claim."""

    HOLDS = "holds"
    FAILS = "fails"
    CANNOT_TELL = "cannot tell"


class Results(Protocol):
    """What claims are judged by: it is in ``Findings`` and in results.json alike."""

    @property
    def numbers(self) -> Mapping[str, Scalar]:
        """Numbers by name."""
        ...

    @property
    def tables(self) -> Mapping[str, Table]:
        """Tables by name."""
        ...


@dataclass(frozen=True)
class Estimate:
    """The value of a statistic and the interval from ``low`` to ``high`` in which it lies."""

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        for name in ("value", "low", "high"):
            object.__setattr__(self, name, _number(getattr(self, name), name))
        if not -math.inf < self.low <= self.value <= self.high < math.inf:
            raise InputError(
                f"an estimate is {self.value} in the interval from {self.low} to {self.high}, expected finite numbers "
                "with low ≤ value ≤ high"
            )

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement of the paper that a study can refute.

    ``paper`` is the statement and ``source`` the figure, table, equation or section that makes it; ``published`` is the
    value of the statistic there, if one is printed. ``statistic`` says in words, with its unit, what is measured here,
    ``interval`` what its interval covers. The claim is true of a statistic t if t is, by ``direction``,

    - "above" or "below" the ``threshold``,
    - "between" the two numbers of ``threshold``,
    - "equal within" the ``threshold``: |t − ``published``| < ``threshold``.

    ``reason`` says why the threshold is what it is. ``estimate`` takes the results of a run and gives the ``Estimate``,
    or None where the run did not measure it. ``possible`` are the least and the greatest value that the statistic can
    take: a claim that no value of it can refute, or none can confirm, is refused.
    """

    paper: str
    source: str
    statistic: str
    direction: str
    threshold: float | tuple[float, float]
    reason: str
    interval: str
    estimate: Callable[[Results], Estimate | None] = field(repr=False, compare=False)
    published: float | None = None
    possible: tuple[float, float] = (-math.inf, math.inf)

    def __post_init__(self) -> None:
        for name in ("paper", "source", "statistic", "reason", "interval"):
            text = getattr(self, name)
            if not isinstance(text, str) or not text.strip():
                raise InputError(f"{name} of a claim is {text!r}, expected a text")
            object.__setattr__(self, name, prose(text))
        what = f"the claim on {self.statistic!r}"
        if self.direction not in REGIONS:
            raise InputError(f"{what} has the direction {self.direction!r}, expected one of {', '.join(REGIONS)}")
        if self.published is not None:
            object.__setattr__(self, "published", _number(self.published, "published"))
        object.__setattr__(self, "possible", _pair(self.possible, f"{what}: possible"))
        low, high = self.region
        if math.isnan(low) or math.isnan(high):
            raise InputError(f"{what} has the threshold {self.threshold!r}, expected numbers")
        least, greatest = self.possible
        if not (least < low or greatest > high):
            raise InputError(f"{what} cannot fail: no value from {least:g} to {greatest:g} is not {self.criterion}")
        if not max(least, low) < min(greatest, high):
            raise InputError(f"{what} cannot hold: no value from {least:g} to {greatest:g} is {self.criterion}")

    @property
    def region(self) -> tuple[float, float]:
        """The open interval of the values of which the claim is true."""
        return REGIONS[self.direction](self)

    @property
    def criterion(self) -> str:
        """Direction and threshold in words."""
        if self.direction == "between":
            low, high = self.region
            return f"between {low:g} and {high:g}"
        if self.direction == "equal within":
            return f"within {self.threshold:g} of {self.published:g}"
        return f"{self.direction} {self.threshold:g}"

    def verdict(self, estimate: Estimate | None) -> Verdict:
        """Holds if the interval lies wholly where the claim is true, fails if wholly where it is false."""
        if estimate is None:
            return Verdict.CANNOT_TELL
        low, high = self.region
        if low < estimate.low and estimate.high < high:
            return Verdict.HOLDS
        if estimate.high < low or high < estimate.low:
            return Verdict.FAILS
        return Verdict.CANNOT_TELL

    def judge(self, results: Results) -> "Judgement":
        """The claim with what the results say of it."""
        return Judgement(self, self.estimate(results))


@dataclass(frozen=True)
class Judgement:
    """A claim and its estimate in one run; None where the run did not measure it."""

    claim: Claim
    estimate: Estimate | None

    def __post_init__(self) -> None:
        if self.estimate is None:
            return
        what = f"the estimate of {self.claim.statistic!r}"
        if not isinstance(self.estimate, Estimate):
            raise InputError(f"{what} is {self.estimate!r}, expected an Estimate")
        least, greatest = self.claim.possible
        # Its interval may go further, as one of standard errors does.
        if not least <= self.estimate.value <= greatest:
            raise InputError(f"{what} is {self.estimate.value:g}, expected a possible value: {least:g} to {greatest:g}")

    @property
    def verdict(self) -> Verdict:
        """What the interval says."""
        return self.claim.verdict(self.estimate)

    def to_dict(self) -> dict[str, Any]:
        """What results.json holds of it; null stands for an infinite bound, too."""
        claim, found = self.claim, self.estimate
        pair = isinstance(claim.threshold, tuple)
        return {
            **{name: getattr(claim, name) for name in _WORDS},
            "threshold": list(claim.region) if pair else claim.threshold,
            "published": claim.published,
            "possible": [bound if math.isfinite(bound) else None for bound in claim.possible],
            "estimate": None if found is None else [found.value, found.low, found.high],
            "verdict": str(self.verdict),
        }

    @classmethod
    def from_dict(cls, content: Any) -> "Judgement":
        """What ``to_dict`` wrote; a verdict that does not follow from its interval is refused."""
        names = {*_WORDS, "threshold", "published", "possible", "estimate", "verdict"}
        if not isinstance(content, dict) or content.keys() != names:
            raise InputError(f"a verdict does not have the parts {', '.join(sorted(names))}")
        numbers = content["estimate"]
        found = None if numbers is None else Estimate(*_list(numbers, 3, "estimate"))
        least, greatest = _list(content["possible"], 2, "possible")
        threshold = content["threshold"]
        claim = Claim(
            **{name: content[name] for name in _WORDS},
            threshold=tuple(_list(threshold, 2, "threshold")) if isinstance(threshold, list) else threshold,
            published=content["published"],
            possible=(-math.inf if least is None else least, math.inf if greatest is None else greatest),
            estimate=lambda _: found,
        )
        judgement = cls(claim, found)
        if content["verdict"] != judgement.verdict:
            raise InputError(f"a verdict is {content['verdict']!r}, and its interval says {str(judgement.verdict)!r}")
        return judgement


_WORDS = ("paper", "source", "statistic", "direction", "reason", "interval")


def _above(claim: Claim) -> tuple[float, float]:
    return _number(claim.threshold, "threshold"), math.inf


def _below(claim: Claim) -> tuple[float, float]:
    return -math.inf, _number(claim.threshold, "threshold")


def _between(claim: Claim) -> tuple[float, float]:
    return _pair(claim.threshold, "threshold")


def _equal_within(claim: Claim) -> tuple[float, float]:
    if claim.published is None:
        raise InputError(f"the claim on {claim.statistic!r} is 'equal within' and has no published value to equal")
    tolerance = _number(claim.threshold, "threshold")
    return claim.published - tolerance, claim.published + tolerance


REGIONS: Mapping[str, Callable[[Claim], tuple[float, float]]] = {
    "above": _above,
    "below": _below,
    "between": _between,
    "equal within": _equal_within,
}
"""Directions, and the open interval in which a claim of each is true."""


def _number(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{what} is {value!r}, expected a number")
    return float(value)


def _pair(value: object, what: str) -> tuple[float, float]:
    if not isinstance(value, tuple) or len(value) != 2:
        raise InputError(f"{what} is {value!r}, expected two numbers")
    low, high = (_number(bound, what) for bound in value)
    if not low < high:
        raise InputError(f"{what} is {value!r}, expected the smaller number first")
    return low, high


def _list(value: object, length: int, what: str) -> list[Any]:
    if not isinstance(value, list) or len(value) != length:
        raise InputError(f"{what} is {value!r}, expected {length} numbers")
    return value
