"""Filter response normalisation against layer normalisation: barriers between posteriors."""

from dataclasses import dataclass, replace

from coset.study import Context, Findings, study
from coset.study.images import Images
from coset_studies.rossi._claims import SPLITS, share_claim, share_of_rows
from coset_studies.rossi._pairs import Inference, Measure, Network
from coset_studies.rossi._report import SHOWN, Case, Compared, compare, numbers_of, paths_figure, tables_of
from coset_studies.rossi._residual import IMAGES, INFERENCE, MEASURE, NETWORK, chance, told

NORMS = {"FRN": "frn", "LayerNorm": "layer"}
TEXT = (
    """
After alignment the barrier is {LayerNorm_aligned_train:.3f} nats with LayerNorm and {FRN_aligned_train:.3f} with FRN on
train images: {LayerNorm_left:.0f} and {FRN_left:.0f} % of the naive one. The order is the paper's; that either is
aligned is not seen here.

The two do not compare networks of one quality, though. With LayerNorm the posteriors fit the data less well: their
train log-likelihood is {LayerNorm_ends:.2f} nats per image, that of FRN {FRN_ends:.2f}, that of guessing −2.30. There
is less to lose between networks that know less.

"""
    + chance("{FRN_naive_test_midpoint:.0f} % with FRN and {LayerNorm_naive_test_midpoint:.0f}")
    + told("4")
)


@dataclass(frozen=True)
class Config:
    """One network with either normalisation."""

    images: Images
    network: Network
    inference: Inference
    measure: Measure


@study(
    name="rossi-norms",
    title="Barriers with FRN and with LayerNorm",
    reference="Rossi et al. 2023, fig. 11 (ResNet20 on CIFAR-10)",
    paper="Posteriors of networks with either normalisation can be aligned; LayerNorm has the lower barriers.",
    presets={preset: Config(IMAGES[preset], NETWORK[preset], INFERENCE[preset], MEASURE[preset]) for preset in IMAGES},
    claims=[
        *(
            share_claim(label, f"{label}: ", "fig. 11", split, "Posteriors of networks with it can be aligned.")
            for label in NORMS
            for split in SPLITS
        ),
        share_of_rows(
            "LayerNorm has the lower barriers.",
            "fig. 11",
            "aligned barrier with LayerNorm as a share of that with FRN",
            lambda _: ("LayerNorm", "FRN"),
            "aligned",
            1.0,
            "Lower is a matter of sign; the paper prints no numbers.",
        ),
    ],
    text={"small": TEXT},
    tables=SHOWN,
    figure=paths_figure,
    caption="Predictive log-likelihood between two posteriors, naive and aligned, for both normalisations.",
)
def run(config: Config, context: Context) -> Findings:
    """A pair with each normalisation."""
    networks = {label: replace(config.network, norm=norm) for label, norm in NORMS.items()}
    cases = {label: Case(config.images, network, config.inference) for label, network in networks.items()}
    found = compare(context, cases, config.measure)
    ends = {f"{label}_ends": _log_likelihood(one) for label, one in found.items()}
    return Findings(numbers_of(found) | ends, tables_of(found, "normalisation"))


def _log_likelihood(one: Compared) -> float:
    """Of the train images, the mean of both ends."""
    values = one.profiles["naive"]["train log-likelihood"].values
    return (values[0] + values[-1]) / 2
