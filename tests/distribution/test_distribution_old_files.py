"""Files that 0.1 wrote still open: headers as they were then, byte by byte."""

import json
import struct

import pytest
import torch
from contract import same

from coset.distribution import Delta, Gaussian, LowRank, MeanField, Mixture, Samples, load_distribution, load_metadata
from coset.errors import InputError

WEIGHTS, BIAS = torch.tensor([[1.0, 2.0]]), torch.tensor([0.5])
BOTH = {"w": WEIGHTS, "b": BIAS}
DRAWS = torch.arange(4.0).reshape(1, 2, 1, 2)

# Kind → the text of schema 1, the tensors in their order (name, type, shape), their numbers, and what was written.
FIRST = {
    "delta": (
        r'{"schema": 1, "content": {"kind": "delta", "params": {"w": "w", "b": "b", "tied": "w"}}}',
        [("params/b", "F32", [1]), ("params/w", "F32", [1, 2])],
        struct.pack("<3f", 0.5, 1, 2),
        Delta(BOTH | {"tied": WEIGHTS}),
    ),
    "mean-field": (
        r'{"schema": 1, "content": {"kind": "mean-field", "mean": {"w": "w", "b": "b"}, "std": {"w": "w", "b": "b"}}}',
        [("mean/b", "F32", [1]), ("mean/w", "F32", [1, 2]), ("std/b", "F32", [1]), ("std/w", "F32", [1, 2])],
        struct.pack("<6f", 0.5, 1, 2, 1, 0.25, 0.5),
        MeanField(BOTH, {"w": torch.tensor([[0.25, 0.5]]), "b": torch.ones(1)}),
    ),
    "gaussian": (
        r'{"schema": 1, "content": {"kind": "gaussian", "mean": {"w": "w", "b": "b"}, "names": ["w", "b"]}}',
        [("covariance", "F32", [3, 3]), ("mean/b", "F32", [1]), ("mean/w", "F32", [1, 2])],
        struct.pack("<12f", 1, 0, 0, 0, 2, 0, 0, 0, 3, 0.5, 1, 2),
        Gaussian(BOTH, torch.diag(torch.tensor([1.0, 2.0, 3.0])), ("w", "b")),
    ),
    "low-rank": (
        r'{"schema": 1, "content": {"kind": "low-rank", "mean": {"w": "w"}, "diagonal": {"w": "w"}, '
        r'"factors": {"w": "w"}}}',
        [("diagonal/w", "F32", [1, 2]), ("factors/w", "F32", [1, 1, 2]), ("mean/w", "F32", [1, 2])],
        struct.pack("<6f", 0.25, 0.5, 1, 0, 1, 2),
        LowRank({"w": WEIGHTS}, {"w": torch.tensor([[0.25, 0.5]])}, {"w": torch.tensor([[[1.0, 0.0]]])}),
    ),
    "samples": (
        r'{"schema": 1, "content": {"kind": "samples", "params": {"w": "w", "b": "b"}}}',
        [("params/b", "F32", [1, 2, 1]), ("params/w", "F32", [1, 2, 1, 2])],
        struct.pack("<6f", 7, 7, 0, 1, 2, 3),
        Samples({"w": DRAWS, "b": torch.tensor([[[7.0], [7.0]]])}),
    ),
    "samples with a point": (
        r'{"schema": 1, "content": {"kind": "samples", "params": {"w": "w", "b": "b"}, '
        r'"repeated": {"over": [1, 2], "names": ["b"]}}}',
        [("params/b", "F32", [1]), ("params/w", "F32", [1, 2, 1, 2])],
        struct.pack("<5f", 7, 0, 1, 2, 3),
        Samples({"w": DRAWS, "b": torch.tensor([7.0]).expand(1, 2, 1)}),
    ),
    "mixture": (
        r'{"schema": 1, "content": {"kind": "mixture", "components": [{"kind": "delta", "params": {"w": "w"}}, '
        r'{"kind": "delta", "params": {"w": "w"}}]}}',
        [("weights", "F64", [2]), ("0/params/w", "F32", [1, 2]), ("1/params/w", "F32", [1, 2])],
        struct.pack("<2d4f", 0.25, 0.75, 1, 2, 2, 4),
        Mixture([Delta({"w": WEIGHTS}), Delta({"w": 2 * WEIGHTS})], [0.25, 0.75]),
    ),
}


def file_of(texts, tensors, numbers):
    """A safetensors file: the size of its header, the header, all numbers."""
    header, start = {"__metadata__": texts}, 0
    for name, kind, shape in tensors:
        end = start + {"F32": 4, "F64": 8}[kind] * torch.Size(shape).numel()
        header[name], start = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}, end
    assert start == len(numbers)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + numbers


@pytest.mark.parametrize("kind", FIRST)
def test_files_of_the_first_schema_open(kind, tmp_path):
    text, tensors, numbers, expected = FIRST[kind]
    texts = {"coset.distribution": text, "format": "pt", "note": "by hand"}
    path = tmp_path / "q.safetensors"
    path.write_bytes(file_of(texts, tensors, numbers))
    found = load_distribution(path)
    assert type(found) is type(expected)
    assert same(found, expected)
    assert load_metadata(path) == {"note": "by hand"}


SECOND = (
    r'{"format": 2, "content": {"kind": "mean-field", "mean": {"w": "w", "b": "b"}, "std": {"w": "w", "b": "b"}}, '
    r'"symmetry": null, "tensors": {"mean/w": 3240870548, "mean/b": 770684795, "std/w": 1022461833, '
    r'"std/b": 376188720}, "versions": {"coset": "0.1.0", "torch": "2.13.0+cpu", "python": "3.11.7"}, '
    r'"texts": {"note": "6a8f6c2c", "format": "398ede2c"}}'
)


def test_files_with_checksums_open(tmp_path):
    _, tensors, numbers, expected = FIRST["mean-field"]
    texts = {"coset.distribution": SECOND, "coset.distribution.checksum": "7e7e9a70", "format": "pt", "note": "by hand"}
    path = tmp_path / "q.safetensors"
    path.write_bytes(file_of(texts, tensors, numbers))
    assert same(load_distribution(path), expected)
    assert load_metadata(path) == {"note": "by hand"}
    path.write_bytes(file_of(texts | {"coset.distribution.checksum": "7e7e9a71"}, tensors, numbers))
    with pytest.raises(InputError, match="does not have the checksum it was written with"):
        load_distribution(path)
