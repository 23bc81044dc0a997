"""When one Gaussian fitted to two lies between them (Gelberg et al. 2024, figs. 2, 3 and 5)."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coset.study import Context, Findings, Scalar, Table, study
from coset_studies.gelberg.interpolation._claims import CLAIMS, PUBLISHED, PUBLISHED_SLOPE
from coset_studies.gelberg.interpolation._descent import Descent
from coset_studies.gelberg.interpolation._figure import CAPTION, draw
from coset_studies.gelberg.interpolation._mixture import (
    apparent_threshold,
    basin,
    descent_threshold,
    fold,
    global_switch,
    hessian,
    kl,
    midpoint,
    midpoint_threshold,
)
from coset_studies.gelberg.interpolation._page import TABLES, TEXT
from coset_studies.gelberg.interpolation._runs import Case, Curve, Fitted, descended, fitted, midpoints

NEAR = 0.1
"""A threshold within this share of the published ≈ 5σ counts as it."""
COORDINATES = (2.0, 3.0, 10.0, 100.0)
"""Of the table of mean fields."""
FAR = 100.0
"""Up to this distance, in σ, the mid-point's Hessian is looked at."""
WIDE = 10.0
"""The distance, in σ, at which the basin of the mid-point is measured."""
AWAY = 0.5
"""Descent is compared with its exact limit at distances further than this from the threshold, in σ."""
ROWS = 15
"""Rows of the table of curves, about."""
Runs = dict[tuple[str, int, float], Fitted]
"""By optimizer, dimension and σ."""


@dataclass(frozen=True)
class Config:
    """``points`` distances α/σ evenly spaced up to ``largest``; a descent of ``steps`` with ``samples`` for each.

    ``dimensions``: of SGD with a full covariance, first of all 1. ``spread``: over how many coordinates the mean field
    has u.
    """

    samples: int
    steps: int
    rate: float
    points: int
    dimensions: tuple[int, ...]
    spread: tuple[int, ...]
    sigmas: tuple[float, ...] = tuple(PUBLISHED)
    largest: float = 7.5

    @property
    def distances(self) -> NDArray[np.float64]:
        """α/σ, from one spacing on."""
        return np.linspace(self.largest / self.points, self.largest, self.points)


@dataclass(frozen=True, eq=False)
class Exact:
    """By quadrature, in σ: the thresholds of ``descent``, of the ``fold`` behind it and of the best fit (``switch``).

    ``limit``: where descents at the configuration's distances end. ``cut_off``: by σ, the threshold that descent seems
    to have when it is stopped after as much time as SGD has.
    """

    descent: float
    fold: float
    switch: float
    limit: Curve
    cut_off: dict[float, float]


@study(
    name="gelberg-interpolation",
    title="One Gaussian fitted to two: between them or at one of them",
    reference="Gelberg et al. 2024, Variational inference failures under model symmetries: permutation invariant "
    "posteriors for Bayesian neural networks, §3 and appendix A, figs. 2, 3 and 5",
    paper="""
    The reverse KL is called mode-seeking. Yet N(μ, Σ) fitted by it to ½N(0, σ²I) + ½N(αu, σ²I), from N(0, σ²I) on, ends
    halfway between the two components if they are closer than some α*, with a larger variance, and at one of them only
    if they are further apart: α* ≈ 1.25, 2.5, 5, 10 for σ = 0.25, 0.5, 1, 2, so it grows linearly in σ. Fitted by
    stochastic gradient descent with the reparametrisation trick, 5,000 samples, 3,000 steps and learning rate 0.01. How
    Σ is parametrised and which dimension the figures show is not said.
    """,
    presets={
        "quick": Config(
            samples=100, steps=200, rate=0.15, points=15, dimensions=(1, 2), spread=(2,), sigmas=(0.5, 1.0)
        ),
        "small": Config(samples=2000, steps=3000, rate=0.01, points=60, dimensions=(1, 2, 10), spread=(2, 10)),
        "paper": Config(samples=5000, steps=3000, rate=0.01, points=150, dimensions=(1, 2, 10, 50), spread=(2, 10, 50)),
    },
    claims=CLAIMS,
    text={"small": TEXT},
    tables=TABLES,
    figure=draw,
    caption=CAPTION,
)
def run(config: Config, context: Context) -> Findings:
    """Descend as the paper does, then compute exactly what descent aims at."""
    runs = _runs(config, context)
    exact = _exact(config)
    numbers = _numbers(config, runs, exact)
    tables = {
        "thresholds": _threshold_table(config, runs, exact),
        "curves": _curve_table(config, runs, exact),
        "mean-field": _mean_field_table(config, exact),
    }
    return Findings(numbers, tables)


def _exact(config: Config) -> Exact:
    cut_off = {sigma: apparent_threshold(_time(config, sigma)) for sigma in config.sigmas}
    return Exact(descent_threshold(), fold()[0], global_switch(), descended(config.distances), cut_off)


def _time(config: Config, sigma: float) -> float:
    """How long all steps of SGD are, in the units of the flow: at σ a rate acts as 1/σ² of it does at σ = 1."""
    return config.rate * config.steps / sigma**2


def _fitted(config: Config, context: Context, optimizer: str, dimension: int, sigma: float) -> Fitted:
    descent = Descent(config.samples, config.steps, config.rate, optimizer)
    return fitted(context, Case(dimension, sigma, descent), config.distances)


def _runs(config: Config, context: Context) -> Runs:
    keys = [("sgd", dimension, sigma) for dimension in config.dimensions for sigma in config.sigmas]
    keys += [("adam", config.dimensions[0], sigma) for sigma in config.sigmas]
    return {key: _fitted(config, context, *key) for key in keys}


