"""Sparse stitching maps: the penalty against the sparsity that an ℓ1 term brings, beside G_ReLU's."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coset.study import Context, Findings, Scalar, study
from coset_studies.godfrey._contrasts import key_of, listed, sign
from coset_studies.godfrey._penalties import (
    difference_numbers,
    difference_table,
    over_what,
    pair_table,
    penalty_numbers,
    penalty_table,
)
from coset_studies.godfrey._plain import FEWER, LAYERS, TRAINING, ZOOS, maps_sentence, networks_sentence
from coset_studies.godfrey._setting import interval_sentence
from coset_studies.godfrey._stitching import Penalties, Training, penalties
from coset_studies.godfrey._zoo import Pairs, Zoo, chosen_pairs, load_networks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SPARSE = ("λ = 0.001", "λ = 0.01", "λ = 0.1")
FAMILIES = ("G_ReLU", *SPARSE)


@dataclass(frozen=True)
class Config:
    """Maps between ``pairs`` of a zoo at ``layers``."""

    zoo: Zoo
    layers: tuple[str, ...]
    pairs: Pairs
    training: Training


@study(
    name="godfrey-lasso",
    title="Sparse stitching maps beside G_ReLU",
    reference="Godfrey et al. 2022, appendix D.6, fig. 15 (Myrtle CNNs on CIFAR-10), (D.1)",
    paper="""
    Full maps trained with a penalty λ Σ|W|, λ = 0.001, 0.01 and 0.1, become sparse at the cost of accuracy. G_ReLU
    maps, whose sparsity is 1 − 1/n, have low penalties for their sparsity; at the last layer they nearly meet those of
    λ = 0.01.
    """,
    presets={
        preset: Config(ZOOS[preset], layers, FEWER[preset], TRAINING[preset]) for preset, layers in LAYERS.items()
    },
)
def run(config: Config, context: Context) -> Findings:
    """Stitch all pairs with each λ and with G_ReLU."""
    pairs = chosen_pairs(context, config.zoo, config.pairs)
    networks = load_networks(context, config.zoo, {number for pair in pairs for number in pair})
    found = penalties(context, networks, config.layers, FAMILIES, pairs, config.training)
    sparsities: dict[str, Scalar] = {
        f"sparsity_{key_of(family)}_{key_of(layer)}": sparsity_of(found, layer, family)
        for layer in found.layers
        for family in FAMILIES
    }
    return Findings(
        numbers=penalty_numbers(found) | difference_numbers(found, "G_ReLU", SPARSE) | sparsities,
        tables={
            "penalties": penalty_table(found),
            "differences": difference_table(found, "G_ReLU", SPARSE),
            "pairs": pair_table(found),
        },
        outcome=f"""
        {" ".join(_layer_sentence(found, layer) for layer in found.layers)}

        {judge(found)} {judge_last(found)} {EARLIER if config.zoo.recipe is None else ""}

        {networks_sentence(config.zoo)} {maps_sentence(config.training, config.pairs)} {interval_sentence(found)}
        """,
        figure=lambda: _figure(found),
        caption="Stitching penalty against the sparsity of the map (entries of at most 0.001) with 95 % intervals "
        f"{over_what(found)}, a panel for each layer.",
    )


def sparsity_of(found: Penalties, layer: str, family: str) -> float:
    """The mean over pairs."""
    assert found.sparsity is not None
    return float(found.sparsity[found.layers.index(layer), found.families.index(family)].mean())


def judge(found: Penalties) -> str:
    """Whether a sparse map is both as sparse as G_ReLU's and cheaper, which the paper does not find."""
    rivals = {layer: [family for family in SPARSE if _as_sparse(found, layer, family)] for layer in found.layers}
    cheaper = [
        f"{family} at {layer}"
        for layer, families in rivals.items()
        for family in families
        if sign(found.difference(layer, "G_ReLU", family)) > 0
    ]
    dearer = [
        f"{family} at {layer}"
        for layer in found.layers
        for family in SPARSE
        if not _as_sparse(found, layer, family) and sign(found.difference(layer, "G_ReLU", family)) < 0
    ]
    if cheaper:
        first = (
            f"As sparse as G_ReLU's map and cheaper by more than the uncertainty: {listed(cheaper)}; so G_ReLU does "
            f"not everywhere have the lowest penalty for its sparsity."
        )
    elif any(rivals.values()):
        first = (
            "Where a map is as sparse as G_ReLU's, it is not cheaper by more than the uncertainty: G_ReLU has low "
            "penalties for its sparsity, as in the paper."
        )
    else:
        first = f"No λ makes maps as sparse as G_ReLU's, so that at its sparsity nothing is compared. {_nearest(found)}"
    if not dearer:
        return f"{first} No map is less sparse and dearer by more than the uncertainty."
    return f"{first} Less sparse and yet dearer than G_ReLU by more than the uncertainty: {listed(dearer)}."


