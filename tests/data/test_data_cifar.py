"""CIFAR records and the slice: order of labels and planes, and every refusal."""

import contextlib
import io
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coset.data._plain import Raw
from coset.data.cifar import (
    SLICE_ARRAYS,
    read_arrays,
    read_cifar10,
    read_cifar100,
    read_records,
    read_slice,
    write_slice,
)
from coset.errors import InputError


def record(labels: list[int], red: int, green: int, blue: int) -> bytes:
    """A record with planes of one value, except the last pixel of the first red row, which is 7."""
    plane = bytearray([red]) * 1024
    plane[31] = 7
    return bytes(labels) + bytes(plane) + bytes([green]) * 1024 + bytes([blue]) * 1024


def test_cifar10_joins_the_batches_in_order(tmp_path):
    for batch in range(1, 6):
        content = record([batch], batch, 20, 30) + record([9], batch, 21, 31)
        (tmp_path / f"data_batch_{batch}.bin").write_bytes(content)
    (tmp_path / "test_batch.bin").write_bytes(record([0], 100, 101, 102) + record([1], 103, 104, 105))
    raw = read_cifar10(tmp_path, count=2)
    assert raw.x_train.shape == (10, 3, 32, 32)
    assert raw.y_train.tolist() == [1, 9, 2, 9, 3, 9, 4, 9, 5, 9]
    assert raw.x_train[:, 0, 31, 31].tolist() == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert (raw.x_train[:, 0, 0, 31] == 7).all()
    assert (raw.x_train[::2, 1] == 20).all()
    assert (raw.x_train[1::2, 2] == 31).all()
    assert raw.y_test.tolist() == [0, 1]
    assert raw.x_test[1, :, 5, 5].tolist() == [103, 104, 105]


def test_cifar100_takes_the_fine_label(tmp_path):
    (tmp_path / "train.bin").write_bytes(record([19, 99], 1, 2, 3) + record([0, 45], 4, 5, 6))
    (tmp_path / "test.bin").write_bytes(record([3, 7], 8, 9, 10))
    raw = read_cifar100(tmp_path, train=2, test=1)
    assert raw.y_train.tolist() == [99, 45]
    assert raw.y_test.tolist() == [7]
    assert raw.x_train[1, :, 9, 9].tolist() == [4, 5, 6]


@pytest.mark.parametrize(
    ("labels", "content", "message"),
    [
        ({"label": 10}, bytes(3072), "holds 3072 bytes, expected 6146: 2 records of 3073 bytes"),
        ({"label": 10}, bytes(3073), "holds 3073 bytes, expected 6146"),
        ({"label": 10}, bytes(3 * 3073), "holds 9219 bytes, expected 6146"),
        ({"label": 10}, record([3], 1, 1, 1) + record([10], 1, 1, 1), "label 10 at position 1, expected 0 to 9"),
        (
            {"coarse label": 20, "fine label": 100},
            record([20, 99], 1, 1, 1) + record([0, 0], 1, 1, 1),
            "coarse label 20 at position 0, expected 0 to 19",
        ),
        (
            {"coarse label": 20, "fine label": 100},
            record([19, 99], 1, 1, 1) + record([0, 100], 1, 1, 1),
            "fine label 100 at position 1, expected 0 to 99",
        ),
    ],
)
def test_damaged_records_are_refused(tmp_path, labels, content, message):
    path = tmp_path / "batch.bin"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as refusal:
        read_records(path, labels, 2)
    assert str(path) in str(refusal.value)


def test_cifar10_names_the_missing_batch(tmp_path):
    (tmp_path / "data_batch_1.bin").write_bytes(record([1], 1, 1, 1))
    with pytest.raises(InputError, match=r"data_batch_2.bin: no such file, compressed \(.gz\) or not"):
        read_cifar10(tmp_path, count=1)


