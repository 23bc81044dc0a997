"""Posteriors of a small network on four UCI regression sets and their canonical splits, beside published results."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from coset.study import Context, Findings, Scalar, Table, study
from coset_studies.posteriors.uci._methods import GENERATED, Outcome, Settings, case, run_methods

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

UCI = ("uci/yacht", "uci/energy", "uci/concrete", "uci/bostonHousing")

PUBLISHED: dict[str, dict[str, tuple[float, float]]] = {
    "uci/yacht": {
        "PBP": (1.02, -1.63),
        "MC dropout": (0.67, -1.25),
        "deep ensembles": (1.58, -1.18),
        "HMC": (0.56, -1.62),
    },
    "uci/energy": {
        "PBP": (1.80, -2.04),
        "MC dropout": (0.54, -1.21),
        "deep ensembles": (2.09, -1.38),
        "HMC": (0.48, -0.93),
    },
    "uci/concrete": {
        "PBP": (5.67, -3.16),
        "MC dropout": (4.82, -2.93),
        "deep ensembles": (6.03, -3.06),
        "HMC": (4.12, -2.72),
    },
    "uci/bostonHousing": {
        "PBP": (3.01, -2.57),
        "MC dropout": (2.90, -2.40),
        "deep ensembles": (3.28, -2.41),
        "HMC": (2.76, -2.27),
    },
}
"""RMSE and log-likelihood on the test parts, mean over 20 splits, of a network with one hidden layer of 50 units."""


@dataclass(frozen=True)
class Config:
    """``splits`` of each of the ``data`` sets, with the same settings on all of them."""

    data: tuple[str, ...]
    splits: int
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True)
class _Score:
    """Mean and standard error over the splits; a published mean has no error here."""

    rmse: float
    log_likelihood: float
    rmse_error: float | None = None
    log_likelihood_error: float | None = None


Rows = Mapping[tuple[str, str], _Score]
"""Scores on one data set, by where they come from ("here", "published") and method."""

Outcomes = Mapping[str, Mapping[str, Sequence[Outcome]]]
"""By data set and method, one for each split."""

_COUNTERPARTS = {"HMC": "HMC", "MFVI": "PBP", "ensemble": "deep ensembles"}
"""The published method that is nearest to one of ours."""


@study(
    name="uci",
    title="Posteriors of small networks on UCI regression",
    reference="Hernández-Lobato and Adams 2015 (PBP); Mukhoti et al. 2018 (MC dropout, trained to convergence); "
    "Lakshminarayanan et al. 2017 (deep ensembles); Bui et al. 2016 (HMC)",
    paper="""
    On 20 canonical splits of small regression sets, methods of inference are compared by RMSE and log-likelihood of the
    test part, for networks with one hidden layer of 50 ReLU units. Hamiltonian Monte Carlo has the lowest errors, and
    on all sets but yacht the highest log-likelihoods; probabilistic backpropagation, a mean field, is behind.
    """,
    presets={
        "quick": Config(
            data=(GENERATED,), splits=2,
            settings=Settings(
                width=10, steps=60, vi_steps=60, members=2, sghmc_step=1e-5, sghmc_burn_in=20, sghmc_draws=8,
                sghmc_thin=2, leapfrog_steps=5, hmc_warmup=10, hmc_draws=8, samples=16,
            ),
        ),
        "small": Config(data=UCI, splits=20),
        "paper": Config(
            data=UCI, splits=20,
            settings=Settings(
                members=10, steps=1000, vi_steps=10000, sghmc_step=1e-6, sghmc_burn_in=10000, sghmc_draws=100,
                sghmc_thin=200, leapfrog_steps=300, hmc_warmup=200, hmc_draws=200, samples=1000,
            ),
        ),
    },
)  # fmt: skip
def run(config: Config, context: Context) -> Findings:
    """Every method on every split; means and standard errors over the splits, published results beside them."""
    found: dict[str, dict[str, list[Outcome]]] = {name: {} for name in config.data}
    with context.progress("splits", config.splits * len(config.data)) as bar:
        for number in range(config.splits):
            for name in config.data:
                for method, outcome in run_methods(case(context, name, number, config.settings)).items():
                    found[name].setdefault(method, []).append(outcome)
                bar.advance(note=f"{_label(name)}, split {number}")
    scores = {name: _scores(name, found[name]) for name in config.data}
    return Findings(
        numbers=_numbers(config, found, scores),
        tables={"scores": _score_table(scores), "course": _course_table(found)},
        outcome="\n\n".join(
            [
                _SETTING,
                *(_paragraph(name) for name in config.data),
                _REASONS,
                *([_YACHT] if UCI[0] in config.data else []),
            ]
        ),
        figure=lambda: _figure(scores),
        caption="Log-likelihood of the test part, nats per point in the target's own units: mean over the splits and "
        "twice its standard error. Filled: here; hollow: published. Triangles at the edge: further left, at "
        "the number beside them.",
    )


_SETTING = """
One hidden layer of {width} ReLU units, weights N(0, {gain:g}²/fan-in), the noise of the targets a parameter with a
prior of its own; {splits} splits. All settings are the same on all splits and all data sets. Those of the preset small
were chosen on 15 % held out of the train part of the first split of each UCI set, the length of the chains by the time
they take; as in all work on these splits, points held out are test points of other splits.
An ensemble of {members} maxima of the posterior comes first; Laplace (full
generalised Gauss-Newton matrix) and MFVI begin at one member, the chains of SGHMC and HMC at all of them. Unlike
published deep ensembles this one has a single level of noise, not one for each input, and no adversarial examples.
"""

_REASONS = """
Laplace's Gaussian is a posterior of the linearised network: with the same weights in the network itself the
log-likelihood is {laplace_sampled} on average over the data sets. MFVI from scratch, for as many steps in all, ends at
an ELBO that is {scratch_elbo} per point than from a trained network, and the log-likelihood of its predictions is
{scratch}. Where the first is higher and the second lower, the ELBO is no guide to the predictions.

