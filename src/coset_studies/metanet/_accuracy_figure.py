"""The figure of the study of accuracies."""

from typing import TYPE_CHECKING

from coset.study import Table
from coset_studies.metanet._methods import METHODS, ON_FEWER, PNA_NAME, PROBED, PROBED_STATISTICS, STATISTICS
from coset_studies.metanet._tests import TESTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure_of(correlations: Table, curve: Table) -> "Figure":
    """For each data set τ of every method on every test set, as trained and behind group elements; and below it τ by
    the number of networks trained on.
    """
    from coset.figures import label_panel, new_figure

    settings = list(dict.fromkeys(str(row[0]) for row in correlations.rows))
    figure = new_figure(2.9 * max(len(settings), 2), 4.0)
    above, below = figure.subplots(2, len(settings), sharey="row", squeeze=False, height_ratios=(3, 2))
    colours, marks = _colours(), {method: "s" if method in (PROBED, PROBED_STATISTICS) else "o" for method in METHODS}
    for letter, data, panel in zip("abcdefgh", settings, above, strict=False):
        label_panel(panel, letter, data)
        for number, method in enumerate(METHODS):
            for at, name in enumerate(TESTS):
                rows = [row for row in correlations.rows if tuple(row[:3]) == (data, name, method)]
                for row in rows:
                    value, low, high, moved = (float(str(cell)) for cell in row[4:8])
                    x = at + 0.11 * (number - (len(METHODS) - 1) / 2)
                    panel.plot([x, x], [low, high], color=colours[method], linewidth=1.0)
                    panel.plot(x, value, marks[method], color=colours[method], markersize=2.8)
                    panel.plot(x + 0.05, moved, marks[method], color=colours[method], markersize=2.8, mfc="white")
        panel.set_xticks(range(len(TESTS)), ["\n".join(name.rsplit(" ", 1)) for name in TESTS])
        panel.grid(axis="x", visible=False)
        panel.axhline(0, color="black", linewidth=0.6)
    for letter, data, panel in zip("abcdefgh"[len(settings) :], settings, below, strict=False):
        label_panel(panel, letter, data)
        for shift, method in enumerate(ON_FEWER):
            rows = [row for row in curve.rows if tuple(row[:2]) == (data, method)]
            counts, values, lows, highs = ([float(str(row[place])) for row in rows] for place in (2, 3, 4, 5))
            places = [number * 1.02 ** (shift - 1.5) for number in counts]
            panel.plot(places, values, "o-", color=colours[method], markersize=3.5, linewidth=1.0)
            for at, *ends in zip(places, lows, highs, strict=True):
                panel.plot([at, at], ends, color=colours[method], linewidth=0.8)
        panel.set_xscale("log")
        panel.set_xticks(counts, [f"{number:.0f}" for number in counts])
        panel.minorticks_off()
        panel.set_xlabel("networks trained on")
    for row in (above, below):
        row[0].set_ylabel("Kendall's τ")
    handles = [above[0].plot([], [], marks[method], color=colours[method], label=method)[0] for method in METHODS]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, columnspacing=1.0, handletextpad=0.2)
    return figure


def _colours() -> dict[str, str]:
    """Those with probes have the colours of those without."""
    from coset.figures import PALETTE

    found = dict(zip([method for method in METHODS if method not in (PROBED, PROBED_STATISTICS)], PALETTE, strict=True))
    return found | {PROBED: found[PNA_NAME], PROBED_STATISTICS: found[STATISTICS]}
