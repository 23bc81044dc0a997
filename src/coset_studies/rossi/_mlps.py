"""The MLPs of Rossi et al. 2023 and how their posteriors are found: what the studies of its figures share."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coset.data import Dataset
from coset.study.images import Images
from coset_studies.rossi._pairs import Inference, Measure


@dataclass(frozen=True)
class Layers:
    """An MLP with hidden layers of ``widths``, ReLU between them (appendix C, table 2)."""

    widths: tuple[int, ...]

    @property
    def model(self) -> str:
        """The name in ``coset.models.MODELS``."""
        return "mlp"

    def options(self, data: Dataset) -> dict[str, Any]:
        """The options of ``coset.models.MLP`` for these data."""
        return {
            "in_features": math.prod(data.shape),
            "widths": list(self.widths),
            "out_features": data.outputs,
        }


DATA: Mapping[str, Images] = {
    "quick": Images(data="digits", flat=True),
    "small": Images(data="mnist", flat=True, raw=True),
    "paper": Images(data="mnist", flat=True),
}
"""The data set of all studies of one MLP."""

LAYERS: Mapping[str, Layers] = {"quick": Layers((24, 24)), "small": Layers((256,) * 3), "paper": Layers((512,) * 3)}

INFERENCE: Mapping[str, Inference] = {
    "quick": Inference(
        epochs=30, rate=1e-2, point_epochs=10, point_rate=5e-3, batch_size=100, prior_variance=0.04, temperature=0.1
    ),
    "small": Inference(
        epochs=30,
        rate=3e-3,
        point_epochs=10,
        point_rate=1e-3,
        batch_size=500,
        prior_variance=0.04,
        temperature=0.1,
    ),
    "paper": Inference(
        epochs=1000,
        rate=0.06,
        point_epochs=100,
        point_rate=0.06,
        batch_size=500,
        optimizer="sgd",
        momentum=0.9,
        schedule="constant",
        prior_variance=0.0025,
    ),
}
"""Of the paper's, table 1: its rate of 1e-6 is for the sum over 60,000 images; it does not give the momentum.

At that rate the deviations cannot move far from where they begin in 1,000 epochs: a weight that the data say nothing
about has ∂ℓ/∂log σ ≈ −T/N. The small one converges, and is cold: converged at T = 1 most units of these networks are no
more than their prior, and how much is left of a barrier by alignment is a matter of temperature (fig. 8)."""

MEASURE: Mapping[str, Measure] = {
    "quick": Measure(points=200, taus=5, samples=4),
    "small": Measure(points=10_000),
    "paper": Measure(points=None, samples=128),
}

SETTING = """
What is different from the paper: Adam at a rate of 0.003 along a cosine takes 30 epochs (there SGD with momentum takes
1,000), the prior's variance is 0.04 (there 0.0025), pixels are from 0 to 1.
The temperature is 0.1 (there 1): inference
that has converged at T = 1 leaves most units of these networks at their prior, and how much of a barrier alignment
leaves is then a matter of temperature ([rossi-temperature](rossi-temperature.md) varies it). At the paper's rate of
1e-6 the deviations cannot move far in 1,000 epochs from where they begin, so that its posteriors are narrow, too.
"""
"""How the MLPs of the preset small are found, as their pages tell it."""
NARROWER = "Hidden layers have 256 units (there 512)."
