"""Annotated images: checks, joins, names of colours, and generated shapes with exact masks."""

import itertools

import pytest
import torch
from torch import Tensor

from coset.errors import InputError
from coset.represent.dissection.colours import COLOURS, colour_labels, to_lab, with_colours
from coset.represent.dissection.images import (
    AnnotatedImages,
    Concept,
    census,
    checked_batches,
    joined_images,
    masks_of_labels,
    plain_images,
    present_concepts,
    transformed_images,
    with_masks,
)
from coset.represent.dissection.shapes import CONCEPTS, SHAPES, TEXTURES, shape_images

RED, ROUND = Concept("red", "colour"), Concept("round", "shape")


def uniform(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def annotated(*concepts: Concept, seed: int = 0) -> AnnotatedImages:
    masks = uniform(4, len(concepts), 5, 5, seed=seed + 1) < 0.5
    return AnnotatedImages(concepts, [(uniform(2, 3, 5, 5, seed=seed), masks[:2]), (uniform(2, 3, 5, 5), masks[2:])])


def all_masks(data: AnnotatedImages) -> Tensor:
    return torch.cat([batch.masks for batch in checked_batches(data)])


def all_annotated(data: AnnotatedImages) -> Tensor:
    return torch.cat([batch.annotated for batch in checked_batches(data)])


def test_joined_images_keep_their_masks() -> None:
    one, two = annotated(RED), annotated(ROUND, RED, seed=7)
    both = joined_images(one, two)
    assert both.concepts == (RED, ROUND)
    assert both.categories == ("colour", "shape")
    masks = all_masks(both)
    assert torch.equal(masks[:4, 0], all_masks(one)[:, 0])
    assert not masks[:4, 1].any()
    assert torch.equal(masks[4:], all_masks(two).flip(1))
    assert all_annotated(both).tolist() == [[True, False]] * 4 + [[True, True]] * 4
    counted = census(both)
    assert (counted.images, counted.batches, counted.area) == (8, 4, 200)
    assert counted.pixels.tolist() == masks.sum((0, 2, 3)).tolist()
    # Nothing is known of shapes on the first four images, of 25 pixels each.
    assert counted.areas.tolist() == [200, 100]


def test_what_is_annotated_goes_with_the_images() -> None:
    x, masks = uniform(3, 3, 4, 4), torch.zeros(3, 2, 4, 4, dtype=torch.bool)
    masks[1, 0, 0, 0] = masks[2, 1, 1, 1] = True
    annotated = torch.tensor([[True, False], [True, True], [False, True]])
    data = AnnotatedImages((RED, ROUND), [(x, masks, annotated)])
    assert torch.equal(all_annotated(data), annotated)
    assert all_annotated(AnnotatedImages((RED, ROUND), [(x, masks)])).all()
    assert torch.equal(all_annotated(transformed_images(data, torch.neg)), annotated)
    joined = joined_images(data, AnnotatedImages((Concept("square", "shape"),), [(x, masks[:, :1])]))
    assert joined.categories == ("colour", "shape")
    assert torch.equal(all_annotated(joined), torch.cat([annotated, torch.tensor([[False, True]] * 3)]))
    # Masks that are read from the inputs are known of every image.
    coloured = with_colours(joined_images(plain_images(x), AnnotatedImages((ROUND,), [(x, masks[:, 1:])])))
    assert coloured.categories == ("shape", "colour")
    assert all_annotated(coloured).tolist() == [[False, True]] * 3 + [[True, True]] * 3
    left = present_concepts(AnnotatedImages((RED, ROUND), [(x[1:2], masks[1:2], annotated[1:2])]))
    assert left.categories == ("colour",)
    assert all_annotated(left).tolist() == [[True]]


def test_transformations_leave_masks_alone() -> None:
    data = annotated(RED)
    first = next(checked_batches(transformed_images(data, lambda x: 2 * x)))
    assert torch.equal(first.inputs, 2 * data.batches[0][0])
    assert torch.equal(first.masks, data.batches[0][1])


def test_absent_concepts_are_left_out() -> None:
    masks = torch.zeros(2, 2, 3, 3, dtype=torch.bool)
    masks[:, 1, 0, 0] = True
    left = present_concepts(AnnotatedImages((RED, ROUND), [(uniform(2, 3, 3, 3), masks)]))
    assert left.concepts == (ROUND,)
    assert torch.equal(all_masks(left), masks[:, 1:])


def test_labels_to_masks() -> None:
    labels = torch.tensor([[[0, 2], [-1, 1]]])
    masks = masks_of_labels(labels, 3)
    for label, y, x in itertools.product(range(3), range(2), range(2)):
        assert bool(masks[0, label, y, x]) == (int(labels[0, y, x]) == label)


def test_lab_of_known_colours() -> None:
    # L*, a*, b* of sRGB primaries and grey with white D65.
    rgb = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0], [0.5, 0.5, 0.5]], dtype=torch.float64)
    expected = [[100, 0, 0], [53.24, 80.09, 67.20], [87.73, -86.18, 83.18], [32.30, 79.19, -107.86], [0, 0, 0],
                [53.39, 0, 0]]  # fmt: skip
    assert torch.allclose(to_lab(rgb), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=0.05)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("red", (255, 0, 0)), ("green", (0, 255, 0)), ("blue", (0, 0, 255)), ("yellow", (255, 255, 0)),
        ("orange", (255, 165, 0)), ("brown", (139, 69, 19)), ("pink", (255, 192, 203)), ("purple", (128, 0, 128)),
        ("grey", (128, 128, 128)), ("white", (255, 255, 255)), ("black", (0, 0, 0)), ("green", (34, 139, 34)),
        ("blue", (135, 206, 235)), ("blue", (0, 0, 128)), ("red", (178, 34, 34)), ("pink", (255, 105, 180)),
    ],
)  # fmt: skip
def test_named_colours_of_the_web(name: str, value: tuple[int, int, int]) -> None:
    image = torch.tensor(value, dtype=torch.float32)[None, :, None, None] / 255
    assert COLOURS[int(colour_labels(image))] == name


