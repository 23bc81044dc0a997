"""Stitching compact transformers behind encoder blocks, where no activation follows (Godfrey et al. 2022, D.4)."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from coset.represent import Interval
from coset.study import Claim, Context, Findings, Results, Scalar, study
from coset.train import RECIPES, Recipe
from coset_studies.godfrey._claims import SIGN, STUDENT, of_number
from coset_studies.godfrey._penalties import (
    average,
    contrast,
    draw_penalties,
    key_of,
    layers_of,
    minus,
    penalty_table,
    points,
)
from coset_studies.godfrey._residual import FEWER_IMAGES, IMAGES
from coset_studies.godfrey._residual import PAIRS as RESIDUAL_PAIRS
from coset_studies.godfrey._similarity import percentiles
from coset_studies.godfrey._stitching import Penalties, Training, penalties
from coset_studies.godfrey._zoo import Pairs, Zoo, chosen_pairs, load_networks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FAMILIES = ("full", "orthogonal", "G_ReLU")
"""The paper has the first and the last."""
LARGE = 50.0
"""Percent of the accuracy above chance."""


@dataclass(frozen=True)
class Config:
    """Transformers of ``depth`` encoder blocks, stitched behind each of them."""

    zoo: Zoo
    depth: int
    pairs: Pairs
    training: Training


def _narrow(dim: int, heads: int, depth: int, size: int, **more: Any) -> tuple[tuple[str, Any], ...]:
    still = {"renormalize_stream": True, "attention_dropout": 0.0, "stochastic_depth": 0.0}
    return tuple({"dim": dim, "depth": depth, "heads": heads, "image_size": size, **more, **still}.items())


PRESETS = {
    "quick": Config(
        Zoo(
            "cct",
            IMAGES["quick"],
            2,
            Recipe(epochs=3, batch_size=50, optimizer="adamw", learning_rate=5e-3, schedule="cosine"),
            _narrow(16, 2, 2, 8, in_channels=1),
        ),
        2,
        ((0, 1),),
        Training(images=100, held_out=None, epochs=2, batch_size=50, learning_rate=1e-2),
    ),
    "small": Config(
        Zoo(
            "cct",
            FEWER_IMAGES,
            3,
            Recipe(
                epochs=4,
                batch_size=125,
                optimizer="adamw",
                learning_rate=2e-3,
                weight_decay=6e-2,
                schedule="cosine",
                warmup_epochs=1,
                augmentation="shift-flip",
                shift=1,
            ),
            _narrow(48, 3, 6, 16, convolutions=2),
        ),
        6,
        RESIDUAL_PAIRS["small"],
        Training(images=2500, held_out=5000, epochs=4, batch_size=50, learning_rate=3e-2),
    ),
    "paper": Config(
        Zoo("cct", IMAGES["paper"], 10, RECIPES["godfrey-cct"], (("renormalize_stream", True),)),
        6,
        5,
        Training(images=None, held_out=None, start="random"),
    ),
}
CLAIMS = (
    Claim(
        paper="Maps of G_ReLU cost more than linear maps.",
        source="D.4, fig. 12",
        statistic="penalty of G_ReLU less that of full maps, points, mean of the blocks",
        direction="above",
        threshold=0.0,
        reason=SIGN,
        interval=STUDENT,
        estimate=lambda results: of_number(results, "less_full"),
    ),
    Claim(
        paper="The penalties of G_ReLU are large.",
        source="D.4",
        statistic="penalty of G_ReLU, mean of the blocks, in percent of the accuracy above chance",
        direction="above",
        threshold=LARGE,
        reason="Half of what there is to lose; the bound is ours, and the text has no number.",
        interval=STUDENT,
        estimate=lambda results: of_number(results, "share"),
    ),
)
TEXT = """
Behind encoder blocks no activation follows, so that G_ReLU is not the group there. It loses {g_relu:.1f} points in
the mean of the blocks, linear maps {full:.1f}, of {accuracy:.1f} %. That is much more, but only {share:.0f} % of the
accuracy above chance. It loses most behind the first block, {g_relu_1:.1f} points, and least behind the last,
{g_relu_6:.1f}.

