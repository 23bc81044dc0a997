"""Profiles as a figure."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from coset.errors import InputError
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
    from coset.figures import label_panel, new_figure, styled

    order = {label: number for number, label in enumerate(profiles)}
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    with styled():
        figure = new_figure(0.4 + 2.6 * columns, 3.1 * rows)
        for number, (name, lines) in enumerate(panels.items()):
            axes = figure.add_subplot(rows, columns, number + 1)
            for label, profile in lines.items():
                _draw(axes, label, profile, order[label])
            label_panel(axes, _letter(number), name)
            _name_axes(axes, name, next(iter(lines.values())).unit)
    return figure


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
    axes.plot(
        profile.taus,
        values,
        color=colour,
        ls=LINES[number // len(PALETTE) % len(LINES)],
        marker=MARKERS[number % len(MARKERS)],
        markevery=max(1, len(values) // 8),
        label=f"{label}: {factor * profile.barrier:.{2 if factor == 100 else 3}f}",
    )


def _name_axes(axes: "Axes", name: str, unit: str) -> None:
    shown = _shown_in(unit)[1]
    axes.set_xlabel("τ")
    axes.set_ylabel(f"{name.rpartition(' ')[2]} ({shown})" if shown else name.rpartition(" ")[2])
    axes.set_xlim(-0.02, 1.02)
    # Below the panel, for lines may go anywhere in it.
    title = f"barrier ({shown})" if shown else "barrier"
    axes.legend(title=title, title_fontsize=8.0, loc="upper center", bbox_to_anchor=(0.5, -0.22))


def _shown_in(unit: str) -> tuple[float, str]:
    """The factor and the unit in which values are shown: shares of a whole in percent."""
    return (100.0, "%") if unit == "fraction" else (1.0, unit)


def _letter(number: int) -> str:
    return chr(ord("a") + number) if number < 26 else str(number + 1)
