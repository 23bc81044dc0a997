"""One Gaussian fitted to mixtures of two at many distances: by stochastic descent, and exactly, as curves."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coset.study import Context
from coset_studies.gelberg.interpolation._descent import Descent, Gaussians, Targets, descend, sampled_kl
from coset_studies.gelberg.interpolation._mixture import (
    LEVEL,
    START,
    Along,
    expected_log_ratio,
    kl,
    midpoint,
    settle,
)

Array = NDArray[np.float64]
SCHEMA = 1
"""Raised when the computation of stored descents changes."""


@dataclass(frozen=True)
class Case:
    """Stochastic descent in ``dimension`` coordinates, over which u is spread evenly, to mixtures of deviation σ."""

    dimension: int
    sigma: float
    descent: Descent


@dataclass(frozen=True, eq=False)
class Fitted:
    """What descent found at each of ``distances`` α/σ; all of shape (targets,).

    ``interpolation`` ‖μ‖/α, ``determinant`` det Σ/σ²ᵈ, ``kl`` of what was found by quadrature, and the paper's
    ``estimate`` of it (eq. 8) from fresh samples. Far apart that has no honest standard error: what p adds by the other
    component hangs on samples so rare that there may be none.
    """

    distances: Array
    interpolation: Array
    determinant: Array
    kl: Array
    estimate: Array

    def threshold(self) -> float | None:
        """α/σ between the last distance whose fit came ``LEVEL`` of the way and the next; None without both."""
        far = np.flatnonzero(self.interpolation >= LEVEL)
        if len(far) == 0 or far[-1] + 1 == len(self.distances):
            return None
        return float(self.distances[far[-1] : far[-1] + 2].mean())


@dataclass(frozen=True, eq=False)
class Curve:
    """Exact fits at each of ``distances`` α/σ: m/α, the variance s² along u (det Σ if k = 1) and the KL."""

    distances: Array
    interpolation: Array
    variance: Array
    kl: Array


def fitted(context: Context, case: Case, distances: Array) -> Fitted:
    """The descents of ``case`` to mixtures at ``distances``, made or found in the store.

    Noise depends on seed, dimension and step only: it is common to all distances, σ and optimizers.
    """
    direction = torch.full((case.dimension,), case.dimension**-0.5, dtype=torch.float64, device=context.device)
    separations = torch.from_numpy(case.sigma * distances).to(context.device)
    targets = Targets(separations, direction, case.sigma)
    config = {
        "kind": "descent to a mixture",
        "schema": SCHEMA,
        "seed": context.seed,
        "distances": distances.tolist(),
        **asdict(case),
    }

    def make() -> Mapping[str, Tensor]:
        text = f"{case.descent.optimizer}, {case.dimension} dimensions, σ = {case.sigma:g}"
        with context.progress(text, case.descent.steps) as bar:
            found = descend(targets, case.descent, context.generator(f"noise {case.dimension}"), advance=bar.advance)
        return {"mean": found.mean.cpu(), "factor": found.factor.cpu()}

    params = context.store.get_or_make(config, make).params
    q = Gaussians(params["mean"].to(context.device), params["factor"].to(context.device))
    generator = context.generator(f"estimate {case.dimension}")
    noise = torch.randn(case.descent.samples, case.dimension, generator=generator, dtype=torch.float64)
    draws = sampled_kl(q, targets, noise.to(context.device))
    return Fitted(
        distances=distances,
        interpolation=q.interpolation(targets).cpu().numpy(),
        determinant=(q.determinant() / case.sigma ** (2 * case.dimension)).cpu().numpy(),
        kl=exact_kl(q, targets),
        estimate=draws.mean(1).cpu().numpy(),
    )


def exact_kl(q: Gaussians, targets: Targets) -> Array:
    """KL(q ‖ p) for each target, in any dimension: closed form but for one integral along u."""
    means, deviations = (values.tolist() for values in q.along(targets))
    distances = (targets.separations / targets.sigma).tolist()
    integrals = [expected_log_ratio(*each) for each in zip(distances, means, deviations, strict=True)]
    return np.asarray(q.kl_to_component(targets.sigma).cpu().numpy() - np.array(integrals))


def descended(distances: Sequence[float] | Array, coordinates: float = 1.0) -> Curve:
    """Where exact descent from a component ends."""
    return _curve(lambda distance: settle(distance, START, coordinates), distances, coordinates)


def midpoints(distances: Sequence[float] | Array, coordinates: float = 1.0) -> Curve:
    """The stationary points halfway."""
    return _curve(lambda distance: midpoint(distance, coordinates), distances, coordinates)


def _curve(fit: Callable[[float], Along], distances: Sequence[float] | Array, coordinates: float) -> Curve:
    at = np.asarray(distances, dtype=np.float64)
    found = [fit(float(distance)) for distance in at]
    return Curve(
        distances=at,
        interpolation=np.array([one.mean for one in found]) / at,
        variance=np.array([one.deviation for one in found]) ** 2,
        kl=np.array([kl(float(distance), *one, coordinates) for distance, one in zip(at, found, strict=True)]),
    )
