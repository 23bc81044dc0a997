"""Stitching penalties of families, layers and pairs: numbers, tables, a figure, and which family beats which."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from coset.study import Scalar, Table
from coset_studies.godfrey._contrasts import key_of, listed, points, sign, told
from coset_studies.godfrey._stitching import ENOUGH_PAIRS, Penalties

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES: Mapping[str, tuple[int, str]] = {
    "G_ReLU": (0, "o"),
    "full": (1, "s"),
    "rank 1": (2, "v"),
    "rank 2": (3, "D"),
    "rank 4": (4, "^"),
    "SoftSort": (5, "P"),
    "orthogonal": (3, "X"),
    "permutation": (5, "*"),
    "G_ReLU, α chosen": (5, "P"),
    "G_ReLU, α = 0.1": (0, "h"),
    "G_ReLU, random start": (1, "h"),
    "G_ReLU, least squares": (2, "p"),
}
"""The colour, by its place in the palette, and the mark of each family."""

INTERVALS = """
Intervals are of 95 %, Student's over pairs, with resamples of test images at once. Pairs that share networks count as
independent, so that for other networks these intervals are too narrow.
"""


def over_what(found: Penalties) -> str:
    """What intervals are over, as captions say it."""
    if len(found.pairs) >= ENOUGH_PAIRS:
        return "over pairs and images"
    return "over images, of one pair" if len(found.pairs) == 1 else f"over images, of {len(found.pairs)} pairs"


def penalty_numbers(found: Penalties) -> dict[str, Scalar]:
    """Penalties in percentage points as ``<family>_<layer>``, with ``_low`` and ``_high``; accuracy in percent."""
    numbers: dict[str, Scalar] = {"accuracy": 100 * found.accuracy, "pairs": len(found.pairs)}
    for layer in found.layers:
        for family in found.families:
            numbers |= points(f"{key_of(family)}_{key_of(layer)}", found.mean(layer, family))
    return numbers


def difference_numbers(found: Penalties, family: str, others: Sequence[str]) -> dict[str, Scalar]:
    """The penalty of ``family`` less that of others, in points, as ``<family>_less_<other>_<layer>``."""
    numbers: dict[str, Scalar] = {}
    for layer in found.layers:
        for other in others:
            name = f"{key_of(family)}_less_{key_of(other)}_{key_of(layer)}"
            numbers |= points(name, found.difference(layer, family, other))
    return numbers


def family_sentence(found: Penalties, family: str) -> str:
    """The penalty of a family at every layer; a template for ``penalty_numbers``."""
    parts = [f"{told(f'{key_of(family)}_{key_of(layer)}')} at {layer}" for layer in found.layers]
    return f"{family}: {', '.join(parts)}."


def beats(found: Penalties, family: str, other: str) -> dict[int, list[str]]:
    """The layers where ``family`` costs less (−1), more (1) and neither (0) than ``other``, by the interval of 95 %."""
    signs = {layer: sign(found.difference(layer, family, other)) for layer in found.layers}
    return {value: [layer for layer, each in signs.items() if each == value] for value in (-1, 0, 1)}


def beats_sentence(found: Penalties, family: str, other: str) -> str:
    """Where ``family`` beats ``other``, where it loses, and where that is not told apart."""
    where = beats(found, family, other)
    verbs = {-1: "costs less than", 1: "costs more than", 0: "is not told apart from"}
    if len(where[-1]) == len(found.layers) > 1:
        return f"{family} costs less than {other} at every layer."
    parts = [f"{verbs[value]} {other} at {listed(layers)}" for value, layers in where.items() if layers]
    return f"{family} {'; it '.join(parts)}."


def penalty_table(found: Penalties) -> Table:
    """A row for each layer and family: the mean over pairs with its interval, the range of pairs, the map's zeros."""
    rows: list[list[Scalar]] = []
    for i, layer in enumerate(found.layers):
        for j, family in enumerate(found.families):
            mean, each = found.mean(layer, family), found.values[i, j]
            cells = [mean.value, mean.low, mean.high, float(each.min()), float(each.max())]
            zeros = [] if found.sparsity is None else [float(found.sparsity[i, j].mean())]
            rows.append([layer, family, *(100 * cell for cell in cells), *zeros])
    columns = ["layer", "family", "penalty", "low", "high", "lowest", "highest"]
    caption = (
        "Accuracy that is lost, in percentage points: means with 95 % intervals, and the range of what is averaged."
    )
    if found.sparsity is None:
        return Table(columns, rows, caption)
    return Table([*columns, "sparsity"], rows, f"{caption} Sparsity: the share of a map's entries that are ≤ 0.001.")


def pair_table(found: Penalties) -> Table:
    """A row for each pair (below, above), or network, and layer; a column for each family."""
    rows: list[list[Scalar]] = []
    for number, (below, above) in enumerate(found.pairs):
        for i, layer in enumerate(found.layers):
            values = 100 * found.values[i, :, number]
            rows.append([_named(below, above), layer, *values.tolist()])
    return Table(("networks", "layer", *found.families), rows, "Penalties one by one, in percentage points.")


def _named(below: int, above: int) -> str:
    return f"{below} below {above}" if below != above else f"{below}"


def difference_table(found: Penalties, family: str, others: Sequence[str]) -> Table:
    """The penalty of ``family`` less that of each of ``others``."""
    rows: list[list[Scalar]] = []
    for layer in found.layers:
        for other in others:
            one = found.difference(layer, family, other)
            rows.append([layer, other, 100 * one.value, 100 * one.low, 100 * one.high])
    caption = f"The penalty of {family} less that of another family, in percentage points, with 95 % intervals."
    return Table(("layer", "other family", "difference", "low", "high"), rows, caption)


def draw_penalties(axes: "Axes", found: Penalties, families: Sequence[str], labels: Sequence[str]) -> None:
    """Penalties by layer, families side by side."""
    from coset.figures import PALETTE

    for number, family in enumerate(families):
        colour, mark = STYLES[family]
        means = [found.mean(layer, family) for layer in found.layers]
        places = [place + 0.12 * (number - (len(families) - 1) / 2) for place in range(len(means))]
        bars = [
            [100 * max(0.0, one.value - one.low) for one in means],
            [100 * max(0.0, one.high - one.value) for one in means],
        ]
        heights = [100 * one.value for one in means]
        label = family.replace("G_ReLU", "$G_{\\mathrm{ReLU}}$")
        axes.errorbar(places, heights, bars, ls="none", marker=mark, ms=5, color=PALETTE[colour], label=label)
    axes.axhline(0, color="black", lw=0.6)
    axes.set_xticks(range(len(labels)), labels)
    axes.set_xlim(-0.5, len(labels) - 0.5)
    axes.set_ylabel("penalty, percentage points")
