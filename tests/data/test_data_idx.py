"""IDX files: what is written is read, and what is damaged is refused by name."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coset.data._idx import read_idx, read_mnist
from coset.errors import InputError

TYPES = ["u1", "i1", "i2", "i4", "f4", "f8"]
ARRAYS = st.sampled_from(TYPES).flatmap(
    lambda kind: hnp.arrays(np.dtype(kind), hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5))
)


@given(array=ARRAYS, compressed=st.booleans())
def test_round_trip(tmp_path_factory, idx_bytes, array, compressed):
    content = idx_bytes(array)
    path = tmp_path_factory.mktemp("idx") / ("values.gz" if compressed else "values")
    path.write_bytes(gzip.compress(content) if compressed else content)
    found = read_idx(path)
    assert found.dtype == array.dtype
    assert found.dtype.isnative
    assert found.shape == array.shape
    assert found.tobytes() == array.tobytes()


@given(st.booleans(), st.data())
def test_no_damage_escapes_as_another_error(tmp_path_factory, idx_bytes, compressed, data):
    """Whatever bytes are changed or cut off: the file is read or refused, never anything else."""
    content = idx_bytes(np.arange(12, dtype=np.int16).reshape(3, 4))
    damaged = bytearray(gzip.compress(content) if compressed else content)
    for place in data.draw(st.lists(st.integers(0, len(damaged) - 1), max_size=4)):
        damaged[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("idx") / ("values.gz" if compressed else "values")
    path.write_bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    try:
        told = str(read_idx(path).dtype)
    except InputError as error:
        told = str(error)
    assert "\n" not in told


def test_values_are_big_endian(tmp_path):
    path = tmp_path / "values"
    path.write_bytes(bytes([0, 0, 0x0B, 1, 0, 0, 0, 2, 1, 2, 0xFF, 0xFE]))
    assert read_idx(path).tolist() == [258, -2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds 0 bytes, expected an IDX header"),
        (b"\x00\x00\x08", "holds 3 bytes, expected an IDX header"),
        (b"\x89PNG\r\n\x1a\n", "magic number 0x89504e47, expected 0x0000TTDD"),
        (b"\x00\x00\x0a\x01\x00\x00\x00\x00", "magic number 0x00000a01"),
        (b"\x00\x00\x08\x00", "magic number 0x00000800"),
        (b"\x00\x00\x08\x03\x00\x00\x00\x01", "holds 8 bytes, expected a header of 16 for 3 dimensions"),
        (struct.pack(">HBBII", 0, 8, 2, 3, 4) + bytes(11), "holds 23 bytes, expected 24 for 3 × 4 values"),
        (struct.pack(">HBBII", 0, 8, 2, 3, 4) + bytes(13), "holds 25 bytes, expected 24 for 3 × 4 values"),
        (struct.pack(">HBBI", 0, 0x0E, 1, 2) + bytes(2), "holds 10 bytes, expected 24 for 2 values"),
        (struct.pack(">HBBIII", 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1), "holds 16 bytes, expected 7922816"),
    ],
)
def test_damaged_file_is_refused(tmp_path, content, message):
    path = tmp_path / "damaged-idx"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as refusal:
        read_idx(path)
    assert str(path) in str(refusal.value)


def test_damaged_gzip_is_refused(tmp_path, idx_bytes):
    whole = gzip.compress(idx_bytes(np.arange(200, dtype=np.uint8)))
    path = tmp_path / "values.gz"
    for content, message in (
        (whole[:-20], f"gzip stream is truncated: it ends after {len(whole) - 20} bytes"),
        (b"no gzip at all", "not a sound gzip file"),
        (whole[:-8] + bytes(4) + whole[-4:], "not a sound gzip file: CRC check failed"),
        (whole[:10] + b"\xff" * 20 + whole[30:], "not a sound gzip file"),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=message):
            read_idx(path)


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"absent: cannot be read: No such file"):
        read_idx(tmp_path / "absent")


def test_mnist_reads_both_spellings(mnist_files):
    raw = read_mnist(mnist_files, train=7, test=3)
    random = np.random.default_rng(0)
    assert raw.x_train.shape == (7, 1, 28, 28)
    assert (raw.x_train[:, 0] == random.integers(0, 256, (7, 28, 28), dtype=np.uint8)).all()
    assert (raw.x_test[:, 0] == random.integers(0, 256, (3, 28, 28), dtype=np.uint8)).all()
    assert raw.y_train.tolist() == list(range(7))
    assert raw.y_test.tolist() == [0, 1, 2]
    assert raw.scale == 255.0


def test_mnist_must_be_complete(mnist_files):
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte.gz: holds uint8 of shape \(7, 28, 28\), expected"):
        read_mnist(mnist_files)
    (mnist_files / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(InputError, match=r"t10k-labels-idx1-ubyte: no such file, compressed \(.gz\) or not"):
        read_mnist(mnist_files, train=7, test=3)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.arange(6, dtype=np.uint8), r"holds uint8 of shape \(6,\), expected uint8 of shape \(7,\)"),
        (np.arange(7, dtype=np.int32), r"holds int32 of shape \(7,\), expected uint8"),
        (np.array([0, 1, 2, 10, 4, 11, 6], np.uint8), "label 10 at position 3, expected 0 to 9"),
    ],
)
def test_mnist_labels_must_fit(mnist_files, idx_bytes, labels, message):
    path: Path = mnist_files / "train-labels-idx1-ubyte"
    path.write_bytes(idx_bytes(labels))
    with pytest.raises(InputError, match=message) as refusal:
        read_mnist(mnist_files, train=7, test=3)
    assert path.name in str(refusal.value)
