"""What the study of nearest equivalent modes measures: its cases, their settings, and statistics over seeds."""

import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from coset.posterior import Isotropic
from coset.study import Scalar
from coset_studies.gelberg.interpolation._mixture import global_switch, midpoint_threshold

Measured = Mapping[str, float]  # by what it is, of one seed
Family = Mapping[int, Sequence[Measured]]  # by width
Networks = Mapping[tuple[int, int], Sequence[Measured]]  # by hidden layers and width
PRIOR = 1.0
START_STD = 0.15
"""Of every weight when inference begins: the paper prints none."""
PAPER = {"epochs": 10, "batch_size": 100, "learning_rate": 1e-3, "schedule": "constant"}
"""Settings of the paper's experiments on MNIST, as far as it prints them."""


@dataclass(frozen=True)
class Run:
    """Mean-field VI by Adam of one hidden layer on ``points`` of the training data (None: all), and its settings."""

    name: str
    points: int | None
    widths: tuple[int, ...]
    epochs: int
    batch_size: int
    learning_rate: float
    schedule: str
    seeds: int

    @property
    def settings(self) -> dict[str, Any]:
        """Those of ``fit_mean_field``."""
        return {**{name: getattr(self, name) for name in PAPER}, "prior": Isotropic(PRIOR), "std": START_STD}

    @property
    def told(self) -> str:
        """The settings in words; they tell apart the runs on the same points."""
        return f"{self.learning_rate:g} {self.schedule}, batch {self.batch_size}, {self.epochs:,} epochs"


class Case(NamedTuple):
    """The posteriors of a run at one of its widths; ``points`` are counted."""

    points: int
    run: Run
    width: int

    def number(self, key: str) -> str:
        """The name of a number of this case."""
        return f"{key}_{self.points}_{self.run.name}_{self.width}"


Posteriors = Mapping[Case, Sequence[Measured]]


@functools.cache
def thresholds() -> tuple[float, float]:
    """Two equal Gaussians nearer than this many σ are best fitted halfway: by a mean field, by a full covariance."""
    return midpoint_threshold(math.inf), global_switch()


def of_depth(networks: Networks, depth: int) -> dict[int, Sequence[Measured]]:
    """The networks with so many hidden layers."""
    return {width: measured for (own, width), measured in networks.items() if own == depth}


def compared(posteriors: Posteriors) -> dict[tuple[int, int], list[Case]]:
    """By points and width the cases that only their settings tell apart, where there are several."""
    found: dict[tuple[int, int], list[Case]] = {}
    for case in posteriors:
        found.setdefault((case.points, case.width), []).append(case)
    return {common: cases for common, cases in found.items() if len(cases) > 1}


def mean(found: Sequence[Measured], key: str) -> float:
    """The mean over seeds."""
    return statistics.fmean(one[key] for one in found)


def spread(found: Sequence[Measured], key: str) -> Scalar:
    """The standard deviation over seeds; None for one seed."""
    return statistics.stdev(one[key] for one in found) if len(found) > 1 else None


def error(found: Sequence[Measured], key: str = "variance") -> float:
    """The standard error of a mean over seeds whose own variances are ``key``."""
    return math.sqrt(mean(found, key) / len(found))


def exponents(family: Family, key: str) -> list[float]:
    """For each seed the slope of log value against log width, by least squares."""
    logs = np.log([[one[key] for one in found] for found in family.values()])
    return [float(slope) for slope in np.polyfit(np.log(list(family)), logs, 1)[0]]


def shortfall(posteriors: Posteriors, case: Case) -> float:
    """By how much per point the ELBO is below the highest that any settings reach on the same points and width."""
    rivals = compared(posteriors).get((case.points, case.width), [case])
    return max(mean(posteriors[rival], "elbo") for rival in rivals) - mean(posteriors[case], "elbo")
