"""The weight α of the term that drives G_ReLU maps to permutations, chosen by cross-validation."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coset.represent import StitchTraining
from coset.represent.stitching import ALPHAS, cross_validate
from coset.study import Context, Findings, Scalar, Table, study
from coset_studies.godfrey._contrasts import key_of, sign, told
from coset_studies.godfrey._penalties import (
    beats_sentence,
    difference_numbers,
    difference_table,
    draw_penalties,
    over_what,
    penalty_numbers,
    penalty_table,
)
from coset_studies.godfrey._plain import LAYERS, STITCHED, TRAINING, ZOOS, maps_sentence, networks_sentence
from coset_studies.godfrey._setting import interval_sentence
from coset_studies.godfrey._stitching import (
    Penalties,
    Stitched,
    Training,
    gathered,
    judged,
    place,
    read_stitched,
    stitched,
)
from coset_studies.godfrey._zoo import Networks, Pairs, Zoo, answers, chosen_pairs, drawn, load_networks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CHOSEN = "G_ReLU, α chosen"
FIXED = "G_ReLU, α = 0.1"
"""Trained as that with α chosen."""
USUAL = ("full", "rank 1", "rank 2", "rank 4", "G_ReLU")
"""Trained as elsewhere, G_ReLU with α = 0.1."""
USUAL_ALPHA = 0.1
EPOCHS = 5
SHARE = 0.8
"""Of the images, on which maps are trained; the others choose α."""
START = "random"
"""As in the paper: from the least-squares map, which is a permutation, α has little to do."""
SCHEMA = 2


@dataclass(frozen=True)
class Config:
    """α for ``pairs`` of a zoo at ``layers``; ``training`` is that of the maps with α = 0.1."""

    zoo: Zoo
    layers: tuple[str, ...]
    pairs: Pairs
    training: Training


@dataclass(frozen=True, eq=False)
class Chosen:
    """The map made with the best α, and the accuracy of all α on the images left out."""

    map: Stitched
    alpha: float
    accuracies: Mapping[float, float]

    @property
    def ties(self) -> int:
        """How many α are as good as the one chosen, itself among them."""
        return sum(value == max(self.accuracies.values()) for value in self.accuracies.values())


@study(
    name="godfrey-alpha",
    title="Choosing α of G_ReLU stitching by cross-validation",
    reference="Godfrey et al. 2022, appendix D.5, figs. 13 and 14 (Myrtle CNNs on CIFAR-10)",
    paper="""
    α is chosen among 10⁻³ … 10 by a fifth of the train images that is left out; maps are trained for five epochs,
    without a head start of the permutations. Penalties are very similar to those with α = 0.1, and the α that is chosen
    varies much at all layers: the choice of α is not essential.
    """,
    presets={
        preset: Config(ZOOS[preset], layers, STITCHED[preset], TRAINING[preset]) for preset, layers in LAYERS.items()
    },
)
def run(config: Config, context: Context) -> Findings:
    """Choose α for every pair and layer, and compare with what the other maps lose."""
    pairs = chosen_pairs(context, config.zoo, config.pairs)
    networks = load_networks(context, config.zoo, {number for pair in pairs for number in pair})
    made: dict[tuple[int, str, str], Stitched] = {}
    choices: dict[tuple[int, str], Chosen] = {}
    with context.progress("choosing α", len(pairs) * len(config.layers)) as bar:
        for (number, pair), layer in product(enumerate(pairs), config.layers):
            for family in USUAL:
                made[number, layer, family] = stitched(context, networks, pair, layer, family, config.training)
            choices[number, layer] = choose(context, networks, pair, layer, config.training)
            made[number, layer, CHOSEN] = choices[number, layer].map
            fixed = choose(context, networks, pair, layer, config.training, values=(USUAL_ALPHA,))
            made[number, layer, FIXED] = fixed.map
            bar.advance(note=f"{pair[0]} and {pair[1]}, {layer}: {choices[number, layer].alpha:g}")
    found = gathered(context, made, pairs, answers(context, networks, config.training.held_out))
    return Findings(
        numbers=penalty_numbers(found) | difference_numbers(found, CHOSEN, [FIXED, "G_ReLU"]) | _numbers(choices),
        tables={
            "penalties": penalty_table(found),
            "differences": difference_table(found, CHOSEN, [FIXED, "G_ReLU"]),
            "choices": _choice_table(pairs, choices),
        },
        outcome=f"""
        {_penalties(found)} {judge_penalties(found)} {beside_usual(found)}
        {EARLIER if config.zoo.recipe is None else ""}

        {judge(choices)}

        {STARTS} {networks_sentence(config.zoo)} {maps_sentence(config.training, config.pairs)}
        {interval_sentence(found)}
        """,
        figure=lambda: _figure(found, choices),
        caption="(a) Stitching penalties with α chosen by cross-validation beside those with α = 0.1 and other "
        f"families, with 95 % intervals {over_what(found)}. (b) How often each α is chosen.",
    )


STARTS = """
Maps whose α is chosen, and those of α = 0.1 with which they are compared, begin at random and are trained on four
fifths of the images for five epochs, as in the paper. All others, G_ReLU of the figure among them, are trained as told
below: they differ in more than α.
"""


def judge_penalties(found: Penalties) -> str:
    """Whether it matters for the penalty that α is chosen."""
    differences = [found.difference(layer, CHOSEN, FIXED) for layer in found.layers]
    widest = max(max(abs(one.low), abs(one.high)) for one in differences)
    apart = beats_sentence(found, CHOSEN, FIXED)
    if all(sign(one) == 0 for one in differences):
        return (
            f"{apart} In the paper they are very similar; here no layer tells them apart, which excludes differences "
            f"of more than {100 * widest:.1f} points only."
        )
    return f"{apart} In the paper they are very similar."


def beside_usual(found: Penalties) -> str:
    """The comparison that the paper makes: with maps that differ in more than α."""
    apart = beats_sentence(found, CHOSEN, "G_ReLU")
    return f"The paper compares with maps trained as in its fig. 1, which differ in more: {apart}"


EARLIER = """
A run of this preset was seen before, with three pairs, 1,000 train and 2,000 test images, at relu3, relu5, relu6 and
relu8. It compared with G_ReLU of fig. 1 alone, and α chosen cost more at relu6; the comparison with α = 0.1 trained in
the same way was added after it.
"""


def choose(
    context: Context,
    networks: Networks,
    pair: tuple[int, int],
    layer: str,
    how: Training,
    values: tuple[float, ...] = ALPHAS,
) -> Chosen:
    """α of ``values`` for one pair and layer; stored."""
    training = StitchTraining(epochs=EPOCHS, head_start=0, batch_size=how.batch_size, learning_rate=how.learning_rate)
    config = {
        "kind": "choice of alpha",
        "schema": SCHEMA,
        "values": list(values),
        "share": SHARE,
        "training": asdict(training),
        "images": [how.images, how.held_out],
        "start": START,
        **place(context, networks, pair, layer),
    }

    def make() -> tuple[dict[str, Tensor], dict[str, object]]:
        train = drawn(networks.train, how.images)
        below, above = (networks.modules[number] for number in pair)
        choice = cross_validate(
            below,
            above,
            layer,
            (train.x, train.y),
            values=values,
            share=SHARE,
            training=training,
            seed=context.seed,
            show=False,
            start=START,
        )
        accuracies = torch.tensor([choice.accuracies[alpha] for alpha in values], dtype=torch.float64)
        return {**judged(networks, choice.stitching, how), "accuracies": accuracies}, {"alpha": choice.value}

    entry = context.store.get_or_make(config, make)
    accuracies = dict(zip(values, entry.params["accuracies"].tolist(), strict=True))
    return Chosen(read_stitched(entry), entry.info["alpha"], accuracies)


def histogram(choices: Mapping[tuple[int, str], Chosen]) -> dict[str, Counter[float]]:
    """For each layer how often each α was chosen."""
    counts: dict[str, Counter[float]] = {}
    for (_, layer), choice in choices.items():
        counts.setdefault(layer, Counter())[choice.alpha] += 1
    return counts


def judge(choices: Mapping[tuple[int, str], Chosen]) -> str:
    """Whether the choice varies, and whether it matters; a template for ``_numbers``."""
    counts = histogram(choices)
    varied = sum(len(each) > 1 for each in counts.values())
    ties = (
        "In {tied} of {choices} cases other α are as good on the images left out as the one chosen, which is the "
        "smallest of these. Between the best and the worst α there are {spread:.1f} points of accuracy there, on "
        "average, of which some is the chance of so few images."
    )
    if max(each.total() for each in counts.values()) == 1:
        return f"{ties} One pair does not tell whether the α chosen varies over pairs; in the paper it does."
    pairs = max(each.total() for each in counts.values())
    chosen = f"Over {pairs} pairs more than one α is chosen at {varied} of {len(counts)} layers"
    verdict = "as in the paper at all of them" if varied == len(counts) else "in the paper at all of them"
    return f"{chosen}, {verdict}. {ties}"


def _numbers(choices: Mapping[tuple[int, str], Chosen]) -> dict[str, Scalar]:
    spreads = [max(one.accuracies.values()) - min(one.accuracies.values()) for one in choices.values()]
    numbers: dict[str, Scalar] = {
        "choices": len(choices),
        "tied": sum(one.ties > 1 for one in choices.values()),
        "spread": 100 * sum(spreads) / len(spreads),
    }
    for layer, counts in histogram(choices).items():
        numbers |= {f"chosen_{key_of(layer)}_{key_of(f'{alpha:g}')}": counts[alpha] for alpha in ALPHAS}
    return numbers


def _penalties(found: Penalties) -> str:
    parts = [
        f"at {layer} {told(f'{key_of(CHOSEN)}_{key_of(layer)}')} with α chosen and "
        f"{told(f'{key_of(FIXED)}_{key_of(layer)}')} with α = 0.1"
        for layer in found.layers
    ]
    return f"G_ReLU maps lose, in percentage points of accuracy, {'; '.join(parts)}."


def _choice_table(pairs: Sequence[tuple[int, int]], choices: Mapping[tuple[int, str], Chosen]) -> Table:
    rows: list[list[Scalar]] = []
    for (number, layer), one in choices.items():
        below, above = pairs[number]
        accuracies = [100 * one.accuracies[alpha] for alpha in ALPHAS]
        rows.append([f"{below} below {above}", layer, one.alpha, one.ties, *accuracies])
    columns = ("pair", "layer", "α chosen", "as good", *(f"α = {alpha:g}" for alpha in ALPHAS))
    return Table(columns, rows, "Accuracy in percent on the images left out, by α.")


def _figure(found: Penalties, choices: Mapping[tuple[int, str], Chosen]) -> "Figure":
    from coset.figures import label_panel, new_figure

    figure = new_figure(8.6, 3.8)
    left, right = figure.subplots(1, 2, width_ratios=(5, 3.6))
    draw_penalties(left, found, found.families, found.layers)
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=3)
    label_panel(left, "a", "Penalties")
    _draw_histogram(right, histogram(choices))
    label_panel(right, "b", "α by cross-validation")
    return figure


def _draw_histogram(axes: "Axes", counts: Mapping[str, Counter[float]]) -> None:
    from matplotlib.ticker import MaxNLocator

    from coset.figures import PALETTE

    width = 0.8 / len(counts)
    hatches = ("", "///", "...", "xxx")
    for number, (layer, each) in enumerate(counts.items()):
        places = [place + width * (number - (len(counts) - 1) / 2) for place in range(len(ALPHAS))]
        heights = [each[alpha] for alpha in ALPHAS]
        colour = PALETTE[number % len(PALETTE)]
        axes.bar(places, heights, width, color=colour, label=layer, hatch=hatches[number % 4], edgecolor="white")
    axes.set_xticks(range(len(ALPHAS)), [f"{alpha:g}" for alpha in ALPHAS])
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("α")
    axes.set_ylabel("pairs")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=4)
