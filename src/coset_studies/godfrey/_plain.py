"""The plain convolutional networks of Godfrey et al. 2022 (D.1), and what stands for them where time is short."""

from dataclasses import replace

from coset.study.images import Images
from coset.train import RECIPES, Recipe
from coset_studies.godfrey._stitching import Training
from coset_studies.godfrey._zoo import Pairs, Zoo

PAPER_RECIPE = replace(RECIPES["godfrey-cifar"], keep="last")
"""The paper keeps the best epoch, judged by the images on which it then measures; here it is the last."""
MYRTLE = Zoo("myrtle", Images("cifar10"), 100, PAPER_RECIPE)
ZOOS = {
    "quick": Zoo(
        "mlp",
        Images("digits", train=300, test=200, flat=True),
        4,
        Recipe(epochs=4, batch_size=50, optimizer="adam", learning_rate=1e-2),
        (("in_features", 64), ("widths", (12, 12)), ("out_features", 10)),
    ),
    "small": Zoo("tiny10", Images("cifar10", train=5000), 4, None),
    "paper": MYRTLE,
}
"""Perceptrons on digits, four published networks of one architecture, and a hundred Myrtle CNNs."""
MYRTLE_LAYERS = tuple(f"activation{number}" for number in range(1, 5))
LAYERS = {
    "quick": ("activations.0", "activations.1"),
    "small": ("relu2", "relu4", "relu6", "relu8"),
    "paper": MYRTLE_LAYERS,
}
"""Where networks are stitched."""
ALL_LAYERS = {**LAYERS, "small": tuple(f"relu{number}" for number in range(1, 9))}
"""Where features are compared."""
SIX_PAIRS = ((0, 1), (2, 3), (0, 2), (1, 3), (0, 3), (1, 2))
"""Of four networks; the first two have no network in common."""
PAIRS: dict[str, Pairs] = {"quick": SIX_PAIRS[:2], "small": SIX_PAIRS, "paper": 32}
"""Whose features are compared."""
STITCHED: dict[str, Pairs] = {"quick": SIX_PAIRS[:1], "small": SIX_PAIRS, "paper": 32}
"""Which are stitched."""
FEWER: dict[str, Pairs] = {"quick": SIX_PAIRS[:1], "small": SIX_PAIRS[:3], "paper": 32}
"""Which are stitched by families beside those of fig. 1."""
TRAINING = {
    "quick": Training(200, 200, epochs=2),
    "small": Training(2000, None),
    "paper": Training(None, None, start="random"),
}
"""Of maps; studies of the same preset share them in the store."""
NETWORKS = """
The networks are four of one architecture that others trained on CIFAR-10 (Tiny10: eight convolutions with batch
normalisation, 16 to 64 channels; [where they are from](index.md)). Those of the paper are Myrtle CNNs with four
convolutions of 64 to 512 channels.
""".strip()
"""What the pages say of those of the preset small."""
MAPS = """
Maps train on 2,000 images for 20 epochs at a rate of 0.001 with a momentum of 0.9, and are judged on all test images;
the paper's train on all images, moved at random.
""".strip()