def _numbers(config: Config, runs: Runs, exact: Exact) -> dict[str, Scalar]:
    switch, one = exact.switch, config.dimensions[0]
    unit = runs["sgd", one, 1.0]
    settled = np.abs(config.distances - exact.descent) > AWAY
    gap = np.abs(unit.interpolation - exact.limit.interpolation)[settled].max()
    stiffness = min(
        float(np.linalg.eigvalsh(hessian(distance, *midpoint(distance)))[0] * distance**2)
        for distance in np.geomspace(1.0, FAR, 30).tolist()
    )
    before, after = midpoint(switch), descended([switch])
    numbers: dict[str, Scalar] = {
        "descent": exact.descent,
        "fold": exact.fold,
        "switch": switch,
        "switch_kl": kl(switch, *before),
        "switch_interpolation": after.interpolation[0],
        "switch_variance_before": before.deviation**2,
        "switch_variance_after": after.variance[0],
        "midpoint_stiffness": stiffness,
        "far": FAR,
        "wide": WIDE,
        "basin": basin(WIDE),
        "samples": config.samples,
        "steps": config.steps,
        "rate": config.rate,
        "half_spacing": config.largest / config.points / 2,
        "unit_sgd": unit.threshold(),
        "unit_gap": gap,
        "away": AWAY,
        "dimensions": ", ".join(str(dimension) for dimension in config.dimensions),
        "same_in_all_dimensions": all(
            runs["sgd", dimension, sigma].threshold() == runs["sgd", one, sigma].threshold()
            for dimension in config.dimensions
            for sigma in config.sigmas
        ),
        "estimate_gap": max(float(np.abs(each.estimate - each.kl).max()) for each in runs.values()),
        "estimates": sum(len(each.estimate) for each in runs.values()),
        "mean_field_limit": midpoint_threshold(math.inf),
        **{f"mean_field_{k:g}": midpoint_threshold(k) for k in COORDINATES},
    }
    for optimizer in ("sgd", "adam"):
        numbers |= _farthest(config, runs, optimizer)
    sigma = numbers["sgd_sigma"]
    assert isinstance(sigma, float)
    return numbers | {"sgd_time": _time(config, sigma), "sgd_cut_off": exact.cut_off[sigma]}


def _farthest(config: Config, runs: Runs, optimizer: str) -> dict[str, Scalar]:
    """The σ whose threshold in one dimension, in units of σ, is furthest from the published 5; a missing one is."""
    found = {sigma: runs[optimizer, config.dimensions[0], sigma].threshold() for sigma in config.sigmas}
    off = {sigma: math.inf if at is None else abs(at - PUBLISHED_SLOPE) for sigma, at in found.items()}
    sigma = max(off, key=lambda key: off[key])
    return {
        f"{optimizer}_sigma": sigma,
        f"{optimizer}_slope": found[sigma],
        f"{optimizer}_near": off[sigma] <= NEAR * PUBLISHED_SLOPE,
    }


def _threshold_table(config: Config, runs: Runs, exact: Exact) -> Table:
    columns = ["σ", "paper", "descent, exact", "optimum switches, exact", "SGD's time, exact"]
    columns += [f"SGD, {dimension}-d" for dimension in config.dimensions] + ["Adam, 1-d"]
    keys = [("sgd", dimension) for dimension in config.dimensions] + [("adam", config.dimensions[0])]
    rows = []
    for sigma in config.sigmas:
        computed = [sigma * value for value in (exact.descent, exact.switch, exact.cut_off[sigma])]
        found = [runs[optimizer, dimension, sigma].threshold() for optimizer, dimension in keys]
        rows.append([sigma, PUBLISHED[sigma], *computed, *(None if at is None else sigma * at for at in found)])
    spacing = config.largest / config.points
    text = (
        "α at which fits change over from halfway to a component. SGD's time: exact descent that is cut off after as "
        f"much time as {config.steps:,} steps of {config.rate:g} are. SGD, Adam: ± {spacing / 2:.3g}σ."
    )
    return Table(columns, rows, text)


def _curve_table(config: Config, runs: Runs, exact: Exact) -> Table:
    step = max(1, config.points // ROWS)
    kept = slice(step - 1, None, step)
    limit, middle = exact.limit, midpoints(config.distances[kept])
    shown = (config.dimensions[0], config.dimensions[-1])
    columns = ["α", "‖μ‖/α", "det Σ", "KL", "KL halfway"]
    columns += [f"{name}, {dimension}-d" for dimension in shown for name in ("‖μ‖/α", "det Σ", "KL")]
    parts = [values[kept] for values in (limit.distances, limit.interpolation, limit.variance, limit.kl)] + [middle.kl]
    for dimension in shown:
        each = runs["sgd", dimension, 1.0]
        parts += [each.interpolation[kept], each.determinant[kept], each.estimate[kept]]
    text = "σ = 1: exact descent and the KL halfway, then SGD, its KL estimated from samples as in the paper."
    return Table(columns, list(zip(*(part.tolist() for part in parts), strict=True)), text)


def _mean_field_table(config: Config, exact: Exact) -> Table:
    rows: list[list[Scalar]] = [["1, or full covariance", None, exact.descent, None]]
    for k in COORDINATES:
        at = midpoint_threshold(k)
        descent = descent_threshold(k, tolerance=1e-4) if k in config.spread else None
        rows.append([f"{k:g}", at, descent, midpoint(at, k).deviation ** 2])
    rows.append(["∞", midpoint_threshold(math.inf), None, 1.0])
    columns = ("coordinates that share u", "halfway a minimum below", "descent ends halfway below", "variance/σ² there")
    text = "Mean fields, exactly: α/σ. With one coordinate halfway is a minimum at every distance."
    return Table(columns, rows, text)
