"""Network dissection: which units of a layer detect a concept, in the units' basis and in others.

Bau et al. 2017; Godfrey et al. 2022, section 6 and F.1: a unit's activation maps, interpolated to the resolution of the
annotation and cut off where the largest 0.5 % of its activations begin, are compared with the masks of every concept.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from coset._checks import is_number
from coset._show.progress import progress
from coset.errors import InputError
from coset.represent._channel_maps import on_channels
from coset.represent._features import ChannelAxis, feature_chunks
from coset.represent.dissection.images import AnnotatedBatch, AnnotatedImages, Census, census, checked_batches
from coset.represent.dissection.placement import Placement, interpolation, positions_of
from coset.represent.dissection.quantiles import KEPT, TailThreshold
from coset.represent.dissection.result import Dissection
from coset.running import check_layers

SHARE = 0.005
"""The share of a unit's activations above its threshold."""
LEAST_IOU = 0.04
"""A unit with a greater IoU detects the concept."""
NEURONS = "neurons"
"""The name of the basis of units."""

# So many pixels of interpolated maps are held at a time.
_HELD = 1 << 22


def dissect(
    model: nn.Module,
    layer: str,
    data: AnnotatedImages,
    *,
    bases: Mapping[str, Tensor] | None = None,
    params: Mapping[str, Tensor] | None = None,
    share: float = SHARE,
    least_iou: float = LEAST_IOU,
    placement: Placement | None = None,
    channel_axis: ChannelAxis = None,
    grid: tuple[int, int] | None = None,
    kept: int = KEPT,
    show: bool | None = None,
) -> dict[str, Dissection]:
    """The concepts of the units of ``layer``, a ``Dissection`` for each basis.

    ``bases``: by name, matrices (D, C) whose rows are the units of a basis, as combinations of the C channels
    (``rotation_powers`` makes some); by default the channels themselves, as "neurons". ``share``: of a unit's
    activations, over all images and positions, so many are above its threshold, found with bounded memory as
    ``TailThreshold`` tells with ``kept``. Maps are interpolated bilinearly, over the whole image unless ``placement``
    says where positions lie (see ``receptive_placement``), and cut off afterwards. Intersections and unions are summed
    over the images that are annotated for the concept's category before they are divided (Bau et al., 3.2); thresholds
    are those of all images. ``grid``: height and width that the positions of a layer of tokens stand
    for; ``params``, ``channel_axis``: as of ``features``.

    The data are read three times, once to count and to check them, and the model runs twice. Held are the features of
    one batch and, for each unit of each basis, 2·``kept`` activations.
    """
    check_layers(model, [layer])
    if not is_number(least_iou) or not 0 <= least_iou < 1:
        raise InputError(f"least_iou is {least_iou!r}; expected a number from 0 to 1")
    counted = _counted(data)
    matrices: dict[str, Tensor | None] = {NEURONS: None} if bases is None else dict(bases)
    if not matrices:
        raise InputError("bases is empty; expected at least one matrix by name")

    def maps() -> Iterator[tuple[Tensor, AnnotatedBatch]]:
        return feature_maps(model, layer, data, params=params, channel_axis=channel_axis, grid=grid)

    with progress(f"dissection of {layer}", 2 * counted.batches, show=show) as bar:
        thresholds: dict[str, TailThreshold] = {}
        for features, _ in maps():
            for name, matrix in matrices.items():
                values = unit_maps(features, matrix, name, layer).transpose(0, 1).flatten(1)
                total = counted.images * features[0, 0].numel()
                thresholds.setdefault(name, TailThreshold(share, total, kept=kept)).add(values)
            bar.advance()
        found = {name: _Counts(item.threshold(), data) for name, item in thresholds.items()}
        for features, (_, masks, annotated) in maps():
            masks, annotated = masks.to(features.device), annotated.to(features.device)
            for name, matrix in matrices.items():
                found[name].add(unit_maps(features, matrix, name, layer), masks, annotated, placement)
            bar.advance()
    return {
        name: counts.result(layer, counted, thresholds[name].error, share, least_iou) for name, counts in found.items()
    }


def feature_maps(
    model: nn.Module,
    layer: str,
    data: AnnotatedImages,
    *,
    params: Mapping[str, Tensor] | None = None,
    channel_axis: ChannelAxis = None,
    grid: tuple[int, int] | None = None,
) -> Iterator[tuple[Tensor, AnnotatedBatch]]:
    """The features (n, C, h, w) of ``layer`` with their batch, one after the other; finite, and of one shape."""
    shape: tuple[int, ...] | None = None
    for batch in checked_batches(data):
        chunks = feature_chunks(
            model, batch.inputs, [layer], params=params, channel_axis=channel_axis, batch_size=len(batch.inputs)
        )
        features = positions_of(next(chunks)[layer], layer, grid)
        found = tuple(features.shape[1:])
        if shape is not None and found != shape:
            raise InputError(f"layer '{layer}' has features of shape {shape} for some images and {found} for others")
        if not bool(torch.isfinite(features).all()):
            raise InputError(f"layer '{layer}' has activations that are NaN or infinite; expected finite ones")
        shape = found
        yield features, batch


