"""Estimators of what a draw of the weights tells of the permutation that moved it, at equal time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from coset.data import Dataset
from coset.models import build, example_input
from coset.posterior import GaussianNoise, Isotropic
from coset.posterior.symmetrized.proposals import PROPOSALS
from coset.study import Context, Findings, Scalar, Table, study
from coset.study.posteriors import inferred
from coset.symmetry import discover
from coset_studies.gelberg.estimators._claims import ASKED, CLAIMS, LARGE
from coset_studies.gelberg.estimators._estimates import (
    ESTIMATORS,
    AtSameDraws,
    Errors,
    Estimated,
    Problem,
    at_equal_time,
    at_same_draws,
    best,
    errors,
    estimate,
    problem_of,
)
from coset_studies.gelberg.estimators._figure import CAPTION, draw
from coset_studies.gelberg.estimators._page import TABLES, TEXT

BETWEEN = (0.2, 0.8)
"""Shares of log n! between which posteriors tell estimators apart: beyond, I is a constant or nothing."""
MEASURED = ("information", "gradient")
UNIFORM = ("uniform", "uniform-path")
"""Others are compared with the better of these."""
IMPROVED = "sequential-path"
SAME = ("uniform", "transpositions", "sequential")
"""What is compared at the same draws of ω, too."""
MANY = (20, 200, 1000, 2000, 5000, 20_000)
GRIDS: Mapping[str, tuple[int, ...]] = {
    "uniform": (20, 1000, 20_000),
    "transpositions": (20, 1000),
    "distance": (20, 1000),
    "sequential": (2, 20, 100),
    "exact": (1,),
    "uniform-path": (20, 1000, 20_000),
    "sequential-path": (2, 20, 100),
    "exact-path": (1,),
}
"""Numbers K of permutations that each estimator is tried with; the best counts, for uniform ones as for the others."""


@dataclass(frozen=True)
class Case:
    """A mean-field posterior of ``units`` units on ``points`` of ``data``; ``reference``: draws of the truth."""

    data: str
    points: int
    units: int
    prior: float
    epochs: int
    std: float
    reference: int
    activation: str = "relu"
    noise: float | None = None


@dataclass(frozen=True)
class Config:
    """Estimates that take ``budget`` seconds, ``repeats`` of each, against exact ones; ``same``: of common draws, for
    ``many`` uniform permutations."""

    cases: tuple[Case, ...]
    budget: float
    repeats: int
    same: int
    grids: Mapping[str, tuple[int, ...]]
    many: tuple[int, ...] = MANY


REFERENCE = {5: 100_000, 10: 40_000, 15: 8000, 20: 2000}
"""Draws of ω for the truth, by the number of units: many times those of any estimate, as far as time allows."""
PRIORS = {5: 0.25, 10: 0.3, 15: 0.3, 20: 0.3}
"""With which I is neither nothing nor log n! on 100 digits."""
_SMALL = tuple(
    Case("digits", 100, units, prior=prior, epochs=300, std=0.1, reference=REFERENCE[units])
    for units, prior in PRIORS.items()
) + tuple(
    Case("snelson", 20, units, 1.0, epochs=10, std=0.3, reference=draws, activation="tanh", noise=0.3)
    for units, draws in REFERENCE.items()
)


@study(
    name="symmetrized-estimators",
    title="Estimators of the entropy of symmetrized posteriors",
    reference="Gelberg et al. 2024, theorem 4.3 and section 6 (the variance of the estimator, left to future work)",
    paper="""
    The estimator with K uniform permutations is a lower bound that becomes exact as K grows. Its variance grows with
    the model, which limits its use; importance sampling, for one with the proposal f(g) ∝ exp(−‖gμ − μ‖), may help.
    """,
    presets={
        "quick": Config(
            (Case("digits", 60, 4, prior=0.2, epochs=60, std=0.1, reference=500),), 0.005, 3, 8,
            {name: (1,) if name.startswith("exact") else (20,) for name in GRIDS}, (20, 200),
        ),
        "small": Config(_SMALL, 0.3, 8, 64, GRIDS),
        "paper": Config(_SMALL, 0.3, 100, 512, GRIDS),
    },
    claims=CLAIMS,
    text={"small": TEXT},
    tables=TABLES,
    figure=draw,
    caption=CAPTION,
)  # fmt: skip
def run(config: Config, context: Context) -> Findings:
    """All estimators on every posterior."""
    found: dict[Case, dict[str, list[Errors]]] = {}
    truths: dict[Case, Estimated] = {}
    shares: dict[Case, float] = {}
    same: dict[Case, dict[str, list[AtSameDraws]]] = {}
    rows = sum(len(grid) for grid in config.grids.values())
    with context.progress("estimators", len(config.cases) * rows) as bar:
        for case in config.cases:
            problem = _posterior(context, case)
            generator = context.generator(f"{case}")
            truths[case] = estimate(problem, "exact-path", 1, case.reference, generator)
            shares[case] = truths[case].information / problem.log_order
            same[case] = {
                name: at_same_draws(problem, name, grid, config.same, config.repeats, context.seed)
                for name, grid in {**config.grids, "uniform": config.many}.items()
                if name in SAME
            }
            found[case] = {name: [] for name in config.grids}
            for name, grid in config.grids.items():
                for K in grid:
                    one = errors(problem, truths[case], name, K, config.budget, config.repeats, generator)
                    found[case][name].append(one)
                    bar.advance(note=f"{case.data} {case.units} {name} {K}")
    return Findings(
        numbers=_numbers(config, found, shares) | _same_numbers(same, shares),
        tables={
            "comparison": _comparison(found, shares),
            "same-draws": _same_table(same, shares),
            "estimators": _table(found, truths),
        },
    )


def _posterior(context: Context, case: Case) -> Problem:
    data = _few(context, case)
    options = {
        "in_features": data.train.x.shape[1],
        "widths": [case.units],
        "out_features": data.outputs,
        "activation": case.activation,
    }
    settings: dict[str, Any] = {
        "epochs": case.epochs,
        "batch_size": case.points,
        "learning_rate": 1e-2,
        "prior": Isotropic(case.prior),
        "std": case.std,
    }
    if case.noise is not None:
        settings["likelihood"] = GaussianNoise(case.noise)
    fit = inferred(
        context, method="mean-field", model="mlp", data=data, seed=context.seed, settings=settings, options=options
    )
    model = build("mlp", seed=0, **options)
    return problem_of(discover(model, example_input(model, 2)), fit.posterior)


def _few(context: Context, case: Case) -> Dataset:
    """As many points as asked for, evenly taken from the training data; images in [0, 1] as they come."""
    images = {} if case.noise is not None else {"flatten": True, "normalize": False}
    data = context.data(case.data, **images)
    chosen = torch.linspace(0, len(data.train) - 1, case.points).round().long()
    return replace(
        data, train=data.train.take(chosen), fingerprint=f"{data.fingerprint}, {case.points} points, evenly taken"
    )


def ratios(found: Mapping[str, Sequence[Errors]], of: str) -> dict[str, float]:
    """The error of uniform permutations over that of each other estimator, each with the K that serves it best.

    Uniform permutations have the better of their gradients.
    """
    uniform = [one for name in UNIFORM for one in found.get(name, ())]
    reference = float(getattr(best(uniform, of), of))
    return {name: reference / float(getattr(best(each, of), of)) for name, each in found.items() if name not in UNIFORM}


def _label(case: Case) -> str:
    return f"{case.data}_{case.units}"


def _numbers(
    config: Config, found: Mapping[Case, Mapping[str, Sequence[Errors]]], shares: Mapping[Case, float]
) -> dict[str, Scalar]:
    numbers: dict[str, Scalar] = {"budget": config.budget, "asked": ASKED}
    for case, each in found.items():
        numbers[f"{_label(case)}_share"] = shares[case]
        for of in MEASURED:
            numbers |= {f"{_label(case)}_{name}_{of}": ratio for name, ratio in ratios(each, of).items()}
    large = [each for case, each in found.items() if _counts(case, shares)]
    if large:
        numbers |= {f"worst_{of}": min(ratios(each, of)[IMPROVED] for each in large) for of in MEASURED}
    return numbers


def _counts(case: Case, shares: Mapping[Case, float]) -> bool:
    """Whether the case tells estimators apart and has too many permutations to try them all."""
    return case.units >= LARGE and _tells(shares[case])


def _tells(share: float) -> bool:
    return BETWEEN[0] < share < BETWEEN[1]


def _same_ratios(each: Mapping[str, Sequence[AtSameDraws]], of: str) -> float:
    """Of the sequential draws that are most exact: how many times smaller their error is, at equal time."""
    chosen = min(each["sequential"], key=lambda one: float(getattr(one, of)))
    return float(getattr(at_equal_time(each["uniform"], chosen), of)) / float(getattr(chosen, of))


def _same_numbers(
    same: Mapping[Case, Mapping[str, Sequence[AtSameDraws]]], shares: Mapping[Case, float]
) -> dict[str, Scalar]:
    numbers: dict[str, Scalar] = {}
    for case, each in same.items():
        numbers |= {f"same_{_label(case)}_{of}": _same_ratios(each, of) for of in MEASURED}
    large = [case for case in same if _counts(case, shares)]
    if large:
        numbers |= {f"same_worst_{of}": min(_same_ratios(same[case], of) for case in large) for of in MEASURED}
    return numbers


def _same_table(same: Mapping[Case, Mapping[str, Sequence[AtSameDraws]]], shares: Mapping[Case, float]) -> Table:
    columns = ["data", "n", "I / log n!", "estimator", "K", "ms a draw", "MSE of I", "MSE of gradient"]
    rows: list[list[Scalar]] = [
        [case.data, case.units, shares[case], name, one.K, 1e3 * one.seconds, one.information, one.gradient]
        for case, each in same.items()
        for name, found in each.items()
        for one in found
    ]
    return Table(columns, rows, "Errors of means over the same draws of ω, against exact sums at these.")


_BOUNDS = {True: "lower", False: "upper"}


def _comparison(found: Mapping[Case, Mapping[str, Sequence[Errors]]], shares: Mapping[Case, float]) -> Table:
    names = [name for name in next(iter(found.values())) if name not in UNIFORM]
    columns = [f"{name}, {of}" for of in ("I", "gradient") for name in names]
    rows: list[list[Scalar]] = []
    for case, each in found.items():
        factors = [ratios(each, of)[name] for of in MEASURED for name in names]
        rows.append([case.data, case.units, shares[case], *factors])
    caption = """How many times smaller than that of uniform permutations, with the better of both gradients, the mean
    squared error is at equal time."""
    return Table(["data", "n", "I / log n!", *columns], rows, " ".join(caption.split()))


def _table(found: Mapping[Case, Mapping[str, Sequence[Errors]]], truths: Mapping[Case, Estimated]) -> Table:
    columns = ["data", "n", "I, nats", "estimator", "is", "K", "draws of ω", "seconds", "bias of I", "deviation of I",
               "MSE of I", "MSE of gradient", "variance of the true I", "variance of the true gradient",
               "squared norm of gradient"]  # fmt: skip
    rows: list[list[Scalar]] = []
    for case, each in found.items():
        truth = truths[case]
        for name, tried in each.items():
            proposal = ESTIMATORS[name].proposal
            kind = "exact" if proposal == "exact" else f"{_BOUNDS[PROPOSALS[proposal].lower]} bound"
            for one in tried:
                own = [one.K, one.draws, one.seconds, one.bias, one.deviation, one.information, one.gradient]
                norm = float(truth.gradient.square().sum())
                rows.append(
                    [
                        case.data,
                        case.units,
                        truth.information,
                        name,
                        kind,
                        *own,
                        truth.spread,
                        truth.gradient_spread,
                        norm,
                    ]
                )
    caption = """All estimators, with what they are in expectation. Errors are against the exact sum over more draws of
    ω, whose own variance is among them and beside them; time is the processor's."""
    return Table(columns, rows, " ".join(caption.split()))
