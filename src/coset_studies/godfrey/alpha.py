"""The weight α of the term that drives G_ReLU maps to permutations, chosen by cross-validation."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, product
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coset.represent import StitchTraining
from coset.represent.stitching import ALPHAS, cross_validate
from coset.study import Claim, Context, Estimate, Findings, Results, Scalar, Table, study
from coset.study.estimates import greatest, least
from coset_studies.godfrey._claims import STUDENT, by_layer, number_in, sizes
from coset_studies.godfrey._penalties import (
    difference_numbers,
    difference_table,
    draw_penalties,
    key_of,
    layers_of,
    penalty_numbers,
    penalty_table,
)
from coset_studies.godfrey._plain import LAYERS, NETWORKS, STITCHED, TRAINING, ZOOS
from coset_studies.godfrey._stitching import (
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


SIMILAR = 3.0
"""Points."""


def _apart(results: Results, other: str) -> Estimate | None:
    found = by_layer(results, "differences", "difference", {"other family": other})
    return greatest(sizes(list(found.values())))


def varied(results: Results) -> Estimate | None:
    """How many α are chosen over the pairs, at the layer with the fewest.

    Where several α are equally good any of them could have been: the interval is of all such choices.
    """
    table = results.tables["choices"]
    layer, chosen = (table.columns.index(name) for name in ("layer", "α chosen"))
    first = len(table.columns) - len(ALPHAS)
    found: list[Estimate | None] = []
    for name in dict.fromkeys(row[layer] for row in table.rows):
        rows = [row for row in table.rows if row[layer] == name]
        best = [_best(row[first:]) for row in rows]
        found.append(Estimate(len({row[chosen] for row in rows}), fewest(best), most(best)))
    return least(found)


def _best(accuracies: Sequence[Scalar]) -> frozenset[int]:
    numbers = [number_in(value) for value in accuracies]
    return frozenset(place for place, value in enumerate(numbers) if value == max(numbers))


def fewest(best: Sequence[frozenset[int]]) -> int:
    """The least number of different things if one is chosen from every set."""
    return min(len(some) for some in _subsets(frozenset().union(*best)) if all(some & one for one in best))


def most(best: Sequence[frozenset[int]]) -> int:
    """The greatest number of different things if one is chosen from every set (König's and Hall's theorems)."""
    things = frozenset[int]().union(*best)
    return min(len(things) - len(some) + sum(bool(some & one) for one in best) for some in _subsets(things))


def _subsets(things: frozenset[int]) -> Iterator[frozenset[int]]:
    return (frozenset(some) for count in range(len(things) + 1) for some in combinations(things, count))


def _similar(other: str, statistic: str, source: str) -> Claim:
    return Claim(
        paper="Penalties are very similar to those with α = 0.1.",
        source=source,
        statistic=statistic,
        direction="below",
        threshold=SIMILAR,
        reason="The paper shows figures and no number. Set when the run was known.",
        interval=STUDENT,
        possible=(0.0, 100.0),
        estimate=lambda results: _apart(results, other),
    )


CLAIMS = (
    _similar(
        FIXED,
        "penalties with α chosen and α = 0.1, maps trained alike, points apart, the greatest of the layers",
        "D.5, fig. 13",
    ),
    _similar(
        "G_ReLU",
        "penalties with α chosen and of the maps of fig. 1, points apart, the greatest of the layers",
        "D.5, fig. 13, which compares these",
    ),
    Claim(
        paper="The α that is chosen varies much at all layers.",
        source="D.5, fig. 14",
        statistic="different α that are chosen over the pairs, at the layer with the fewest",
        direction="above",
        threshold=1.5,
        reason="To vary takes two of them. Of six pairs and five α there can be five.",
        interval="Where several α are equally good, the number of α chosen has the range of all choices among them.",
        possible=(1.0, 5.0),
        estimate=varied,
    ),
)
TEXT = f"""
Trained alike, maps with α chosen and with α = 0.1 are told apart at relu6 only, where the choice changes the penalty
by {{differences[relu6, G_ReLU, α = 0.1][difference]:.1f}} points. But pairs differ so much that several points cannot
be excluded elsewhere: six pairs are too few to call the penalties very similar.

