"""Elements in files: with checksums, and of the symmetry that they were written for."""

import json

import pytest
import torch
from safetensors.torch import load_file, safe_open, save_file

from coset.errors import InputError
from coset.symmetry import Element, Symmetry

SHAPES = {"w1": (6, 4), "b1": (6,), "w2": (3, 6)}


def symmetry(scales: str = "positive") -> Symmetry:
    axes = {"w1": "h 4", "b1": "h", "w2": "3 h"}
    return Symmetry.from_axes(axes, {name: torch.zeros(shape) for name, shape in SHAPES.items()}, scales={"h": scales})


def element() -> Element:
    return symmetry().random(torch.Generator().manual_seed(0))


def test_what_the_first_version_wrote_still_opens(tmp_path):
    g, path = element(), tmp_path / "g.safetensors"
    # The first version's file, byte by byte what it wrote but for the order of the metadata.
    save_file(dict(g._tensors()), path, {"format": "coset.element", "version": "1"})
    assert Element.load(path) == g
    assert Element.load(path, symmetry()) == g
    narrow = {name: torch.zeros(tuple(min(n, 3) for n in shape)) for name, shape in SHAPES.items()}
    other = Symmetry.from_axes({"w1": "h 3", "b1": "h", "w2": "3 h"}, narrow)
    with pytest.raises(InputError, match=r"g\.safetensors holds no element of the symmetry: "):
        Element.load(path, other)


def test_an_element_is_of_the_symmetry_it_was_written_for(tmp_path):
    g, path = element(), tmp_path / "g.safetensors"
    g.save(path, symmetry())
    assert Element.load(path) == g
    assert Element.load(path, symmetry()) == g
    # The same classes, families and shapes, another action: everything fits but the fingerprint.
    axes = {"w1": "h 4", "b1": "6", "w2": "3 h"}
    other = Symmetry.from_axes(
        axes, {name: torch.zeros(shape) for name, shape in SHAPES.items()}, scales={"h": "positive"}
    )
    other.check(g)
    with pytest.raises(InputError) as caught:
        Element.load(path, other)
    assert str(caught.value).startswith(f"{path} holds no element of the symmetry: it belongs to the symmetry with")
    g.save(path)
    assert Element.load(path, other) == g  # nothing said of which


def test_only_an_element_of_the_symmetry_is_written_as_one(tmp_path):
    with pytest.raises(InputError):
        element().save(tmp_path / "g", symmetry("none"))
    assert list(tmp_path.iterdir()) == []


def test_a_changed_value_is_seen_although_it_is_still_an_element(tmp_path):
    g, path = element(), tmp_path / "g.safetensors"
    g.save(path, symmetry())
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    swapped = tensors["permutation/h"].clone()
    swapped[[0, 1]] = swapped[[1, 0]]
    save_file({**tensors, "permutation/h": swapped}, path, metadata)
    with pytest.raises(InputError, match=r"g\.safetensors is damaged: permutation/h does not have the checksum"):
        Element.load(path)
    content = json.loads(metadata["coset.element"])
    save_file(tensors, path, {**metadata, "coset.element": json.dumps({**content, "symmetry": "0" * 64})})
    with pytest.raises(InputError, match="its metadata does not have the checksum it was written with"):
        Element.load(path)
    save_file(tensors, path, {**metadata, "coset.element": json.dumps({**content, "format": 3})})
    with pytest.raises(InputError, match="has format 3, expected 2"):
        Element.load(path)
