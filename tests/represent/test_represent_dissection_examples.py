"""Images on which units respond most: found against a full sort, marked where masks are, outlined exactly."""

import pytest
import torch
from torch import Tensor, nn

from coset.errors import InputError
from coset.represent.dissection._dissect import dissect
from coset.represent.dissection.examples import _outline, plot_examples, top_examples
from coset.represent.dissection.images import AnnotatedImages, Concept


def planted() -> tuple[nn.Module, AnnotatedImages, Tensor]:
    """Channel k shows concept k alone, brighter in later images; concept b is noisy in channel 1."""
    generator = torch.Generator().manual_seed(0)
    masks = torch.rand(12, 2, 10, 10, generator=generator) < 0.002
    masks[7, :, 3, 4:6] = True
    brightness = torch.arange(1.0, 13)[:, None, None, None]
    inputs = brightness * masks
    inputs[:, 1] += 2 * (torch.rand(12, 10, 10, generator=generator) < 0.002)
    concepts = (Concept("a", "letter"), Concept("b", "letter"))
    batches = [(inputs[:5], masks[:5]), (inputs[5:], masks[5:])]
    return nn.Sequential(nn.Identity()), AnnotatedImages(concepts, batches), inputs


def test_the_brightest_images_and_what_is_marked_in_them() -> None:
    model, data, inputs = planted()
    found = dissect(model, "0", data)["neurons"]
    examples = top_examples(model, "0", data, found, units=1, images=4)
    assert list(examples) == [int(found.best.argmax())] == [0]
    peaks = inputs[:, 0].amax((1, 2))
    order = peaks.argsort(descending=True)[:4]
    assert [example.peak for example in examples[0]] == peaks[order].tolist()
    for example, place in zip(examples[0], order.tolist(), strict=True):
        assert torch.equal(example.inputs, inputs[place])
        assert torch.equal(example.marked, inputs[place, 0] > found.thresholds[0])


def test_a_basis_of_its_own() -> None:
    model, data, inputs = planted()
    swap = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    found = dissect(model, "0", data, bases={"swap": swap})["swap"]
    examples = top_examples(model, "0", data, found, basis=swap, units=3, images=2)
    assert sorted(examples) == [0, 1, 2]
    assert examples[2][0].peak == float(inputs.sum(1).max())
    with pytest.raises(InputError, match="dissection is of 3 units; the basis has 2"):
        top_examples(model, "0", data, found)


def test_outlines() -> None:
    marked = torch.zeros(3, 4, dtype=torch.bool)
    marked[0, 1:3] = True
    edges = {frozenset(edge) for edge in _outline(marked)}
    above, below = [((0, x), (0, x + 1)) for x in (1, 2)], [((1, x), (1, x + 1)) for x in (1, 2)]
    sides = [((0, 1), (1, 1)), ((0, 3), (1, 3))]
    assert edges == {frozenset(edge) for edge in (*above, *below, *sides)}


def test_the_figure() -> None:
    model, data, _ = planted()
    found = dissect(model, "0", data)["neurons"]
    examples = top_examples(model, "0", data, found, units=2, images=3)
    figure = plot_examples(examples, found, shown=lambda x: x[:, :1] / 12)
    assert len(figure.axes) == 6
    assert figure.axes[0].get_title("left") == "unit 0: a, IoU 1.00"
    image = figure.axes[0].images[0].get_array()
    assert image is not None
    assert image.max() == pytest.approx(examples[0][0].peak / 12)
    # Two lines, white and black, for each edge.
    assert len(figure.axes[0].lines) == 2 * len(_outline(examples[0][0].marked))


def test_bad_input() -> None:
    model, data, _ = planted()
    found = dissect(model, "0", data)["neurons"]
    with pytest.raises(InputError, match="images is 0; expected a whole number"):
        top_examples(model, "0", data, found, images=0)
    with pytest.raises(InputError, match="examples is empty"):
        plot_examples({}, found)
    with pytest.raises(InputError, match=r"an input is shown as \(1, 2, 10, 10\); expected an image"):
        plot_examples(top_examples(model, "0", data, found), found)