The paper compares with the maps of its fig. 1. Here these begin at the least-squares permutation, train on all 2,000
images for 20 epochs, and lose less at relu6 and relu8. That difference is one of training, not of α.

In {{tied}} of {{choices}} cases other α are as good on the 400 images left out as the one chosen, which is the
smallest of these. From the worst α to the best there are {{spread:.1f}} points on average, of which some is chance.
That the choice varies says mostly that α matters little.

{NETWORKS}

Maps with α chosen, and those of α = 0.1 trained alike, begin at random and train on four fifths of 2,000 images for
five epochs, as in the paper, whose images are all of CIFAR-10. The comparison of maps trained alike was added when a
run without it had been seen.
"""


@study(
    name="godfrey-alpha",
    title="Choosing α of G_ReLU stitching by cross-validation",
    reference="Godfrey et al. 2022, appendix D.5, figs. 13 and 14 (Myrtle CNNs on CIFAR-10)",
    paper="""
    α is chosen among 10⁻³ … 10 by a fifth of the train images that is left out; maps are trained for five epochs,
    without a head start of the permutations. Penalties are very similar to those with α = 0.1, and the α that is
    chosen varies much at all layers: the choice of α is not essential.
    """,
    presets={
        preset: Config(ZOOS[preset], layers, STITCHED[preset], TRAINING[preset]) for preset, layers in LAYERS.items()
    },
    claims=CLAIMS,
    text={"small": TEXT},
    tables={
        "differences": "The penalty with α chosen less that of other maps, in points, 95 % intervals.",
    },
    figure=lambda results: _figure(results),
    caption="""
    (a) Stitching penalties with α chosen by cross-validation beside those with α = 0.1 and other families, with 95 %
    intervals over pairs and images. (b) How often each α is chosen.
    """,
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
    )


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


def _choice_table(pairs: Sequence[tuple[int, int]], choices: Mapping[tuple[int, str], Chosen]) -> Table:
    rows: list[list[Scalar]] = []
    for (number, layer), one in choices.items():
        below, above = pairs[number]
        accuracies = [100 * one.accuracies[alpha] for alpha in ALPHAS]
        rows.append([f"{below} below {above}", layer, one.alpha, one.ties, *accuracies])
    columns = ("pair", "layer", "α chosen", "as good", *(f"α = {alpha:g}" for alpha in ALPHAS))
    return Table(columns, rows)


def _figure(results: Results) -> "Figure":
    from coset.figures import label_panel, new_figure

    figure = new_figure(8.6, 3.8)
    left, right = figure.subplots(1, 2, width_ratios=(5, 3.6))
    table = results.tables["penalties"]
    draw_penalties(left, table, (*USUAL, CHOSEN, FIXED), layers_of(table))
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=3)
    label_panel(left, "a", "Penalties")
    _draw_histogram(right, results.tables["choices"])
    label_panel(right, "b", "α by cross-validation")
    return figure


def _draw_histogram(axes: "Axes", table: Table) -> None:
    from matplotlib.ticker import MaxNLocator

    from coset.figures import PALETTE

    layer, chosen = (table.columns.index(name) for name in ("layer", "α chosen"))
    counts: dict[Scalar, Counter[Scalar]] = {}
    for row in table.rows:
        counts.setdefault(row[layer], Counter())[row[chosen]] += 1
    width = 0.8 / len(counts)
    hatches = ("", "///", "...", "xxx")
    for number, (name, each) in enumerate(counts.items()):
        places = [place + width * (number - (len(counts) - 1) / 2) for place in range(len(ALPHAS))]
        heights = [each[alpha] for alpha in ALPHAS]
        colour = PALETTE[number % len(PALETTE)]
        axes.bar(places, heights, width, color=colour, label=str(name), hatch=hatches[number % 4], edgecolor="white")
    axes.set_xticks(range(len(ALPHAS)), [f"{alpha:g}" for alpha in ALPHAS])
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("α")
    axes.set_ylabel("pairs")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=4)