The chains are short: {hmc_draws} draws of HMC and {sghmc_draws} of SGHMC each. The median R̂ of a predicted value is
{hmc_rhat:.2f} for HMC (acceptance {hmc_acceptance:.2f}) and {sghmc_rhat:.2f} for SGHMC on average; as far as it is
above 1 these are mixtures over {members} modes explored locally, not converged samples. The preset paper has longer
chains. (Preset small takes about 25 minutes on one busy core; with its posteriors in the store, one.)
"""

_YACHT = """
On yacht the published log-likelihood of HMC does not go with its RMSE: a Gaussian of that standard deviation would have
{yacht_calibrated:.2f}, so the spread of its predictions cannot have matched their errors.
"""


def _paragraph(name: str) -> str:
    """A template of one data set's results; published ones in brackets."""
    key, known = _key(name), name in PUBLISHED

    def pair(method: str, counterpart: str) -> str:
        word = f"{key}_{_key(method)}"
        text = (
            f"{method} {{{word}_rmse:.2f}} ± {{{word}_rmse_error:.2f}} and {{{word}_ll:.2f}} ± {{{word}_ll_error:.2f}}"
        )
        if not known:
            return text
        other = f"{key}_published_{_key(counterpart)}"
        return f"{text} ({counterpart}: {{{other}_rmse:.2f}} and {{{other}_ll:.2f}})"

    pairs = ", ".join(pair(*both) for both in _COUNTERPARTS.items())
    agreement = f" HMC's log-likelihood is {{{key}_distance}} the published one." if known else ""
    return (
        f"{_label(name).capitalize()}, RMSE and log-likelihood with standard errors"
        f"{', published in brackets' if known else ''}: {pairs}.{agreement} "
        f"The highest log-likelihood here is that of {{{key}_best}}."
    )


def _scores(name: str, found: Mapping[str, Sequence[Outcome]]) -> dict[tuple[str, str], _Score]:
    here = {("here", method): _summary(outcomes) for method, outcomes in found.items()}
    return here | {("published", method): _Score(*pair) for method, pair in PUBLISHED.get(name, {}).items()}


def _summary(outcomes: Sequence[Outcome]) -> _Score:
    rmses, logs = ([getattr(outcome, what) for outcome in outcomes] for what in ("rmse", "log_likelihood"))
    return _Score(_mean(rmses), _mean(logs), _error(rmses), _error(logs))


def _numbers(config: Config, found: Outcomes, scores: Mapping[str, Rows]) -> dict[str, Scalar]:
    numbers: dict[str, Scalar] = {"splits": config.splits}
    numbers |= {entry.name: getattr(config.settings, entry.name) for entry in fields(Settings)}
    for name, rows in scores.items():
        numbers |= _numbers_of(_key(name), rows)

    def over_all(method: str, what: str) -> float:
        return _mean([_mean_of(methods[method], what) for methods in found.values()])

    logs = "log_likelihood"
    return numbers | {
        "laplace_sampled": _compared(over_all("Laplace, sampled", logs) - over_all("Laplace, linearised", logs)),
        "scratch": _compared(over_all("MFVI, from scratch", logs) - over_all("MFVI", logs)),
        "scratch_elbo": _compared(over_all("MFVI, from scratch", "elbo") - over_all("MFVI", "elbo")),
        "hmc_rhat": over_all("HMC", "rhat"),
        "hmc_acceptance": over_all("HMC", "acceptance"),
        "sghmc_rhat": over_all("SGHMC", "rhat"),
    }


