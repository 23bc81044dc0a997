"""Images whose pixels are annotated with concepts: the form that dissection reads, checked, and joined from parts."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from coset._batches import BATCH_SIZE, Repeated
from coset._checks import check_count
from coset.errors import InputError

Batch = tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]
"""A batch as a user gives it: inputs (n, …) and masks (n, K, H, W), perhaps with what is annotated, (n, G)."""


class AnnotatedBatch(NamedTuple):
    """``inputs`` (n, …) as the model takes them, ``masks`` (n, K, H, W), bool: where each of K concepts is, and
    ``annotated`` (n, G), bool: for which of G categories each image was annotated.
    """

    inputs: Tensor
    masks: Tensor
    annotated: Tensor


@dataclass(frozen=True)
class Concept:
    """What a unit might detect, "red" of the category "colour" for instance."""

    name: str
    category: str


@dataclass(frozen=True, eq=False)
class AnnotatedImages:
    """Inputs with a mask for each concept, batch by batch.

    ``batches`` gives pairs (inputs, masks): inputs (n, …) as the model takes them, masks (n, K, H, W) of type bool,
    K the number of ``concepts``, in their order. Pixels may have several concepts or none; H and W are the resolution
    of the annotation, and may differ from that of the inputs. Where not every image was annotated for every category,
    a batch is (inputs, masks, annotated): annotated (n, G) of type bool, for the G ``categories`` in their order. An
    image counts for the concepts of a category, found or missed, only if it was annotated for it; of a pair all were.
    Data are read several times: a list, a ``DataLoader``, any object with ``__iter__``, but not an iterator, which
    ends; the same images every time, in whatever order.
    """

    concepts: tuple[Concept, ...]
    batches: Iterable[Batch]

    def __post_init__(self) -> None:
        concepts = tuple(self.concepts)
        if not all(isinstance(concept, Concept) for concept in concepts):
            raise InputError("concepts holds something else than a Concept; expected Concept(name, category)")
        for concept in concepts:
            if sum(concept == other for other in concepts) > 1:
                raise InputError(f"concepts names '{concept.name}' of category '{concept.category}' more than once")
        if not isinstance(self.batches, Iterable):
            raise InputError(f"batches is a {type(self.batches).__name__}; expected pairs (inputs, masks)")
        if iter(self.batches) is self.batches:
            raise InputError(
                f"batches is a {type(self.batches).__name__}, which can be read once; data are read several times: "
                f"expected a list, a DataLoader or another object with __iter__"
            )
        object.__setattr__(self, "concepts", concepts)

    @property
    def categories(self) -> tuple[str, ...]:
        """The categories of the concepts, each once."""
        return _categories(self.concepts)

    @property
    def category_places(self) -> tuple[int, ...]:
        """Of each concept the place of its category in ``categories``, (K,)."""
        return tuple(self.categories.index(concept.category) for concept in self.concepts)


def _categories(concepts: Iterable[Concept]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(concept.category for concept in concepts))


@dataclass(frozen=True, eq=False)
class Census:
    """How many ``images`` and ``batches`` there are, and of each concept how many ``pixels`` (K,).

    ``area``: how many pixels there are; ``areas`` (K,): those on images that are annotated for the concept's category.
    """

    images: int
    batches: int
    area: int
    pixels: Tensor
    areas: Tensor


def checked_batches(data: AnnotatedImages) -> Iterator[AnnotatedBatch]:
    """The batches of ``data``; raises unless each is inputs, masks of its concepts and, if told, what is annotated."""
    for number, batch in enumerate(data.batches):
        if not (isinstance(batch, tuple | list) and len(batch) in (2, 3) and all(isinstance(p, Tensor) for p in batch)):
            raise InputError(
                f"batch {number} of the images is a {type(batch).__name__}; expected a pair of tensors (inputs, masks) "
                f"or three, (inputs, masks, annotated)"
            )
        inputs, masks = batch[:2]
        _check_masks(inputs, masks, len(data.concepts), f"batch {number}")
        if len(batch) == 2:
            annotated = masks.new_ones(len(masks), len(data.categories))
        else:
            annotated = batch[2]
            _check_annotated(annotated, masks, data, f"batch {number}")
        yield AnnotatedBatch(inputs, masks, annotated)


def _check_masks(inputs: Tensor, masks: Tensor, concepts: int, where: str) -> None:
    if masks.dtype != torch.bool or masks.ndim != 4 or masks.shape[1] != concepts or 0 in masks.shape[2:]:
        raise InputError(
            f"the masks of {where} are {masks.dtype} of shape {tuple(masks.shape)}; expected torch.bool "
            f"(n, {concepts}, H, W), one for each concept"
        )
    if inputs.ndim < 2 or len(inputs) != len(masks) or len(inputs) == 0:
        raise InputError(
            f"{where} has inputs of shape {tuple(inputs.shape)} and masks of shape {tuple(masks.shape)}; "
            f"expected as many of each, and at least one"
        )


def _check_annotated(annotated: Tensor, masks: Tensor, data: AnnotatedImages, where: str) -> None:
    shape = (len(masks), len(data.categories))
    if annotated.dtype != torch.bool or tuple(annotated.shape) != shape:
        raise InputError(
            f"annotated of {where} is {annotated.dtype} of shape {tuple(annotated.shape)}; expected torch.bool "
            f"{shape}, an entry for each image and each of the categories {', '.join(data.categories)}"
        )
    found = masks.any(-1).any(-1) & ~annotated.to(masks.device)[:, list(data.category_places)]
    if bool(found.any()):
        concept = data.concepts[int(found.any(0).nonzero()[0])]
        raise InputError(
            f"{where} has pixels of '{concept.name}' on an image that is not annotated for the category "
            f"'{concept.category}'; expected none there"
        )


def census(data: AnnotatedImages) -> Census:
    """Count images and the pixels of every concept in one pass; no model is run."""
    images = batches = area = 0
    pixels, areas = (torch.zeros(len(data.concepts), dtype=torch.int64) for _ in range(2))
    places = list(data.category_places)
    for _, masks, annotated in checked_batches(data):
        images, batches = images + len(masks), batches + 1
        size = masks.shape[2] * masks.shape[3]
        area += len(masks) * size
        pixels += masks.sum((0, 2, 3)).cpu()
        areas += size * annotated.sum(0).cpu()[places]
    if not images:
        raise InputError("the annotated images hold no batches; expected at least one")
    return Census(images, batches, area, pixels, areas)


def plain_images(images: Tensor, *, batch_size: int = BATCH_SIZE) -> AnnotatedImages:
    """Images (N, C, H, W) without concepts, to which others are added."""
    check_count("batch_size", batch_size)
    if not isinstance(images, Tensor) or images.ndim != 4 or 0 in images.shape:
        found = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
        raise InputError(f"images is {found}; expected a tensor (N, C, H, W)")

    def batches() -> Iterator[Batch]:
        for start in range(0, len(images), batch_size):
            part = images[start : start + batch_size]
            yield part, torch.zeros(len(part), 0, *part.shape[2:], dtype=torch.bool, device=part.device)

    return AnnotatedImages((), Repeated(batches))


def masks_of_labels(labels: Tensor, count: int) -> Tensor:
    """A mask for each of ``count`` labels: labels (n, H, W), integers, to (n, count, H, W), bool; others have none."""
    if not isinstance(labels, Tensor) or labels.ndim != 3 or labels.is_floating_point():
        found = f"{labels.dtype} {tuple(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
        raise InputError(f"labels is {found}; expected integers (n, H, W)")
    return labels[:, None] == torch.arange(count, device=labels.device)[:, None, None]


def with_masks(
    data: AnnotatedImages, concepts: tuple[Concept, ...], make: Callable[[Tensor], Tensor]
) -> AnnotatedImages:
    """More ``concepts``, whose masks ``make`` reads from the inputs: (n, …) to (n, k, H, W), bool.

    All images are annotated for their categories from then on, with all concepts of these: to be used with categories
    that ``data`` does not have, or has on all images.
    """
    every = (*data.concepts, *concepts)
    categories = _categories(every)
    kept = [categories.index(name) for name in data.categories]
    added = [categories.index(concept.category) for concept in concepts]

    def batches() -> Iterator[Batch]:
        for number, (inputs, masks, annotated) in enumerate(checked_batches(data)):
            more = make(inputs)
            expected = (len(masks), len(concepts), *masks.shape[2:])
            if not isinstance(more, Tensor) or more.dtype != torch.bool or tuple(more.shape) != expected:
                found = f"{more.dtype} {tuple(more.shape)}" if isinstance(more, Tensor) else type(more).__name__
                raise InputError(
                    f"the masks that are added to batch {number} are {found}; expected torch.bool {expected}, of the "
                    f"resolution of the masks that are there"
                )
            wide = annotated.new_zeros(len(masks), len(categories))
            wide[:, kept] = annotated
            wide[:, added] = True
            yield inputs, torch.cat([masks, more], 1), wide

    return AnnotatedImages(every, Repeated(batches))


def transformed_images(data: AnnotatedImages, function: Callable[[Tensor], Tensor]) -> AnnotatedImages:
    """The same with ``function`` of the inputs in their place, a normalisation for instance."""

    def batches() -> Iterator[Batch]:
        for inputs, masks, annotated in checked_batches(data):
            yield function(inputs), masks, annotated

    return replace(data, batches=Repeated(batches))


def joined_images(*parts: AnnotatedImages) -> AnnotatedImages:
    """The images of all ``parts``, one after the other, with the concepts of all.

    The images of a part are annotated for the categories of its own concepts, where they were in the part, and for no
    others: there neither a concept nor its absence is known.
    """
    if not parts:
        raise InputError("there is nothing to join; expected annotated images")
    concepts = tuple(dict.fromkeys(itertools.chain.from_iterable(part.concepts for part in parts)))
    categories = _categories(concepts)

    def batches() -> Iterator[Batch]:
        for part in parts:
            places = [concepts.index(concept) for concept in part.concepts]
            columns = [categories.index(name) for name in part.categories]
            for inputs, masks, annotated in checked_batches(part):
                wide = masks.new_zeros(len(masks), len(concepts), *masks.shape[2:])
                wide[:, places] = masks
                known = annotated.new_zeros(len(masks), len(categories))
                known[:, columns] = annotated
                yield inputs, wide, known

    return AnnotatedImages(concepts, Repeated(batches))


def present_concepts(data: AnnotatedImages) -> AnnotatedImages:
    """Without the concepts that no pixel has, which cannot be dissected for; one pass over the data.

    Parts are joined before: one that loses all concepts of a category is not annotated for it any more.
    """
    places = [place for place, pixels in enumerate(census(data).pixels.tolist()) if pixels]
    concepts = tuple(data.concepts[place] for place in places)
    columns = [data.categories.index(name) for name in _categories(concepts)]

    def batches() -> Iterator[Batch]:
        for inputs, masks, annotated in checked_batches(data):
            yield inputs, masks[:, places], annotated[:, columns]

    return AnnotatedImages(concepts, Repeated(batches))
