"""Similarities of the layers of pairs of networks: numbers, tables, curves and heat-maps, and what they say."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from coset.represent import Interval
from coset.represent.similarity.kernels import spoken
from coset.study import Scalar, Table
from coset_studies.godfrey._similarity import (
    CKA,
    GROUPS,
    KERNELS,
    MEASURES,
    PROCRUSTES,
    Measuring,
    Similarities,
    percentiles,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

_KERNELS = {measure: spoken(KERNELS[group]) for measure, group in CKA.items()}
"""What people call the kernel of each kind of CKA."""
KINDS: Mapping[str, Collection[str]] = {"CKA": tuple(CKA), "Procrustes": tuple(PROCRUSTES)}


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
        excess = excess_fall(found, kind)
        numbers |= {f"{word(kind)}_excess{end}": getattr(excess, name) for end, name in _ENDS.items()}
        numbers[f"{word(kind)}_excess_pairs"] = pairs_with_excess(found, kind)
    for measure, matrices in found.matrices.items():
        numbers[f"{word(measure)}_matched"] = matched(matrices.mean(0))
    return numbers


_ENDS = {"": "value", "_low": "low", "_high": "high"}


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


def fall_sentence(found: Similarities, kind: str) -> str:
    """Whether the similarity modulo G_ReLU falls more with depth, as in the paper; a template for ``numbers_of``."""
    excess, agree = excess_fall(found, kind), pairs_with_excess(found, kind)
    name = word(kind)
    told = (
        f"From {{first}} to {{last}} {kind} falls by {{g_relu_{name}_fall:.3f}} modulo G_ReLU and by "
        f"{{orthogonal_{name}_fall:.3f}} modulo rotations; the difference is {{{name}_excess:.3f}} "
        f"({{{name}_excess_low:.3f}} to {{{name}_excess_high:.3f}})"
    )
    several = f" in the mean of the pairs, and above 0 in {{{name}_excess_pairs}} of {{pairs}}."
    told += several if _several(found) else "."
    if excess.low > 0 and agree == len(found.pairs):
        return f"{told} So it decays more with depth modulo G_ReLU."
    if excess.high < 0 and agree == 0:
        return f"{told} So it decays less with depth modulo G_ReLU."
    return f"{told} That does not tell which of them decays more."


def matrix_sentence(found: Similarities) -> str:
    """Whether layers know each other again; a template for ``numbers_of``."""
    return (
        f"{'In the mean of the pairs, the' if _several(found) else 'The'} layer of the second network that is most "
        f"similar to one of the first is the same for {{g_relu_cka_matched}} of {{layers}} layers by G_ReLU CKA and "
        f"for {{orthogonal_cka_matched}} by orthogonal CKA."
    )


def _several(found: Similarities) -> bool:
    return len(found.pairs) > 1


def how_sentence(found: Similarities, how: Measuring, images: int) -> str:
    """What the intervals are."""
    several = _several(found)
    what = f"the mean of {len(found.pairs)} pairs and for each pair" if several else "one pair"
    return (
        f"All is measured on {images:,} test images in batches of {how.batch}: HSIC without bias, averaged over "
        f"batches with one ratio at the end, and Procrustes of all images (in the paper all are of the whole test set "
        f"at once). Intervals are 95 % bootstrap percentiles "
        f"over batches of images, for {what}; they say nothing about other networks. The Procrustes distance is the "
        f"least over the group; its resamples are measured with the matching or rotation that all images have, since "
        f"one found anew would fit each resample's own noise."
        f"{' How far pairs differ is told beside them.' if several else ''}"
    )


def layer_table(found: Similarities) -> Table:
    """A row for each layer and measure: the mean over pairs with its interval, and the range of several pairs."""
    rows: list[list[Scalar]] = []
    several = _several(found)
    for number, layer in enumerate(found.layers):
        for measure in MEASURES:
            mean, each = found.mean(measure, number), found.values[measure][:, number]
            ends = [float(each.min()), float(each.max())] if several else []
            rows.append([layer, measure, mean.value, mean.low, mean.high, *ends])
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
    mean = ", the mean over pairs" if _several(found) else ""
    caption = (
        f"{measure} of layers of the first network (rows) and the second (columns){mean}, with the {_KERNELS[measure]} "
        f"kernel on both sides."
    )
    return Table(("layer", *found.layers), rows, caption)


def tables_of(found: Similarities) -> dict[str, Table]:
    """All tables."""
    matrices = {f"{measure.lower().replace(' ', '-').replace('_', '-')}": measure for measure in CKA}
    return {
        "layers": layer_table(found),
        "pairs": pair_table(found),
        **{name: matrix_table(found, measure) for name, measure in matrices.items()},
    }


def similarity_caption(found: Similarities, whose: str) -> str:
    """What ``similarity_figure`` shows of the layers ``whose``."""
    several = _several(found)
    means = "means over pairs with 95 % intervals over images (thin lines: every pair)"
    kernels = " and ".join(f"the {kernel} kernel modulo {_modulo(measure)}" for measure, kernel in _KERNELS.items())
    return (
        f"Similarities of the layers of {whose}: {means if several else 'one pair, with 95 % intervals over images'}; "
        f"and CKA of all layers with all others{', the mean over pairs' if several else ''}, on both sides with "
        f"{kernels}."
    )


def _modulo(measure: str) -> str:
    return {"G_ReLU": "G_ReLU", "orthogonal": "rotations"}[measure.rsplit(" ", 1)[0]]


def similarity_figure(found: Similarities, marked: Collection[str] = ()) -> "Figure":
    """CKA and Procrustes by layer, and CKA of all layers with all; ``marked`` layers have a star."""
    from coset.figures import new_figure

    labels = [f"{layer}*" if layer in marked else layer for layer in found.layers]
    figure = new_figure(8.4, 6.8)
    panels = figure.subplots(2, 2)
    for number, (kind, measures) in enumerate(KINDS.items()):
        draw_curves(panels[0, number], "ab"[number], kind, measures, found, labels)
    images = [
        draw_matrix(panels[1, number], "cd"[number], measure, found.matrices[measure].mean(0), labels)
        for number, measure in enumerate(CKA)
    ]
    figure.colorbar(images[0], ax=list(panels[1]), shrink=0.8, label="CKA")
    return figure


def draw_curves(
    axes: "Axes", letter: str, kind: str, measures: Collection[str], found: Similarities, labels: list[str]
) -> None:
    """Means over pairs with intervals over images, and every pair as a thin line."""
    from coset.figures import BLUE, VERMILION, label_panel

    places = list(range(len(labels)))
    for measure, colour, mark in zip(measures, (BLUE, VERMILION), ("o", "s"), strict=True):
        for values in found.values[measure]:
            axes.plot(places, values.tolist(), color=colour, lw=0.6, alpha=0.5)
        means = [found.mean(measure, number) for number in places]
        bars = [[one.value - one.low for one in means], [one.high - one.value for one in means]]
        heights = [one.value for one in means]
        axes.errorbar(places, heights, _positive(bars), color=colour, marker=mark, label=_group_of(measure))
    axes.set_xticks(places, labels, rotation=45 if len(labels) > 6 else 0, ha="right" if len(labels) > 6 else "center")
    axes.set_ylim(0, 1.02)
    axes.set_ylabel(f"{kind}{', 1 − d' if kind == 'Procrustes' else ''}")
    axes.legend(loc="lower left", title="modulo")
    label_panel(axes, letter, f"{kind} by layer")


def _positive(bars: list[list[float]]) -> list[list[float]]:
    # A percentile interval need not hold the value.
    return [[max(0.0, length) for length in side] for side in bars]


def _group_of(measure: str) -> str:
    return {"G_ReLU": "$G_{\\mathrm{ReLU}}$", "orthogonal": "rotations"}[measure.rsplit(" ", 1)[0]]


def draw_matrix(axes: "Axes", letter: str, measure: str, matrix: Tensor, labels: list[str]) -> "AxesImage":
    """A heat-map with its numbers, if there is room for them."""
    from coset.figures import label_panel

    image = axes.imshow(matrix.tolist(), vmin=0, vmax=1, cmap="cividis")
    axes.grid(False)
    places = list(range(len(labels)))
    axes.set_xticks(places, labels, rotation=45, ha="right")
    axes.set_yticks(places, labels)
    if len(labels) <= 8:
        for i, row in enumerate(matrix.tolist()):
            for j, value in enumerate(row):
                colour = "white" if value < 0.55 else "black"
                axes.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=6.5, color=colour)
    axes.set_xlabel("second network")
    axes.set_ylabel("first network")
    label_panel(axes, letter, f"{_group_of(measure)}: CKA of all layers")
    return image
