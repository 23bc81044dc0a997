"""The residual networks of Godfrey et al. 2022 (D.1, D.3): which zoos, at which layers, in each preset."""

from dataclasses import dataclass, replace

from coset.study.images import Images
from coset.train import RECIPES, Recipe
from coset_studies.godfrey._zoo import Pairs, Zoo

IMAGES = {
    "quick": Images("digits", train=200, test=200),
    "small": Images("cifar10", pool=2),
    "paper": Images("cifar10"),
}
FEWER_IMAGES = replace(IMAGES["small"], train=25_000)
"""Of the preset small, for studies of several zoos."""
PAPER_RECIPE = replace(RECIPES["godfrey-cifar"], keep="last")
"""The paper keeps the best epoch, judged by the images on which it then measures; here it is the last."""
RECIPE = {
    "quick": Recipe(epochs=3, batch_size=50, optimizer="adam", learning_rate=1e-2, schedule="cosine"),
    "small": Recipe(
        epochs=8,
        batch_size=125,
        optimizer="adam",
        learning_rate=1e-2,
        schedule="cosine",
        augmentation="shift-flip",
        shift=1,
    ),
    "paper": PAPER_RECIPE,
}


@dataclass(frozen=True)
class Places:
    """Layers of a residual network with ``stages`` of ``depth`` blocks: the stem, and two in ``blocks`` of each stage.

    Of a block these are the first activation, inside it, where a shortcut passes by, and the block's output, outside.
    """

    stages: int = 3
    depth: int = 3
    blocks: tuple[int, ...] = (0, 1, 2)

    def labels(self) -> dict[str, str]:
        """The names of the layers, each with the number of its last convolution, and '*' inside a block."""
        found = {"stem": "1"}
        for stage in range(self.stages):
            for block in self.blocks:
                before = 1 + 2 * (stage * self.depth + block)
                found[f"stages.{stage}.{block}.activation1"] = f"{before + 1}*"
                found[f"stages.{stage}.{block}"] = f"{before + 2}"
        return found

    @property
    def inside(self) -> tuple[str, ...]:
        """The labels of layers inside of blocks."""
        return tuple(label for label in self.labels().values() if label.endswith("*"))

    @property
    def outside(self) -> tuple[str, ...]:
        """The labels of layers through which everything passes."""
        return tuple(label for label in self.labels().values() if not label.endswith("*"))


TINY = (("stages", (6,)), ("blocks", 1), ("in_channels", 1))
"""Options of a residual network of one block."""


def resnet20(preset: str) -> Zoo:
    """The zoo of ResNet20s."""
    return {
        "quick": Zoo("resnet", IMAGES["quick"], 2, RECIPE["quick"], TINY),
        "small": Zoo("resnet20", IMAGES["small"], 3, RECIPE["small"], (("width", 0.5),)),
        "paper": Zoo("resnet20", IMAGES["paper"], 100, PAPER_RECIPE),
    }[preset]


def resnet18(preset: str) -> Zoo:
    """The zoo of ResNet18s, wider than ResNet20 and of two blocks a stage."""
    tiny = (("stages", (6,)), ("in_channels", 1))
    return {
        "quick": Zoo("resnet18", IMAGES["quick"], 2, RECIPE["quick"], tiny),
        "small": Zoo("resnet18", IMAGES["small"], 3, RECIPE["small"], (("width", 0.125),)),
        "paper": Zoo("resnet18", IMAGES["paper"], 100, PAPER_RECIPE),
    }[preset]


RESNET20_PLACES = {
    "quick": Places(stages=1, depth=1, blocks=(0,)),
    "small": Places(blocks=(0, 2)),
    "paper": Places(),
}
RESNET18_PLACES = {
    "quick": Places(stages=1, depth=2, blocks=(0, 1)),
    "small": Places(depth=2, blocks=(0, 1)),
    "paper": Places(depth=2, blocks=(0, 1)),
}
PAIRS: dict[str, Pairs] = {"quick": ((0, 1),), "small": ((0, 1), (1, 2), (2, 0)), "paper": 16}
"""(below, above); of three networks each is below once and above once."""