def _numbers_of(key: str, rows: Rows) -> dict[str, Scalar]:
    """What the paragraph of one data set needs."""
    here = {method: score for (source, method), score in rows.items() if source == "here"}
    published = {method: score for (source, method), score in rows.items() if source == "published"}
    numbers: dict[str, Scalar] = {f"{key}_best": max(here, key=lambda method: here[method].log_likelihood)}
    named = {f"{key}_{_key(method)}": here[method] for method in _COUNTERPARTS}
    for word, score in (
        named | {f"{key}_published_{_key(method)}": known for method, known in published.items()}
    ).items():
        numbers |= {f"{word}_rmse": score.rmse, f"{word}_rmse_error": score.rmse_error}
        numbers |= {f"{word}_ll": score.log_likelihood, f"{word}_ll_error": score.log_likelihood_error}
    if published:
        ours = here["HMC"]
        assert ours.log_likelihood_error is not None
        distance = (ours.log_likelihood - published["HMC"].log_likelihood) / ours.log_likelihood_error
        numbers[f"{key}_calibrated"] = -0.5 * math.log(2 * math.pi * math.e * published["HMC"].rmse ** 2)
        numbers[f"{key}_distance"] = f"{abs(distance):.1f} standard errors {'above' if distance > 0 else 'below'}"
    return numbers


def _score_table(scores: Mapping[str, Rows]) -> Table:
    columns = ("data", "method", "from", "RMSE", "± RMSE", "log-likelihood", "± log-likelihood")
    rows: list[list[Scalar]] = [
        [_label(name), method, source, score.rmse, score.rmse_error, score.log_likelihood, score.log_likelihood_error]
        for name, methods in scores.items()
        for (source, method), score in methods.items()
    ]
    return Table(columns, rows, "Test parts, in the target's own units: mean over the splits ± its standard error.")


def _course_table(found: Outcomes) -> Table:
    columns = ("data", "method", "passes", "R̂ of predictions", "acceptance", "ELBO per point")
    rows: list[list[Scalar]] = [
        [_label(name), method, *(_mean_or_none(outcomes, what) for what in ("passes", "rhat", "acceptance", "elbo"))]
        for name, methods in found.items()
        for method, outcomes in methods.items()
    ]
    return Table(
        columns,
        rows,
        "What it took: gradients of the whole train part for one network, the search for starting points included; "
        "median R̂ of predicted values, chains cut in halves; acceptance of HMC; ELBO. Means over the splits.",
    )


def _figure(scores: Mapping[str, Rows]) -> "Figure":
    from coset.figures import label_panel, new_figure

    figure = new_figure(2.4 * len(scores) + 1.6, 3.4)
    panels = figure.subplots(1, len(scores), squeeze=False, sharey=True)[0]
    for letter, axes, (name, rows) in zip("abcd", panels, scores.items(), strict=False):
        _dots(axes, rows)
        label_panel(axes, letter, _label(name))
    places = {row: place for place, row in enumerate(next(iter(scores.values())))}
    panels[0].set_yticks(
        list(places.values()), [method if source == "here" else f"{method}, published" for source, method in places]
    )
    panels[0].invert_yaxis()
    return figure


def _dots(axes: "Axes", rows: Rows) -> None:
    """One row a method; one that is far below all others is a triangle at the edge, with its value."""
    from matplotlib.ticker import MaxNLocator

    from coset.figures import BLUE, GREY, VERMILION

    best = max(score.log_likelihood for score in rows.values())
    lowest, *others = sorted(score.log_likelihood - 2 * (score.log_likelihood_error or 0.0) for score in rows.values())
    spread = best - others[0]
    low = lowest if best - lowest < 2 * spread else others[0] - 0.15 * spread
    for place, ((source, _), score) in enumerate(rows.items()):
        value, colour = score.log_likelihood, BLUE if source == "here" else VERMILION
        if value < low:
            text = f"{value:.2f}".replace("-", "−")
            axes.plot(low, place, "<", color=colour, clip_on=False, markersize=5)
            axes.annotate(text, (low, place), (7, 0), textcoords="offset points", va="center", fontsize=7.5)
            continue
        face = colour if source == "here" else "white"
        error = None if score.log_likelihood_error is None else 2 * score.log_likelihood_error
        axes.errorbar(value, place, xerr=error, fmt="o", color=colour, markerfacecolor=face, markersize=5)
    here = sum(source == "here" for source, _ in rows)
    if here < len(rows):
        axes.axhline(here - 0.5, color=GREY, linewidth=0.7)
    axes.set_xlim(left=low - 0.07 * spread)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel("log-likelihood, nats")
    axes.tick_params(axis="y", length=0)


def _label(name: str) -> str:
    return {"uci/bostonHousing": "boston"}.get(name, name.removeprefix("uci/"))


def _key(name: str) -> str:
    return _label(name).lower().replace(" ", "_")


def _compared(difference: float) -> str:
    return f"{abs(difference):.2f} nats {'higher' if difference > 0 else 'lower'}"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _error(values: Sequence[float]) -> float:
    """The standard error of the mean."""
    mean = _mean(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return math.sqrt(variance / len(values))


def _mean_or_none(outcomes: Sequence[Outcome], what: str) -> float | None:
    return None if getattr(outcomes[0], what) is None else _mean_of(outcomes, what)


def _mean_of(outcomes: Sequence[Outcome], what: str) -> float:
    return _mean([getattr(outcome, what) for outcome in outcomes])
