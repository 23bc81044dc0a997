"""Dissection: planted detectors, brute force on tiny cases, rotated bases, and data that cannot be dissected."""

import itertools
import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coset.errors import InputError
from coset.represent.dissection._dissect import dissect
from coset.represent.dissection.bases import rotation_powers, special_rotation
from coset.represent.dissection.images import AnnotatedImages, Concept, joined_images
from coset.represent.dissection.placement import Placement, interpolation, receptive_placement
from coset.represent.dissection.plot import plot_concepts, plot_dissections
from coset.represent.dissection.result import Dissection
from coset.represent.dissection.rotations_of_bases import dissect_rotations

LETTERS = tuple(Concept(name, category) for name, category in zip("abcde", "xxyyy", strict=True))


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def planted(images: int = 30, size: int = 20, concepts: int = 5, pixels: int = 12) -> tuple[nn.Module, AnnotatedImages]:
    """A network of which channel k is 1 on the mask of concept k and 0 elsewhere; masks have no pixel in common."""
    masks = torch.zeros(concepts, images * size * size, dtype=torch.bool)
    chosen = torch.randperm(images * size * size, generator=generator(0))[: concepts * pixels]
    masks.scatter_(1, chosen.reshape(concepts, pixels), True)
    masks = masks.reshape(concepts, images, size, size).transpose(0, 1)
    model = nn.Sequential(nn.Conv2d(concepts, concepts, 1, bias=False))
    model[0].weight.data = torch.eye(concepts)[:, :, None, None]
    named = LETTERS if concepts == 5 else tuple(Concept(str(number), "number") for number in range(concepts))
    return model, AnnotatedImages(named, [(part.float(), part) for part in masks.split(7)])


