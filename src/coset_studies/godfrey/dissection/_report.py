"""Interpretable units against the power of a rotation: means over networks with intervals, tables, figure."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from coset.represent.dissection import SHARE
from coset.study import Results, Scalar, Table
from coset_studies.godfrey.dissection._measured import Found

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEVEL = 0.95
CATEGORIES = ("class", "colour", "shape", "texture")
_MARKERS = "osD^vP"
_HATCHES = ("", "//", "..", "xx")


@dataclass(frozen=True)
class Mean:
    """A mean over networks with Student's interval, ``low`` to ``high``; None for a single network, which has none."""

    value: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.1f}"
        # An end that is near 0 is told with the digits that say on which side it lies.
        near = min((abs(end) for end in (self.low, self.high) if end != 0), default=1.0)
        digits = next((digits for digits in (1, 2, 3) if near >= 0.5 * 10**-digits), 4)
        return f"{self.value:.1f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


def mean_of(values: Tensor) -> Mean:
    """The mean of (networks,) values: mean ± t·s/√n, with t of n − 1 degrees of freedom."""
    return _interval(float(values.mean()), *_spread([values]))


def difference(one: Tensor, other: Tensor) -> Mean:
    """The difference of the means of two groups of networks, with Welch's interval."""
    return _interval(float(one.mean() - other.mean()), *_spread([one, other]))


def _spread(groups: Sequence[Tensor]) -> tuple[float, float]:
    """Standard error and degrees of freedom (Welch and Satterthwaite); no degrees where a group is a single one."""
    if min(len(group) for group in groups) < 2:
        return 0.0, 0.0
    parts = [float(group.var()) / len(group) for group in groups]
    total = sum(parts)
    if total == 0:
        return 0.0, math.inf
    return math.sqrt(total), total**2 / sum(p**2 / (len(g) - 1) for p, g in zip(parts, groups, strict=True))


def _interval(value: float, error: float, freedom: float) -> Mean:
    # SciPy's distributions take a while to import, and a listing of the studies does not need them.
    from scipy.special import stdtrit

    if freedom == 0:
        return Mean(value, None, None)
    reach = error * float(stdtrit(freedom, (1 + LEVEL) / 2)) if error else 0.0
    return Mean(value, value - reach, value + reach)


@dataclass(frozen=True, eq=False)
class Curve:
    """What is compared: the units of some layers of several networks.

    ``percent`` (networks, powers): interpretable units, of all layers together, means over rotations.
    ``unique[category]`` (networks, powers): different concepts, means over rotations and layers.
    """

    powers: tuple[float, ...]
    percent: Tensor
    unique: Mapping[str, Tensor]
    units: int

    @property
    def change(self) -> Tensor:
        """From the units to the whole rotation, in points, (networks,)."""
        return self.percent[:, -1] - self.percent[:, 0]


def curve(layers: Mapping[str, tuple[Found, ...]], powers: tuple[float, ...]) -> Curve:
    """The layers of each network counted together."""
    networks = range(len(next(iter(layers.values()))))
    percent, unique = [], {category: list[Tensor]() for category in CATEGORIES}
    for number in networks:
        found = [each[number] for each in layers.values()]
        percent.append(100 * torch.cat([one.interpretable.double() for one in found], -1).mean((0, -1)))
        for category in CATEGORIES:
            unique[category].append(torch.stack([one.unique(category).mean(0) for one in found]).mean(0))
    units = sum(each[0].units for each in layers.values())
    return Curve(powers, torch.stack(percent), {name: torch.stack(each) for name, each in unique.items()}, units)


def curves_table(curves: Mapping[str, Curve]) -> Table:
    """A row for each place and power."""
    rows: list[list[Scalar]] = []
    for label, item in curves.items():
        for place, power in enumerate(item.powers):
            found = mean_of(item.percent[:, place])
            concepts = [float(item.unique[category][:, place].mean()) for category in CATEGORIES]
            rows.append([label, power, found.value, found.low, found.high, sum(concepts), *concepts])
    columns = ("where", "power", "interpretable, %", "low", "high", "different concepts", *CATEGORIES)
    caption = (
        "Interpretable units in the basis Q^t, means over networks and rotations with 95 % intervals over networks; "
        "different concepts among them, means over layers."
    )
    return Table(columns, rows, caption)


def layers_table(found: Mapping[str, Mapping[str, tuple[Found, ...]]], powers: tuple[float, ...]) -> Table:
    """A row for each layer: both ends, and the change."""
    rows: list[list[Scalar]] = []
    for label, layers in found.items():
        for layer, each in layers.items():
            item = curve({layer: each}, powers)
            ends = [float(item.percent[:, place].mean()) for place in (0, -1)]
            concepts = [float(sum(item.unique[name][:, place].mean() for name in CATEGORIES)) for place in (0, -1)]
            best = [float(torch.stack([one.iou[:, place].amax(-1).mean() for one in each]).mean()) for place in (0, -1)]
            change = mean_of(item.change)
            rows.append([label, layer, item.units, *ends, change.value, change.low, change.high, *concepts, *best])
    columns = (
        "where",
        "layer",
        "units",
        "% in the units",
        "% rotated",
        "change",
        "low",
        "high",
        "concepts in the units",
        "rotated",
        "mean best IoU in the units",
        "rotated IoU",
    )
    return Table(columns, rows, "Every layer in the basis of units and fully rotated; changes in points.")


