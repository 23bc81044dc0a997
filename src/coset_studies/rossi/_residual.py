"""What the studies of residual networks share in each preset, so that they share networks and paths in the store."""

from coset.study.images import Images
from coset_studies.rossi._pairs import Inference, Measure, Network

IMAGES = {
    "quick": Images("digits", train=200, test=100),
    "small": Images("cifar10", pool=2),
    "paper": Images("cifar10"),
}
NETWORK = {
    "quick": Network(stages=(4, 8), blocks=1),
    "small": Network(width=0.25),
    "paper": Network(width=1.0),
}
INFERENCE = {
    # So few images leave nothing of a network at temperature 1.
    "quick": Inference(
        epochs=4, rate=2e-2, point_epochs=4, point_rate=2e-2, batch_size=50, prior_variance=0.1, temperature=0.01
    ),
    "small": Inference(epochs=4, rate=1e-2, point_epochs=3, point_rate=1e-2, batch_size=125),
    # Table 1: a rate of 1e-6 for the sum over 50,000 images is one of 0.05 for their mean. Momentum is not printed.
    "paper": Inference(
        epochs=1000, rate=0.05, point_epochs=1000, point_rate=0.05, batch_size=500, optimizer="sgd", momentum=0.9
    ),
}
MEASURE = {
    "quick": Measure(points=100, taus=5, samples=4),
    "small": Measure(points=10_000, taus=25, samples=32),
    "paper": Measure(points=None, taus=25, samples=128),
}
WIDTHS = {"quick": (0.5, 1.0), "small": (0.125, 0.25), "paper": (1.0, 2.0, 4.0, 8.0)}
"""Factors of the channels of the preset's network."""

SETTING = """
What is smaller or different from the paper: networks begin with {channels} channels (there 16), pixels are averaged in
squares of 2×2, inference takes 4 epochs (there 1,000), Adam finds posteriors and points (there SGD with momentum),
alignment is by permutations and the signs that FRN leaves free (there permutations), and barriers are measured on
{points} images of each part with {samples} draws (there all, 128). Inference has not come to rest.
"""
"""How the networks of the preset small are found, as their pages tell it."""


def told(channels: str, points: str = "10,000", samples: int = 32) -> str:
    """``SETTING`` of a study."""
    return SETTING.format(channels=channels, points=points, samples=samples)


CHANCE = """
**A midpoint at chance cannot tell how high the naive barrier is.** A network that guesses among ten classes errs in
90 % of all cases and loses 2.30 nats. These networks know so little that the naive midpoint is there already
({midpoint} % of the test images wrong): whatever lies between them, the drop can hardly be greater than what separates
their own log-likelihood from guessing.
"""


def chance(midpoint: str) -> str:
    """``CHANCE`` with the field of the naive midpoint's test error."""
    return CHANCE.format(midpoint=midpoint)
