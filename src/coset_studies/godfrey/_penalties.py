"""Stitching penalties of families, layers and pairs: numbers, tables and curves; sums over layers and families."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from coset.represent import Interval
from coset.study import Scalar, Table
from coset_studies.godfrey._claims import number_in
from coset_studies.godfrey._similarity import percentiles
from coset_studies.godfrey._stitching import Penalties

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Weighted = Mapping[tuple[str, str], float]
"""Weights of the penalties by layer and family."""
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
    "G_ReLU, α = 0.1": (6, "h"),
    "G_ReLU, random start": (1, "h"),
    "G_ReLU, least squares": (2, "p"),
}
"""The colour, by its place in the palette and behind it grey, and the mark of each family."""


def average(layers: Sequence[str], family: str) -> dict[tuple[str, str], float]:
    """The mean penalty of a family over layers."""
    return {(layer, family): 1 / len(layers) for layer in layers}


def minus(one: Weighted, other: Weighted) -> dict[tuple[str, str], float]:
    """The difference of two sums."""
    return {key: one.get(key, 0.0) - other.get(key, 0.0) for key in {**one, **other}}


def contrast(found: Penalties, weights: Weighted) -> Interval:
    """The weighted sum of penalties, with its interval over pairs and images: one resample for all that is summed."""
    table = torch.zeros(len(found.layers), len(found.families), dtype=torch.float64)
    for (layer, family), weight in weights.items():
        table[found.layers.index(layer), found.families.index(family)] += weight
    value = float((table * found.lost.mean((-2, -1))).sum())
    return percentiles(value, torch.einsum("lf,lfb->b", table, found.draws))


def points(name: str, interval: Interval) -> dict[str, Scalar]:
    """The interval in percentage points under ``name``, ``name_low`` and ``name_high``."""
    parts = {"": interval.value, "_low": interval.low, "_high": interval.high}
    return {f"{name}{part}": 100 * value for part, value in parts.items()}


def key_of(family: str) -> str:
    """A family's name as part of the name of a number."""
    return "".join(letter if letter.isalnum() else "_" for letter in family).lower()


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


def layers_of(table: Table) -> list[str]:
    """The layers of ``penalty_table`` in their order."""
    return list(dict.fromkeys(str(row[0]) for row in table.rows))


def draw_penalties(axes: "Axes", table: Table, families: Sequence[str], layers: Sequence[str]) -> None:
    """Penalties of ``penalty_table`` by layer, families side by side."""
    from coset.figures import GREY, PALETTE

    for number, family in enumerate(families):
        colour, mark = STYLES[family]
        places = [place + 0.12 * (number - (len(families) - 1) / 2) for place in range(len(layers))]
        heights, bars = heights_and_bars(table, [{"layer": layer, "family": family} for layer in layers], "penalty")
        label = family.replace("G_ReLU", "$G_{\\mathrm{ReLU}}$")
        axes.errorbar(places, heights, bars, ls="none", marker=mark, ms=5, color=(*PALETTE, GREY)[colour], label=label)
    axes.axhline(0, color="black", lw=0.6)
    axes.set_xticks(range(len(layers)), list(layers))
    axes.set_xlim(-0.5, len(layers) - 0.5)
    axes.set_ylabel("penalty, percentage points")


def heights_and_bars(
    table: Table, rows: Sequence[Mapping[str, Scalar]], column: str
) -> tuple[list[float], list[list[float]]]:
    """Numbers under ``column``, and how far "low" and "high" are from them."""
    cells = {name: [number_in(table.cell(name, row)) for row in rows] for name in (column, "low", "high")}
    pairs = zip(cells[column], cells["low"], cells["high"], strict=True)
    # A percentile interval need not hold the value.
    bars = [(max(0.0, value - low), max(0.0, high - value)) for value, low, high in pairs]
    return cells[column], [list(side) for side in zip(*bars, strict=True)]
