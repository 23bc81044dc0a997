"""Images whose pixels are annotated with concepts: the form that dissection reads, checked, and joined from parts."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coset.batches import BATCH_SIZE, check_batch_size
from coset.errors import InputError

Batch = tuple[Tensor, Tensor]
"""Inputs (n, …) as the model takes them, and masks (n, K, H, W), bool: where each of K concepts is."""


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
    of the annotation, and may differ from that of the inputs. Data are read several times: a list, a ``DataLoader``,
    any object with ``__iter__``, but not an iterator, which ends; the same images every time, in whatever order.
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
        return tuple(dict.fromkeys(concept.category for concept in self.concepts))


@dataclass(frozen=True)
class Repeated:
    """What a function without arguments gives, each time anew."""

    make: Callable[[], Iterator[Batch]]

    def __iter__(self) -> Iterator[Batch]:
        return self.make()


@dataclass(frozen=True, eq=False)
class Census:
    """How many ``images`` and ``batches`` there are, and of each concept how many ``pixels`` (K,), of ``area`` all."""

    images: int
    batches: int
    area: int
    pixels: Tensor


def checked_batches(data: AnnotatedImages) -> Iterator[Batch]:
    """The batches of ``data``; raises unless each is a pair of inputs and of masks of its concepts."""
    count = len(data.concepts)
    for number, batch in enumerate(data.batches):
        if not (isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(p, Tensor) for p in batch)):
            raise InputError(
                f"batch {number} of the images is a {type(batch).__name__}; expected a pair of tensors (inputs, masks)"
            )
        inputs, masks = batch
        if masks.dtype != torch.bool or masks.ndim != 4 or masks.shape[1] != count or 0 in masks.shape[2:]:
            raise InputError(
                f"the masks of batch {number} are {masks.dtype} of shape {tuple(masks.shape)}; expected torch.bool "
                f"(n, {count}, H, W), one for each concept"
            )
        if inputs.ndim < 2 or len(inputs) != len(masks) or len(inputs) == 0:
            raise InputError(
                f"batch {number} has inputs of shape {tuple(inputs.shape)} and masks of shape {tuple(masks.shape)}; "
                f"expected as many of each, and at least one"
            )
        yield inputs, masks


def census(data: AnnotatedImages) -> Census:
    """Count images and the pixels of every concept in one pass; no model is run."""
    images = batches = area = 0
    pixels = torch.zeros(len(data.concepts), dtype=torch.int64)
    for _, masks in checked_batches(data):
        images, batches = images + len(masks), batches + 1
        area += len(masks) * masks.shape[2] * masks.shape[3]
        pixels += masks.sum((0, 2, 3)).cpu()
    if not images:
        raise InputError("the annotated images hold no batches; expected at least one")
    return Census(images, batches, area, pixels)


def plain_images(images: Tensor, *, batch_size: int = BATCH_SIZE) -> AnnotatedImages:
    """Images (N, C, H, W) without concepts, to which others are added."""
    check_batch_size(batch_size)
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
    """More ``concepts``, whose masks ``make`` reads from the inputs: (n, …) to (n, k, H, W)."""

    def batches() -> Iterator[Batch]:
        for inputs, masks in checked_batches(data):
            yield inputs, torch.cat([masks, make(inputs)], 1)

    return AnnotatedImages((*data.concepts, *concepts), Repeated(batches))


def transformed_images(data: AnnotatedImages, function: Callable[[Tensor], Tensor]) -> AnnotatedImages:
    """The same with ``function`` of the inputs in their place, a normalisation for instance."""

    def batches() -> Iterator[Batch]:
        for inputs, masks in checked_batches(data):
            yield function(inputs), masks

    return replace(data, batches=Repeated(batches))


def joined_images(*parts: AnnotatedImages) -> AnnotatedImages:
    """The images of all ``parts``, one after the other, with the concepts of all; none of a concept where its part
    did not annotate it.
    """
    if not parts:
        raise InputError("there is nothing to join; expected annotated images")
    concepts = tuple(dict.fromkeys(itertools.chain.from_iterable(part.concepts for part in parts)))

    def batches() -> Iterator[Batch]:
        for part in parts:
            places = [concepts.index(concept) for concept in part.concepts]
            for inputs, masks in checked_batches(part):
                wide = masks.new_zeros(len(masks), len(concepts), *masks.shape[2:])
                wide[:, places] = masks
                yield inputs, wide

    return AnnotatedImages(concepts, Repeated(batches))


def present_concepts(data: AnnotatedImages) -> AnnotatedImages:
    """Without the concepts that no pixel has, which cannot be dissected for; one pass over the data."""
    places = [place for place, pixels in enumerate(census(data).pixels.tolist()) if pixels]

    def batches() -> Iterator[Batch]:
        for inputs, masks in checked_batches(data):
            yield inputs, masks[:, places]

    return AnnotatedImages(tuple(data.concepts[place] for place in places), Repeated(batches))