EARLIER = """
A run of this preset was seen before, with one pair, 1,000 train and 2,000 test images, at relu3, relu5, relu6 and
relu8.
"""


def judge_last(found: Penalties) -> str:
    """Whether G_ReLU and λ = 0.01 nearly meet at the last layer, as in the paper."""
    layer, family = found.layers[-1], "λ = 0.01"
    one = found.difference(layer, "G_ReLU", family)
    words = {-1: "G_ReLU costs less", 0: "they are not told apart", 1: "G_ReLU costs more"}
    return (
        f"In the paper G_ReLU and {family} nearly meet at the last layer; at {layer} {words[sign(one)]}, with a "
        f"difference of {100 * one.value:.1f} [{100 * one.low:.1f}, {100 * one.high:.1f}] points, at sparsities of "
        f"{sparsity_of(found, layer, 'G_ReLU'):.2f} and {sparsity_of(found, layer, family):.2f}."
    )


def _nearest(found: Penalties) -> str:
    """The map that comes nearest to the sparsity of G_ReLU, and what it costs."""
    gaps = {
        (layer, family): sparsity_of(found, layer, "G_ReLU") - sparsity_of(found, layer, family)
        for layer in found.layers
        for family in SPARSE
    }
    layer, family = min(gaps, key=lambda key: gaps[key])
    words = {-1: "costs more than", 0: "is not told apart from", 1: "costs less than"}
    cost = words[sign(found.difference(layer, "G_ReLU", family))]
    return f"The sparsest beside it, {family} at {layer}, {cost} G_ReLU."


def _as_sparse(found: Penalties, layer: str, family: str) -> bool:
    return sparsity_of(found, layer, family) >= sparsity_of(found, layer, "G_ReLU")


def _layer_sentence(found: Penalties, layer: str) -> str:
    parts = [
        f"{{{key_of(family)}_{key_of(layer)}:.1f}} ({{sparsity_{key_of(family)}_{key_of(layer)}:.2f}}) for {family}"
        for family in FAMILIES
    ]
    return f"At {layer} the penalty in percentage points (and the sparsity) is {', '.join(parts)}."


def _figure(found: Penalties) -> "Figure":
    from coset.figures import label_panel, new_figure

    figure = new_figure(8.6, 3.2)
    panels = figure.subplots(1, len(found.layers), sharey=True, squeeze=False)[0]
    for number, (axes, layer) in enumerate(zip(panels, found.layers, strict=True)):
        _draw(axes, found, layer)
        label_panel(axes, "abcdefgh"[number], layer)
    panels[0].set_ylabel("penalty, percentage points")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(FAMILIES))
    return figure


def _draw(axes: "Axes", found: Penalties, layer: str) -> None:
    from coset.figures import PALETTE

    for family, colour, mark in zip(FAMILIES, PALETTE, ("o", "v", "D", "^"), strict=False):
        one = found.mean(layer, family)
        bars = [[100 * max(0.0, one.value - one.low)], [100 * max(0.0, one.high - one.value)]]
        label = family.replace("G_ReLU", "$G_{\\mathrm{ReLU}}$")
        place = sparsity_of(found, layer, family)
        axes.errorbar([place], [100 * one.value], bars, ls="none", marker=mark, ms=5, color=colour, label=label)
    axes.axhline(0, color="black", lw=0.6)
    axes.set_xlim(-0.05, 1.05)
    axes.set_xlabel("sparsity")
