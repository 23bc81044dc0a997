"""How figures look: one style for all of them, legible in print and to the colour-blind, the same bytes every time."""

import csv
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import matplotlib
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coset._files.atomic import require_writable, write_bytes
from coset._show.tables import csv_table
from coset.errors import InputError

# Okabe and Ito's palette (2008), dark colours first; yellow is left out, for it fades on white.
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
INK, GREY = "#222222", "#8A8A8A"
PALETTE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)

STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.prop_cycle": cycler(color=PALETTE),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9.5,
    "errorbar.capsize": 0.0,
    "figure.dpi": 100.0,
    "figure.facecolor": "white",
    "font.family": "DejaVu Sans",  # shipped with matplotlib: the same letters on every machine
    "font.size": 8.5,
    "grid.color": "#E8E8E8",
    "grid.linewidth": 0.6,
    "legend.fontsize": 8.0,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.0,
    "lines.solid_capstyle": "round",
    "savefig.dpi": 200.0,
    "svg.fonttype": "path",
    "svg.hashsalt": "coset",
    "xtick.color": INK,
    "xtick.major.width": 0.7,
    "ytick.color": INK,
    "ytick.major.width": 0.7,
}


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches, that arranges its own margins."""
    return Figure(figsize=(width, height), layout="constrained")


def label_panel(axes: Axes, letter: str, title: str) -> None:
    """Head a panel with its letter in bold and its title, from the left."""
    axes.set_title(f"$\\bf{{({letter})}}$  {title}", loc="left")


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the shared style within the block, whatever a reader's own matplotlibrc says."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        with matplotlib.rc_context(STYLE):
            yield


def render(draw: Callable[[], Figure]) -> tuple[bytes, bytes]:
    """Draw in the shared style; give PNG and SVG, arranged alike, free of dates and versions."""
    png, svg = io.BytesIO(), io.BytesIO()
    with styled():
        figure = draw()
        _arrange(figure)
        figure.savefig(png, format="png", metadata={"Software": None})
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return png.getvalue(), svg.getvalue()


def _arrange(figure: Figure) -> None:
    """Arrange the margins of a figure once, as it is to be saved: matplotlib would draw it for that, each time anew."""
    engine, dpi = figure.get_layout_engine(), figure.dpi
    if engine is None or not figure.axes:
        return
    try:
        figure.dpi = STYLE["savefig.dpi"]
        engine.execute(figure)
    finally:
        figure.dpi = dpi
    figure.set_layout_engine(None)


@runtime_checkable
class Numbers(Protocol):
    """What a figure shows: as a dict ready for JSON, and as a table in CSV with a heading."""

    def to_dict(self) -> dict[str, object]:
        """All numbers."""
        ...

    def to_csv(self) -> str:
        """The numbers drawn."""
        ...


def save_figure(
    figure: Figure, stem: str | os.PathLike[str], numbers: Numbers | Mapping[str, Numbers]
) -> tuple[Path, ...]:
    """Write ``stem``.png, .svg, and the ``numbers`` beside them as .json and .csv; give the four paths.

    Of numbers by label, as ``plot_barriers`` takes them, the table has a first column with the label. Everything is
    made before anything is written, and every file is written as a whole or not at all.
    """
    base = Path(stem)
    if base.suffix in (".png", ".svg", ".json", ".csv"):
        raise InputError(f"stem is {base}; expected a path without {base.suffix}, for four files are written")
    content: dict[str, object]
    if isinstance(numbers, Numbers):
        content, table = numbers.to_dict(), numbers.to_csv()
    else:
        _check_labelled(numbers)
        content, table = {label: item.to_dict() for label, item in numbers.items()}, _stacked(numbers)
    return write_files(figure, base, content, table)


def write_files(figure: Figure, base: Path, content: Mapping[str, object], table: str) -> tuple[Path, ...]:
    """Write the four files of a figure, with ``content`` as JSON and ``table``, which is CSV; see ``save_figure``."""
    try:
        text = json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    except (TypeError, ValueError) as error:
        raise InputError(f"numbers cannot be written as JSON ({error}); expected finite numbers and text") from error
    png, svg = render(lambda: figure)
    parts = {".png": png, ".svg": svg, ".json": text.encode(), ".csv": table.encode()}
    paths = {suffix: base.with_name(base.name + suffix) for suffix in parts}
    require_writable(base.parent, "the folder of stem,")
    for suffix, path in paths.items():
        write_bytes(path, parts[suffix])
    return tuple(paths.values())


def _check_labelled(numbers: object) -> None:
    if not isinstance(numbers, Mapping) or not numbers:
        raise InputError(f"numbers is {numbers!r}; expected something with to_dict() and to_csv(), or several by label")
    for label, item in numbers.items():
        if not isinstance(item, Numbers):
            raise InputError(f"numbers['{label}'] is a {type(item).__name__}; expected to_dict() and to_csv()")


def _stacked(numbers: Mapping[str, Numbers]) -> str:
    """Tables one below the other, the label in front; columns that one of them lacks are empty there."""
    rows: list[dict[str, str]] = []
    for label, item in numbers.items():
        rows += [{"label": label, **row} for row in csv.DictReader(io.StringIO(item.to_csv()))]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    return csv_table(columns, [[row.get(column) for column in columns] for row in rows])
