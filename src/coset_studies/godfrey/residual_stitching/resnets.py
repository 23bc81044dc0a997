"""Stitching ResNets at every layer, inside and outside of residual blocks (Godfrey et al. 2022, figs. 6 and 7)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from coset.represent import Interval
from coset.study import Claim, Context, Estimate, Findings, Results, Scalar, Table, study
from coset.study.estimates import difference, greatest, least
from coset_studies.godfrey._claims import SIGN, STUDENT, by_layer, of_number, of_row
from coset_studies.godfrey._penalties import (
    Weighted,
    average,
    contrast,
    draw_penalties,
    key_of,
    layers_of,
    minus,
    penalty_table,
    points,
)
from coset_studies.godfrey._residual import PAIRS, RESNET18_PLACES, RESNET20_PLACES, Places, resnet18, resnet20
from coset_studies.godfrey._stitching import Penalties, Training, penalties
from coset_studies.godfrey._zoo import Networks, Pairs, Zoo, chosen_pairs, load_networks
from coset_studies.godfrey.residual_stitching._starts import start_numbers, start_table, starts_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FAMILIES = ("full", "rank 4", "rank 2", "rank 1", "G_ReLU")
"""From the largest family of maps to the smallest."""
OTHERS = FAMILIES[:-1]
TRAINING = {
    "quick": Training(images=100, held_out=100, epochs=1, batch_size=50, learning_rate=1e-2),
    "small": Training(images=2500, held_out=5000, epochs=4, batch_size=50, learning_rate=3e-2),
    "paper": Training(images=None, held_out=None, start="random"),
}
BOTH_WAYS: dict[str, Pairs] = {**PAIRS, "small": ((0, 1), (1, 2), (2, 0), (1, 0), (2, 1), (0, 2))}


@dataclass(frozen=True)
class Config:
    """Which networks are stitched, at which layers, in which pairs, and how maps are trained.

    ``at_random``: the labels of layers at which G_ReLU is trained from a random start, too.
    """

    zoo: Zoo
    places: Places
    pairs: Pairs
    training: Training
    at_random: tuple[str, ...] = ()


def _presets(
    zoo: Callable[[str], Zoo],
    places: Mapping[str, Places],
    pairs: Mapping[str, Pairs],
    at_random: Mapping[str, tuple[str, ...]],
) -> dict[str, Config]:
    return {
        preset: Config(zoo(preset), places[preset], pairs[preset], training, at_random.get(preset, ()))
        for preset, training in TRAINING.items()
    }


INSIDE, OUTER, INNER = (
    "inside less outside",
    "outside: G_ReLU less this family",
    "inside: G_ReLU less this family",
)
"""What the rows of the table of differences are of."""


def _difference(results: Results, what: str, family: str) -> Estimate | None:
    return of_row(results, "differences", "points", {"difference": what, "family": family})


def _outside(results: Results, family: str) -> list[Estimate | None]:
    """G_ReLU less a family at each layer outside of blocks, from the intervals of both."""
    ours, theirs = (by_layer(results, "penalties", "penalty", {"family": name}) for name in ("G_ReLU", family))
    return [difference(ours[layer], theirs[layer]) for layer in ours if not layer.endswith("*")]


_APART = """
At single layers the interval of a difference is made of the intervals of both penalties, which makes it too wide,
since both are of the same pairs and images.
"""
_BLOCKS = "Layers inside of residual blocks incur higher penalties"


def _claims(source: str) -> list[Claim]:
    return [
        Claim(
            paper=f"{_BLOCKS}, even with full 1×1 convolutions.",
            source=source,
            statistic="penalty of full maps inside of blocks less outside, points",
            direction="above",
            threshold=0.0,
            reason=SIGN,
            interval=STUDENT,
            estimate=lambda results: _difference(results, INSIDE, "full"),
        ),
        Claim(
            paper=f"{_BLOCKS}.",
            source=source,
            statistic="penalty inside of blocks less outside, points, the least of all families",
            direction="above",
            threshold=0.0,
            reason=SIGN,
            interval=STUDENT,
            estimate=lambda results: least([_difference(results, INSIDE, family) for family in FAMILIES]),
        ),
    ]


BLOCKS = (
    *_claims("D.3, fig. 6"),
    Claim(
        paper="Outside of blocks G_ReLU beats rank 1.",
        source="D.3, fig. 6",
        statistic="penalty of G_ReLU less rank 1, points, mean of the layers outside",
        direction="below",
        threshold=0.0,
        reason=SIGN,
        interval=STUDENT,
        estimate=lambda results: _difference(results, OUTER, "rank 1"),
    ),
    Claim(
        paper="It does so consistently.",
        source="D.3, fig. 6",
        statistic="penalty of G_ReLU less rank 1, points, the greatest of the layers outside",
        direction="below",
        threshold=0.0,
        reason=SIGN,
        interval=_APART,
        estimate=lambda results: greatest(_outside(results, "rank 1")),
    ),
    Claim(
        paper="Sometimes it beats rank 2.",
        source="D.3, fig. 6",
        statistic="penalty of G_ReLU less rank 2, points, the least of the layers outside",
        direction="below",
        threshold=0.0,
        reason=SIGN,
        interval=_APART,
        estimate=lambda results: least(_outside(results, "rank 2")),
    ),
    Claim(
        paper="Inside of blocks G_ReLU is the worst of all families.",
        source="D.3, fig. 6",
        statistic="penalty of G_ReLU less another family, points, means inside, the least of the families",
        direction="above",
        threshold=0.0,
        reason=SIGN,
        interval=STUDENT,
        estimate=lambda results: least([_difference(results, INNER, family) for family in OTHERS]),
    ),
)
LAST = (
    *_claims("D.3, fig. 7"),
    Claim(
        paper="At the last layer inside of a block stitched networks do no better than chance, even with full maps.",
        source="D.3, fig. 7",
        statistic="penalty of full maps at the last layer inside less the mean of the others inside, points",
        direction="above",
        threshold=0.0,
        reason=SIGN,
        interval=STUDENT,
        estimate=lambda results: of_number(results, "last_inside"),
    ),
)
RESNET20 = """
Inside of blocks the shortcut carries the units of the network below past the map, so that even the right map is not
enough: full maps lose {full_inside:.1f} points there and {full_outside:.1f} outside.