def test_every_pixel_has_one_colour() -> None:
    data = with_colours(plain_images(uniform(5, 3, 8, 8), batch_size=2))
    assert len(data.concepts) == 11
    assert data.categories == ("colour",)
    masks = all_masks(data)
    assert masks.shape == (5, 11, 8, 8)
    assert bool((masks.sum(1) == 1).all())


def test_shapes_are_where_their_masks_are() -> None:
    data = shape_images(40, seed=3, size=24, objects=1, batch_size=16)
    assert data.concepts == CONCEPTS
    assert len(CONCEPTS) == len(SHAPES) + len(TEXTURES)
    images = torch.cat([inputs for inputs, _ in data.batches])
    masks = all_masks(data)
    assert images.shape == (40, 3, 24, 24)
    assert float(images.min()) >= 0
    assert float(images.max()) <= 1
    assert int(masks.sum(1).max()) == 1
    for image, mask in zip(images, masks, strict=True):
        (kind,) = mask.flatten(1).any(1).nonzero()[:, 0].tolist()
        values = image[:, mask[kind]].unique(dim=1)
        # One colour, or two in a texture; the noisy background has as many as pixels.
        assert values.shape[1] == (1 if kind < len(SHAPES) else 2)
        assert image[:, ~mask[kind]].unique(dim=1).shape[1] > 100


def test_areas_of_shapes() -> None:
    data = shape_images(60, seed=0, size=100, objects=1, radii=(0.3, 0.3), batch_size=30)
    areas = {"circle": 3.1416, "ring": 0.7 * 3.1416, "square": 2.56, "triangle": 3 * 3**0.5 / 4, "cross": 2.04}
    for _, masks in data.batches:
        for mask in masks:
            (kind,) = mask.flatten(1).any(1).nonzero()[:, 0].tolist()
            area = areas.get(CONCEPTS[kind].name, 3.1416)
            assert int(mask[kind].sum()) / 30**2 == pytest.approx(area, rel=0.05)


def test_textures_run_in_their_direction() -> None:
    for name, along, across in (("horizontal stripes", 2, 1), ("vertical stripes", 1, 2)):
        for images, masks in shape_images(60, seed=5, objects=1, radii=(0.4, 0.4)).batches:
            number = [concept.name for concept in CONCEPTS].index(name)
            for image, mask in zip(images, masks[:, number], strict=True):
                if mask.any():
                    here = mask & mask.roll(1, 0) & mask.roll(1, 1)
                    change = [(image != image.roll(1, axis)).any(0)[here].double().mean() for axis in (along, across)]
                    assert change[0] == 0
                    assert change[1] > 0.1


def test_the_same_images_every_time_and_others_from_another_seed() -> None:
    data = shape_images(10, seed=1, batch_size=4)
    first, again = ([inputs for inputs, _ in data.batches] for _ in range(2))
    assert [len(inputs) for inputs in first] == [4, 4, 2]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], next(iter(shape_images(10, seed=2, batch_size=4).batches))[0])