def random_case(seed: int, size: int = 9) -> tuple[nn.Module, AnnotatedImages]:
    """A random network whose maps are smaller than the masks, and random masks."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Conv2d(2, 6, 3, stride=2), nn.ReLU(), nn.Conv2d(6, 4, 1)).double()
    inputs = torch.randn(8, 2, size, size, generator=generator(seed), dtype=torch.float64)
    masks = torch.rand(8, 3, 7, 11, generator=generator(seed + 1)) < 0.2
    return model, AnnotatedImages(LETTERS[:3], [(inputs[:5], masks[:5]), (inputs[5:], masks[5:])])


def brute_force(maps: Tensor, masks: Tensor, share: float, chosen: Tensor | None = None) -> Tensor:
    """IoU (D, K) of maps (N, D, h, w) and masks (N, K, H, W), pixel by pixel as in F.1; over ``chosen`` images (N,)."""
    units, concepts = maps.shape[1], masks.shape[1]
    found = torch.zeros(units, concepts, dtype=torch.float64)
    for unit, concept in itertools.product(range(units), range(concepts)):
        values = sorted(maps[:, unit].flatten().tolist(), reverse=True)
        threshold = values[int(share * len(values))]
        large = F.interpolate(maps[:, unit : unit + 1], masks.shape[2:], mode="bilinear")[:, 0] > threshold
        both = either = 0
        for image, y, x in itertools.product(*map(range, large.shape)):
            if chosen is not None and not chosen[image]:
                continue
            one, two = bool(large[image, y, x]), bool(masks[image, concept, y, x])
            both, either = both + (one and two), either + (one or two)
        found[unit, concept] = both / either
    return found


def outputs(model: nn.Module, data: AnnotatedImages) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        return torch.cat([model(x) for x, _ in data.batches]), torch.cat([masks for _, masks in data.batches])


@pytest.mark.parametrize("seed", range(3))
def test_brute_force(seed: int) -> None:
    model, data = random_case(seed)
    maps, masks = outputs(model, data)
    basis = torch.randn(3, 4, generator=generator(seed), dtype=torch.float64)
    found = dissect(model, "2", data, bases={"neurons": torch.eye(4), "other": basis}, share=0.1)
    assert torch.equal(found["neurons"].iou, brute_force(maps, masks, 0.1))
    turned = torch.einsum("dc,nchw->ndhw", basis, maps)
    assert torch.equal(found["other"].iou, brute_force(turned, masks, 0.1))
    assert torch.equal(dissect(model, "2", data, share=0.1)["neurons"].iou, found["neurons"].iou)
    assert found["neurons"].shares.tolist() == [int(0.1 * 8 * 16) / (8 * 16)] * 4
    assert found["neurons"].concept_shares.tolist() == masks.double().mean((0, 2, 3)).tolist()


@pytest.mark.parametrize("seed", range(2))
def test_images_count_for_the_categories_they_are_annotated_for(seed: int) -> None:
    """Each concept against brute force on its images alone, with the thresholds of all images (Bau et al., 3.2)."""
    model, data = random_case(seed)
    maps, masks = outputs(model, data)
    annotated = torch.rand(8, 2, generator=generator(seed + 2)) < 0.6
    assert not annotated.all()
    places = [0, 0, 1]
    masks = masks & annotated[:, places, None, None]
    x = torch.cat([inputs for inputs, *_ in data.batches])
    batches = [(x[part], masks[part], annotated[part]) for part in (slice(0, 5), slice(5, 8))]
    found = dissect(model, "2", AnnotatedImages(data.concepts, batches), share=0.1)["neurons"]
    everywhere = dissect(model, "2", AnnotatedImages(data.concepts, [b[:2] for b in batches]), share=0.1)["neurons"]
    assert torch.equal(found.thresholds, everywhere.thresholds)
    assert torch.equal(everywhere.iou, brute_force(maps, masks, 0.1))
    for concept, place in enumerate(places):
        chosen = annotated[:, place]
        expected = brute_force(maps, masks, 0.1, chosen)[:, concept]
        assert torch.equal(found.iou[:, concept], expected)
        assert found.concept_shares[concept] == masks[chosen, concept].double().mean()
        assert found.annotated_shares[concept] == chosen.double().mean()
    assert not torch.equal(found.iou, everywhere.iou)


def test_a_joined_set_without_a_category_leaves_its_concepts_alone() -> None:
    # On images that are annotated for "z" alone units mark what they like.
    model, data = planted()
    (x, masks), *_ = data.batches
    bright = AnnotatedImages((Concept("z", "z"),), [(2 * x, masks[:, :1])])
    found = dissect(model, "0", joined_images(data, bright))["neurons"]
    assert torch.equal(found.iou[:, :5], torch.eye(5, dtype=torch.float64))
    assert found.iou[:, 5].tolist() == [1, 0, 0, 0, 0]


def test_a_planted_network_is_interpretable_in_its_own_basis_only() -> None:
    model, data = planted()
    found = dissect(model, "0", data)["neurons"]
    assert torch.equal(found.iou, torch.eye(5, dtype=torch.float64))
    assert found.fraction == 1
    assert found.labels == LETTERS
    assert found.unique == {"x": 2, "y": 3} == found.units_by_category
    assert found.detectors == dict.fromkeys(LETTERS, 1)
    assert found.shares.tolist() == [0.001] * 5


def test_rotations_of_a_planted_network_are_not_interpretable() -> None:
    # A rotated unit is above its threshold, 0, on the pixels of all concepts with a positive coefficient, about half
    # of the 80: its IoU with each is near 1/40 < 0.04.
    model, data = planted(images=10, size=60, concepts=80, pixels=2)
    rotated = dissect_rotations(model, "0", data, seed=0, powers=(0, 0.5, 1), rotations=2)
    assert torch.equal(rotated.found[1][0].iou, torch.eye(80, dtype=torch.float64))
    assert rotated.fractions()[:, 0].tolist() == [1, 1]
    assert rotated.unique()[:, 0].tolist() == [80, 80]
    assert float(rotated.fractions()[:, 1:].max()) < 0.05
    q = special_rotation(80, generator(0))
    positive = (q > 0).sum(1)
    assert torch.equal(rotated.found[0][2].best, 1 / positive.double())


def test_a_rotation_alone_is_that_among_others() -> None:
    model, data = planted()
    rotated = dissect_rotations(model, "0", data, seed=3, powers=(0, 0.5, 1), rotations=2, least_iou=0.6)
    assert torch.equal(rotated.unique("x") + rotated.unique("y"), rotated.unique())
    (half,) = rotation_powers(special_rotation(5, generator(3)), [0.5])
    alone = dissect(model, "0", data, bases={"half": half}, least_iou=0.6)["half"]
    assert torch.equal(alone.iou, rotated.found[0][1].iou)
    assert alone.fraction == float(rotated.fractions()[0, 1])
    assert alone.unique == {"x": int(rotated.unique("x")[0, 1]), "y": int(rotated.unique("y")[0, 1])}


def test_powers_may_be_close_and_may_repeat() -> None:
    # Two powers that are written alike with six digits, and one that stands there twice.
    model, data = random_case(2)
    powers = (0, 0.3, 0.3 + 1e-9, 1.0, 0.3)
    rotated = dissect_rotations(model, "2", data, seed=0, powers=powers, rotations=2, share=0.1)
    for line, thresholds in ((line, [one.thresholds for one in line]) for line in rotated.found):
        assert not torch.equal(thresholds[1], thresholds[2])
        assert torch.equal(thresholds[1], thresholds[4])
        torch.testing.assert_close(thresholds[1], thresholds[2], rtol=0, atol=1e-6)
        assert len(line) == 5


def test_a_rotation_turned_back_gives_the_units_again() -> None:
    model, data = random_case(5)
    q = special_rotation(4, generator(1))
    turned = nn.Sequential(*model, nn.Conv2d(4, 4, 1, bias=False)).double()
    turned[3].weight.data = q[:, :, None, None]
    found = dissect(turned, "3", data, bases={"turned": torch.eye(4), "back": q.mT}, share=0.1)
    units = dissect(model, "2", data, bases={"units": torch.eye(4), "turned": q}, share=0.1)
    assert torch.equal(found["back"].iou, units["units"].iou)
    assert torch.equal(found["turned"].iou, units["turned"].iou)
    assert not torch.equal(found["back"].iou, found["turned"].iou)


def test_thresholds_beyond_the_memory_state_their_error() -> None:
    model, data = random_case(0, size=41)
    exact = dissect(model, "1", data, share=0.1)["neurons"]
    rough = dissect(model, "1", data, share=0.1, kept=20)["neurons"]
    assert exact.error == 0
    assert 0 < float((rough.shares - exact.shares).abs().max()) <= rough.error < 0.1


def test_params_tokens_and_channels_last() -> None:
    model, data = random_case(3)
    maps, masks = outputs(model, data)

    class Arranged(nn.Module):
        def __init__(self, form: str) -> None:
            super().__init__()
            self.inner, self.last, self.form = model, nn.Identity(), form

        def forward(self, x: Tensor) -> Tensor:
            y = self.inner(x)
            y = y.flatten(2).mT if self.form == "tokens" else y.movedim(1, -1)
            return self.last(y)

    expected = brute_force(maps, masks, 0.1)
    assert torch.equal(dissect(Arranged("tokens"), "last", data, share=0.1, grid=(4, 4))["neurons"].iou, expected)
    last = dissect(Arranged("last"), "last", data, share=0.1, channel_axis=-1)["neurons"]
    assert torch.equal(last.iou, expected)
    other = {name: -tensor for name, tensor in model.state_dict().items()}
    found = dissect(model, "2", data, share=0.1, params=other)["neurons"]
    negated = torch.func.functional_call(model, other, (torch.cat([x for x, _ in data.batches]),)).detach()
    assert torch.equal(found.iou, brute_force(negated, masks, 0.1))


@pytest.mark.parametrize(("positions", "pixels"), [(4, 9), (9, 4), (5, 5), (1, 6), (7, 32)])
def test_interpolation_is_that_of_torch(positions: int, pixels: int) -> None:
    values = torch.randn(2, 3, positions, positions, generator=generator(0), dtype=torch.float64)
    matrix = interpolation(positions, pixels)
    expected = F.interpolate(values, (pixels, pixels), mode="bilinear")
    torch.testing.assert_close(matrix @ values @ matrix.mT, expected, rtol=0, atol=1e-12)


def test_placement_puts_positions_at_their_pixels() -> None:
    matrix = interpolation(3, 12, Placement((2.0, 0.0), (3.0, 1.0), (12, 12)))
    assert torch.equal(matrix[[2, 5, 8]], torch.eye(3, dtype=torch.float64))
    assert matrix[3].tolist() == pytest.approx([2 / 3, 1 / 3, 0])
    assert matrix[0].tolist() == [1, 0, 0]
    # Masks of half the resolution: two pixels each.
    half = interpolation(3, 6, Placement((2.0, 0.0), (3.0, 1.0), (12, 12)))
    torch.testing.assert_close(half, (matrix[0::2] + matrix[1::2]) / 2, rtol=0, atol=1e-12)


def test_receptive_fields() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 5, stride=2), nn.Flatten())
        padded = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.Conv2d(4, 2, 3, padding=1))
        mixed = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(2))
    images = torch.randn(4, 3, 20, 16, generator=generator(0))
    assert receptive_placement(model, "1", images) == Placement((1.0, 1.0), (1.0, 1.0), (20, 16))
    assert receptive_placement(model, "2", images) == Placement((3.0, 3.0), (2.0, 2.0), (20, 16))
    assert receptive_placement(padded, "1", images) == Placement((0.0, 0.0), (2.0, 2.0), (20, 16))
    with pytest.raises(InputError, match=r"layer '3' has features of shape \(4, 140\), channels second"):
        receptive_placement(model, "3", images)
    whole = nn.Sequential(nn.Conv2d(3, 4, 20, padding=10))
    with pytest.raises(InputError, match="the receptive fields of layer '0' do not tell where its 21 rows lie"):
        receptive_placement(whole, "0", images[..., :17])
    assert receptive_placement(mixed, "1", images).step == (9.0, 7.0)


def test_placement_finds_what_stretching_misses() -> None:
    # Fields of 9 pixels without padding: maps of 12 stand for the middle of images of 20.
    _, data = planted()
    seen = nn.Sequential(nn.Conv2d(5, 5, 9, bias=False))
    weight = torch.zeros(5, 5, 9, 9)
    weight[range(5), range(5), 4, 4] = 1.0
    seen[0].weight.data = weight
    inner = torch.zeros(20, 20, dtype=torch.bool)
    inner[5:15, 5:15] = True
    cut = AnnotatedImages(LETTERS, [((masks & inner).float(), masks & inner) for _, masks in data.batches])
    placement = receptive_placement(seen, "0", torch.randn(2, 5, 20, 20, generator=generator(0)) + 0.1)
    assert placement == Placement((4.0, 4.0), (1.0, 1.0), (20, 20))
    placed = dissect(seen, "0", cut, placement=placement)["neurons"]
    assert placed.iou.diagonal().tolist() == [1] * 5
    assert float(dissect(seen, "0", cut)["neurons"].iou.max()) < 0.5


def test_what_cannot_be_dissected() -> None:
    model, data = random_case(0)
    x, masks = data.batches[0]  # type: ignore[index]
    flat = nn.Sequential(model, nn.Flatten())
    with pytest.raises(
        InputError, match=r"layer '1' has features of shape \(5, 64\), channels second; expected \(n, C"
    ):
        dissect(flat, "1", data)
    with pytest.raises(InputError, match="'9' is no layer"):
        dissect(model, "9", data)
    empty = AnnotatedImages(data.concepts, [(x, masks & torch.tensor([True, False, True])[:, None, None])])
    with pytest.raises(InputError, match="no pixel of the data has the concept 'b'; expected some of each"):
        dissect(model, "2", empty)
    with pytest.raises(InputError, match="data has no concepts"):
        dissect(model, "2", AnnotatedImages((), [(x, masks[:, :0])]))
    with pytest.raises(InputError, match="hold no batches"):
        dissect(model, "2", AnnotatedImages(data.concepts, []))
    with pytest.raises(InputError, match="data is a list; expected AnnotatedImages"):
        dissect(model, "2", [(x, masks)])  # type: ignore[arg-type]
    wild = AnnotatedImages(data.concepts, [(x * torch.inf, masks)])
    with pytest.raises(InputError, match="layer '2' has activations that are NaN or infinite"):
        dissect(model, "2", wild)
    uneven = AnnotatedImages(data.concepts, [(x, masks), (x[..., :5], masks)])
    with pytest.raises(InputError, match=r"features of shape \(4, 4, 4\) for some images and \(4, 4, 2\)"):
        dissect(model, "2", uneven)
    with pytest.raises(InputError, match=r"the basis 'q' is \(3, 3\); expected a matrix \(units, 4\)"):
        dissect(model, "2", data, bases={"q": torch.eye(3)})
    with pytest.raises(InputError, match="the basis 'q' holds NaN or infinite values"):
        dissect(model, "2", data, bases={"q": torch.full((2, 4), torch.nan)})
    with pytest.raises(InputError, match="bases is empty"):
        dissect(model, "2", data, bases={})
    with pytest.raises(InputError, match="share is 0; expected"):
        dissect(model, "2", data, share=0)
    for least in (1, "a"):
        with pytest.raises(InputError, match=f"least_iou is {least!r}; expected"):
            dissect(model, "2", data, least_iou=least)  # type: ignore[arg-type]
    for grid in (3, (9, "9")):
        with pytest.raises(InputError, match=r"layer '0' has 81 positions; expected their height and width"):
            dissect(nn.Sequential(nn.Flatten(2)), "0", data, grid=grid, channel_axis=1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"grid is \(2, 3\); layer '0' has 81 positions"):
        dissect(nn.Sequential(nn.Flatten(2)), "0", data, grid=(2, 3), channel_axis=1)
    with pytest.raises(InputError, match="rotations is 0"):
        dissect_rotations(model, "2", data, seed=0, rotations=0)
    with pytest.raises(InputError, match="bases are the powers"):
        dissect_rotations(model, "2", data, seed=0, bases={})


def test_ceilings_and_files() -> None:
    model, data = planted()
    found = dissect(model, "0", data)["neurons"]
    assert set(found.ceilings.values()) == {0.001 / 0.005}
    # A map on 0.5 % of all pixels, against concepts on 0.1 % and on 2 % of those of annotated images: it may lie
    # besides these unless they are nearly all.
    for annotated, small, large in ((0.2, 1, 1), (0.5, 1, 0.5), (0.998, 0.998 / 3, 0.005 / 0.01996)):
        shares = torch.tensor([0.001, 0.02, 0.001, 0.001, 0.001], dtype=torch.float64)
        other = replace(found, concept_shares=shares, annotated_shares=torch.full((5,), annotated, dtype=torch.float64))
        assert list(other.ceilings.values())[:2] == pytest.approx([small, large])
    assert json.loads(json.dumps(found.to_dict()))["iou"][1] == [0, 1, 0, 0, 0]
    rows = found.to_csv().splitlines()
    assert rows[:2] == ["unit,concept,category,iou,interpretable,threshold", "0,a,x,1.0,True,0.0"]
    assert len(rows) == 6


def test_plots() -> None:
    model, data = planted()
    rotated = dissect_rotations(model, "0", data, seed=0, powers=(0, 0.5, 1), rotations=2, least_iou=0.5)
    assert rotated.to_csv().splitlines()[0] == "rotation,power,interpretable,unique x,unique y"
    figure = plot_dissections({"planted": rotated, "again": rotated})
    lines = figure.axes[0].lines
    assert [line.get_ydata()[0] for line in lines] == [100, 100]
    assert lines[0].get_ydata()[2] == pytest.approx(100 * float(rotated.fractions()[:, 2].mean()))
    assert len(figure.axes) == 3
    ends: dict[str, Dissection] = {"neurons": rotated.found[0][0], "rotated": rotated.found[0][2]}
    bars = plot_concepts(ends)
    widths = [[patch.get_width() for patch in axes.patches] for axes in bars.axes]
    assert widths[0] == [1] * 5
    assert sum(widths[1]) == 5 * ends["rotated"].fraction
    with pytest.raises(InputError, match="dissections is empty"):
        plot_dissections({})
    with pytest.raises(InputError, match="dissections is empty"):
        plot_concepts({})