def concepts_table(found: Mapping[str, Mapping[str, tuple[Found, ...]]]) -> Table:
    """A row for each concept: how common it is, and how many units have it, by place."""
    first = next(each[0] for layers in found.values() for each in layers.values())
    rows: list[list[Scalar]] = []
    for concept, share, ceiling in zip(first.concepts, first.shares, first.ceilings, strict=True):
        counts: list[Scalar] = []
        for layers in found.values():
            for place in (0, -1):
                counts.append(sum(_units_with(each, concept.name, place) for each in layers.values()))
        rows.append([concept.name, concept.category, 100 * share, ceiling, *counts])
    columns = [f"{label}, {end}" for label in found for end in ("units", "rotated")]
    caption = (
        f"Concepts: the share of the pixels of annotated images, the IoU that a map on {100 * SHARE:g} % of the pixels "
        f"of all images can reach, and how many units of a network have the concept, means over networks and rotations."
    )
    return Table(("concept", "category", "% of pixels", "highest IoU", *columns), rows, caption)


def _units_with(each: Sequence[Found], name: str, place: int) -> float:
    total = 0.0
    for one in each:
        # Networks on different images may have different concepts.
        number = next((number for number, concept in enumerate(one.concepts) if concept.name == name), None)
        if number is not None:
            labelled = one.interpretable[:, place] & (one.iou[:, place].argmax(-1) == number)
            total += float(labelled.double().sum(-1).mean())
    return total / len(each)


PANELS = {
    "plain networks": ("plain, after ReLU", "plain, before ReLU"),
    "residual networks": (
        "ReLU on outputs: outputs",
        "none on outputs: outputs",
        "ReLU on outputs: inside blocks",
        "none on outputs: inside blocks",
    ),
}
BARS = ("plain, after ReLU", "plain, before ReLU", "ReLU on outputs: outputs", "none on outputs: outputs")


def figure_of(results: Results) -> "Figure":
    """Interpretable units by power above, different concepts below."""
    from coset.figures import label_panel, new_figure

    table = results.tables["powers"]
    known = {str(row[0]) for row in table.rows}
    panels = [(title, kept) for title, labels in PANELS.items() if (kept := [one for one in labels if one in known])]
    bars = [label for label in BARS if label in known]
    letters = iter("abcdef")
    figure = new_figure(8.0, 5.8)
    grid = figure.add_gridspec(2, 1, height_ratios=(1.25, 1.0))
    upper = grid[0].subgridspec(1, len(panels))
    for number, (title, labels) in enumerate(panels):
        axes = figure.add_subplot(upper[number])
        for place, label in enumerate(labels):
            _draw_percent(axes, label, table, place)
        axes.set_xlabel("power t of the rotation")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2, fontsize=7.0)
        label_panel(axes, next(letters), title)
        if number == 0:
            axes.set_ylabel("interpretable units, %")
        axes.set_ylim(bottom=0)
    lower = grid[1].subgridspec(1, len(bars))
    base: Axes | None = None
    for number, label in enumerate(bars):
        axes = figure.add_subplot(lower[number], sharey=base)
        _draw_unique(axes, label, table)
        axes.set_xlabel("power t")
        axes.set_title(f"$\\bf{{({next(letters)})}}$  {label}", loc="left", fontsize=7.5)
        if base is None:
            axes.set_ylabel("different concepts a layer")
        else:
            axes.tick_params(labelleft=False)
        base = base or axes
    assert base is not None
    handles, names = base.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names))
    return figure


def _columns(table: Table, label: str, *names: str) -> list[list[Any]]:
    """Columns of the rows of a label."""
    rows = [row for row in table.rows if row[0] == label]
    return [[row[table.columns.index(name)] for row in rows] for name in names]


def _draw_percent(axes: "Axes", label: str, table: Table, number: int) -> None:
    from coset.figures import PALETTE

    powers, values, low, high = _columns(table, label, "power", "interpretable, %", "low", "high")
    colour = PALETTE[number % len(PALETTE)]
    if None not in low:
        bottom, top = ([max(0.0, end) for end in side] for side in (low, high))
        axes.fill_between(powers, bottom, top, color=colour, alpha=0.15, lw=0)
    axes.plot(powers, values, color=colour, marker=_MARKERS[number], label=label)


def _draw_unique(axes: "Axes", label: str, table: Table) -> None:
    from coset.figures import PALETTE

    powers, *heights = _columns(table, label, "power", *CATEGORIES)
    width = 0.8 * min(b - a for a, b in itertools.pairwise(powers))
    bottom = [0.0] * len(powers)
    for number, (category, each) in enumerate(zip(CATEGORIES, heights, strict=True)):
        look: dict[str, Any] = {"color": PALETTE[number], "hatch": _HATCHES[number], "edgecolor": "white", "lw": 0}
        axes.bar(powers, each, width, bottom=bottom, label=category, **look)
        bottom = [low + height for low, height in zip(bottom, each, strict=True)]
