"""MLPs on MNIST, Fashion-MNIST and CIFAR-10: barriers between posteriors, with and without alignment."""

from collections.abc import Mapping
from dataclasses import dataclass

from coset.distribution import wasserstein2_squared
from coset.study import Context, Findings, Scalar, Table, study
from coset.study.images import Images
from coset_studies.rossi._barrier_claims import claims_on
from coset_studies.rossi._mlps import DATA, INFERENCE, LAYERS, MEASURE, Layers, setting
from coset_studies.rossi._pairs import Inference, Measure
from coset_studies.rossi._report import (
    SPLITS,
    Case,
    Compared,
    barrier_table,
    compare,
    ends_table,
    left_of,
    numbers_of,
    paths_figure,
    settled,
    verdict,
)

_WIDE = LAYERS["paper"]
CASES: Mapping[str, Mapping[str, tuple[Images, Layers]]] = {
    "quick": {"digits": (DATA["quick"], LAYERS["quick"])},
    "small": {
        "MNIST": (DATA["small"], _WIDE),
        "Fashion-MNIST": (Images(data="fashion-mnist", flat=True, raw=True), LAYERS["small"]),
        "CIFAR-10": (Images(data="cifar10", pool=2, flat=True), LAYERS["small"]),
    },
    "paper": {
        "MNIST": (DATA["paper"], _WIDE),
        "Fashion-MNIST": (Images(data="fashion-mnist", flat=True), _WIDE),
        "CIFAR-10": (Images(data="cifar10", flat=True), _WIDE),
    },
}
"""Data and network."""


@dataclass(frozen=True)
class Config:
    """The same inference for all ``cases``, data and network."""

    cases: Mapping[str, tuple[Images, Layers]]
    inference: Inference
    measure: Measure


@study(
    name="rossi-barriers",
    title="Barriers between posteriors of MLPs",
    reference="Rossi et al. 2023, fig. 4 (MLP), definition 2",
    paper="""
    Between two posteriors found by variational inference there is a barrier of the predictive likelihood on the
    Wasserstein geodesic. After alignment there is no noticeable one for MLPs, on train and test data; the barriers on
    test data are smaller.
    """,
    presets={preset: Config(cases, INFERENCE[preset], MEASURE[preset]) for preset, cases in CASES.items()},
    claims=[claim for name in CASES["paper"] for claim in claims_on(name)],
)
def run(config: Config, context: Context) -> Findings:
    """A pair on every data set."""
    cases = {name: Case(images, layers, config.inference) for name, (images, layers) in config.cases.items()}
    found = compare(context, cases, config.measure)
    lines = [_line(name, one, config.cases[name][1]) for name, one in found.items()]
    outcome = "\n\n".join([*lines, f"{_settings(config)} {settled(found)}"])
    return Findings(
        numbers=numbers_of(found),
        tables={
            "barriers": barrier_table(found, "data"),
            "posteriors": ends_table(found, "data"),
            "geodesics": _geodesics(found),
        },
        outcome=outcome,
        figure=lambda: paths_figure(found),
        caption="Predictive log-likelihood on the geodesic between two posteriors, as they came and aligned.",
    )


def _settings(config: Config) -> str:
    """What is different for all, and what pictures are made smaller."""
    whole = setting(Images(), config.inference)
    pooled = [name for name, (images, _) in config.cases.items() if images.pool > 1]
    raw = [name for name, (images, _) in config.cases.items() if images.raw]
    parts = [whole] if whole else []
    parts += [f"Pixels of {' and '.join(raw)} are from 0 to 1."] if raw else []
    parts += [f"Those of {' and '.join(pooled)} are averaged in squares of 2×2."] if pooled else []
    return " ".join(parts)


def _line(name: str, one: Compared, layers: Layers) -> str:
    shares = " and ".join(f"{100 * left_of(one, split):.1f} % ({split})" for split in SPLITS)
    barriers = "; ".join(
        f"{path}: {one.barrier(path, 'train'):.4f} nats on train, {one.barrier(path, 'test'):.4f} on test points"
        for path in one.profiles
    )
    return (
        f"{name}, hidden layers of {' and '.join(map(str, dict.fromkeys(layers.widths)))} units, test error "
        f"{100 * one.error('test'):.2f} %. Barriers, {barriers}. Alignment leaves {shares} of them. {verdict(one)}"
    )


def _geodesics(found: Mapping[str, Compared]) -> Table:
    rows: list[list[Scalar]] = []
    for name, one in found.items():
        for path, end in (("naive", one.pair.second), ("aligned", one.pair.aligned)):
            squared = float(wasserstein2_squared(one.pair.first, end))
            convexity = [one.profiles[path][f"{split} log-likelihood"].convexity(squared) for split in SPLITS]
            rows.append([name, path, squared**0.5, *convexity])
    columns = ("data", "path", "W₂", "λ, train", "λ, test")
    caption = "Length of the geodesics, and λ for which the negative log-likelihood is λ-convex on them (definition 2)."
    return Table(columns, rows, caption)