Outside of blocks G_ReLU loses {g_relu_outside:.1f} points, between rank 2 ({rank_2_outside:.1f}) and rank 1
({rank_1_outside:.1f}). At the last layer only it beats rank 2: it loses
{penalties[19, G_ReLU][penalty]:.1f} points there, and rank 2 {penalties[19, rank 2][penalty]:.1f}. Inside it loses
{g_relu_inside:.1f}, more than all others but rank 1 ({rank_1_inside:.1f}). Against rank 1 it does worse inside than
outside, by {shift:.1f} points.

G_ReLU maps begin at the least-squares permutation, which costs {start:.1f} points in the mean of all layers. Training
gives {moved:.0f} % of the units another partner and changes this by {gain:.1f} points. Where maps begin at random, as
in the paper, they lose as much ({random:.1f} points at layers 7, 13 and 19; the difference is {random_loss:.1f}
[{random_loss_low:.1f}, {random_loss_high:.1f}]).

Three ResNet20s of half the width ({accuracy:.1f} % on the {held_out:,} test images that judge the maps; there 89.9 %)
were trained for 8 epochs on images of 16 × 16 pixels and stitched at 13 layers in both directions: six ordered pairs,
less than six of their own. Maps train on 2,500 images for 4 epochs (there all images, 20 epochs). The last three of
these pairs were added when the first three had been seen: with those G_ReLU and rank 1 were not told apart inside of
blocks.
"""
CAPTION = """
Penalties by layer, numbered by convolutions: (a) where everything passes through the layer, (b) inside of residual
blocks, where a shortcut passes by (*). Means over pairs with 95 % intervals.
"""


def penalty_figure(results: Results) -> "Figure":
    """Layers outside of blocks, and inside."""
    from coset.figures import label_panel, new_figure

    table = results.tables["penalties"]
    figure = new_figure(8.2, 3.6)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (letter, title, inside) in zip(panels, (("a", "outside", False), ("b", "inside", True)), strict=True):
        draw_penalties(axes, table, FAMILIES, [name for name in layers_of(table) if name.endswith("*") == inside])
        axes.set_xlabel("layer")
        label_panel(axes, letter, f"{title} of blocks")
    panels[1].set_ylabel("")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names))
    return figure


@study(
    name="godfrey-resnet20-stitching",
    title="Stitching ResNet20s inside and outside of residual blocks",
    reference="Godfrey et al. 2022, On the symmetries of deep learning models and their internal representations, "
    "supplement D.3, fig. 6; why it fails inside of blocks: E.9.2",
    paper="""
    ResNet20s of different seeds (89.9 ± 0.2 % on CIFAR-10) are stitched at every layer. Layers inside of residual
    blocks incur higher penalties, even with full 1×1 convolutions. Outside of blocks G_ReLU consistently beats rank
    1, and sometimes rank 2; inside it is the worst of all families. There the shortcut carries the units of the
    network below past the map, so that even the right map is not enough.
    """,
    presets=_presets(resnet20, RESNET20_PLACES, BOTH_WAYS, {"quick": ("3",), "small": ("7", "13", "19")}),
    claims=BLOCKS,
    text={"small": RESNET20},
    tables={"differences": "Differences of mean penalties over layers in percentage points, with 95 % intervals."},
    figure=penalty_figure,
    caption=CAPTION,
)
def resnet20_stitching(config: Config, context: Context) -> Findings:
    """All families at all layers, for pairs of the zoo."""
    return _findings(config, context)


@study(
    name="godfrey-resnet18-stitching",
    title="Stitching ResNet18s inside and outside of residual blocks",
    reference="Godfrey et al. 2022, On the symmetries of deep learning models and their internal representations, "
    "supplement D.3, fig. 7",
    paper="""
    ResNet18s, wider than ResNet20s (92.9 ± 0.2 % on CIFAR-10), are stitched at every layer. Layers inside of residual
    blocks incur higher penalties, even with full 1×1 convolutions. Penalties are generally lower than for ResNet20,
    except at the last layer inside of a block, where the stitched networks do no better than chance; the authors have
    no satisfactory explanation for it.
    """,
    presets=_presets(resnet18, RESNET18_PLACES, PAIRS, {"quick": ("3",), "small": ("5", "9", "13")}),
    claims=LAST,
    text="",
    tables={"differences": "Differences of mean penalties over layers in percentage points, with 95 % intervals."},
    figure=penalty_figure,
    caption=CAPTION,
)
def resnet18_stitching(config: Config, context: Context) -> Findings:
    """As of ResNet20s; the last layer inside of a block by itself."""
    return _findings(config, context, lambda found: points("last_inside", last_inside(found, config.places)))


def last_inside(found: Penalties, places: Places) -> Interval:
    """How much more full maps cost at the last layer inside of a block than at the others inside."""
    last, others = places.inside[-1], places.inside[:-1]
    return contrast(found, minus(average([last], "full"), average(others, "full")))


def _findings(
    config: Config, context: Context, extra: Callable[[Penalties], dict[str, Scalar]] = lambda _: {}
) -> Findings:
    pairs = chosen_pairs(context, config.zoo, config.pairs)
    networks = load_networks(context, config.zoo, {number for pair in pairs for number in pair})
    labels = config.places.labels()
    named = penalties(context, networks, tuple(labels), FAMILIES, pairs, config.training)
    found = replace(named, layers=tuple(labels.values()))
    compared = contrasts_of(found, config.places)
    begun, begun_tables = _starts(config, context, networks, pairs)
    return Findings(
        numbers=numbers_of(found, compared, config.places) | extra(found) | begun,
        tables={"penalties": penalty_table(found), "differences": _difference_table(compared), **begun_tables},
    )


@dataclass(frozen=True)
class Contrasts:
    """What the paper speaks of, as differences of mean penalties.

    ``inside[family]``: inside of blocks less outside. ``outer[family]``, ``inner[family]``: G_ReLU less that family,
    outside and inside. ``shift``: by how much more G_ReLU loses to rank 1 inside than outside.
    """

    inside: dict[str, Interval]
    outer: dict[str, Interval]
    inner: dict[str, Interval]
    shift: Interval


def contrasts_of(found: Penalties, places: Places) -> Contrasts:
    """All differences, each with its interval."""

    def less(layers: tuple[str, ...], family: str) -> Weighted:
        return minus(average(layers, "G_ReLU"), average(layers, family))

    return Contrasts(
        {
            family: contrast(found, minus(average(places.inside, family), average(places.outside, family)))
            for family in FAMILIES
        },
        {family: contrast(found, less(places.outside, family)) for family in OTHERS},
        {family: contrast(found, less(places.inside, family)) for family in OTHERS},
        contrast(found, minus(less(places.inside, "rank 1"), less(places.outside, "rank 1"))),
    )


def _starts(
    config: Config, context: Context, networks: Networks, pairs: Sequence[tuple[int, int]]
) -> tuple[dict[str, Scalar], dict[str, Table]]:
    """Numbers and table of the start of G_ReLU maps; nothing where all maps begin at random."""
    if config.training.start == "random":
        return {}, {}
    labels = config.places.labels()
    at_random = [layer for layer, label in labels.items() if label in config.at_random]
    starts = starts_of(context, networks, tuple(labels), at_random, pairs, config.training)
    return start_numbers(starts), {"starts": start_table(starts, labels)}


def numbers_of(found: Penalties, compared: Contrasts, places: Places) -> dict[str, Scalar]:
    """Accuracies and penalties in percent and points."""
    numbers: dict[str, Scalar] = {"accuracy": 100 * found.accuracy, "pairs": len(found.pairs)}
    numbers["held_out"] = found.lost.shape[-1]
    for family in FAMILIES:
        key = key_of(family)
        for where, layers in (("outside", places.outside), ("inside", places.inside)):
            numbers |= points(f"{key}_{where}", contrast(found, average(layers, family)))
        numbers |= points(f"{key}_excess", compared.inside[family])
    numbers |= points("shift", compared.shift)
    for family in OTHERS:
        numbers |= points(f"less_{key_of(family)}_outside", compared.outer[family])
        numbers |= points(f"less_{key_of(family)}_inside", compared.inner[family])
    return numbers


def _difference_table(compared: Contrasts) -> Table:
    rows: list[list[Scalar]] = []
    for what, intervals in ((INSIDE, compared.inside), (OUTER, compared.outer), (INNER, compared.inner)):
        for family, one in intervals.items():
            rows.append([what, family, 100 * one.value, 100 * one.low, 100 * one.high])
    return Table(("difference", "family", "points", "low", "high"), rows)
