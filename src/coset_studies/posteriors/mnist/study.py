"""Mean-field VI on MNIST: small networks of one hidden layer, and wide ones of two."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coset.data import Dataset
from coset.posterior import Fit, Isotropic, predictive, score
from coset.study import Context, Findings, Scalar, Table, study
from coset.study.posteriors import inferred, network_of
from coset_studies.posteriors.mnist._claims import BACKPROP, CLAIMS, PUBLISHED
from coset_studies.posteriors.mnist._page import CAPTION, TABLES, TEXT, draw


@dataclass(frozen=True)
class Narrow:
    """One hidden layer: as published, 10 epochs of batches of 100 at a rate of 1e-3, predictions of 1,000 networks.

    ``std``: the initial deviations, which the paper does not print, and ``others``, tried from the first ``few`` seeds.
    ``repeats``: sets of test draws for the posterior of the first seed.
    """

    widths: tuple[int, ...]
    seeds: int
    std: float
    others: tuple[float, ...]
    few: int
    epochs: int
    batch_size: int
    samples: int
    repeats: int
    learning_rate: float = 1e-3
    prior: float = 1.0


@dataclass(frozen=True)
class Wide:
    """Two hidden layers of each of ``widths``, one seed."""

    widths: tuple[int, ...]
    epochs: int
    batch_size: int
    samples: int
    learning_rate: float = 2e-3
    prior: float = 0.3
    std: float = 0.03


@dataclass(frozen=True)
class Config:
    """``data`` flattened, in [0, 1] as they come for the narrow networks, normalised for the wide ones."""

    data: str
    narrow: Narrow
    wide: Wide = field(default_factory=lambda: Wide((400,), 40, 500, 128))


@study(
    name="mnist-posteriors",
    title="Mean-field VI on MNIST",
    reference="Gelberg et al. 2024, table 1 (row MFVI); Blundell et al. 2015, table 1; Rossi et al. 2023, appendix C",
    paper="""
    Gelberg et al. reach 88.38, 93.22, 94.84 and 95.43 % with 5, 10, 20 and 30 hidden units: 10 epochs, batches of 100,
    a learning rate of 1e-3, predictions of 1,000 sampled networks, 10 seeds. They print neither prior nor initial
    deviation. Blundell et al. find errors of 1.82, 1.99 and 2.04 % with two layers of 400, 800 and 1,200 units and a
    Gaussian prior: larger networks are worse.
    """,
    presets={
        "quick": Config(
            data="digits",
            narrow=Narrow((5,), 2, 0.15, (0.05,), 1, epochs=10, batch_size=50, samples=50, repeats=2,
                          learning_rate=5e-3),
            wide=Wide((50,), 10, 100, 16, learning_rate=5e-3),
        ),
        "small": Config(
            data="mnist",
            narrow=Narrow((5, 10, 20, 30), 10, 0.15, (0.05, 0.1, 0.2), 2, 10, 100, samples=1000, repeats=5),
            wide=Wide((400,), 40, 500, 128),
        ),
        "paper": Config(
            data="mnist",
            narrow=Narrow((5, 10, 20, 30), 10, 0.15, (0.05, 0.1, 0.2), 10, 10, 100, samples=1000, repeats=10),
            wide=Wide((400, 800, 1200), 600, 128, 128),
        ),
    },
    claims=CLAIMS,
    text={"small": TEXT},
    tables=TABLES,
    figure=draw,
    caption=CAPTION,
)  # fmt: skip
def run(config: Config, context: Context) -> Findings:
    """Accuracy, its spread over training seeds and over test draws, and the error of the wide networks."""
    raw = context.data(config.data, flatten=True, normalize=False)
    narrow = config.narrow
    deviations = (narrow.std, *narrow.others)
    total = len(narrow.widths) * (narrow.seeds + len(narrow.others) * narrow.few) + len(config.wide.widths)
    found: dict[tuple[int, float], list[Mapping[str, float]]] = {}
    again: dict[int, list[float]] = {}
    with context.progress("posteriors on MNIST", total) as bar:
        for width in narrow.widths:
            for std in deviations:
                for seed in range(narrow.seeds if std == narrow.std else narrow.few):
                    fit = _narrow(config, context, width, std, seed)
                    scores = _scores(context, raw, [width], fit, narrow.samples)
                    found.setdefault((width, std), []).append(scores)
                    if seed == 0 and std == narrow.std:
                        again[width] = [
                            _scores(context, raw, [width], fit, narrow.samples, repeat)["accuracy"]
                            for repeat in range(narrow.repeats)
                        ]
                    bar.advance(note=f"{width} units: {100 * scores['accuracy']:.2f} %")
        wide = {}
        for width in config.wide.widths:
            wide[width] = _wide(config, context, width)
            bar.advance()
    return _findings(config, found, again, wide)


def _findings(
    config: Config,
    found: Mapping[tuple[int, float], list[Mapping[str, float]]],
    again: Mapping[int, list[float]],
    wide: Mapping[int, tuple[Mapping[str, float], float]],
) -> Findings:
    narrow = config.narrow
    own = {width: [100 * one["accuracy"] for one in found[width, narrow.std]] for width in narrow.widths}
    means = {width: statistics.fmean(values) for width, values in own.items()}
    published = PUBLISHED if config.data == "mnist" else {}
    gaps = {width: means[width] - published[width] for width in narrow.widths if width in published}
    numbers: dict[str, Scalar] = {"std": narrow.std, "seeds": narrow.seeds, "samples": narrow.samples}
    numbers |= {f"accuracy_{width}": mean for width, mean in means.items()}
    numbers |= {f"gap_{width}": gap for width, gap in gaps.items()}
    numbers["largest_gap"] = max(map(abs, gaps.values()), default=None)
    first = next(iter(wide))
    numbers["wide_width"], numbers["wide_error"] = first, 100 * (1 - wide[first][0]["accuracy"])
    numbers["wide_prior"], numbers["narrowest"] = config.wide.prior, narrow.widths[0]
    numbers["seed_spread"] = statistics.stdev(own[narrow.widths[0]])
    numbers["draw_spread"] = 100 * statistics.stdev(again[narrow.widths[0]])
    numbers |= {f"wide_error_{width}": 100 * (1 - scores["accuracy"]) for width, (scores, _) in wide.items()}
    rows: list[list[Scalar]] = [
        [
            width,
            published.get(width),
            means[width],
            statistics.stdev(own[width]),
            100 * statistics.stdev(again[width]),
            statistics.fmean(one["nll"] for one in found[width, narrow.std]),
            statistics.fmean(one["ece"] for one in found[width, narrow.std]),
        ]
        for width in narrow.widths
    ]
    columns = ("hidden units", "published, %", "accuracy, %", "± training seeds", "± test draws", "NLL", "ECE")
    scan: list[list[Scalar]] = [
        [std, *(100 * statistics.fmean(one["accuracy"] for one in found[width, std]) for width in narrow.widths)]
        for std in sorted((narrow.std, *narrow.others))
    ]
    titles = ("initial deviation", *(f"{width} units" for width in narrow.widths))
    broad: list[list[Scalar]] = [
        [width, BACKPROP.get(width), 100 * (1 - scores["accuracy"]), scores["nll"], scores["ece"], elbo]
        for width, (scores, elbo) in wide.items()
    ]
    names = ("units, two layers", "published error, %", "error, %", "NLL", "ECE", "ELBO per point")
    return Findings(
        numbers,
        {
            "one-hidden-layer": Table(columns, rows),
            "initial-deviation": Table(titles, scan),
            "two-hidden-layers": Table(names, broad),
        },
    )


def _narrow(config: Config, context: Context, width: int, std: float, seed: int) -> Fit[Any]:
    narrow = config.narrow
    settings = {
        "epochs": narrow.epochs,
        "batch_size": narrow.batch_size,
        "learning_rate": narrow.learning_rate,
        "prior": Isotropic(narrow.prior),
        "std": std,
    }
    return _inferred(config, context, [width], seed, settings, normalize=False)


def _wide(config: Config, context: Context, width: int) -> tuple[Mapping[str, float], float]:
    wide = config.wide
    settings = {
        "epochs": wide.epochs,
        "batch_size": wide.batch_size,
        "learning_rate": wide.learning_rate,
        "schedule": "cosine",
        "prior": Isotropic(wide.prior),
        "std": wide.std,
    }
    fit = _inferred(config, context, [width, width], context.seed, settings, normalize=True)
    dataset = context.data(config.data, flatten=True)
    return _scores(context, dataset, [width, width], fit, wide.samples), fit.trace["elbo"][-1]


def _options(dataset: Dataset, widths: list[int]) -> dict[str, Any]:
    return {"in_features": dataset.train.x.shape[1], "widths": widths, "out_features": dataset.outputs}


def _inferred(
    config: Config, context: Context, widths: list[int], seed: int, settings: Mapping[str, Any], *, normalize: bool
) -> Fit[Any]:
    options = {"flatten": True} if normalize else {"flatten": True, "normalize": False}
    return inferred(
        context,
        method="mean-field",
        model="mlp",
        data=config.data,
        seed=seed,
        settings=settings,
        options=_options(context.data(config.data, **options), widths),
        data_options=options,
    )


def _scores(
    context: Context, dataset: Dataset, widths: list[int], fit: Fit[Any], samples: int, seed: int = 0
) -> Mapping[str, float]:
    model = network_of("mlp", _options(dataset, widths), seed=0).to(context.device)
    x, y = dataset.test.x.to(context.device), dataset.test.y.to(context.device)
    return score(predictive(model, fit, x, samples=samples, seed=seed, show=False), y)
