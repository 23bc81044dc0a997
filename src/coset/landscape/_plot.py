"""Profiles, and variances along paths, as figures."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from coset.errors import InputError
from coset.landscape._collapse import VarianceProfile
from coset.landscape._profile import Profile, Profiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINES = ("-", "--", "-.", ":")
MARKERS = "osD^vP"
COLUMNS = 4


def plot_barriers(profiles: Mapping[str, Profile | Profiles]) -> "Figure":
    """A panel for each functional, in it a line for each label, with its barrier: {"naive": …, "aligned": …}.

    Lines differ in colour, in marker and, after the first six, in stroke. The thin lines are the chords above which a
    barrier is measured, the bands two standard errors of values that come from random draws. Save it with
    ``coset.figures.save_figure``, which writes the numbers beside it.
    """
    panels: dict[str, dict[str, Profile]] = {}
    for label, item in profiles.items():
        for name, profile in ({item.name: item} if isinstance(item, Profile) else item).items():
            panels.setdefault(name, {})[label] = profile
    if not panels:
        raise InputError("profiles is empty; expected at least one, as barrier gives them")
    # matplotlib takes long to import, and only this needs it.
    from coset.figures import new_figure, styled

    order = {label: number for number, label in enumerate(profiles)}
    columns, rows = _grid(len(panels))
    with styled():
        figure = new_figure(0.4 + 2.6 * columns, 3.1 * rows)
        for axes, (name, lines) in zip(_panels(figure, tuple(panels)), panels.items(), strict=True):
            for label, profile in lines.items():
                _draw(axes, label, profile, order[label])
            shown = _shown_in(next(iter(lines.values())).unit)[1]
            axes.set_ylabel(f"{name.rpartition(' ')[2]} ({shown})" if shown else name.rpartition(" ")[2])
            _legend(axes, f"barrier ({shown})" if shown else "barrier")
    return figure


def plot_collapse(profiles: Mapping[str, VarianceProfile]) -> "Figure":
    """A panel for each layer, in it a line for each label: {"naive": …, "aligned": …}, with the least ratio.

    1 is the mean variance at the two ends, 0 a layer whose units no longer tell inputs apart. Lines differ in colour,
    in marker and, after the first six, in stroke.
    """
    layers = tuple(dict.fromkeys(layer for profile in profiles.values() for layer in profile.layers))
    if not layers:
        raise InputError("profiles is empty; expected at least one, as activation_variances gives them")
    # matplotlib takes long to import, and only this needs it.
    from coset.figures import GREY, new_figure, styled

    columns, rows = _grid(len(layers))
    with styled():
        figure = new_figure(0.4 + 2.3 * columns, (2.6 + 0.17 * len(profiles)) * rows)
        for number, axes in enumerate(_panels(figure, layers, shared=True)):
            axes.axhline(1, color=GREY, lw=0.8)
            for index, (label, profile) in enumerate(profiles.items()):
                if layers[number] in profile.layers:
                    ratios = profile.ratios[layers[number]]
                    _line(axes, profile.taus, ratios, index, f"{label}: {min(ratios):.2f}")
            if number % columns == 0:
                axes.set_ylabel("variance / mean of the ends")
            _legend(axes, "least ratio")
        figure.axes[0].set_ylim(bottom=0)
    return figure


def _grid(panels: int) -> tuple[int, int]:
    """Columns and rows for so many panels."""
    columns = min(COLUMNS, panels)
    return columns, -(-panels // columns)


def _panels(figure: "Figure", titles: Sequence[str], *, shared: bool = False) -> Iterator["Axes"]:
    """A panel over τ for each title, one after the other; if ``shared``, all have the axes of the first."""
    from coset.figures import label_panel

    columns, rows = _grid(len(titles))
    first: Axes | None = None
    for number, title in enumerate(titles):
        axes = figure.add_subplot(rows, columns, number + 1, sharex=first, sharey=first)
        first = axes if shared and first is None else first
        label_panel(axes, chr(ord("a") + number) if number < 26 else str(number + 1), title)
        axes.set_xlabel("τ")
        axes.set_xlim(-0.02, 1.02)
        yield axes


def _draw(axes: "Axes", label: str, profile: Profile, number: int) -> None:
    from coset.figures import PALETTE

    factor, _ = _shown_in(profile.unit)
    colour = PALETTE[number % len(PALETTE)]
    values = [factor * value for value in profile.values]
    axes.plot([0, 1], [values[0], values[-1]], color=colour, lw=0.8, alpha=0.5)
    if profile.errors is not None and any(profile.errors):
        width = [2 * factor * error for error in profile.errors]
        low, high = ([value + sign * two for value, two in zip(values, width, strict=True)] for sign in (-1, 1))
        axes.fill_between(profile.taus, low, high, color=colour, alpha=0.2, lw=0)
    shown = f"{label}: {factor * profile.barrier:.{2 if factor == 100 else 3}f}"
    _line(axes, profile.taus, values, number, shown)


def _line(axes: "Axes", taus: Sequence[float], values: Sequence[float], number: int, label: str) -> None:
    """The line of one label; ``number`` tells it from the others."""
    from coset.figures import PALETTE

    axes.plot(
        taus,
        values,
        color=PALETTE[number % len(PALETTE)],
        ls=LINES[number // len(PALETTE) % len(LINES)],
        marker=MARKERS[number % len(MARKERS)],
        markevery=max(1, len(values) // 8),
        label=label,
    )


def _legend(axes: "Axes", title: str) -> None:
    # Below the panel, for lines may go anywhere in it.
    axes.legend(title=title, title_fontsize=8.0, loc="upper center", bbox_to_anchor=(0.5, -0.22))


def _shown_in(unit: str) -> tuple[float, str]:
    """The factor and the unit in which values are shown: shares of a whole in percent."""
    return (100.0, "%") if unit == "fraction" else (1.0, unit)
