"""Where the positions of a layer lie in its images: activation maps brought to the resolution of masks."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coset.errors import InputError
from coset.represent._features import ChannelAxis, channels_second
from coset.running import recording, suited
from coset.train.metrics import evaluation_mode


@dataclass(frozen=True)
class Placement:
    """Position (i, j) lies at the pixel (``start[0]`` + i·``step[0]``, ``start[1]`` + j·``step[1]``) of an input.

    ``size``: height and width of the input, in pixels. The centre of the first pixel is 0.
    """

    start: tuple[float, float]
    step: tuple[float, float]
    size: tuple[int, int]


def interpolation(positions: int, pixels: int, placement: Placement | None = None, axis: int = 0) -> Tensor:
    """The matrix (pixels, positions) that interpolates linearly along one axis; at the ends values are continued.

    Without ``placement`` the positions cover the image evenly, as in ``torch.nn.functional.interpolate`` with
    ``align_corners=False``. Rows are nonnegative and sum to 1. Two of them, one an axis, are bilinear interpolation.
    """
    centres = torch.arange(pixels, dtype=torch.float64) + 0.5
    if placement is None:
        at = centres * positions / pixels - 0.5
    else:
        at = (centres * placement.size[axis] / pixels - 0.5 - placement.start[axis]) / placement.step[axis]
    at = at.clamp(0, positions - 1)
    distance = (at[:, None] - torch.arange(positions, dtype=torch.float64)).abs()
    return (1 - distance).clamp(min=0)


def receptive_placement(
    model: nn.Module,
    layer: str,
    images: Tensor,
    *,
    channel_axis: ChannelAxis = None,
    grid: tuple[int, int] | None = None,
) -> Placement:
    """The centres of the receptive fields of ``layer``, found by derivatives with respect to ``images`` (n, C, H, W).

    Where convolutions are not padded, a layer sees the middle of an image, and a map that is stretched over the whole
    of it is out of place; Bau et al. 2017 anchor it at these centres. A field is the rectangle of pixels with a
    derivative that is not 0 at any of the images; those that the border of the image may have cut, smaller than the
    largest, are left out, and the others must lie on a regular grid.
    """
    if not isinstance(images, Tensor) or images.ndim != 4 or len(images) == 0:
        found = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
        raise InputError(f"images is {found}; expected a tensor (n, C, H, W)")
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    inputs = suited(images.detach(), own).clone().requires_grad_()
    with torch.enable_grad(), evaluation_mode(model), recording(model, [layer]) as outputs:
        model(inputs)
        maps = positions_of(channels_second(outputs[layer], layer, len(images), channel_axis), layer, grid)
        lines = []
        for axis in (0, 1):
            fields = [_extent(maps.select(2 + axis, place), inputs, axis) for place in range(maps.shape[2 + axis])]
            lines.append(_line(fields, layer, "row" if axis == 0 else "column"))
    (start_y, step_y), (start_x, step_x) = lines
    return Placement((start_y, start_x), (step_y, step_x), (images.shape[2], images.shape[3]))


def positions_of(maps: Tensor, layer: str, grid: tuple[int, int] | None = None) -> Tensor:
    """Features (n, C, *positions) as maps (n, C, h, w); raises where there are no two axes of positions.

    ``grid``: height and width that tokens (n, C, h·w) stand for.
    """
    if grid is not None and maps.ndim == 3:
        pair = isinstance(grid, tuple | list) and len(grid) == 2 and all(isinstance(side, int) for side in grid)
        if not pair or min(grid) < 1 or grid[0] * grid[1] != maps.shape[2]:
            raise InputError(
                f"grid is {grid!r}; layer '{layer}' has {maps.shape[2]} positions; expected their height and width"
            )
        maps = maps.reshape(*maps.shape[:2], *grid)
    if maps.ndim != 4:
        raise InputError(
            f"layer '{layer}' has features of shape {tuple(maps.shape)}, channels second; expected (n, C, h, w), a "
            f"layer with positions in the image" + (" (grid= arranges tokens)" if maps.ndim == 3 else "")
        )
    return maps


def _extent(line: Tensor, inputs: Tensor, axis: int) -> tuple[int, int]:
    """The first and last pixel along ``axis`` on which any of ``line`` depends; (0, −1) for none."""
    # Random signs, so that derivatives of different channels do not cancel.
    signs = torch.randn(line.shape, generator=torch.Generator().manual_seed(0), dtype=line.dtype).to(line.device)
    (gradient,) = torch.autograd.grad((line * signs).sum(), inputs, retain_graph=True)
    seen = gradient.abs().amax((0, 1, 3 - axis)).nonzero()[:, 0]
    return (int(seen[0]), int(seen[-1])) if len(seen) else (0, -1)


def _line(fields: list[tuple[int, int]], layer: str, what: str) -> tuple[float, float]:
    """Start and step of the centres of the largest fields."""
    largest = max(last - first for first, last in fields)
    centres = {place: (first + last) / 2 for place, (first, last) in enumerate(fields) if last - first == largest}
    (place, centre), (other, end) = min(centres.items()), max(centres.items())
    step = (end - centre) / (other - place) if other > place else 0.0
    if largest < 0 or step <= 0:
        raise InputError(
            f"the receptive fields of layer '{layer}' do not tell where its {len(fields)} {what}s lie: expected two at "
            f"least that the border of the image does not cut"
        )
    if any(abs(centre + step * (at - place) - value) > 0.5 for at, value in centres.items()):
        raise InputError(f"the receptive fields of layer '{layer}' do not lie on a regular grid")
    return centre - step * place, step