def test_later_objects_cover_earlier_ones() -> None:
    (one, before), (two, after) = (
        next(iter(shape_images(50, seed=0, objects=count, radii=(0.3, 0.5)).batches)) for count in (1, 2)
    )
    assert int(after.sum(1).max()) == 1
    changed = (one != two).any(1)
    # The second object has all that it covers, and the first keeps the rest.
    assert torch.equal(before.movedim(1, -1)[~changed], after.movedim(1, -1)[~changed])
    assert bool(after.any(1)[changed].all())
    assert bool((before.any(1) & changed).any())


def test_bad_annotations() -> None:
    x, masks = uniform(2, 3, 4, 4), torch.ones(2, 1, 4, 4, dtype=torch.bool)

    def read(batch: object) -> None:
        list(checked_batches(AnnotatedImages((RED,), [batch])))  # type: ignore[list-item]

    with pytest.raises(InputError, match=r"masks of batch 0 are torch.float32 of shape \(2, 1, 4, 4\); expected torch"):
        read((x, masks.float()))
    with pytest.raises(InputError, match=r"shape \(2, 2, 4, 4\); expected torch.bool \(n, 1, H, W\)"):
        read((x, masks.expand(2, 2, 4, 4)))
    with pytest.raises(InputError, match=r"inputs of shape \(1, 3, 4, 4\) and masks of shape \(2, 1, 4, 4\)"):
        read((x[:1], masks))
    with pytest.raises(InputError, match="batch 0 of the images is a Tensor; expected a pair"):
        read(x)
    known = torch.ones(2, 1, dtype=torch.bool)
    with pytest.raises(InputError, match=r"annotated of batch 0 is torch.bool of shape \(2,\); .* categories colour"):
        read((x, masks, known[:, 0]))
    with pytest.raises(InputError, match=r"annotated of batch 0 is torch.int64 of shape \(2, 1\); expected torch.bool"):
        read((x, masks, known.long()))
    with pytest.raises(
        InputError, match=r"batch 0 has pixels of 'red' on an image that is not annotated for .*'colour'"
    ):
        read((x, masks, ~known))
    with pytest.raises(InputError, match="hold no batches"):
        census(AnnotatedImages((RED,), []))
    with pytest.raises(InputError, match="batches is a list_iterator, which can be read once"):
        AnnotatedImages((RED,), iter([(x, masks)]))
    with pytest.raises(InputError, match="concepts names 'red' of category 'colour' more than once"):
        AnnotatedImages((RED, RED), [(x, masks)])
    with pytest.raises(InputError, match="concepts holds something else"):
        AnnotatedImages(("red",), [(x, masks)])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="batches is a int"):
        AnnotatedImages((RED,), 3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="nothing to join"):
        joined_images()


def test_masks_that_are_added_are_of_the_resolution_of_the_others() -> None:
    fine = AnnotatedImages((ROUND,), [(uniform(2, 3, 4, 4), torch.ones(2, 1, 8, 8, dtype=torch.bool))])
    expected = (
        r"added to batch 0 are torch.bool \(2, 11, 4, 4\); expected torch.bool \(2, 11, 8, 8\), of the resolution"
    )
    with pytest.raises(InputError, match=expected):
        next(iter(with_colours(fine).batches))
    with pytest.raises(InputError, match=r"added to batch 0 are torch.float32 \(2, 3, 4, 4\)"):
        next(iter(with_masks(fine, (RED,), lambda x: x).batches))


def test_bad_images() -> None:
    with pytest.raises(InputError, match=r"values from -1 to 2; expected RGB values in \[0, 1\]"):
        colour_labels(torch.tensor([-1.0, 0.0, 2.0])[None, :, None, None])
    with pytest.raises(InputError, match=r"images is torch.float32 \(2, 1, 4, 4\); expected RGB"):
        colour_labels(uniform(2, 1, 4, 4))
    with pytest.raises(InputError, match=r"images is \(2, 3, 4\); expected a tensor"):
        plain_images(uniform(2, 3, 4))
    with pytest.raises(InputError, match=r"labels is torch.float32 \(2, 3, 4\); expected integers"):
        masks_of_labels(uniform(2, 3, 4), 2)
    with pytest.raises(InputError, match="count is 0; expected a whole number"):
        shape_images(0, seed=0)
    with pytest.raises(InputError, match=r"radii is \(0.3, 0.2\)"):
        shape_images(1, seed=0, radii=(0.3, 0.2))
