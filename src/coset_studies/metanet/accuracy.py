"""Predicting the test accuracy of CNNs from their weights alone."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.metanet import rank_correlation
from coset.represent import Interval
from coset.represent.similarity.resampling import percentile_interval
from coset.study import Context, Findings, Scalar, Table, prose, study
from coset_studies.metanet._accuracy_claims import CLAIMS
from coset_studies.metanet._accuracy_figure import figure_of
from coset_studies.metanet._methods import (
    CANONICAL,
    FLAT,
    METHODS,
    READERS,
    STATISTICS,
    Fitting,
    Predictor,
    fitted,
    predictions,
)
from coset_studies.metanet._tests import FOLDED, MEAN, NORMED, SAME, WIDER
from coset_studies.metanet._zoos import Networks, VariedZoo, folded, moved, networks_of


@dataclass(frozen=True)
class Zoos:
    """Zoos of one data set: that on whose networks methods are trained and tested, and others to test on."""

    base: VariedZoo
    wider: VariedZoo
    normed: VariedZoo


@dataclass(frozen=True)
class Config:
    """Zoos by data set; of each base, ``tested`` networks are left out of training; ``seeds``: of every method.

    ``draws``: resamples of the intervals.
    """

    zoos: Mapping[str, Zoos]
    tested: int
    seeds: int
    fitting: Fitting
    draws: int = 2000


_NOISE = (0.0, 0.15, 0.4)


def _zoos(data: Mapping[str, object], epochs: tuple[int, ...], each: int, others: int) -> Zoos:
    return Zoos(
        VariedZoo(data, epochs, _NOISE, each, {"width": 16}),
        VariedZoo(data, epochs, _NOISE, others, {"width": 24}),
        VariedZoo(data, epochs, _NOISE, others, {"width": 16, "norm": "batch"}),
    )


_DIGITS = {"name": "digits", "subset": 100}
_TINY = {"width": 3, "padding": 1}
QUICK = Config(
    zoos={
        "digits": Zoos(
            VariedZoo(_DIGITS, (1,), (0.0, 0.4), 8, _TINY),
            VariedZoo(_DIGITS, (1,), (0.4,), 4, {**_TINY, "width": 4}),
            VariedZoo(_DIGITS, (1,), (0.4,), 4, {**_TINY, "norm": "batch"}),
        )
    },
    tested=6,
    seeds=1,
    fitting=Fitting(channels=4, layers=1, epochs=1, flat_epochs=1, warmup=0, hidden=(4,)),
    draws=20,
)
SMALL = Config(
    zoos={
        "CIFAR-10, grey": _zoos({"name": "cifar10-slice"}, (1, 4, 8), 56, 6),
        "Fashion-MNIST": _zoos({"name": "fashion-mnist", "subset": 2000}, (1, 2, 4), 56, 6),
    },
    tested=150,
    seeds=3,
    fitting=Fitting(channels=16, layers=3, epochs=30, flat_epochs=25, warmup=2, hidden=(128, 32)),
)
PAPER = Config(
    zoos={
        "CIFAR-10, grey": _zoos({"name": "cifar10"}, (1, 4, 12), 2000, 100),
        "Fashion-MNIST": _zoos({"name": "fashion-mnist"}, (1, 4, 12), 2000, 100),
    },
    tested=3000,
    seeds=3,
    fitting=Fitting(channels=64, layers=4, epochs=100, flat_epochs=100, warmup=5, hidden=(512, 128)),
)


@dataclass(frozen=True)
class Setting:
    """A data set: the methods trained on it, by method and seed, and the sets they are tested on, by name."""

    fits: Mapping[str, list[Predictor]]
    tests: Mapping[str, Networks]


def methods_of(
    context: Context, config: Config, data: str, base: Networks
) -> tuple[dict[str, list[Predictor]], Networks]:
    """Every method trained on the networks of a data set, and the networks that were left out."""
    order = torch.randperm(len(base.accuracy), generator=context.generator(f"tested networks of {data}"))
    test, train = base.take(order[: config.tested].sort().values), base.take(order[config.tested :].sort().values)
    # Order is all that is asked for: the methods learn accuracies of mean 0 and deviation 1.
    targets = (train.accuracy - train.accuracy.mean()) / train.accuracy.std().clamp_min(1e-6)
    spec = config.zoos[data].base.spec(context.seed).to_dict()
    about = {"zoo": spec, "tested": config.tested, "seed": context.seed}
    fits: dict[str, list[Predictor]] = {}
    with context.progress(f"methods on {data}", config.seeds * len(METHODS)) as bar:
        for method in METHODS:
            for seed in range(config.seeds):
                own = context.seed * 1000 + seed
                fit = fitted(context, method, config.fitting, (train.sym, train.stack, targets), about, own)
                fits.setdefault(method, []).append(fit)
                bar.advance(note=method)
    return fits, test


def setting_of(context: Context, config: Config, data: str) -> Setting:
    """All zoos of a data set trained, all methods fitted."""
    zoos = config.zoos[data]
    base = networks_of(context, zoos.base)
    fits, test = methods_of(context, config, data, base)
    normed = networks_of(context, zoos.normed)
    tests = {
        SAME: test,
        WIDER: networks_of(context, zoos.wider),
        NORMED: normed,
        FOLDED: folded(normed, base.sym),
    }
    return Setting(fits, tests)


@dataclass(frozen=True)
class Read:
    """What methods predict of the networks of a test set, (seeds, N): as they are, and behind random group elements."""

    truth: Tensor
    plain: Mapping[str, Tensor]
    behind: Mapping[str, Tensor]


def read(context: Context, setting: Setting, data: str) -> dict[str, Read]:
    """Predictions of all methods on all test sets; a method that cannot read an architecture is left out there."""
    found = {}
    for name, networks in setting.tests.items():
        elsewhere = moved(networks, context.generator(f"elements for {name}, {data}"))
        plain, behind = {}, {}
        for method, fits in setting.fits.items():
            if method in (FLAT, CANONICAL) and name in (WIDER, NORMED):
                continue
            plain[method] = torch.stack([predictions(fit, networks.sym, networks.stack) for fit in fits])
            behind[method] = torch.stack([predictions(fit, elsewhere.sym, elsewhere.stack) for fit in fits])
        found[name] = Read(networks.accuracy, plain, behind)
    return found


def _correlations(results: Mapping[str, Mapping[str, Read]], draws: int) -> Table:
    """τ of every method on every test set, before and behind group elements."""
    rows: list[list[Scalar]] = []
    for data, sets in results.items():
        for name, own in sets.items():
            for method, plain in own.plain.items():
                behind = own.behind[method]
                before, after = (rank_correlation(p, own.truth, draws=draws) for p in (plain, behind))
                singles = zip(plain, behind, strict=True)
                taus = [[rank_correlation(p, own.truth, draws=1).value for p in pair] for pair in singles]
                change = max(abs(one - other) for one, other in taus)
                row: list[Scalar] = [data, name, method, len(own.truth), before.value, before.low, before.high]
                rows.append([*row, after.value, after.low, after.high, change])
    columns = ("data", "networks tested", "method", "number", "τ", "low", "high", "τ moved", "low moved", "high moved")
    caption = """
        Kendall's τ between predicted and measured test accuracy, mean of the seeds, with 95 % bootstrap intervals over
        networks and seeds; moved: every network behind a random element of its group; the largest change of one seed's
        τ by that.
    """
    return Table((*columns, "largest change"), rows, prose(caption))


def _differences(results: Mapping[str, Mapping[str, Read]], draws: int) -> Table:
    """τ of the readers minus that of statistics, network by network; and what group elements take from the others."""
    rows: list[list[Scalar]] = []

    def row(data: str, name: str, what: str, interval: Interval) -> None:
        rows.append([data, name, what, interval.value, interval.low, interval.high])

    for method in READERS:
        over: dict[str, list[Interval]] = {}
        for data, sets in results.items():
            for name, own in sets.items():
                pair = own.plain[method], own.plain[STATISTICS]
                apart = rank_correlation(pair[0], own.truth, against=pair[1], draws=draws)
                row(data, name, f"{method} − {STATISTICS}", apart)
                over.setdefault(name, []).append(apart)
            own = sets[SAME]
            pair = own.behind[method], own.behind[STATISTICS]
            row(
                data,
                SAME,
                f"{method} − {STATISTICS}, both moved",
                rank_correlation(pair[0], own.truth, against=pair[1], draws=draws),
            )
        for name, intervals in over.items():
            row(MEAN, name, f"{method} − {STATISTICS}", mean_of(intervals))
    for method in (STATISTICS, FLAT):
        lost = []
        for data, sets in results.items():
            own = sets[SAME]
            apart = rank_correlation(own.plain[method], own.truth, against=own.behind[method], draws=draws)
            row(data, SAME, f"{method} − the same, moved", apart)
            lost.append(apart)
        row(MEAN, SAME, f"{method} − the same, moved", mean_of(lost))
    caption = "Differences of τ on the same networks, with 95 % bootstrap intervals over networks and seeds, paired."
    return Table(("data", "networks tested", "difference", "Δτ", "low", "high"), rows, caption)


def mean_of(intervals: list[Interval]) -> Interval:
    """The mean over data sets, whose networks are drawn again independently."""
    value = sum(one.value for one in intervals) / len(intervals)
    draws = torch.stack([one.draws for one in intervals]).mean(0)
    return percentile_interval(value, draws, intervals[0].level)


def _networks(context: Context, settings: Mapping[str, Setting]) -> Table:
    """The networks that are tested on, and how well two measurements of their accuracies agree."""
    rows: list[list[Scalar]] = []
    shares = torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)
    for data, setting in settings.items():
        for name, networks in setting.tests.items():
            if name == FOLDED:
                continue
            truth, count = networks.accuracy, float(networks.examples)
            generator = context.generator(f"second measurement of {name}, {data}")
            again = torch.binomial(torch.full_like(truth, count), truth, generator=generator)
            ceiling = rank_correlation(again, truth, draws=1).value
            rows.append([data, name, len(truth), *torch.quantile(truth, shares).tolist(), networks.examples, ceiling])
    columns = (
        "data",
        "networks tested",
        "number",
        "accuracy, 5 %",
        "median",
        "95 %",
        "test images",
        "τ of a second test",
    )
    caption = (
        "Test accuracies, and τ between them and those on as many other test images, which are drawn from binomials."
    )
    return Table(columns, rows, caption)


@study(
    name="metanet-accuracy",
    title="Predicting the test accuracy of CNNs from their weights",
    reference="the thesis on flows over weights, chapter 5; Unterthiner et al. 2020; Kofinas et al. 2024",
    paper="""
    Statistics of the weights of each layer order the networks of the Small CNN Zoo by their test accuracy with
    Kendall's τ .915 (CIFAR-10 in grey; Unterthiner et al. 2020), networks that read weights as graphs with .930 and, as
    transformers, .935 (Kofinas et al. 2024); readers that do not respect scales lose τ where networks are rescaled. The
    zoo has 30,000 networks of 4,970 parameters. Here are zoos of the same architecture, of fewer networks that were
    trained on fewer images.
    """,
    presets={"quick": QUICK, "small": SMALL, "paper": PAPER},
    claims=CLAIMS,
)
def run(config: Config, context: Context) -> Findings:
    """Zoos, methods, predictions, correlations."""
    settings = {data: setting_of(context, config, data) for data in config.zoos}
    results = {data: read(context, setting, data) for data, setting in settings.items()}
    correlations = _correlations(results, config.draws)
    told = []
    for data in results:
        words = []
        for method in METHODS:
            where = {"data": data, "networks tested": SAME, "method": method}
            before, after = (correlations.cell(column, where) for column in ("τ", "τ moved"))
            words.append(f"{method} {before:.3f} (moved {after:.3f})")
        told.append(f"{data}, the same architecture: τ of {', '.join(words)}.")
    return Findings(
        numbers={"tested": config.tested, "seeds": config.seeds},
        tables={
            "correlations": correlations,
            "differences": _differences(results, config.draws),
            "networks": _networks(context, settings),
        },
        outcome="\n\n".join([*told, _TOLD]),
        figure=lambda: figure_of(correlations),
        caption="Kendall's τ with 95 % intervals: filled as trained, open behind random group elements.",
    )


_TOLD = """
All methods are trained on the same networks of width 16 without batch normalisation, data set by data set, {seeds}
times each, and never see the {tested} networks of it that are tested. "Wider": trained so, tested on networks of width
24. "Batch norm": tested on networks with batch normalisation, as they are; "folded": their normalisation is multiplied
into the convolutions first, which makes them networks of the architecture that was trained on, with other weights.
Statistics are matched by the names of parameters. Flat MLPs read one architecture only.
"""
