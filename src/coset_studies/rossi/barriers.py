"""MLPs on MNIST, Fashion-MNIST and CIFAR-10: barriers between posteriors, with and without alignment."""

from collections.abc import Mapping
from dataclasses import dataclass

from coset.distribution import wasserstein2_squared
from coset.study import Context, Findings, Scalar, Table, study
from coset.study.images import Images
from coset_studies.rossi._claims import SPLITS, barrier_claims
from coset_studies.rossi._mlps import DATA, INFERENCE, LAYERS, MEASURE, SETTING, Layers
from coset_studies.rossi._pairs import Inference, Measure
from coset_studies.rossi._report import SHOWN, Case, Compared, compare, numbers_of, paths_figure, tables_of

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

TEXT = """
Without alignment there is a high barrier on all three data sets: {MNIST_naive_train:.2f},
{Fashion_MNIST_naive_train:.2f} and {CIFAR_10_naive_train:.2f} nats on train images. Halfway on MNIST and
Fashion-MNIST the network still classifies somewhat; on CIFAR-10 it errs on {CIFAR_10_naive_test_midpoint:.0f} % of
the test images, near the 90 % of guessing.

Alignment takes nearly all of it away on MNIST and Fashion-MNIST, on both parts of the data
({MNIST_aligned_test:.3f} and {Fashion_MNIST_aligned_test:.3f} nats are left on test images), as in the paper.
On CIFAR-10 it does so on test images only. On train images {CIFAR_10_left:.0f} % are left, unlike in the paper: this
network overfits, its error is {CIFAR_10_train_error:.0f} % on train and {CIFAR_10_test_error:.0f} % on test images, and
what two overfitted networks know by heart is lost between them. The test barrier is the smaller one everywhere, as in
the paper.

- Hidden layers have 512 units on MNIST and 256 on the others (there 512); the pictures of CIFAR-10 are averaged in
  squares of 2×2 and normalised.
- Inference has not come to rest: its objective still changed by up to {largest_rise:.3f} nats per image, on CIFAR-10.
- λ of the table of geodesics is a measure per squared length of the path; it says little of heights.
""" + SETTING.replace("pixels are from 0 to 1", "pixels of MNIST and Fashion-MNIST are from 0 to 1")


@dataclass(frozen=True)
class Config:
    """The same inference for all ``cases``, data and network."""

    cases: Mapping[str, tuple[Images, Layers]]
    inference: Inference
    measure: Measure


_NAMED = "section 5.1, fig. 4"


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
    claims=[
        claim
        for name in CASES["paper"]
        for claim in barrier_claims(
            name,
            f"{name}: ",
            _NAMED,
            _NAMED if name in ("MNIST", "CIFAR-10") else f"{_NAMED}, where the text names MNIST and CIFAR10 only",
        )
    ],
    text={"small": TEXT},
    tables={
        **SHOWN,
        "geodesics": """
        Length of the geodesics, and λ for which the negative log-likelihood is λ-convex on them (definition 2).
        """,
    },
    figure=paths_figure,
    caption="Predictive log-likelihood on the geodesic between two posteriors, as they came and aligned.",
)
def run(config: Config, context: Context) -> Findings:
    """A pair on every data set."""
    cases = {name: Case(images, layers, config.inference) for name, (images, layers) in config.cases.items()}
    found = compare(context, cases, config.measure)
    return Findings(numbers_of(found), {**tables_of(found, "data"), "geodesics": _geodesics(found)})


def _geodesics(found: Mapping[str, Compared]) -> Table:
    rows: list[list[Scalar]] = []
    for name, one in found.items():
        for path, end in (("naive", one.pair.second), ("aligned", one.pair.aligned)):
            squared = float(wasserstein2_squared(one.pair.first, end))
            convexity = [one.profiles[path][f"{split} log-likelihood"].convexity(squared) for split in SPLITS]
            rows.append([name, path, squared**0.5, *convexity])
    return Table(("data", "path", "W₂", "λ, train", "λ, test"), rows)
