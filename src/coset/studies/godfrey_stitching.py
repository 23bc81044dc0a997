"""Stitching penalties of plain convolutional networks: full, low-rank and G_ReLU maps at several layers."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coset.studies import Context, Findings, study
from coset.studies._godfrey_contrasts import listed
from coset.studies._godfrey_plain import LAYERS, SIX_PAIRS, STITCHED, TRAINING, ZOOS, maps_sentence, networks_sentence
from coset.studies._godfrey_stitching import Penalties, Training, penalties
from coset.studies._godfrey_stitching_report import (
    INTERVALS,
    beats,
    beats_sentence,
    difference_numbers,
    difference_table,
    draw_penalties,
    family_sentence,
    pair_table,
    penalty_numbers,
    penalty_table,
)
from coset.studies._godfrey_zoo import Pairs, Zoo, chosen_pairs, load_networks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FAMILIES = ("full", "rank 1", "rank 2", "rank 4", "G_ReLU")
RANKS = ("rank 1", "rank 2", "rank 4")
FURTHER = ("G_ReLU", "SoftSort", "orthogonal")
"""Another way to the same maps (D.2.2), and the maps that CKA does not notice."""
FURTHER_PAIRS: dict[str, Pairs] = {"quick": SIX_PAIRS[:1], "small": SIX_PAIRS[:1], "paper": 32}


@dataclass(frozen=True)
class Config:
    """Maps between ``pairs`` of a zoo at ``layers``; those of ``FURTHER`` between ``further_pairs``."""

    zoo: Zoo
    layers: tuple[str, ...]
    pairs: Pairs
    further_pairs: Pairs
    training: Training


@study(
    name="godfrey-stitching",
    title="Stitching networks by full, low-rank and G_ReLU maps",
    reference="Godfrey et al. 2022, section 4, fig. 1 (Myrtle CNNs on CIFAR-10), appendices D.1 and D.2",
    paper="""
    Myrtle CNNs (91.4 %) of different seeds are stitched after each of four convolutions. Full maps lose 1.5, 1.5, 2.3
    and 2.3 points of accuracy, G_ReLU 8.1, 7.3, 16.5 and 5.6, rank 4 8.5, 13.5, 26.5 and 16, rank 1 42, 53.5, 57 and
    62: permutations with scales do better than maps of low rank. SoftSort gives results comparable to G_ReLU's.
    """,
    presets={
        preset: Config(ZOOS[preset], layers, STITCHED[preset], FURTHER_PAIRS[preset], TRAINING[preset])
        for preset, layers in LAYERS.items()
    },
)
def run(config: Config, context: Context) -> Findings:
    """Stitch all pairs."""
    pairs, further_pairs = (
        chosen_pairs(context, config.zoo, chosen) for chosen in (config.pairs, config.further_pairs)
    )
    networks = load_networks(context, config.zoo, {number for pair in (*pairs, *further_pairs) for number in pair})
    found = penalties(context, networks, config.layers, FAMILIES, pairs, config.training)
    further = penalties(context, networks, config.layers, FURTHER, further_pairs, config.training)
    numbers = penalty_numbers(found) | difference_numbers(found, "G_ReLU", RANKS)
    return Findings(
        numbers=numbers | {"further_pairs": len(further_pairs)} | _further_numbers(further),
        tables={
            "penalties": penalty_table(found),
            "differences": difference_table(found, "G_ReLU", RANKS),
            "pairs": pair_table(found),
            "further-families": penalty_table(further),
        },
        outcome=f"""
        Of an accuracy of {{accuracy:.1f}} %, so many percentage points are lost in the mean of {{pairs}} pairs.
        {" ".join(family_sentence(found, family) for family in FAMILIES)}

        {judge(found)}

        {_further(further)}

        {networks_sentence(config.zoo)} {maps_sentence(config.training, config.pairs)} {INTERVALS}
        """,
        figure=lambda: _figure(found, further),
        caption="Stitching penalties by layer: means over pairs with 95 % intervals over pairs and images, (a) for the "
        "families of the paper's figure, (b) for further ones on fewer pairs.",
    )


def judge(found: Penalties) -> str:
    """Whether G_ReLU beats rank 1 and 2, as in the paper."""
    ours = [beats_sentence(found, "G_ReLU", other) for other in RANKS]
    wins = {other: len(beats(found, "G_ReLU", other)[-1]) == len(found.layers) for other in RANKS}
    kept = [other for other in RANKS[:2] if wins[other]]
    if len(kept) == 2:
        verdict = "So G_ReLU beats rank 1 and rank 2 everywhere, as in the paper."
    elif kept:
        verdict = f"So G_ReLU beats {listed(kept)} everywhere, as in the paper, but not the other of the two."
    else:
        verdict = "So G_ReLU beats neither rank 1 nor rank 2 everywhere; in the paper it beats both."
    last = "That it beats rank 4 everywhere holds, too." if wins["rank 4"] else "In the paper it beats rank 4, too."
    return f"{' '.join(ours)} {verdict} {last}"


def _further_numbers(further: Penalties) -> dict[str, bool | int | float | str | None]:
    numbers = penalty_numbers(further) | difference_numbers(further, "SoftSort", ("G_ReLU",))
    return {f"further_{name}": value for name, value in numbers.items()}


def _further(further: Penalties) -> str:
    pairs = "one of the pairs" if len(further.pairs) == 1 else "{further_pairs} of the pairs"
    return (
        f"Further families, on {pairs}: {beats_sentence(further, 'SoftSort', 'G_ReLU')} In the paper they give "
        f"comparable results. Of orthogonal maps: {beats_sentence(further, 'orthogonal', 'G_ReLU')}"
    )


def _figure(found: Penalties, further: Penalties) -> "Figure":
    from coset.figures import label_panel, new_figure

    figure = new_figure(8.4, 3.6)
    panels = figure.subplots(1, 2, sharey=True, width_ratios=(5, 3.4))
    draw_penalties(panels[0], found, FAMILIES, found.layers)
    draw_penalties(panels[1], further, FURTHER, further.layers)
    panels[1].set_ylabel("")
    for axes, letter, one in zip(panels, "ab", (found, further), strict=True):
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=3)
        label_panel(axes, letter, f"{len(one.pairs)} pair{'s' * (len(one.pairs) > 1)}")
    return figure
