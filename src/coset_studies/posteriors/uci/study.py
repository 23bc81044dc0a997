"""Posteriors of a small network on four UCI regression sets and their canonical splits, beside published results."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from coset.study import Context, Findings, Scalar, Table, study
from coset_studies.posteriors.uci._claims import CLAIMS, PUBLISHED
from coset_studies.posteriors.uci._methods import GENERATED, Outcome, Settings, case, run_methods
from coset_studies.posteriors.uci._page import CAPTION, TABLES, TEXT, draw

UCI = ("uci/yacht", "uci/energy", "uci/concrete", "uci/bostonHousing")


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
    claims=CLAIMS,
    text={"small": TEXT},
    tables=TABLES,
    figure=draw,
    caption=CAPTION,
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
    return Findings(_numbers(config, found, scores), {"scores": _score_table(scores), "course": _course_table(found)})


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
    return Table(columns, rows)


def _course_table(found: Outcomes) -> Table:
    columns = ("data", "method", "passes", "R̂ of predictions", "acceptance", "ELBO per point")
    rows: list[list[Scalar]] = [
        [_label(name), method, *(_mean_or_none(outcomes, what) for what in ("passes", "rhat", "acceptance", "elbo"))]
        for name, methods in found.items()
        for method, outcomes in methods.items()
    ]
    return Table(columns, rows)


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
