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
