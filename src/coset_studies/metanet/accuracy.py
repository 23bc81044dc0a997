"""Predicting the test accuracy of CNNs from their weights alone."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.study import Context, Findings, prose, study
from coset_studies.metanet._accuracy_claims import CLAIMS
from coset_studies.metanet._accuracy_figure import figure_of
from coset_studies.metanet._accuracy_tables import Read, correlations, curve_of, differences, networks_tested
from coset_studies.metanet._cnn import Probabilities
from coset_studies.metanet._methods import (
    CANONICAL,
    FLAT,
    METHODS,
    ON_FEWER,
    Fits,
    Fitting,
    Predictor,
    Probes,
    fitted,
    predictions,
)
from coset_studies.metanet._tests import FOLDED, NORMED, SAME, WIDER
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

    ``curve``: graph readers and statistics are trained on these shares of the other networks, too. ``draws``: resamples
    of the intervals.
    """

    zoos: Mapping[str, Zoos]
    tested: int
    seeds: int
    fitting: Fitting
    curve: tuple[float, ...] = ()
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
    fitting=Fitting(channels=4, layers=1, epochs=1, flat_epochs=1, warmup=0, hidden=(4,), probes=3),
    curve=(0.5,),
    draws=20,
)
SMALL = Config(
    zoos={
        "CIFAR-10, grey": _zoos({"name": "cifar10-slice"}, (1, 4, 8), 112, 8),
        "Fashion-MNIST": _zoos({"name": "fashion-mnist", "subset": 2000}, (1, 2, 4), 140, 8),
    },
    tested=360,
    seeds=3,
    fitting=Fitting(channels=16, layers=3, epochs=12, flat_epochs=25, warmup=2, hidden=(128, 32)),
    curve=(0.33,),
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
    """A data set: the methods trained on it, by method and seed, and the sets they are tested on, by name.

    ``curve``: those trained on fewer networks, by how many.
    """

    fits: Fits
    curve: Mapping[int, Fits]
    tests: Mapping[str, Networks]


def methods_of(
    context: Context, config: Config, data: str, base: Networks, probes: Probes
) -> tuple[Fits, Mapping[int, Fits], Networks]:
    """Every method trained on the networks of a data set, some on fewer, and the networks that were left out."""
    order = torch.randperm(len(base.accuracy), generator=context.generator(f"tested networks of {data}"))
    test, rest = base.take(order[: config.tested].sort().values), order[config.tested :]
    jobs = [(round(share * len(rest)), ON_FEWER) for share in config.curve] + [(len(rest), METHODS)]
    spec = config.zoos[data].base.spec(context.seed).to_dict()
    found: dict[int, dict[str, list[Predictor]]] = {}
    with context.progress(f"methods on {data}", config.seeds * sum(len(methods) for _, methods in jobs)) as bar:
        for count, methods in jobs:
            train = base.take(rest[:count].sort().values)
            # Order is all that is asked for: the methods learn accuracies of mean 0 and deviation 1.
            targets = (train.accuracy - train.accuracy.mean()) / train.accuracy.std().clamp_min(1e-6)
            about = {"zoo": spec, "tested": config.tested, "trained": count, "seed": context.seed}
            found[count] = {method: [] for method in methods}
            for method in methods:
                for seed in range(config.seeds):
                    own = context.seed * 1000 + seed
                    fit = fitted(context, method, config.fitting, (train.sym, train.stack, targets), probes, about, own)
                    found[count][method].append(fit)
                    bar.advance(note=f"{method}, {count} networks")
    return found.pop(len(rest)), found, test


def setting_of(context: Context, config: Config, data: str) -> Setting:
    """All zoos of a data set trained, all methods fitted."""
    zoos = config.zoos[data]
    base, wider, normed = (networks_of(context, zoo) for zoo in (zoos.base, zoos.wider, zoos.normed))
    images = context.data(zoos.base.data["name"]).train.x
    chosen = torch.randperm(len(images), generator=context.generator(f"probes of {data}"))[: config.fitting.probes]
    models = {
        networks.sym.fingerprint: Probabilities(**zoo.options).eval()
        for networks, zoo in ((base, zoos.base), (wider, zoos.wider), (normed, zoos.normed))
    }
    fits, curve, test = methods_of(context, config, data, base, Probes(models, images[chosen]))
    tests = {
        SAME: test,
        WIDER: wider,
        NORMED: normed,
        FOLDED: folded(normed, base.sym),
    }
    return Setting(fits, curve, tests)


def read(context: Context, setting: Setting, data: str) -> dict[str, Read]:
    """Predictions of all methods on all test sets; a method that cannot read an architecture is left out there."""
    found = {}
    for name, networks in setting.tests.items():
        elsewhere = moved(networks, context.generator(f"elements for {name}, {data}"))
        fits = {
            method: own
            for method, own in setting.fits.items()
            if method not in (FLAT, CANONICAL) or name not in (WIDER, NORMED)
        }
        found[name] = Read(networks.accuracy, _predicted(fits, networks), _predicted(fits, elsewhere))
    return found


def _predicted(fits: Fits, networks: Networks) -> dict[str, Tensor]:
    return {
        method: torch.stack([predictions(fit, networks.sym, networks.stack) for fit in own])
        for method, own in fits.items()
    }


def read_by_fewer(setting: Setting) -> dict[int, Read]:
    """Predictions on networks of the same architecture, of methods trained on fewer networks, by how many."""
    test = setting.tests[SAME]
    found = {count: _predicted(fits, test) for count, fits in setting.curve.items()}
    return {count: Read(test.accuracy, plain, {}) for count, plain in found.items()}


TEXT = """
Readers of weights order held-out networks by their accuracy better than statistics of the weights do: on the same
architecture τ is {correlations[CIFAR-10, grey, same architecture, relational transformer][τ]:.2f} (relational
transformer) and {correlations[CIFAR-10, grey, same architecture, PNA][τ]:.2f} (PNA) on CIFAR-10 against
{correlations[CIFAR-10, grey, same architecture, statistics, boosted][τ]:.2f}, on Fashion-MNIST
{correlations[Fashion-MNIST, same architecture, relational transformer][τ]:.2f} and {correlations[Fashion-MNIST, same
architecture, PNA][τ]:.2f} against {correlations[Fashion-MNIST, same architecture, statistics, boosted][τ]:.2f}. A
flat perceptron reads little ({correlations[CIFAR-10, grey, same architecture, flat MLP][τ]:.2f} and
{correlations[Fashion-MNIST, same architecture, flat MLP][τ]:.2f}). Behind random group elements the readers' τ stays;
that of boosted statistics falls to {correlations[CIFAR-10, grey, same architecture, statistics, boosted][τ
moved]:.2f} and {correlations[Fashion-MNIST, same architecture, statistics, boosted][τ moved]:.2f}. Statistics of
canonical forms stay too, at {correlations[CIFAR-10, grey, same architecture, statistics, canonical][τ]:.2f} and
{correlations[Fashion-MNIST, same architecture, statistics, canonical][τ]:.2f}.

What a network does with a few images tells more than its weights alone: with probes, τ is {correlations[CIFAR-10,
grey, same architecture, PNA, probes][τ]:.2f} and {correlations[Fashion-MNIST, same architecture, PNA,
probes][τ]:.2f} for the reader, and {correlations[CIFAR-10, grey, same architecture, statistics, probes][τ]:.2f}
and {correlations[Fashion-MNIST, same architecture, statistics, probes][τ]:.2f} for statistics. The table has the
other architectures, on which the verdicts differ.

All methods are trained on the same networks of width 16 without batch normalisation, data set by data set, {seeds}
times each, and never see the {tested} networks of it that are tested. "Wider": trained so, tested on networks
of width 24. "Batch norm": tested on networks with batch normalisation, as they are; "folded": their normalisation is
multiplied into the convolutions first, which makes them networks of the architecture that was trained on, with other
weights. Statistics are matched by the names of parameters; "canonical" are those of canonical forms. Flat MLPs read one
architecture only. "Probes": what a network does with {probes} training images is given, too: to the reader the mean
activations of all units and the probabilities of all classes, to the trees these probabilities. No labels are given.
"""


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
    text={"small": TEXT},
    # Differences are the verdicts; they are in results.json, as the networks are.
    tables={"correlations": "", "curve": ""},
)
def run(config: Config, context: Context) -> Findings:
    """Zoos, methods, predictions, correlations."""
    settings = {data: setting_of(context, config, data) for data in config.zoos}
    results = {data: read(context, setting, data) for data, setting in settings.items()}
    told = correlations(results, config.draws)
    trained = {data: config.zoos[data].base.count - config.tested for data in settings}
    fewer = {data: read_by_fewer(setting) | {trained[data]: results[data][SAME]} for data, setting in settings.items()}
    curve = curve_of(fewer, config.draws)
    return Findings(
        numbers={
            "tested": config.tested,
            "seeds": config.seeds,
            "probes": config.fitting.probes,
        },
        tables={
            "correlations": told,
            "differences": differences(results, config.draws),
            "curve": curve,
            "networks": networks_tested(context, {data: setting.tests for data, setting in settings.items()}),
        },
        figure=lambda: figure_of(told, curve),
        caption=prose(_CAPTION),
    )


_CAPTION = """
Kendall's τ with 95 % intervals. Above: on all test sets, filled as trained, open behind random group elements. Below:
on the same architecture, by the number of networks that methods were trained on.
"""
