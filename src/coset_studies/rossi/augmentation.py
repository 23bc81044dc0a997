"""Data augmentation: barriers between posteriors that saw moved images, and between those that did not."""

from dataclasses import dataclass, replace

from coset.study import Context, Findings, study
from coset.study.images import Images
from coset_studies.rossi._claims import NO_NUMBERS, SPLITS, share_claim, share_of_rows
from coset_studies.rossi._pairs import Inference, Measure, Network
from coset_studies.rossi._report import SHOWN, Case, compare, numbers_of, paths_figure, tables_of
from coset_studies.rossi._residual import IMAGES, INFERENCE, MEASURE, NETWORK, chance, told

TEXT = (
    """
After alignment the train barrier is {without_aligned_train:.3f} nats without augmentation and
{with_aligned_train:.3f} with it. The two are similar, as in the paper, and neither is low: alignment leaves
{without_left:.0f} % of the naive barrier without augmentation and {with_left:.0f} % with it.

Augmentation here means {copies} copies of every train image, each shifted and flipped at random, whose log-likelihoods
are averaged: an image counts once, so that the data do not seem to be more than they are. Both kinds take the same
number of steps, so that the copies are seen for half as many epochs; these posteriors are the worse ones (test error
{with_test_error:.0f} % against {without_test_error:.0f} %), and their inference is the one that is farthest from rest.

"""
    + chance("{without_naive_test_midpoint:.0f} % without augmentation and {with_naive_test_midpoint:.0f}")
    + told("4", "1,000", 16)
)

CASES = ("without", "with")
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
    claims=[
        *(
            share_claim(label, f"{label} augmentation: ", "fig. 12", split, "The barriers after alignment are low.")
            for label in CASES
            for split in SPLITS
        ),
        share_of_rows(
            "With and without augmentation the barriers after alignment are similar.",
            "fig. 12",
            "aligned barrier with augmentation as a share of that without",
            lambda _: ("with", "without"),
            "aligned",
            (0.5, 2.0),
            f"Similar is taken as within a factor of two. {NO_NUMBERS}",
        ),
    ],
    text={"small": TEXT},
    tables=SHOWN,
    figure=paths_figure,
    caption="Predictive log-likelihood between two posteriors, naive and aligned, without and with augmentation.",
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
    pairs = ((config.images, how), (moved, fewer))
    cases = {
        label: Case(images, config.network, inference) for label, (images, inference) in zip(CASES, pairs, strict=True)
    }
    found = compare(context, cases, config.measure)
    return Findings(numbers_of(found) | {"copies": config.copies}, tables_of(found, "augmentation"))