class _Counts:
    """Pixels of D units above their ``thresholds`` (D,), summed over images.

    ``common`` (D, K): those that have each concept; ``pixels`` (D, G): those on images annotated for each category.
    """

    def __init__(self, thresholds: Tensor, data: AnnotatedImages) -> None:
        self.thresholds, self.data = thresholds, data
        units, device = len(thresholds), thresholds.device
        self.pixels = torch.zeros(units, len(data.categories), dtype=torch.int64, device=device)
        self.common = torch.zeros(units, len(data.concepts), dtype=torch.int64, device=device)
        self.above = torch.zeros(units, dtype=torch.int64, device=device)
        self.activations = 0

    def add(self, maps: Tensor, masks: Tensor, annotated: Tensor, placement: Placement | None) -> None:
        """Maps (n, D, h, w) of the units, masks (n, K, H, W) of the concepts, and what is annotated (n, G)."""
        height, width = masks.shape[2:]
        cut = self.thresholds[:, None, None]
        self.activations += maps[:, 0].numel()
        # A map that is nowhere above the threshold is not so between its positions, either.
        images, units = (maps.amax((2, 3)) > self.thresholds).nonzero(as_tuple=True)
        rows = interpolation(maps.shape[2], height, placement, 0).to(maps)
        columns = interpolation(maps.shape[3], width, placement, 1).to(maps)
        concepts = masks.permute(0, 2, 3, 1).reshape(-1, masks.shape[1])
        step = max(1, _HELD // (height * width))
        for start in range(0, len(units), step):
            image, unit = images[start : start + step], units[start : start + step]
            chosen = maps[image, unit]
            self.above.index_add_(0, unit, (chosen > cut[unit]).sum((1, 2)))
            large = ((rows @ chosen @ columns.mT) > cut[unit]).flatten(1)
            number, pixel = large.nonzero(as_tuple=True)
            marked = torch.bincount(number, minlength=len(unit))
            self.pixels.index_add_(0, unit, marked[:, None] * annotated[image])
            self.common.index_add_(0, unit[number], concepts[image[number] * (height * width) + pixel].long())

    def result(self, layer: str, counted: Census, error: float, share: float, least_iou: float) -> Dissection:
        """Intersections over unions, on the CPU."""
        common = self.common.cpu()
        union = self.pixels.cpu()[:, list(self.data.category_places)] + counted.pixels - common
        return Dissection(
            layer=layer,
            concepts=self.data.concepts,
            iou=common.double() / union,
            thresholds=self.thresholds.cpu(),
            shares=self.above.cpu().double() / self.activations,
            concept_shares=counted.pixels.double() / counted.areas,
            annotated_shares=counted.areas.double() / counted.area,
            error=error,
            share=share,
            least_iou=least_iou,
        )


def _counted(data: AnnotatedImages) -> Census:
    """Raise unless there are concepts, and pixels of every one."""
    if not isinstance(data, AnnotatedImages):
        raise InputError(f"data is a {type(data).__name__}; expected AnnotatedImages")
    if not data.concepts:
        raise InputError("data has no concepts; expected at least one")
    counted = census(data)
    empty = [concept.name for concept, pixels in zip(data.concepts, counted.pixels.tolist(), strict=True) if not pixels]
    if empty:
        raise InputError(
            f"no pixel of the data has the concept {', '.join(repr(name) for name in empty)}; expected some of each "
            f"(present_concepts() leaves out concepts without any)"
        )
    return counted


def unit_maps(features: Tensor, matrix: Tensor | None, basis: str, layer: str) -> Tensor:
    """Maps of the units of a basis: (n, C, h, w) to (n, D, h, w)."""
    if matrix is None:
        return features
    if not isinstance(matrix, Tensor) or matrix.ndim != 2 or matrix.shape[1] != features.shape[1] or not len(matrix):
        found = tuple(matrix.shape) if isinstance(matrix, Tensor) else type(matrix).__name__
        raise InputError(
            f"the basis '{basis}' is {found}; expected a matrix (units, {features.shape[1]}), for so many channels has "
            f"layer '{layer}'"
        )
    if not bool(torch.isfinite(matrix).all()):
        raise InputError(f"the basis '{basis}' holds NaN or infinite values; expected finite ones")
    return on_channels(matrix, features, axis=1)