Beyond the paper: rotations, which know no coordinates, lose no more than linear maps ({orthogonal:.1f} points), as
the paper's explanation lets expect.

The transformers are weak: three of width 48 on images of 16 × 16 pixels, trained for 4 epochs on 25,000 images, of
which three ordered pairs are stitched (there ten with 98 %, five pairs). Maps train on 2,500 images and are judged on
{held_out:,}. Settings were chosen after a smaller run, with two of these networks, had been seen.
"""


@study(
    name="godfrey-transformer",
    title="Stitching compact transformers behind their encoder blocks",
    reference="Godfrey et al. 2022, On the symmetries of deep learning models and their internal representations, "
    "supplement D.4, fig. 12",
    paper="""
    Compact Convolutional Transformers with six encoder blocks (98 % on CIFAR-10) are stitched behind every block by
    linear maps and by maps of G_ReLU. The penalties of G_ReLU are large, which is expected, since no
    activation follows the linear layers at the end of a block.
    """,
    presets=PRESETS,
    claims=CLAIMS,
    text={"small": TEXT},
    tables={"penalties": "Accuracy lost in points, 95 % intervals, the range of the pairs; sparsity of the maps."},
    figure=lambda results: _figure(results),
    caption="Stitching penalties behind each encoder block: means over pairs with 95 % intervals.",
)
def run(config: Config, context: Context) -> Findings:
    """Both families of the paper, and rotations, behind every block."""
    pairs = chosen_pairs(context, config.zoo, config.pairs)
    networks = load_networks(context, config.zoo, {number for pair in pairs for number in pair})
    layers = [f"blocks.{number}" for number in range(config.depth)]
    named = penalties(context, networks, layers, FAMILIES, pairs, config.training)
    found = replace(named, layers=tuple(f"block {number}" for number in range(1, config.depth + 1)))
    return Findings(numbers_of(found, share_lost(found, networks.classes)), {"penalties": penalty_table(found)})


def share_lost(found: Penalties, classes: int) -> Interval:
    """G_ReLU's mean penalty over the blocks as a share of the accuracy above chance."""
    one = contrast(found, average(found.layers, "G_ReLU"))
    room = found.accuracy - 1 / classes
    return percentiles(one.value / room, one.draws / room)


def numbers_of(found: Penalties, share: Interval) -> dict[str, Scalar]:
    """Accuracies and penalties in percent and points."""
    numbers: dict[str, Scalar] = {"accuracy": 100 * found.accuracy, "pairs": len(found.pairs), **points("share", share)}
    numbers["held_out"] = found.lost.shape[-1]
    for family in FAMILIES:
        numbers |= points(key_of(family), contrast(found, average(found.layers, family)))
        for number, layer in enumerate(found.layers, 1):
            numbers[f"{key_of(family)}_{number}"] = 100 * found.mean(layer, family).value
    for family in FAMILIES[:-1]:
        numbers |= points(f"less_{key_of(family)}", _less(found, family))
    return numbers


def _less(found: Penalties, family: str) -> Interval:
    return contrast(found, minus(average(found.layers, "G_ReLU"), average(found.layers, family)))


def _figure(results: Results) -> "Figure":
    from coset.figures import new_figure

    figure = new_figure(5.0, 3.4)
    axes = figure.subplots()
    table = results.tables["penalties"]
    draw_penalties(axes, table, FAMILIES, layers_of(table))
    axes.set_xticks(range(len(layers_of(table))), [name.removeprefix("block ") for name in layers_of(table)])
    axes.set_xlabel("encoder block")
    figure.legend(loc="outside lower center", ncols=len(FAMILIES))
    return figure
