"""Data augmentation: barriers between posteriors that saw moved images, and between those that did not."""

from dataclasses import dataclass, replace

from coset.study import Context, Findings, study
from coset.study.images import Images
from coset_studies.rossi._pairs import Inference, Measure, Network
from coset_studies.rossi._report import (
    Case,
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

# Coarser than its companions: this pair is not shared with any of them.
MEASURES = {**MEASURE, "small": Measure(points=1000, taus=13, samples=16)}


@dataclass(frozen=True)
class Config:
    """``copies`` of every train image, each moved anew, of which the likelihood counts the mean."""

    images: Images
    network: Network
    inference: Inference
    measure: Measure
    copies: int
    augmentation: str = "shift-flip"


def _config(preset: str, copies: int, augmentation: str = "shift-flip") -> Config:
    return Config(IMAGES[preset], NETWORK[preset], INFERENCE[preset], MEASURES[preset], copies, augmentation)


@study(
    name="rossi-augmentation",
    title="Barriers with and without data augmentation",
    reference="Rossi et al. 2023, fig. 12 (ResNet20 on CIFAR-10)",
    paper="With and without data augmentation similar low barriers are found after alignment.",
    presets={
        "quick": _config("quick", 2, "shift"),
        "small": _config("small", 2),
        "paper": _config("paper", 10),
    },
)
def run(config: Config, context: Context) -> Findings:
    """A pair with, a pair without; steps of inference are as many, so that there are fewer epochs of copies."""
    moved = replace(config.images, copies=config.copies, augmentation=config.augmentation)
    how = config.inference
    fewer = replace(
        how,
        epochs=max(1, how.epochs // config.copies),
        point_epochs=max(1, how.point_epochs // config.copies),
    )
    cases = {
        "without": Case(config.images, config.network, how),
        "with": Case(moved, config.network, fewer),
    }
    found = compare(context, cases, config.measure)
    alone = " ".join(f"{label.capitalize()} augmentation: {verdict(one)}" for label, one in found.items())
    smaller = setting(config.images, how, [config.network], config.measure)
    return Findings(
        numbers=numbers_of(found) | {"copies": config.copies},
        tables={"barriers": barrier_table(found, "augmentation"), "posteriors": ends_table(found, "augmentation")},
        outcome=f"{OUTCOME}\n{alone}\n\n{smaller} {settled(found)}",
        figure=lambda: paths_figure(found),
        caption="Predictive log-likelihood between two posteriors, naive and aligned, without and with augmentation.",
    )


OUTCOME = """
The train barrier is {without_naive_train:.3f} nats without augmentation and {with_naive_train:.3f} with it; after
alignment {without_aligned_train:.3f} and {with_aligned_train:.3f} (on test images {without_aligned_test:.3f} and
{with_aligned_test:.3f}). The posteriors have test errors of {without_test_error:.1f} and {with_test_error:.1f} %.

Augmentation here means {copies} copies of every train image, each shifted and flipped at random, whose log-likelihoods
are averaged: an image counts once, so that the data do not seem to be more than they are.
"""
