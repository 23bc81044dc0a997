"""Stitching penalties of plain convolutional networks: full, low-rank and G_ReLU maps at several layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from coset.study import Claim, Context, Estimate, Findings, Results, Scalar, study
from coset.study.estimates import greatest, least
from coset_studies.godfrey._claims import OVER_PAIRS, SIZED, STUDENT, by_layer, differences_of_pairs, sizes
from coset_studies.godfrey._penalties import (
    difference_numbers,
    difference_table,
    draw_penalties,
    layers_of,
    pair_table,
    penalty_numbers,
    penalty_table,
)
from coset_studies.godfrey._plain import FEWER, LAYERS, MAPS, NETWORKS, STITCHED, TRAINING, ZOOS
from coset_studies.godfrey._stitching import VARIANTS, Penalties, Training, changed_rows, penalties, stitched
from coset_studies.godfrey._zoo import Networks, Pairs, Zoo, chosen_pairs, load_networks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FAMILIES = ("full", "rank 1", "rank 2", "rank 4", "G_ReLU")
RANKS = ("rank 1", "rank 2", "rank 4")
FURTHER = ("G_ReLU", "SoftSort", "orthogonal")
"""Another way to the same maps (D.2.2), and the maps that CKA does not notice."""
AT_RANDOM, UNTRAINED = VARIANTS


@dataclass(frozen=True)
class Config:
    """Maps between ``pairs`` of a zoo at ``layers``; those of ``FURTHER`` between ``further_pairs``."""

    zoo: Zoo
    layers: tuple[str, ...]
    pairs: Pairs
    further_pairs: Pairs
    training: Training

    @property
    def further(self) -> tuple[str, ...]:
        """Further families; where maps begin at the least-squares one, also those that tell what this does."""
        return FURTHER if self.training.start == "random" else (*FURTHER, AT_RANDOM, UNTRAINED)


COMPARABLE = 3.0
"""Points."""


def _less(results: Results, rank: str) -> Estimate | None:
    """G_ReLU less a rank at the layer where it does worst against it."""
    return greatest(list(by_layer(results, "differences", "difference", {"other family": rank}).values()))


def _softsort(results: Results) -> Estimate | None:
    found = by_layer(results, "further-differences", "difference", {"other family": "SoftSort"})
    return greatest(sizes(list(found.values())))


def _beats(rank: str, published: float | None) -> Claim:
    return Claim(
        paper=f"G_ReLU maps do better than maps of {rank} at every layer.",
        source="section 4, fig. 1",
        statistic=f"penalty of G_ReLU less {rank}, points, the greatest of the layers",
        direction="below",
        published=published,
        threshold=0.0,
        reason=SIZED,
        interval=STUDENT,
        estimate=lambda results: _less(results, rank),
    )


CLAIMS = (
    _beats("rank 1", -33.9),
    _beats("rank 2", None),
    _beats("rank 4", -0.4),
    Claim(
        paper="Full maps lose less than G_ReLU maps at every layer.",
        source="section 4, fig. 1",
        statistic="penalty of G_ReLU less full maps, points, the least of the layers",
        direction="above",
        published=3.3,
        threshold=0.0,
        reason=SIZED,
        interval=f"Of full maps: {OVER_PAIRS[0].lower()}{OVER_PAIRS[1:]}",
        estimate=lambda results: least(differences_of_pairs(results, "G_ReLU", "full")),
    ),
    Claim(
        paper="SoftSort gives results comparable to those of G_ReLU.",
        source="D.2.2",
        statistic="penalties of G_ReLU and SoftSort, points apart, the greatest of the layers",
        direction="below",
        threshold=COMPARABLE,
        reason="The paper has no number. Set when the run was known.",
        interval=STUDENT,
        possible=(0.0, 100.0),
        estimate=_softsort,
    ),
)
TEXT = f"""
G_ReLU loses {{g_relu_relu2:.0f}}, {{g_relu_relu4:.0f}}, {{g_relu_relu6:.0f}} and {{g_relu_relu8:.1f}} points of
{{accuracy:.1f}} %, full maps {{full_relu2:.1f}}, {{full_relu4:.1f}}, {{full_relu6:.1f}} and {{full_relu8:.1f}}. It
beats rank 1 at every layer, rank 2 from relu4 on and rank 4 at relu8. At the other layers rank 4 beats it: the
narrower a layer, the larger a part of all maps has rank 4, and these networks have 16 to 64 channels where the
paper's have 64 to 512.

