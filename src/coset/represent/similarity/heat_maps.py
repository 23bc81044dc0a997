"""Layer × layer similarities as a figure."""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from coset.errors import InputError
from coset.represent.similarity.kernels import spoken
from coset.represent.similarity.layer_matrix import LayerMatrix

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

_WRITTEN = 16
"""Up to so many layers a side, each cell tells its number."""

_LABELS = {"cka": "CKA", "procrustes": "Procrustes similarity"}
"""What the colours mean, by measure."""


def plot_layers(matrices: Mapping[str, LayerMatrix], *, x: str = "layer of x", y: str = "layer of y") -> "Figure":
    """A panel for each label → similarities, with one scale of colours from 0 to 1; ``x``, ``y``: names of the axes.

    Rows are the layers of x, columns those of y, the first layer at the lower left. Unbiased estimates below 0 have the
    colour of 0 and tell their number. Below each panel stands the kernel that both layers of a pair have; pairs with
    another one are framed.
    """
    if not isinstance(matrices, Mapping) or not matrices:
        raise InputError(f"matrices is {matrices!r}; expected at least one LayerMatrix by label")
    # matplotlib takes long to import, and only this needs it.
    from coset.figures import label_panel, new_figure, styled

    first = next(iter(matrices.values()))
    rows, columns = (max(matrix.similarity.shape[axis] for matrix in matrices.values()) for axis in (0, 1))
    letters = max(len(name) for matrix in matrices.values() for name in (*matrix.layers_x, *matrix.layers_y))
    cell = 0.34 if max(rows, columns) <= _WRITTEN else 0.2
    labels = 0.2 + 0.07 * letters
    named = sum(matrix is first or matrix.layers_x != first.layers_x for matrix in matrices.values())
    # Few cells are larger, so that titles have room.
    cell = max(cell, min(0.9, (0.4 + 0.08 * max(map(len, matrices))) / columns))
    width, height = cell * columns, cell * rows
    with styled():
        figure = new_figure(1.3 + named * labels + (0.15 + width) * len(matrices), 0.85 + labels + height)
        # Panels of squares: what they leave of their places is taken away.
        figure.set_layout_engine("compressed")
        panels = []
        for number, (label, matrix) in enumerate(matrices.items()):
            axes = figure.add_subplot(1, len(matrices), number + 1)
            panels.append(axes)
            shown = _draw(axes, matrix)
            label_panel(axes, chr(ord("a") + number), label)
            axes.set_xlabel("\n".join([y, *_framed(axes, matrix)]))
            if number == 0:
                axes.set_ylabel(x)
            elif matrix.layers_x == first.layers_x:
                axes.tick_params(labelleft=False)
        figure.colorbar(shown, ax=panels, shrink=0.85, label=_LABELS[first.measure])
    return figure


def _draw(axes: "Axes", matrix: LayerMatrix) -> "AxesImage":
    values = matrix.similarity
    shown = axes.imshow(values.tolist(), cmap="cividis", vmin=0, vmax=1, origin="lower", interpolation="nearest")
    axes.set_xticks(range(len(matrix.layers_y)), matrix.layers_y, rotation=90)
    axes.set_yticks(range(len(matrix.layers_x)), matrix.layers_x)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    if max(values.shape) <= _WRITTEN:
        for row, line in enumerate(values.tolist()):
            for column, value in enumerate(line):
                ink = "white" if value < 0.5 else "black"
                axes.text(column, row, _hundredths(value), ha="center", va="center", color=ink, fontsize=6.5)
    return shown


def _framed(axes: "Axes", matrix: LayerMatrix) -> list[str]:
    """Frame the cells that have another kernel than most, and say which kernels there are, in one line if any."""
    from matplotlib.patches import Rectangle

    from coset.figures import VERMILION

    if matrix.kernels is None:
        return []
    counts = Counter(kernel for row in matrix.kernels for kernel in row)
    usual, *others = [kernel for kernel, _ in counts.most_common()]
    for i, row in enumerate(matrix.kernels):
        for j, kernel in enumerate(row):
            if kernel != usual:
                axes.add_patch(Rectangle((j - 0.46, i - 0.46), 0.92, 0.92, fill=False, ec=VERMILION, lw=1.4))
    framed = f", framed: {' or '.join(map(spoken, others))}" if others else ""
    return [f"kernel: {spoken(usual)}{framed}"]


def _hundredths(value: float) -> str:
    """0.87 as .87; nothing is shown as -0."""
    text = f"{value:.2f}".replace("0.", ".", 1)
    return ".00" if text == "-.00" else text
