"""Stitching of residual networks inside and outside of their blocks (Godfrey et al. 2022, D.3): findings in words."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from coset.represent import Interval
from coset.study import Context, Findings, Scalar, Table
from coset_studies.godfrey._contrasts import Weighted, average, contrast, key_of, listed, minus, points, sign, told
from coset_studies.godfrey._penalties import draw_penalties, penalty_table
from coset_studies.godfrey._residual import Places
from coset_studies.godfrey._setting import (
    LAST_EPOCH,
    interval_sentence,
    sentence,
    stitching_differences,
    zoo_differences,
)
from coset_studies.godfrey._starts import judge_starts, start_numbers, start_table, starts_of
from coset_studies.godfrey._stitching import Penalties, Training, penalties
from coset_studies.godfrey._zoo import Networks, Pairs, Zoo, chosen_pairs, load_networks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FAMILIES = ("full", "rank 4", "rank 2", "rank 1", "G_ReLU")
"""From the largest family of maps to the smallest."""
OTHERS = FAMILIES[:-1]


@dataclass(frozen=True)
class StitchingConfig:
    """Which networks are stitched, at which layers, in which pairs, and how maps are trained.

    ``at_random``: the labels of layers at which G_ReLU is trained from a random start, too.
    """

    zoo: Zoo
    places: Places
    pairs: Pairs
    training: Training
    at_random: tuple[str, ...] = ()


@dataclass(frozen=True)
class Contrasts:
    """What the paper speaks of, as differences of mean penalties.

    ``inside[family]``: inside of blocks less outside. ``outer[family]``, ``inner[family]``: G_ReLU less that family,
    outside and inside. ``by_layer[layer, family]``: G_ReLU less that family at one layer. ``shift``: by how much more
    G_ReLU loses to rank 1 inside than outside.
    """

    inside: dict[str, Interval]
    outer: dict[str, Interval]
    inner: dict[str, Interval]
    by_layer: dict[tuple[str, str], Interval]
    shift: Interval


def contrasts_of(found: Penalties, places: Places) -> Contrasts:
    """All differences, each with its interval."""

    def less(layers: tuple[str, ...], family: str) -> Interval:
        return contrast(found, minus(average(layers, "G_ReLU"), average(layers, family)))

    return Contrasts(
        {
            family: contrast(found, minus(average(places.inside, family), average(places.outside, family)))
            for family in FAMILIES
        },
        {family: less(places.outside, family) for family in OTHERS},
        {family: less(places.inside, family) for family in OTHERS},
        {(layer, family): less((layer,), family) for layer in found.layers for family in OTHERS},
        contrast(found, minus(_against_rank_one(places.inside), _against_rank_one(places.outside))),
    )


def _against_rank_one(layers: tuple[str, ...]) -> Weighted:
    return minus(average(layers, "G_ReLU"), average(layers, "rank 1"))


def stitching_findings(
    config: StitchingConfig,
    paper: StitchingConfig,
    context: Context,
    extra: Callable[[Penalties, Places], tuple[str, dict[str, Scalar]]] | None = None,
    earlier: str = "",
) -> Findings:
    """Stitch all pairs at all layers by maps of all families, and judge what the paper says of it.

    ``extra``: one more sentence, and its numbers. ``earlier``: runs that were seen before the settings were chosen.
    """
    pairs = chosen_pairs(context, config.zoo, config.pairs)
    networks = load_networks(context, config.zoo, {number for pair in pairs for number in pair})
    labels = config.places.labels()
    named = penalties(context, networks, tuple(labels), FAMILIES, pairs, config.training)
    found = replace(named, layers=tuple(labels.values()))
    compared = contrasts_of(found, config.places)
    more, more_numbers = extra(found, config.places) if extra else ("", {})
    begun, begun_numbers, begun_tables = _starts(config, context, networks, pairs)
    smaller = [*zoo_differences(config.zoo, paper.zoo), LAST_EPOCH]
    if len(labels) < len(paper.places.labels()):
        smaller.append(f"{len(labels)} layers are looked at (there {len(paper.places.labels())})")
    smaller += stitching_differences(config.training, paper.training, config.pairs, paper.pairs)
    return Findings(
        numbers=numbers_of(found, compared, config.places) | more_numbers | begun_numbers,
        tables={"penalties": penalty_table(found), "differences": _difference_table(compared), **begun_tables},
        outcome=f"{OVERVIEW}\n\n{judge_blocks(compared)}\n\n{judge_outside(compared, config.places)}\n\n"
        f"{judge_inside(compared, config.places)} {more}\n\n{begun}\n\n{interval_sentence(found)} "
        f"{sentence(smaller)} {earlier}",
        figure=lambda: _figure(found, config.places),
        caption="Stitching penalties by layer, numbered by convolutions: (a) where everything passes through the "
        "layer, (b) inside of residual blocks, marked *. Means over pairs with 95 % intervals.",
    )


def _starts(
    config: StitchingConfig, context: Context, networks: Networks, pairs: Sequence[tuple[int, int]]
) -> tuple[str, dict[str, Scalar], dict[str, Table]]:
    """A paragraph on the start of G_ReLU maps, its numbers and its table; nothing where all maps begin at random."""
    if config.training.start == "random":
        return "", {}, {}
    labels = config.places.labels()
    at_random = [layer for layer, label in labels.items() if label in config.at_random]
    starts = starts_of(context, networks, tuple(labels), at_random, pairs, config.training)
    return judge_starts(starts, labels), start_numbers(starts), {"starts": start_table(starts, labels)}


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


OVERVIEW = f"""
The networks have an accuracy of {{accuracy:.1f}} % on the {{held_out:,}} test images by which maps are judged, in the
mean of the pairs. Averaged over layers outside of blocks the penalty is
{told("full_outside")} points for full maps, {told("rank_4_outside")}, {told("rank_2_outside")} and
{told("rank_1_outside")} for rank 4, 2 and 1, and {told("g_relu_outside")} for G_ReLU; over layers inside of them
{told("full_inside")}, {told("rank_4_inside")}, {told("rank_2_inside")}, {told("rank_1_inside")} and
{told("g_relu_inside")}.
"""


def judge_blocks(compared: Contrasts) -> str:
    """Whether penalties are higher inside of blocks, for full maps and for the others."""
    how = f"by {told('full_excess')} points on average"
    spoken = {
        1: f"As in the paper, full maps cost more inside of blocks than outside, {how}.",
        0: f"That full maps cost more inside of blocks than outside, as in the paper, is not told apart from the "
        f"uncertainty: {told('full_excess')} points on average.",
        -1: f"Unlike in the paper, full maps cost less inside of blocks than outside: {told('full_excess')} points on "
        f"average.",
    }[sign(compared.inside["full"])]
    rest = {
        value: [family for family in FAMILIES[1:] if sign(compared.inside[family]) == value] for value in (1, 0, -1)
    }
    words = {1: "more", 0: "as much within the uncertainty", -1: "less"}
    others = "; ".join(
        f"{listed(names)} cost{'s' if len(names) == 1 else ''} {words[value]} inside"
        for value, names in rest.items()
        if names
    )
    return f"{spoken} Of the other families, {others}."


_LEFT_OPEN = "; that it does so consistently is not told at every layer"


def judge_outside(compared: Contrasts, places: Places) -> str:
    """Whether G_ReLU beats rank 1, and sometimes rank 2, outside of blocks."""
    total = len(places.outside)
    wins, losses = _layers(compared, places.outside, "rank 1", -1), _layers(compared, places.outside, "rank 1", 1)
    spoken = {
        -1: "As in the paper, G_ReLU beats rank 1 outside of blocks on average"
        + (", and consistently" if wins == total else ", but not consistently" if losses else _LEFT_OPEN),
        0: "G_ReLU, which beats rank 1 outside of blocks in the paper, is not told apart from it on average",
        1: "Unlike in the paper, rank 1 beats G_ReLU outside of blocks on average",
    }[sign(compared.outer["rank 1"])]
    return (
        f"{spoken}: the penalties differ by {told('less_rank_1_outside')} points; of {total} layers G_ReLU's is lower "
        f"at {wins} and higher at {losses} by more than the uncertainty. "
        f"{_rank_two(_layers(compared, places.outside, 'rank 2', -1), total)} The mean difference to rank 2 is "
        f"{told('less_rank_2_outside')}, to rank 4 {told('less_rank_4_outside')}."
    )


def _layers(compared: Contrasts, layers: tuple[str, ...], family: str, value: int) -> int:
    """At how many layers the difference of G_ReLU to a family has a sign."""
    return sum(sign(compared.by_layer[layer, family]) == value for layer in layers)


def _rank_two(wins: int, total: int) -> str:
    if wins == 0:
        return f"Rank 2 it beats at none of the {total} layers, in the paper at some."
    if wins == total:
        return f"Rank 2 it beats at all {total} layers, in the paper at some."
    return f"Rank 2 it beats at {wins} of them, as in the paper at some."


def judge_inside(compared: Contrasts, places: Places) -> str:
    """Whether G_ReLU is the worst family inside of blocks."""
    worse = [family for family in OTHERS if sign(compared.inner[family]) > 0]
    differences = ", ".join(f"{told(f'less_{key_of(family)}_inside')} points to {family}" for family in OTHERS)
    if len(worse) == len(OTHERS):
        return f"As in the paper, G_ReLU is the worst of all families inside of blocks: it loses {differences}."
    better = [family for family in OTHERS if sign(compared.inner[family]) < 0]
    equal = [family for family in OTHERS if sign(compared.inner[family]) == 0]
    parts = [f"worse than {listed(worse)}"] if worse else []
    parts += [f"not told apart from {listed(equal)}"] if equal else []
    parts += [f"better than {listed(better)}"] if better else []
    return (
        f"Inside of blocks G_ReLU is {', '.join(parts)} (it loses {differences}); in the paper it is the worst of all "
        f"families there. Of {len(places.inside)} layers its penalty is above rank 1's at "
        f"{_layers(compared, places.inside, 'rank 1', 1)} and below it at "
        f"{_layers(compared, places.inside, 'rank 1', -1)} by more than the uncertainty. {_judge_shift(compared)}"
    )


def _judge_shift(compared: Contrasts) -> str:
    """Whether G_ReLU loses ground to rank 1 inside of blocks."""
    return {
        1: f"As there, it loses ground: against rank 1 it does worse inside than outside, by {told('shift')} points.",
        0: f"Against rank 1 it is not told apart inside and outside: {told('shift')} points.",
        -1: f"Against rank 1 it does better inside than outside: {told('shift')} points.",
    }[sign(compared.shift)]


def _difference_table(compared: Contrasts) -> Table:
    rows: list[list[Scalar]] = []
    groups = {
        "inside less outside": compared.inside,
        "outside: G_ReLU less this family": compared.outer,
        "inside: G_ReLU less this family": compared.inner,
    }
    for what, intervals in groups.items():
        for family, one in intervals.items():
            rows.append([what, family, 100 * one.value, 100 * one.low, 100 * one.high])
    columns = ("difference", "family", "points", "low", "high")
    return Table(columns, rows, "Differences of mean penalties over layers, with 95 % intervals.")


def _figure(found: Penalties, places: Places) -> "Figure":
    from coset.figures import label_panel, new_figure

    figure = new_figure(8.2, 3.6)
    panels = figure.subplots(1, 2, sharey=True)
    titles = {"a": ("outside of blocks", places.outside), "b": ("inside of blocks", places.inside)}
    for axes, (letter, (title, layers)) in zip(panels, titles.items(), strict=True):
        draw_penalties(axes, at_layers(found, layers), FAMILIES, layers)
        axes.set_xlabel("layer")
        label_panel(axes, letter, title)
    panels[1].set_ylabel("")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names))
    return figure


def at_layers(found: Penalties, layers: Sequence[str]) -> Penalties:
    """Of some layers only."""
    rows = [found.layers.index(layer) for layer in layers]
    zeros, faint = (None if table is None else table[rows] for table in (found.sparsity, found.faint))
    return replace(
        found, layers=tuple(layers), lost=found.lost[rows], draws=found.draws[rows], sparsity=zeros, faint=faint
    )
