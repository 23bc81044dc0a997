"""Generated images of shapes and textures, with exact masks: concepts without any data."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from coset._batches import Repeated
from coset._checks import check_count
from coset.errors import InputError
from coset.represent.dissection.images import AnnotatedImages, Batch, Concept, masks_of_labels

Inside = Callable[[Tensor, Tensor], Tensor]
"""Whether points (u, v), in units of an object's radius around its centre, belong to it."""

SHAPES: dict[str, Inside] = {
    "circle": lambda u, v: u.square() + v.square() <= 1,
    "ring": lambda u, v: (u.square() + v.square() <= 1) & (u.square() + v.square() >= 0.3),
    "square": lambda u, v: torch.maximum(u.abs(), v.abs()) <= 0.8,
    "triangle": lambda u, v: (v <= 0.5) & (math.sqrt(3) * u.abs() <= 1 + v),
    "cross": lambda u, v: (torch.minimum(u.abs(), v.abs()) <= 0.3) & (torch.maximum(u.abs(), v.abs()) <= 1),
}
"""Objects of one colour, by name."""

TEXTURES: dict[str, Inside] = {
    "horizontal stripes": lambda u, v: torch.remainder(v, 0.7) < 0.35,
    "vertical stripes": lambda u, v: torch.remainder(u, 0.7) < 0.35,
    "diagonal stripes": lambda u, v: torch.remainder(u + v, 1.0) < 0.5,
    "checks": lambda u, v: (torch.remainder(u, 0.7) < 0.35) != (torch.remainder(v, 0.7) < 0.35),
}
"""Discs with two colours, by name: where the first of them is."""

CONCEPTS = (*(Concept(name, "shape") for name in SHAPES), *(Concept(name, "texture") for name in TEXTURES))


def shape_images(
    count: int,
    *,
    seed: int,
    size: int = 32,
    objects: int = 3,
    radii: tuple[float, float] = (0.12, 0.25),
    batch_size: int = 250,
) -> AnnotatedImages:
    """``count`` RGB images (n, 3, ``size``, ``size``) in [0, 1] of shapes and discs of texture, made as they are read.

    Each has ``objects`` of random kind, place, colour and radius (between ``radii``, as shares of ``size``), before a
    plane of one colour with noise. Squares, triangles and crosses are turned at random; textures are not. A pixel
    belongs to the object whose form its centre lies in; later objects cover earlier ones, in the image and in the
    masks. All follows from ``seed`` and ``batch_size``, and is the same whenever it is read.
    """
    check_count("batch_size", batch_size)
    for name, value in (("count", count), ("size", size), ("objects", objects)):
        check_count(name, value)
    if not 0 < radii[0] <= radii[1] <= 0.5:
        raise InputError(f"radii is {radii!r}; expected two shares of the image, at most 0.5 and in order")

    def batches() -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed)
        for start in range(0, count, batch_size):
            images, labels = _scenes(min(batch_size, count - start), size, objects, radii, generator)
            yield images, masks_of_labels(labels, len(CONCEPTS))

    return AnnotatedImages(CONCEPTS, Repeated(batches))


def _scenes(
    count: int, size: int, objects: int, radii: tuple[float, float], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Images (n, 3, H, W), and for each pixel the number of its concept, (n, H, W), −1 where there is none."""

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    images = (uniform(count, 3, 1, 1) + 0.1 * torch.randn(count, 3, size, size, generator=generator)).clamp(0, 1)
    labels = torch.full((count, size, size), -1)
    middle = (torch.arange(size) + 0.5) / size
    for _ in range(objects):
        kind = torch.randint(len(CONCEPTS), (count, 1, 1), generator=generator)
        radius = radii[0] + (radii[1] - radii[0]) * uniform(count, 1, 1)
        x, y = (radius + (1 - 2 * radius) * uniform(count, 1, 1) for _ in range(2))
        angle = torch.where(kind < len(SHAPES), 2 * math.pi * uniform(count, 1, 1), 0.0)
        u, v = (middle - x) / radius, (middle[:, None] - y) / radius
        u, v = u * angle.cos() + v * angle.sin(), v * angle.cos() - u * angle.sin()
        covered, first = _object(kind, u, v)
        colours = torch.where(first[:, None], uniform(count, 3, 1, 1), uniform(count, 3, 1, 1))
        images = torch.where(covered[:, None], colours, images)
        labels = torch.where(covered, kind, labels)
    return images, labels


def _object(kind: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Where an object of the ``kind`` is, and where it has the first of its colours, (n, H, W)."""
    covered, first = torch.zeros_like(u, dtype=torch.bool), torch.ones_like(u, dtype=torch.bool)
    for number, inside in enumerate((*SHAPES.values(), *TEXTURES.values())):
        chosen = kind == number
        if number < len(SHAPES):
            covered = torch.where(chosen, inside(u, v), covered)
        else:
            covered = torch.where(chosen, SHAPES["circle"](u, v), covered)
            first = torch.where(chosen, inside(u, v), first)
    return covered, first
