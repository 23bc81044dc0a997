"""Stitching compact transformers behind encoder blocks, where no activation follows (Godfrey et al. 2022, D.4)."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from coset.represent import Interval
from coset.study import Context, Findings, Scalar, study
from coset.train import RECIPES, Recipe
from coset_studies.godfrey._contrasts import average, contrast, key_of, minus, points, sign, told
from coset_studies.godfrey._penalties import draw_penalties, penalty_table
from coset_studies.godfrey._residual import FEWER_IMAGES, IMAGES
from coset_studies.godfrey._residual import PAIRS as RESIDUAL_PAIRS
from coset_studies.godfrey._setting import (
    earlier_sentence,
    interval_sentence,
    sentence,
    stitching_differences,
    zoo_differences,
)
from coset_studies.godfrey._similarity import percentiles
from coset_studies.godfrey._stitching import Penalties, Training, penalties
from coset_studies.godfrey._zoo import Pairs, Zoo, chosen_pairs, load_networks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FAMILIES = ("full", "orthogonal", "G_ReLU")
"""The paper has the first and the last."""
LARGE = 0.5
"""The share of the accuracy above chance with which G_ReLU's penalty is compared; the paper's text has no number."""


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
EARLIER = earlier_sentence(
    "the last one before had two of these networks, stitched in both directions by maps that trained on 1,500 images "
    "for 3 epochs and were judged on 2,000"
)


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
)
def run(config: Config, context: Context) -> Findings:
    """Both families of the paper, and rotations, behind every block."""
    paper = PRESETS["paper"]
    pairs = chosen_pairs(context, config.zoo, config.pairs)
    networks = load_networks(context, config.zoo, {number for pair in pairs for number in pair})
    layers = [f"blocks.{number}" for number in range(config.depth)]
    named = penalties(context, networks, layers, FAMILIES, pairs, config.training)
    found = replace(named, layers=tuple(f"block {number}" for number in range(1, config.depth + 1)))
    share = share_lost(found, networks.classes)
    smaller = zoo_differences(config.zoo, paper.zoo)
    smaller += stitching_differences(config.training, paper.training, config.pairs, paper.pairs)
    return Findings(
        numbers=numbers_of(found, share),
        tables={"penalties": penalty_table(found)},
        outcome=f"{OVERVIEW}\n\n{judge(found, share)} {judge_rotations(found)}\n\n"
        f"{interval_sentence(found)} {sentence(smaller)} {EARLIER if config == PRESETS['small'] else ''}",
        figure=lambda: _figure(found, 1 / networks.classes),
        caption="Stitching penalties behind each encoder block: means over pairs with 95 % intervals. "
        "Dotted: the accuracy above chance, which is all there is to lose.",
    )


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


OVERVIEW = f"""
The transformers have an accuracy of {{accuracy:.1f}} % on the {{held_out:,}} test images by which maps are judged, in
the mean of the pairs. Averaged over the blocks the penalty is {told("full")} points for linear maps and
{told("g_relu")} for G_ReLU, which is {told("share")} % of the accuracy above chance.
"""


def judge(found: Penalties, share: Interval) -> str:
    """Whether G_ReLU costs more than linear maps, and whether that is much."""
    above = {
        1: f"As in the paper, G_ReLU costs more than linear maps, by {told('less_full')} points on average",
        0: f"G_ReLU, which costs more than linear maps in the paper, is not told apart from them: {told('less_full')} "
        f"points on average",
        -1: f"Unlike in the paper, G_ReLU costs less than linear maps: {told('less_full')} points on average",
    }[sign(_less(found, "full"))]
    layers = sum(sign(found.difference(layer, "G_ReLU", "full")) > 0 for layer in found.layers)
    half = f"{100 * LARGE:.0f} % of what there is to lose, a bound that is ours and not the paper's"
    if share.low > LARGE:
        size = f"The paper calls its penalty large; here it is more than {half}."
    elif share.high < LARGE:
        size = f"The paper calls its penalty large; here it is less than {half}."
    else:
        size = f"The paper calls its penalty large; whether it is above {half}, is within the uncertainty."
    where = f"Behind {layers} of {len(found.layers)} blocks its penalty is higher by more than the uncertainty."
    return f"{above}. {where} {size}"


def judge_rotations(found: Penalties) -> str:
    """Beyond the paper: whether rotations, which know no coordinates, do better."""
    spoken = {
        1: "rotations cost less than G_ReLU, as the paper's explanation lets expect",
        0: "rotations, which should cost less by the paper's explanation, are not told apart from G_ReLU",
        -1: "rotations cost more than G_ReLU, which the paper's explanation does not let expect",
    }[sign(_less(found, "orthogonal"))]
    return (
        f"Beyond the paper: {spoken}; their penalty is {told('orthogonal')} points, and G_ReLU loses "
        f"{told('less_orthogonal')} points to them."
    )


def _figure(found: Penalties, chance: float) -> "Figure":
    from coset.figures import GREY, new_figure

    figure = new_figure(5.0, 3.4)
    axes = figure.subplots()
    draw_penalties(axes, found, FAMILIES, [str(number + 1) for number in range(len(found.layers))])
    axes.axhline(100 * (found.accuracy - chance), color=GREY, ls=":")
    axes.set_xlabel("encoder block")
    figure.legend(loc="outside lower center", ncols=len(found.families))
    return figure
