"""Dissections as figures."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from coset.errors import InputError
from coset.represent.dissection.result import Dissection
from coset.represent.dissection.rotations_of_bases import RotatedDissections

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = "osD^vP"
_HATCHES = ("", "//", "..", "xx", "\\\\", "++")


def plot_concepts(dissections: Mapping[str, Dissection]) -> "Figure":
    """How many units detect each concept, a panel for each label: {"neurons": …, "rotated": …}.

    Bars are in the order of the concepts, coloured and hatched by category; concepts without a unit are left out where
    no panel has one (Godfrey et al. 2022, figs. 20, 22 and 24).
    """
    if not dissections:
        raise InputError("dissections is empty; expected at least one, as dissect gives them")
    # matplotlib takes long to import, and only this needs it.
    from matplotlib.patches import Patch

    from coset.figures import label_panel, new_figure, styled

    counts = [item.detectors for item in dissections.values()]
    every = dict.fromkeys(concept for each in counts for concept in each)
    concepts = [concept for concept in every if any(each.get(concept) for each in counts)]
    categories = list(dict.fromkeys(concept.category for concept in concepts))
    looks = {category: _look(number) for number, category in enumerate(categories)}
    with styled():
        figure = new_figure(1.6 + 2.0 * len(dissections), 1.1 + 0.19 * max(3, len(concepts)))
        panels = figure.subplots(1, len(dissections), sharex=True, sharey=True, squeeze=False)[0]
        for number, (axes, (label, item)) in enumerate(zip(panels, dissections.items(), strict=True)):
            detectors = item.detectors
            for row, concept in enumerate(concepts):
                axes.barh(row, detectors.get(concept, 0), **looks[concept.category])
            label_panel(axes, chr(ord("a") + number % 26), f"{label}: {100 * item.fraction:.0f} %")
            axes.set_xlabel("units")
            axes.grid(visible=False, axis="y")
            axes.xaxis.get_major_locator().set_params(integer=True)
        panels[0].set_yticks(range(len(concepts)), [concept.name for concept in concepts])
        panels[0].invert_yaxis()
        if concepts:
            handles = [Patch(label=category, **look) for category, look in looks.items()]
            figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)))
    return figure


def plot_dissections(dissections: Mapping[str, RotatedDissections]) -> "Figure":
    """The share of interpretable units against the power of the rotation, and the different concepts among them.

    Panel (a) has a line for each label, the mean over rotations with its interval; for each label a panel with the
    number of different concepts, category upon category (Godfrey et al. 2022, figs. 3, 18 and 19).
    """
    if not dissections:
        raise InputError("dissections is empty; expected at least one, as dissect_rotations gives them")
    from coset.figures import label_panel, new_figure, styled

    with styled():
        figure = new_figure(3.2 + 2.1 * len(dissections), 3.2)
        grid = figure.add_gridspec(1, 1 + len(dissections), width_ratios=(1.4, *[1.0] * len(dissections)))
        lines = figure.add_subplot(grid[0, 0])
        first: Axes | None = None
        for number, (label, item) in enumerate(dissections.items()):
            draw_fractions(lines, label, item, number)
            axes = figure.add_subplot(grid[0, 1 + number], sharey=first)
            draw_unique(axes, item)
            label_panel(axes, chr(ord("b") + number % 25), label)
            if first is None:
                axes.set_ylabel("different concepts")
            first = first or axes
        label_panel(lines, "a", "interpretable units")
        lines.set_ylim(bottom=0)
        lines.set_xlabel("power t of the rotation")
        lines.set_ylabel("interpretable units (%)")
        lines.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
        assert first is not None
        first.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2))
    return figure


def draw_fractions(axes: "Axes", label: str, item: RotatedDissections, number: int) -> None:
    """A line with a band: mean and interval over rotations of the share of interpretable units, in percent."""
    from coset.figures import PALETTE

    fractions = item.fractions()
    found = [item.interval(fractions, power) for power in range(len(item.powers))]
    colour = PALETTE[number % len(PALETTE)]
    low, high = ([100 * getattr(one, end) for one in found] for end in ("low", "high"))
    axes.fill_between(item.powers, low, high, color=colour, alpha=0.2, lw=0)
    means = [100 * one.value for one in found]
    axes.plot(item.powers, means, color=colour, marker=_MARKERS[number % len(_MARKERS)], label=label)


def draw_unique(axes: "Axes", item: RotatedDissections) -> None:
    """Bars of different concepts against the power, category upon category, means over rotations."""
    steps = [b - a for a, b in zip(item.powers[:-1], item.powers[1:], strict=True)]
    width = 0.8 * min((step for step in steps if step > 0), default=0.1)
    bottom = [0.0] * len(item.powers)
    for number, category in enumerate(item.categories):
        heights = item.unique(category).mean(0).tolist()
        axes.bar(item.powers, heights, width, bottom=bottom, label=category, lw=0, **_look(number))
        bottom = [base + height for base, height in zip(bottom, heights, strict=True)]
    axes.set_xlabel("power t")


def _look(number: int) -> dict[str, Any]:
    """The bars of a category, told apart by colour and by hatches."""
    from coset.figures import PALETTE

    return {
        "facecolor": PALETTE[number % len(PALETTE)],
        "hatch": _HATCHES[number % len(_HATCHES)],
        "edgecolor": "white",
    }
