"""The figure of the study of accuracies."""

from typing import TYPE_CHECKING

from coset.study import Table
from coset_studies.metanet._methods import METHODS
from coset_studies.metanet._tests import TESTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure_of(correlations: Table) -> "Figure":
    """A panel for each data set: τ of every method on every test set, as trained and behind group elements."""
    from coset.figures import PALETTE, label_panel, new_figure

    settings = list(dict.fromkeys(str(row[0]) for row in correlations.rows))
    figure = new_figure(3.1 * max(len(settings), 2), 2.4)
    panels = figure.subplots(1, len(settings), sharey=True, squeeze=False)[0]
    for letter, data, panel in zip("abcdefgh", settings, panels, strict=False):
        label_panel(panel, letter, data)
        for number, method in enumerate(METHODS):
            for at, name in enumerate(TESTS):
                rows = [row for row in correlations.rows if tuple(row[:3]) == (data, name, method)]
                for row in rows:
                    value, low, high, moved = (float(str(cell)) for cell in row[4:8])
                    x = at + 0.15 * (number - (len(METHODS) - 1) / 2)
                    colour = PALETTE[number]
                    panel.plot([x, x], [low, high], color=colour, linewidth=1.0)
                    panel.plot(x, value, "o", color=colour, markersize=3.5)
                    panel.plot(x + 0.04, moved, "o", color=colour, markersize=3.5, markerfacecolor="white")
        panel.set_xticks(range(len(TESTS)), ["\n".join(name.rsplit(" ", 1)) for name in TESTS])
        panel.grid(axis="x", visible=False)
        panel.axhline(0, color="black", linewidth=0.6)
    panels[0].set_ylabel("Kendall's τ")
    handles = [panels[0].plot([], [], "o", color=PALETTE[n], label=method)[0] for n, method in enumerate(METHODS)]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(METHODS), columnspacing=1.0, handletextpad=0.2)
    return figure