Orthogonal maps, which CKA modulo rotations does not notice, lose much less than G_ReLU:
{{further_orthogonal_relu2:.1f}}, {{further_orthogonal_relu4:.1f}}, {{further_orthogonal_relu6:.1f}} and
{{further_orthogonal_relu8:.1f}} points.

G_ReLU maps begin at the least-squares permutation. Training gives {{moved:.0f}} % of the units another partner and
does not lower the penalty by more than the uncertainty. Maps that begin at random, as in the paper, lose more at
relu6 ({{further_g_relu__random_start_relu6:.0f}} points); at the other layers the two are not told apart.

{NETWORKS}

{MAPS}
Six pairs of four networks are stitched, three by the families of (b); the paper has 32 pairs of a hundred
networks. The preset was made larger when a run with three pairs had been seen.
"""


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
        preset: Config(ZOOS[preset], layers, STITCHED[preset], FEWER[preset], TRAINING[preset])
        for preset, layers in LAYERS.items()
    },
    claims=CLAIMS,
    text={"small": TEXT},
    tables={"differences": "The penalty of G_ReLU less that of another family in percentage points, 95 % intervals."},
    figure=lambda results: _figure(results),
    caption="""
    Stitching penalties by layer with 95 % intervals over pairs and images: (a) full, low-rank and G_ReLU maps; (b)
    other families and other starts of G_ReLU, of fewer pairs.
    """,
)
def run(config: Config, context: Context) -> Findings:
    """Stitch all pairs."""
    pairs = chosen_pairs(context, config.zoo, config.pairs)
    others = chosen_pairs(context, config.zoo, config.further_pairs)
    networks = load_networks(context, config.zoo, {number for pair in (*pairs, *others) for number in pair})
    found = penalties(context, networks, config.layers, FAMILIES, pairs, config.training)
    further = penalties(context, networks, config.layers, config.further, others, config.training)
    moved = _moved(context, networks, config, pairs)
    return Findings(
        numbers=penalty_numbers(found)
        | difference_numbers(found, "G_ReLU", RANKS)
        | _further_numbers(further)
        | {"moved": moved, "faint": _faint(found)},
        tables={
            "penalties": penalty_table(found),
            "differences": difference_table(found, "G_ReLU", RANKS),
            "pairs": pair_table(found),
            "further-families": penalty_table(further),
            "further-differences": difference_table(further, "G_ReLU", further.families[1:]),
        },
    )


def _moved(context: Context, networks: Networks, config: Config, pairs: Sequence[tuple[int, int]]) -> float | None:
    """The mean share of units that training from the least-squares permutation gave another partner; None: not so."""
    if config.training.start == "random":
        return None
    changes = []
    for pair, layer in product(pairs, config.layers):
        trained, start = (
            stitched(context, networks, pair, layer, family, config.training) for family in ("G_ReLU", UNTRAINED)
        )
        changes.append(changed_rows(trained, start))
    return 100 * sum(changes) / len(changes)


def _faint(found: Penalties) -> int:
    """How many units of all G_ReLU maps together have a scale of at most 0.001."""
    assert found.faint is not None
    return int(found.faint[:, found.families.index("G_ReLU")].sum())


def _further_numbers(further: Penalties) -> dict[str, Scalar]:
    numbers = penalty_numbers(further)
    for family in further.families[1:]:
        numbers |= difference_numbers(further, family, ("G_ReLU",))
    return {f"further_{name}": value for name, value in numbers.items()}


def _figure(results: Results) -> "Figure":
    from coset.figures import label_panel, new_figure

    figure = new_figure(9.4, 3.8)
    panels = figure.subplots(1, 2, sharey=True)
    shown = (
        ("penalties", FAMILIES, "families"),
        ("further-families", (*FURTHER, *VARIANTS), "other families and starts"),
    )
    for axes, letter, (name, families, title) in zip(panels, "ab", shown, strict=True):
        table = results.tables[name]
        known = [family for family in families if any(row[1] == family for row in table.rows)]
        draw_penalties(axes, table, known, layers_of(table))
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=3)
        label_panel(axes, letter, title)
    panels[1].set_ylabel("")
    return figure
