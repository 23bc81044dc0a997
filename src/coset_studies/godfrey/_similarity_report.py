"""Similarities of the layers of pairs of networks: numbers, tables, and a figure of curves and heat-maps."""

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from coset.represent import Interval
from coset.represent.similarity.kernels import spoken
from coset.study import Results, Scalar, Table
from coset_studies.godfrey._claims import number_in
from coset_studies.godfrey._penalties import heights_and_bars, layers_of
from coset_studies.godfrey._similarity import (
    CKA,
    GROUPS,
    KERNELS,
    MEASURES,
    PROCRUSTES,
    Similarities,
    percentiles,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

KINDS: Mapping[str, Collection[str]] = {"CKA": tuple(CKA), "Procrustes": tuple(PROCRUSTES)}
MATRICES = {measure: measure.lower().replace(" ", "-").replace("_", "-") for measure in CKA}
"""The table of all layers with all, by measure."""
MANY = 10
"""Layers."""
CAPTION = """
Similarities of the layers of two networks of different seeds, means over the pairs (thin lines: every pair) with 95 %
intervals over images, which say nothing of other networks. (a) CKA and (b) Procrustes, 1 − d. (c), (d) CKA of all
layers of the first network with all of the second: the max kernel modulo G_ReLU, the linear kernel modulo rotations.
"""


def word(text: str) -> str:
    """A name as part of a number's name."""
    return "".join(letter if letter.isalnum() else "_" for letter in text).lower()


def numbers_of(found: Similarities) -> dict[str, Scalar]:
    """Means over pairs as ``<measure>_<layer>``, and how much more CKA and Procrustes fall modulo G_ReLU."""
    numbers: dict[str, Scalar] = {"pairs": len(found.pairs), "layers": len(found.layers)}
    numbers |= {"first": found.layers[0], "last": found.layers[-1]}
    for measure in MEASURES:
        for number, layer in enumerate(found.layers):
            numbers[f"{word(measure)}_{word(layer)}"] = found.mean(measure, number).value
        numbers[f"{word(measure)}_first"] = found.mean(measure, 0).value
        numbers[f"{word(measure)}_last"] = found.mean(measure, len(found.layers) - 1).value
        numbers[f"{word(measure)}_fall"] = float(_fall(found.values[measure]).mean())
    for kind in KINDS:
        numbers |= ends(f"{word(kind)}_excess", excess_fall(found, kind))
        numbers[f"{word(kind)}_excess_pairs"] = pairs_with_excess(found, kind)
    for measure, matrices in found.matrices.items():
        numbers[f"{word(measure)}_matched"] = matched(matrices.mean(0))
    return numbers


def ends(name: str, interval: Interval) -> dict[str, Scalar]:
    """The interval under ``name``, ``name_low`` and ``name_high``."""
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def excess_fall(found: Similarities, kind: str) -> Interval:
    """How much more the similarity falls from the first layer to the last modulo G_ReLU than modulo rotations.

    The mean over pairs, with its interval over images. ``kind``: "CKA" or "Procrustes".
    """
    ours, other = (f"{group} {kind}" for group in GROUPS)
    value = float((_fall(found.values[ours]) - _fall(found.values[other])).mean())
    draws = (_fall(found.draws[ours].movedim(1, -1)) - _fall(found.draws[other].movedim(1, -1))).mean(0)
    return percentiles(value, draws)


def pairs_with_excess(found: Similarities, kind: str) -> int:
    """In how many pairs the similarity modulo G_ReLU falls more."""
    ours, other = (_fall(found.values[f"{group} {kind}"]) for group in GROUPS)
    return int((ours > other).sum())


def matched(matrix: Tensor) -> int:
    """For how many layers of the first network the most similar one of the second is the same."""
    return sum(int(row.argmax()) == number for number, row in enumerate(matrix))


def _fall(values: Tensor) -> Tensor:
    """From the first layer to the last, which are on the last axis."""
    return values[..., 0] - values[..., -1]


def layer_table(found: Similarities) -> Table:
    """A row for each layer and measure: the mean over pairs with its interval, and the range of several pairs."""
    rows: list[list[Scalar]] = []
    several = len(found.pairs) > 1
    for number, layer in enumerate(found.layers):
        for measure in MEASURES:
            mean, each = found.mean(measure, number), found.values[measure][:, number]
            range_of_pairs = [float(each.min()), float(each.max())] if several else []
            rows.append([layer, measure, mean.value, mean.low, mean.high, *range_of_pairs])
    if not several:
        caption = "Similarities with 95 % intervals over images."
        return Table(("layer", "measure", "similarity", "low", "high"), rows, caption)
    caption = "Similarities, means over pairs, with 95 % intervals over images, and the least and most similar pair."
    return Table(("layer", "measure", "mean", "low", "high", "lowest pair", "highest pair"), rows, caption)


def pair_table(found: Similarities) -> Table:
    """A row for each pair and layer, all measures with their intervals."""
    rows: list[list[Scalar]] = []
    for pair, (first, second) in enumerate(found.pairs):
        for number, layer in enumerate(found.layers):
            row: list[Scalar] = [f"{first} and {second}", layer]
            for measure in MEASURES:
                one = found.of_pair(measure, pair, number)
                row += [one.value, one.low, one.high]
            rows.append(row)
    columns = [name for measure in MEASURES for name in (measure, f"{measure}, low", f"{measure}, high")]
    return Table(("pair", "layer", *columns), rows, "Every pair, with 95 % intervals over images.")


def matrix_table(found: Similarities, measure: str) -> Table:
    """Layer × layer, the mean over pairs; both sides have the kernel of the measure's group."""
    rows = [[layer, *row.tolist()] for layer, row in zip(found.layers, found.matrices[measure].mean(0), strict=True)]
    caption = (
        f"{measure} of layers of the first network (rows) and the second (columns), the mean over pairs, with the "
        f"{spoken(KERNELS[CKA[measure]])} kernel on both sides."
    )
    return Table(("layer", *found.layers), rows, caption)


def tables_of(found: Similarities) -> dict[str, Table]:
    """All tables."""
    return {
        "layers": layer_table(found),
        "pairs": pair_table(found),
        **{name: matrix_table(found, measure) for measure, name in MATRICES.items()},
    }


def similarity_figure(results: Results) -> "Figure":
    """CKA and Procrustes by layer, and CKA of all layers with all."""
    from coset.figures import new_figure

    figure = new_figure(7.2, 6.2)
    panels = figure.subplots(2, 2)
    labels = [label.removeprefix("activation") for label in layers_of(results.tables["layers"])]
    for number, (kind, measures) in enumerate(KINDS.items()):
        _draw_curves(panels[0, number], "ab"[number], kind, measures, results, labels)
    images = [
        _draw_matrix(panels[1, number], "cd"[number], measure, results.tables[MATRICES[measure]], labels)
        for number, measure in enumerate(CKA)
    ]
    figure.colorbar(images[0], ax=list(panels[1]), shrink=0.8, label="CKA")
    return figure


def _draw_curves(
    axes: "Axes", letter: str, kind: str, measures: Collection[str], results: Results, labels: list[str]
) -> None:
    """Means over pairs with intervals over images, and every pair as a thin line."""
    from coset.figures import BLUE, VERMILION, label_panel

    table, pairs = results.tables["layers"], results.tables["pairs"]
    places = list(range(len(labels)))
    for measure, colour, mark in zip(measures, (BLUE, VERMILION), ("o", "s"), strict=True):
        column = pairs.columns.index(measure)
        for start in range(0, len(pairs.rows), len(labels)):
            thin = [number_in(row[column]) for row in pairs.rows[start : start + len(labels)]]
            axes.plot(places, thin, color=colour, lw=0.6, alpha=0.5)
        rows = [{"layer": layer, "measure": measure} for layer in layers_of(table)]
        heights, bars = heights_and_bars(table, rows, "mean" if "mean" in table.columns else "similarity")
        axes.errorbar(places, heights, bars, color=colour, marker=mark, label=_group_of(measure))
    _name_layers(axes.set_xticks, labels, turned=len(labels) > 6)
    axes.set_ylim(0, 1.02)
    axes.set_ylabel(f"{kind}{', 1 − d' if kind == 'Procrustes' else ''}")
    axes.legend(loc="lower left", title="modulo")
    label_panel(axes, letter, f"{kind} by layer")


def _name_layers(set_ticks: Callable[..., object], labels: list[str], turned: bool) -> None:
    """Names at an axis; of many layers those outside of blocks only."""
    if len(labels) > MANY:
        shown = [(place, name) for place, name in enumerate(labels) if not name.endswith("*")]
        set_ticks([place for place, _ in shown], [name for _, name in shown])
    elif turned:
        set_ticks(range(len(labels)), labels, rotation=45, ha="right")
    else:
        set_ticks(range(len(labels)), labels)


def _group_of(measure: str) -> str:
    return {"G_ReLU": "$G_{\\mathrm{ReLU}}$", "orthogonal": "rotations"}[measure.rsplit(" ", 1)[0]]


def _draw_matrix(axes: "Axes", letter: str, measure: str, table: Table, labels: list[str]) -> "AxesImage":
    """A heat-map with its numbers, if there is room for them."""
    from coset.figures import label_panel

    matrix = [[number_in(cell) for cell in row[1:]] for row in table.rows]
    image = axes.imshow(matrix, vmin=0, vmax=1, cmap="cividis")
    axes.grid(False)
    _name_layers(axes.set_xticks, labels, turned=True)
    _name_layers(axes.set_yticks, labels, turned=False)
    if len(labels) <= 8:
        for i, row in enumerate(matrix):
            for j, value in enumerate(row):
                colour = "white" if value < 0.55 else "black"
                axes.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=6.0, color=colour)
    axes.set_xlabel("second network")
    axes.set_ylabel("first network")
    label_panel(axes, letter, f"{_group_of(measure)}: CKA of all layers")
    return image
