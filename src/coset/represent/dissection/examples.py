"""The images on which units respond most, with what they mark in them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from coset._checks import check_count
from coset.errors import InputError
from coset.represent.dissection._dissect import feature_maps, unit_maps
from coset.represent.dissection.images import AnnotatedImages
from coset.represent.dissection.placement import Placement, interpolation
from coset.represent.dissection.result import Dissection

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Example:
    """An input (…), the largest activation of a unit in it, and where the unit is above its threshold, (H, W)."""

    inputs: Tensor
    peak: float
    marked: Tensor


def top_examples(
    model: nn.Module,
    layer: str,
    data: AnnotatedImages,
    dissection: Dissection,
    *,
    basis: Tensor | None = None,
    units: int = 2,
    images: int = 5,
    placement: Placement | None = None,
    **options: Any,
) -> dict[int, tuple[Example, ...]]:
    """For the ``units`` of greatest IoU, the ``images`` with the largest activations, best first.

    ``dissection``: of the same layer and data in the same ``basis`` (D, C), by default that of units; ``placement`` and
    ``options`` as given to ``dissect``. The model runs once more.
    """
    for name, value in (("units", units), ("images", images)):
        check_count(name, value)
    chosen = dissection.best.argsort(descending=True, stable=True)[:units]
    found: dict[int, list[Example]] = {unit: [] for unit in chosen.tolist()}
    for features, (inputs, masks, _) in feature_maps(model, layer, data, **options):
        maps = unit_maps(features, basis, "of the dissection", layer)
        if maps.shape[1] != dissection.units:
            raise InputError(f"dissection is of {dissection.units} units; the basis has {maps.shape[1]}")
        rows = interpolation(maps.shape[2], masks.shape[2], placement, 0).to(maps)
        columns = interpolation(maps.shape[3], masks.shape[3], placement, 1).to(maps)
        for unit, examples in found.items():
            peaks = maps[:, unit].amax((1, 2))
            for place in peaks.topk(min(images, len(peaks))).indices.tolist():
                marked = rows @ maps[place, unit] @ columns.mT > dissection.thresholds[unit].to(maps)
                examples.append(Example(inputs[place].cpu(), float(peaks[place]), marked.cpu()))
            examples.sort(key=lambda example: -example.peak)
            del examples[images:]
    return {unit: tuple(examples) for unit, examples in found.items()}


def plot_examples(
    examples: Mapping[int, tuple[Example, ...]],
    dissection: Dissection,
    *,
    shown: Callable[[Tensor], Tensor] | None = None,
) -> "Figure":
    """A row of images for each unit, what it marks outlined (Godfrey et al. 2022, figs. 21, 23 and 25).

    ``shown``: from inputs (n, …) to images (n, 3, H, W) or (n, 1, H, W) in [0, 1], the inverse of a normalisation for
    instance; by default inputs are shown as they are. What is outside of [0, 1] is cut off.
    """
    if not examples or not all(examples.values()):
        raise InputError("examples is empty; expected some, as top_examples gives them")
    # matplotlib takes long to import, and only this needs it.
    from coset.figures import new_figure, styled

    width = max(len(each) for each in examples.values())
    with styled():
        figure = new_figure(1.2 * width, 0.1 + 1.5 * len(examples))
        panels = figure.subplots(len(examples), width, squeeze=False)
        for line, (unit, each) in zip(panels, examples.items(), strict=True):
            for axes in line:
                axes.set_axis_off()
            best = int(dissection.iou[unit].argmax())
            title = f"unit {unit}: {dissection.concepts[best].name}, IoU {float(dissection.iou[unit, best]):.2f}"
            line[0].set_title(title, loc="left")
            for axes, example in zip(line, each, strict=False):
                _draw(axes, example, shown)
    return figure


def _draw(axes: "Axes", example: Example, shown: Callable[[Tensor], Tensor] | None) -> None:
    from coset.figures import INK

    image = example.inputs[None] if shown is None else shown(example.inputs[None])
    if image.ndim != 4 or image.shape[1] not in (1, 3):
        raise InputError(f"an input is shown as {tuple(image.shape)}; expected an image (n, 3, H, W) or (n, 1, H, W)")
    pixels = image[0].detach().cpu().clamp(0, 1).expand(3, -1, -1).movedim(0, -1)
    height, width = pixels.shape[:2]
    extent = (0.0, float(width), float(height), 0.0)
    axes.imshow(pixels.numpy(), extent=extent, interpolation="nearest")
    for start, stop in _outline(example.marked):
        (y0, x0), (y1, x1) = (
            (y * height / example.marked.shape[0], x * width / example.marked.shape[1]) for y, x in (start, stop)
        )
        # White on black is seen before any colour.
        axes.plot([x0, x1], [y0, y1], color="white", lw=2.2, solid_capstyle="butt")
        axes.plot([x0, x1], [y0, y1], color=INK, lw=0.9, solid_capstyle="butt")


def _outline(marked: Tensor) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """The edges (y, x) to (y, x) of pixels at which marked and unmarked ones, or the border, meet."""
    padded = torch.nn.functional.pad(marked.int(), (1, 1, 1, 1))
    across = (padded[1:, 1:-1] != padded[:-1, 1:-1]).nonzero().tolist()
    down = (padded[1:-1, 1:] != padded[1:-1, :-1]).nonzero().tolist()
    return [((y, x), (y, x + 1)) for y, x in across] + [((y, x), (y + 1, x)) for y, x in down]
