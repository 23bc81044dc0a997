"""Variance along paths as a figure."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from coset.errors import InputError
from coset.landscape._collapse import VarianceProfile
from coset.landscape._plot import COLUMNS, LINES, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_collapse(profiles: Mapping[str, VarianceProfile]) -> "Figure":
    """A panel for each layer, in it a line for each label: {"naive": …, "aligned": …}, with the least ratio.

    1 is the mean variance at the two ends, 0 a layer whose units no longer tell inputs apart. Lines differ in colour,
    in marker and, after the first six, in stroke.
    """
    layers = list(dict.fromkeys(layer for profile in profiles.values() for layer in profile.layers))
    if not layers:
        raise InputError("profiles is empty; expected at least one, as activation_variances gives them")
    # matplotlib takes long to import, and only this needs it.
    from coset.figures import GREY, label_panel, new_figure, styled

    columns = min(COLUMNS, len(layers))
    rows = -(-len(layers) // columns)
    with styled():
        figure = new_figure(0.4 + 2.3 * columns, (2.6 + 0.17 * len(profiles)) * rows)
        first: Axes | None = None
        for number, layer in enumerate(layers):
            axes = figure.add_subplot(rows, columns, number + 1, sharex=first, sharey=first)
            first = first or axes
            axes.axhline(1, color=GREY, lw=0.8)
            for index, (label, profile) in enumerate(profiles.items()):
                if layer in profile.layers:
                    _draw(axes, label, profile, layer, index)
            label_panel(axes, chr(ord("a") + number) if number < 26 else str(number + 1), layer)
            axes.set_xlabel("τ")
            if number % columns == 0:
                axes.set_ylabel("variance / mean of the ends")
            axes.legend(title="least ratio", title_fontsize=8.0, loc="upper center", bbox_to_anchor=(0.5, -0.22))
        if first is not None:
            first.set_xlim(-0.02, 1.02)
            first.set_ylim(bottom=0)
    return figure


def _draw(axes: "Axes", label: str, profile: VarianceProfile, layer: str, number: int) -> None:
    from coset.figures import PALETTE

    ratios = profile.ratios[layer]
    axes.plot(
        profile.taus,
        ratios,
        color=PALETTE[number % len(PALETTE)],
        ls=LINES[number // len(PALETTE) % len(LINES)],
        marker=MARKERS[number % len(MARKERS)],
        markevery=max(1, len(ratios) // 8),
        label=f"{label}: {min(ratios):.2f}",
    )
