"""Filter response normalisation against layer normalisation: barriers between posteriors."""

from dataclasses import dataclass, replace

from coset.study import Context, Findings, study
from coset.study.images import Images
from coset_studies.rossi._pairs import Inference, Measure, Network
from coset_studies.rossi._report import (
    Case,
    Compared,
    barrier_table,
    compare,
    ends_table,
    numbers_of,
    paths_figure,
    setting,
    settled,
    verdict,
)
from coset_studies.rossi._residual import IMAGES, INFERENCE, MEASURE, NETWORK

NORMS = {"FRN": "frn", "LayerNorm": "layer"}


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
)
def run(config: Config, context: Context) -> Findings:
    """A pair with each normalisation."""
    networks = {label: replace(config.network, norm=norm) for label, norm in NORMS.items()}
    cases = {label: Case(config.images, network, config.inference) for label, network in networks.items()}
    found = compare(context, cases, config.measure)
    frn, layer = (found[label].barrier("aligned", "train") for label in NORMS)
    lower = "LayerNorm has the lower barrier after alignment, as in the paper."
    judged = lower if layer < frn else "LayerNorm does not have the lower barrier after alignment, unlike in the paper."
    ends = {label: _log_likelihood(one) for label, one in found.items()}
    if (layer < frn) == (ends["LayerNorm"] < ends["FRN"]):
        judged = f"{judged} {WORSE}"
    alone = " ".join(f"{label}: {verdict(one)}" for label, one in found.items())
    smaller = setting(config.images, config.inference, [config.network], config.measure)
    return Findings(
        numbers=numbers_of(found) | {f"{label}_ends": value for label, value in ends.items()},
        tables={"barriers": barrier_table(found, "normalisation"), "posteriors": ends_table(found, "normalisation")},
        outcome=f"{OUTCOME}\n{judged} {alone}\n\n{smaller} {settled(found)}",
        figure=lambda: paths_figure(found),
        caption="Predictive log-likelihood between two posteriors, naive and aligned, for both normalisations.",
    )


def _log_likelihood(one: Compared) -> float:
    """Of the train images, the mean of both ends."""
    values = one.profiles["naive"]["train log-likelihood"].values
    return (values[0] + values[-1]) / 2


OUTCOME = """
The train barrier is {FRN_naive_train:.3f} nats with FRN and {LayerNorm_naive_train:.3f} with LayerNorm; after alignment
{FRN_aligned_train:.3f} and {LayerNorm_aligned_train:.3f} (on test images {FRN_aligned_test:.3f} and
{LayerNorm_aligned_test:.3f}). Of the train barrier {FRN_left:.0f} and {LayerNorm_left:.0f} % are left. The posteriors
have test errors of {FRN_test_error:.1f} and {LayerNorm_test_error:.1f} %, and train log-likelihoods of
{FRN_ends:.3f} and {LayerNorm_ends:.3f}.
"""

WORSE = """
The posteriors of the normalisation with the lower barrier fit the data less well, so that there is less to lose between
them: the two barriers do not compare networks of one quality.
"""
