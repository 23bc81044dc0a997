"""Estimators of what a draw of the weights tells of the permutation that moved it, at equal time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from coset.data import Dataset
from coset.models import build, example_input
from coset.posterior import GaussianNoise, Isotropic
from coset.posterior.symmetrized.proposals import PROPOSALS
from coset.study import Context, Findings, Scalar, Table, study
from coset.study.posteriors import inferred
from coset.symmetry import discover
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

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BETWEEN = (0.2, 0.8)
"""Shares of log n! between which posteriors tell estimators apart: beyond, I is a constant or nothing."""
MEASURED = ("information", "gradient")
UNIFORM = ("uniform", "uniform-path")
"""Others are compared with the better of these."""
IMPROVED = "sequential-path"
SAME = ("uniform", "transpositions", "sequential")
"""What is compared at the same draws of ω, too."""
MANY = (20, 200, 1000, 2000, 5000, 20_000)
LARGE = 10
ASKED = 10.0
"""How many times smaller a mean squared error is to be."""
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
    """Estimates that take ``budget`` seconds, ``repeats`` of each, against exact ones; ``same``: of common draws."""

    cases: tuple[Case, ...]
    budget: float
    repeats: int
    same: int
    grids: Mapping[str, tuple[int, ...]]


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
            (Case("digits", 60, 4, prior=0.2, epochs=60, std=0.1, reference=2000),), 0.005, 3, 8,
            {name: (1,) if name.startswith("exact") else (20,) for name in GRIDS},
        ),
        "small": Config(_SMALL, 0.3, 8, 64, GRIDS),
        "paper": Config(_SMALL, 0.3, 100, 512, GRIDS),
    },
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
                for name, grid in {**config.grids, "uniform": MANY}.items()
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
        outcome=f"{_outcome(config, found, shares)}\n\n{_same_outcome(same, shares)}",
        figure=lambda: _figure(config, found),
        caption="Mean squared errors of I and of its gradient at equal time: of uniform permutations over others.",
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


def _outcome(config: Config, found: Mapping[Case, Mapping[str, Sequence[Errors]]], shares: Mapping[Case, float]) -> str:
    chosen = [case for case in found if _tells(shares[case])]
    sentences = [
        """Each estimate of I(g; ω) = H(q^G) − H(q) and of its gradient takes {budget:g} s of one core, whatever its K:
        one with fewer permutations draws more weights. Every estimator is used with the K that serves it best."""
    ]
    large = [case for case in found if _counts(case, shares)]
    if large:
        met = all(ratios(found[case], of)[IMPROVED] >= ASKED for case in large for of in MEASURED)
        says = "at least {asked:g} times" if met else "not everywhere {asked:g} times"
        sentences.append(
            f"""On posteriors with {BETWEEN[0]:g} log n! < I < {BETWEEN[1]:g} log n! and {LARGE} units or more the mean
            squared error of permutations drawn row by row along a Sinkhorn-scaled matrix, with the path gradient, is
            {says} smaller than that of uniform ones with whichever gradient serves them: by a factor of
            {{worst_information:.3g}} or more for I and {{worst_gradient:.3g}} or more for its gradient."""
        )
    for case in chosen:
        name = _label(case)
        sentences.append(
            f"With {case.units} units on {case.data} (I is {{{name}_share:.2f}} log n!) the factors are "
            f"{_factors(name, IMPROVED)} ({{{name}_sequential_gradient:.3g}} with the gradient of the bound); for the "
            f"exact sum {_factors(name, 'exact-path')} ({{{name}_exact_gradient:.3g}}), for the control variate of "
            f"transpositions {_factors(name, 'transpositions')}, for the paper's f(g) {_factors(name, 'distance')}."
        )
    outside = [case for case in found if case not in chosen]
    if outside:
        listed = ", ".join(f"{case.data} with {case.units} units ({{{_label(case)}_share:.2f}})" for case in outside)
        sentences.append(f"I is outside of {BETWEEN[0]:g} to {BETWEEN[1]:g} log n! for {listed}.")
    sentences.append(
        """\n\nUniform permutations are a lower bound that cannot exceed log K: where I is larger the error is this gap,
        and no number of draws helps. That is bias, not variance. The other part of a gradient's error is the noise of
        ω. The gradient of the bound is taken along ω and in the densities; the latter part is 0 in expectation, for
        q^G as for any density, and is noise. The path gradient leaves it out. It came after an earlier run of this
        study, with the gradient of the bound alone, had not reached the factor for gradients on digits."""
    )
    return " ".join(sentences)


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


def _same_outcome(same: Mapping[Case, Mapping[str, Sequence[AtSameDraws]]], shares: Mapping[Case, float]) -> str:
    large = [case for case in same if _counts(case, shares)]
    told = """What permutations alone add to the error is measured at the same draws of ω, against the exact sums at
    these, with the gradient of the bound."""
    if not large:
        return told
    met = all(_same_ratios(same[case], of) >= ASKED for case in large for of in MEASURED)
    says = "at least {asked:g} times" if met else "not everywhere {asked:g} times"
    return f"""{told} With {LARGE} units and more, at equal time, the errors of sequential draws are {says} smaller than
    those of uniform ones: by factors from {{same_worst_information:.3g}} for I and from {{same_worst_gradient:.3g}} for
    its gradient."""


def _same_table(same: Mapping[Case, Mapping[str, Sequence[AtSameDraws]]], shares: Mapping[Case, float]) -> Table:
    columns = ["data", "n", "I / log n!", "estimator", "K", "ms a draw", "MSE of I", "MSE of gradient"]
    rows: list[list[Scalar]] = [
        [case.data, case.units, shares[case], name, one.K, 1e3 * one.seconds, one.information, one.gradient]
        for case, each in same.items()
        for name, found in each.items()
        for one in found
    ]
    return Table(columns, rows, "Errors of means over the same draws of ω, against exact sums at these.")


def _factors(case: str, proposal: str) -> str:
    return f"{{{case}_{proposal}_information:.3g}} and {{{case}_{proposal}_gradient:.3g}}"


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


def _figure(config: Config, found: Mapping[Case, Mapping[str, Sequence[Errors]]]) -> "Figure":
    from coset.figures import PALETTE, label_panel, new_figure

    figure = new_figure(7.4, 3.8)
    panels = figure.subplots(1, 2, sharey=True)
    names = [name for name in config.grids if name not in UNIFORM]
    places = range(len(found))
    for number, (axes, of, title) in enumerate(zip(panels, MEASURED, ("I(g; ω)", "gradient of I(g; ω)"), strict=True)):
        for colour, name in zip(PALETTE, names, strict=False):
            # A gradient's path does not change I.
            if of == "information" and ESTIMATORS[name].gradient == "path":
                continue
            axes.plot(places, [ratios(each, of)[name] for each in found.values()], "o-", color=colour, label=name)
        axes.axhline(1, color="0.5", lw=0.8)
        axes.set_yscale("log")
        axes.set_xticks(list(places), [f"{case.data}\n{case.units}" for case in found], fontsize=7)
        label_panel(axes, "ab"[number], title)
    panels[0].set_ylabel("error of uniform / error")
    handles, labels = panels[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure
