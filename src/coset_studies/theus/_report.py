"""Tables and figure of barriers between transformers by all methods."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from coset.study import Scalar, Table
from coset_studies.theus._pairs import NAIVE, PERMUTED, Found, Line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Lines = Mapping[tuple[int, int], Line]


def mean(values: Iterable[float]) -> float:
    """The mean of some numbers."""
    known = list(values)
    return sum(known) / len(known)


def barrier_table(found: Found) -> Table:
    """A row for each setting, pair and method."""
    rows: list[list[Scalar]] = []
    for setting, methods in found.items():
        for pair in methods[NAIVE]:
            for method, lines in methods.items():
                profile = lines[pair].profile
                ends = mean([profile.values[0], profile.values[-1]])
                told = profile.barrier, ends, profile.midpoint.value, lines[pair].seconds
                rows.append([setting, f"{pair[0]} and {pair[1]}", method, *told])
    columns = ("setting", "pair", "method", "barrier, nats", "ends, nats", "halfway, nats", "alignment, s of one core")
    caption = "Loss on test data on the line between two networks: above the chord, at the ends, halfway."
    return Table(columns, rows, caption)


def merged_table(found: Found) -> Table:
    """What merging loses: the loss halfway less that of the ends, means over the pairs."""
    rows: list[list[Scalar]] = []
    for setting, methods in found.items():
        losses = {
            method: mean(line.profile.midpoint.value for line in lines.values()) for method, lines in methods.items()
        }
        permuted = min(losses[method] for method in PERMUTED)
        for method, lines in methods.items():
            lost = mean(line.profile.midpoint.excess for line in lines.values())
            rows.append([setting, method, losses[method], lost, permuted - losses[method]])
    columns = ("setting", "method", "loss, nats", "above its parents, nats", "below the best permutations, nats")
    caption = "The average of two networks, which `coset merge` writes: its loss on test data, means over the pairs."
    return Table(columns, rows, caption)


def curves(found: Found) -> "Figure":
    """The loss along the line, a panel for each setting and a curve for each method."""
    # matplotlib takes long to import, and a listing of the studies does not need it.
    from coset.figures import GREY, PALETTE, label_panel, new_figure

    figure = new_figure(2.1 * len(found) + 0.4, 2.6)
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for panel, letter, (setting, methods) in zip(panels, "abcdefgh", found.items(), strict=False):
        for colour, (method, lines) in zip((GREY, *PALETTE), methods.items(), strict=True):
            profiles = [line.profile for line in lines.values()]
            losses = [mean(values) for values in zip(*(profile.values for profile in profiles), strict=True)]
            panel.plot(profiles[0].taus, losses, color=colour, label=method)
        label_panel(panel, letter, setting)
        panel.set_xlabel("τ")
    panels[0].set_ylabel("loss on test data, nats")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=min(3, 1 + len(found)))
    return figure
