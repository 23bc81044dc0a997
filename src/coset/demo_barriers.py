"""The end of the demonstration: barriers between A and B, as two networks and as two posteriors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from coset.alignment import align
from coset.data import Dataset
from coset.distribution import MeanField
from coset.landscape import Profiles, barrier, geodesic, predictive_on
from coset.posterior import fit_mean_field
from coset.symmetry import Symmetry

SAMPLES = 16
POINTS = {"networks": 25, "posteriors": 13}
"""So many τ; each takes as many passes as there are draws."""

VARIATIONAL: dict[str, Any] = {
    "epochs": 30,
    "batch_size": 64,
    "learning_rate": 2e-3,
    "schedule": "linear",
    "prior": 1.0,
    "std": 0.05,
    # Mean-field posteriors of small data are too wide at T = 1: the effect of cold posteriors.
    "temperature": 0.1,
}


@dataclass(frozen=True)
class Barrier:
    """The largest drop of the log-likelihood between A and B, nats per image, as B is and after bringing it to A.

    Standard errors are 0 for networks, which are not drawn.
    """

    between: str
    images: str
    naive: float
    naive_error: float
    aligned: float
    aligned_error: float


def fit_posteriors(
    model: nn.Module, digits: Dataset, starts: Mapping[str, Mapping[str, Tensor]], seed: int, show: bool | None
) -> dict[str, MeanField]:
    """By mean-field VI from each network, with a seed of its own."""
    return {
        name: fit_mean_field(model, digits.train, **VARIATIONAL, start=start, seed=seed + number, show=show).posterior
        for number, (name, start) in enumerate(starts.items())
    }


def profiles_between(
    model: nn.Module, sym: Symmetry, digits: Dataset, a: Any, b: Any, points: int, seed: int, show: bool | None
) -> dict[str, Profiles]:
    """What happens on the geodesic from ``a`` to ``b``, networks or posteriors: naive, and after alignment."""
    measures = predictive_on(model, samples=SAMPLES, seed=seed, train=digits.train, test=digits.test)
    ends = {"naive": b, "aligned": align(sym, a, b, seed=seed, show=False).aligned}
    return {way: barrier(geodesic(a, end), measures, points=points, show=show) for way, end in ends.items()}


def barriers_of(between: str, found: Mapping[str, Profiles]) -> list[Barrier]:
    """A row for the train and one for the test images."""
    rows = []
    for images in ("train", "test"):
        naive, aligned = (found[way][f"{images} log-likelihood"] for way in ("naive", "aligned"))
        doubts = [profile.barrier_error or 0.0 for profile in (naive, aligned)]
        rows.append(Barrier(between, images, naive.barrier, doubts[0], aligned.barrier, doubts[1]))
    return rows
