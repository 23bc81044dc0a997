"""Networks dissected in rotated bases (Godfrey et al. 2022, section 6): images, networks, layers, what was found."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from coset.data import Split
from coset.represent import AnnotatedImages
from coset.represent.dissection import (
    LEAST_IOU,
    Concept,
    dissect_rotations,
    joined_images,
    masks_of_labels,
    present_concepts,
    receptive_placement,
    shape_images,
    transformed_images,
    with_colours,
)
from coset.represent.dissection.images import checked_batches
from coset.store import Entry
from coset.study import Context
from coset.study.images import load_images
from coset_studies._shared.published import PIXELS
from coset_studies.godfrey._zoo import Networks, Zoo, drawn, load_networks

SCHEMA = 2
"""Version of what is measured: to be raised where the same settings come to give other numbers."""
_PROBED = 16
"""So many images tell where receptive fields are."""


@dataclass(frozen=True)
class Pictures:
    """``natural`` test images with their classes, ``generated`` ones with shapes, and names of colours on both."""

    natural: int
    generated: int
    objects: int = 3
    batch_size: int = 200


@dataclass(frozen=True)
class Turning:
    """The bases: ``powers`` of so many ``rotations`` for every network."""

    powers: tuple[float, ...]
    rotations: int


@dataclass(frozen=True)
class Subject:
    """Networks of a ``zoo``, and ``places`` in them: by what is compared, the layers whose units are counted together.

    ``anchored``: maps lie at the centres of receptive fields, which is right where convolutions are not padded, and
    else cannot be found; otherwise they are stretched over the image.
    """

    zoo: Zoo
    places: tuple[tuple[str, tuple[str, ...]], ...]
    anchored: bool


@dataclass(frozen=True, eq=False)
class Found:
    """A layer of one network: ``iou`` (rotations, powers, units, K), on pixels of which ``shares`` have each concept.

    ``ceilings``: about the largest IoU that a unit can have with each. ``error``: of the streamed thresholds.
    """

    concepts: tuple[Concept, ...]
    iou: Tensor
    shares: tuple[float, ...]
    ceilings: tuple[float, ...]
    error: float

    @property
    def interpretable(self) -> Tensor:
        """Whether each unit has a concept, (rotations, powers, units)."""
        return self.iou.amax(-1) > LEAST_IOU

    @property
    def units(self) -> int:
        """How many units the layer has."""
        return self.iou.shape[2]

    def unique(self, category: str) -> Tensor:
        """How many concepts of a category are the label of a unit, (rotations, powers)."""
        labels = torch.where(self.interpretable, self.iou.argmax(-1), -1)
        places = [place for place, concept in enumerate(self.concepts) if concept.category == category]
        return sum(
            ((labels == place).any(-1).double() for place in places), start=torch.zeros(labels.shape[:2]).double()
        )


Places = Mapping[str, Mapping[str, tuple[Found, ...]]]
"""By what is compared, and by layer, what was found in each of the networks."""


def examined(context: Context, subject: Subject, pictures: Pictures, how: Turning) -> tuple[Places, Networks]:
    """All networks of a subject dissected at all of its layers; every layer of every network is kept in the store."""
    networks = load_networks(context, subject.zoo, range(subject.zoo.networks))
    # Made only where something is not in the store.
    data = cache(partial(annotated, context, subject.zoo, pictures))
    layers = [layer for _, group in subject.places for layer in group]
    found: dict[str, list[Found]] = {layer: [] for layer in layers}
    with context.progress("dissections", len(layers) * len(networks.modules)) as bar:
        for number, layer in itertools.product(networks.modules, layers):
            config = {
                "kind": "dissection",
                "schema": SCHEMA,
                "network": networks.names[number],
                "layer": layer,
                "fingerprint": networks.fingerprint,
                "pictures": asdict(pictures),
                "turning": asdict(how),
                "anchored": subject.anchored,
                "seed": context.seed,
                "number": number,
            }
            # Rotations differ between networks and between seeds of the study.
            generator = context.generator(f"rotations {number}")
            make = partial(_dissected, networks.modules[number], layer, data, how, generator, subject.anchored)
            found[layer].append(_found(context.store.get_or_make(config, make)))
            bar.advance(note=f"{number}, {layer}")
    return {label: {layer: tuple(found[layer]) for layer in group} for label, group in subject.places}, networks


def annotated(context: Context, zoo: Zoo, pictures: Pictures) -> AnnotatedImages:
    """Test images and generated ones of their size, annotated; inputs are as the networks see them."""
    whole = load_images(context, replace(zoo.images, raw=True, pool=1))
    channels, size = whole.shape[0], whole.shape[-1]
    made = shape_images(
        pictures.generated, seed=context.seed, size=size, objects=pictures.objects, batch_size=pictures.batch_size
    )
    natural = with_classes(drawn(whole.test, pictures.natural), whole.classes, pictures.batch_size)
    normalization = PIXELS if zoo.recipe is None else load_images(context, zoo.images).x_normalization

    def seen(pixels: Tensor) -> Tensor:
        # A network for grey images sees generated ones without their colours.
        pixels = pixels.mean(1, keepdim=True) if channels == 1 else pixels
        return normalization.apply(avg_pool2d(pixels, zoo.images.pool))

    data = transformed_images(present_concepts(with_colours(joined_images(natural, made))), seen)
    # Read many times: made once.
    return AnnotatedImages(data.concepts, list(checked_batches(data)))


def with_classes(part: Split, classes: Sequence[str], batch_size: int) -> AnnotatedImages:
    """Images as RGB, of which all pixels have the concept of their class, as scenes have in Broden."""
    batches = []
    for start in range(0, len(part), batch_size):
        pixels, labels = part.x[start : start + batch_size], part.y[start : start + batch_size]
        whole = labels[:, None, None].expand(-1, *pixels.shape[2:])
        batches.append((pixels.expand(-1, 3, -1, -1), masks_of_labels(whole, len(classes))))
    return AnnotatedImages(tuple(Concept(name, "class") for name in classes), batches)


def _dissected(
    module: nn.Module,
    layer: str,
    make_data: Callable[[], AnnotatedImages],
    how: Turning,
    generator: torch.Generator,
    anchored: bool,
) -> tuple[Mapping[str, Tensor], Mapping[str, object]]:
    data = make_data()
    first = next(checked_batches(data)).inputs
    placement = receptive_placement(module, layer, first[:_PROBED]) if anchored else None
    seed = int(torch.randint(2**62, (1,), generator=generator))
    found = dissect_rotations(
        module, layer, data, seed=seed, powers=how.powers, rotations=how.rotations, placement=placement, show=False
    ).found
    one = found[0][0]
    return {"iou": torch.stack([torch.stack([each.iou for each in line]) for line in found])}, {
        "concepts": [[concept.name, concept.category] for concept in one.concepts],
        "shares": one.concept_shares.tolist(),
        "ceilings": list(one.ceilings.values()),
        "error": max(each.error for line in found for each in line),
    }


def _found(entry: Entry) -> Found:
    info: Mapping[str, Any] = entry.info
    concepts = tuple(Concept(name, category) for name, category in info["concepts"])
    return Found(concepts, entry.params["iou"], tuple(info["shares"]), tuple(info["ceilings"]), info["error"])
