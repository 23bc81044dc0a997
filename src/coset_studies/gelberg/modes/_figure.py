"""The figure of the study of nearest equivalent modes: distances of networks, and of posteriors in deviations."""

from typing import TYPE_CHECKING

from coset_studies.gelberg.modes._found import Family, Networks, Posteriors, mean, of_depth, of_runs, spread, thresholds
from coset_studies.gelberg.modes._text import DEPTHS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES = ("o-", "s--", "^:", "D-.")
"""Settings by marks and lines; the number of points by colour."""


def draw(networks: Networks, posteriors: Posteriors) -> "Figure":
    """Distances over ‖ω‖ with their bounds; the likeliest exchanges with the thresholds."""
    from coset.figures import label_panel, new_figure

    left, right = (figure := new_figure(10.0, 4.0)).subplots(1, 2)
    _draw_networks(left, networks)
    _draw_posteriors(right, posteriors)
    label_panel(left, "a", "The nearest equivalent mode")
    label_panel(right, "b", "The likeliest exchange under a mean field")
    widths = ({width for _, width in networks}, {case.width for case in posteriors})
    for axes, label, ticks in zip((left, right), ("‖ω − g·ω‖ / ‖ω‖", "distance, σ"), map(sorted, widths), strict=True):
        axes.set(xscale="log", yscale="log", xlabel="hidden units", ylabel=label)
        axes.set_xticks(ticks, list(map(str, ticks)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.tick_params(which="minor", labelbottom=False, labelleft=False)
    left.legend(loc="center right", bbox_to_anchor=(1.0, 0.62))
    right.legend()
    return figure


def _draw_networks(axes: "Axes", networks: Networks) -> None:
    from coset.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION

    family = of_depth(networks, 1)
    for key, label, colour in (("volume", "2D/log|G| (theorem 3.1)", VERMILION), ("pair", "2/√(n − 1)", GREEN)):
        axes.plot(list(family), [mean(found, key) for found in family.values()], "--", color=colour, label=label)
    axes.axhline(2, color=GREY, lw=1.0)
    for depth, colours in ((1, (ORANGE, BLUE)), (2, (PURPLE, SKY))):
        for key, label, colour in zip(("start", "trained"), ("at initialisation", "trained"), colours, strict=True):
            _bars(axes, of_depth(networks, depth), key, f"{DEPTHS[depth]}, {label}", colour)


def _draw_posteriors(axes: "Axes", posteriors: Posteriors) -> None:
    from coset.figures import PALETTE

    axes.axhspan(*thresholds(), color="#E8E8E8", lw=0)
    runs = of_runs(posteriors)
    colours = dict(zip(dict.fromkeys(points for points, _ in runs), PALETTE, strict=False))
    styles = dict(zip(dict.fromkeys(run.name for _, run in runs), STYLES, strict=False))
    for (points, run), cases in runs.items():
        family = {case.width: posteriors[case] for case in cases}
        label = f"{points:,} points; {run.learning_rate:g} {run.schedule}, {run.epochs:,} epochs"
        _bars(axes, family, "sigmas", label, colours[points], styles[run.name])


def _bars(axes: "Axes", family: Family, key: str, label: str, colour: str, style: str = "o-") -> None:
    means = [float(mean(found, key)) for found in family.values()]
    spreads = [value for found in family.values() if isinstance(value := spread(found, key), float)]
    errors = spreads if len(spreads) == len(means) else None
    axes.errorbar(list(family), means, errors, fmt=style, color=colour, label=label)