def whole(train: int = 2002, test: int = 1001) -> Raw:
    random = np.random.default_rng(1)

    def images(count: int) -> np.ndarray:
        return random.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)

    def labels(count: int) -> np.ndarray:
        return random.integers(0, 10, count, dtype=np.uint8)

    return Raw(images(train), labels(train), images(test), labels(test), scale=255.0)


def test_slice_is_the_first_images(tmp_path):
    cifar10 = whole()
    write_slice(cifar10, tmp_path / "slice.npz")
    raw = read_slice(tmp_path / "slice.npz")
    assert (raw.x_train == cifar10.x_train[:2000]).all()
    assert (raw.y_train == cifar10.y_train[:2000]).all()
    assert (raw.x_test == cifar10.x_test[:1000]).all()
    assert (raw.y_test == cifar10.y_test[:1000]).all()


ARRAYS = {
    "x_train": np.zeros((2, 3, 32, 32), np.uint8),
    "y_train": np.zeros(2, np.uint8),
    "x_test": np.zeros((1, 3, 32, 32), np.uint8),
    "y_test": np.zeros(1, np.uint8),
}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"x_train": np.zeros((2, 32, 32, 3), np.uint8)},
            r"x_train holds uint8 of shape \(2, 32, 32, 3\), expected uint8",
        ),
        ({"y_test": np.zeros(1, np.int64)}, r"y_test holds int64 of shape \(1,\), expected uint8 of shape \(1,\)"),
        ({"y_train": np.zeros(3, np.uint8)}, r"y_train holds uint8 of shape \(3,\), expected uint8 of shape \(2,\)"),
        ({"y_train": np.array([0, 12], np.uint8)}, "train label 12 at position 1, expected 0 to 9"),
        ({"y_test": np.array([10], np.uint8)}, "test label 10 at position 0, expected 0 to 9"),
        ({"y_test": np.array([{"a": 1}], object)}, "holds pickled objects, which are not read"),
    ],
)
def test_wrong_slice_is_refused(tmp_path, changed, message):
    path = tmp_path / "slice.npz"
    np.savez(path, **(ARRAYS | changed))
    with pytest.raises(InputError, match=message) as refusal:
        read_slice(path, train=2, test=1)
    assert str(path) in str(refusal.value)


def test_damaged_npz_is_refused(tmp_path):
    path = tmp_path / "slice.npz"
    np.savez(path, x_train=ARRAYS["x_train"])
    with pytest.raises(InputError, match=r"lacks y_train, x_test, y_test; it holds \['x_train'\]"):
        read_arrays(path, SLICE_ARRAYS)
    stream = io.BytesIO()
    np.save(stream, ARRAYS["y_train"])
    path.write_bytes(stream.getvalue())
    with pytest.raises(InputError, match=r"holds a single array, expected an .npz file"):
        read_arrays(path, SLICE_ARRAYS)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match=r"not a sound .npz file"):
        read_arrays(path, SLICE_ARRAYS)
    np.savez(path, **ARRAYS)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=r"not a sound .npz file"):
        read_arrays(path, SLICE_ARRAYS)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        start = archive.getinfo("x_train.npy").header_offset + 400
    path.write_bytes(content[:start] + b"\x01" + content[start + 1 :])
    with pytest.raises(InputError, match=r"not a sound .npz file: Bad CRC-32"):
        read_arrays(path, SLICE_ARRAYS)
    with pytest.raises(InputError, match=r"absent.npz: cannot be read: No such file"):
        read_arrays(tmp_path / "absent.npz", SLICE_ARRAYS)


@given(st.booleans(), st.data())
def test_no_damage_to_an_npz_escapes_as_another_error(tmp_path_factory, compressed, data):
    """Whatever bytes are changed or cut off: the file is read or refused, never anything else."""
    path = tmp_path_factory.mktemp("damage") / "slice.npz"
    (np.savez_compressed if compressed else np.savez)(path, x=np.arange(5), y=np.arange(3.0))
    content = bytearray(path.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(len(content) // 2, len(content)))])
    with contextlib.suppress(InputError):
        assert set(read_arrays(path, ("x", "y"))) == {"x", "y"}
