"""CIFAR-10 and CIFAR-100 in the binary layout, and a small slice of CIFAR-10.

A record is one label byte (CIFAR-10) or a coarse and a fine one (CIFAR-100), then 1024 red, 1024 green and 1024 blue
bytes, each plane row by row (https://www.cs.toronto.edu/~kriz/cifar.html).
"""

import reprlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coset._files.atomic import atomic_path
from coset.data._plain import LARGEST, Raw, Read, check_labels, read_plain, require_file
from coset.data.numpy_files import MAGIC, read_npz
from coset.errors import InputError

IMAGE = (3, 32, 32)
PIXELS = 3 * 32 * 32
SLICE_ARRAYS = ("x_train", "y_train", "x_test", "y_test")
SLICE_TRAIN, SLICE_TEST = 2000, 1000


def read_records(
    path: Path, classes: dict[str, int], count: int, read: Read = read_plain
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (count, 3, 32, 32) and labels (count, kinds) of one file.

    ``classes`` gives, in the order of the label bytes, each kind of label and its number of classes.
    """
    content = read(path)
    width = len(classes) + PIXELS
    if len(content) != count * width:
        raise InputError(
            f"{path}: holds {len(content)} bytes, expected {count * width}: {count} records of {width} bytes"
        )
    table = np.frombuffer(content, np.uint8).reshape(count, width)
    for column, (kind, number) in enumerate(classes.items()):
        check_labels(path, table[:, column], number, kind)
    images = np.ascontiguousarray(table[:, len(classes) :]).reshape(count, *IMAGE)
    return images, table[:, : len(classes)].copy()


def read_cifar10(folder: Path, count: int = 10_000, *, read: Read = read_plain) -> Raw:
    """The five train files and the test file, of ``count`` records each."""
    files = [require_file(folder, f"{name}.bin") for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")]
    *train, (x_test, y_test) = [read_records(file, {"label": 10}, count, read) for file in files]
    x_train = np.concatenate([images for images, _ in train])
    y_train = np.concatenate([labels[:, 0] for _, labels in train])
    return Raw(x_train, y_train, x_test, y_test[:, 0], scale=255.0)


def read_cifar100(folder: Path, train: int = 50_000, test: int = 10_000, *, read: Read = read_plain) -> Raw:
    """Both files, with the fine labels (100 classes); the coarse ones are checked and left out."""
    classes = {"coarse label": 20, "fine label": 100}
    x_train, y_train = read_records(require_file(folder, "train.bin"), classes, train, read)
    x_test, y_test = read_records(require_file(folder, "test.bin"), classes, test, read)
    return Raw(x_train, y_train[:, 1], x_test, y_test[:, 1], scale=255.0)


def read_slice(path: Path, train: int = SLICE_TRAIN, test: int = SLICE_TEST, *, read: Read = read_plain) -> Raw:
    """The slice of CIFAR-10 written by ``write_slice``."""
    arrays = read_arrays(path, SLICE_ARRAYS, read)
    shapes = {"x_train": (train, *IMAGE), "y_train": (train,), "x_test": (test, *IMAGE), "y_test": (test,)}
    for name, shape in shapes.items():
        if arrays[name].dtype != np.uint8 or arrays[name].shape != shape:
            found = f"{arrays[name].dtype} of shape {arrays[name].shape}"
            raise InputError(f"{path}: {name} holds {found}, expected uint8 of shape {shape}")
    check_labels(path, arrays["y_train"], 10, "train label")
    check_labels(path, arrays["y_test"], 10, "test label")
    return Raw(arrays["x_train"], arrays["y_train"], arrays["x_test"], arrays["y_test"], scale=255.0)


def write_slice(cifar10: Raw, path: Path) -> None:
    """Write the first 2,000 train and 1,000 test images of CIFAR-10 to an ``.npz`` file."""
    with atomic_path(path) as part, part.open("wb") as file:
        np.savez_compressed(
            file,
            x_train=cifar10.x_train[:SLICE_TRAIN],
            y_train=cifar10.y_train[:SLICE_TRAIN],
            x_test=cifar10.x_test[:SLICE_TEST],
            y_test=cifar10.y_test[:SLICE_TEST],
        )


def read_arrays(path: Path, names: tuple[str, ...], read: Read = read_plain) -> dict[str, NDArray[Any]]:
    """The named arrays of an ``.npz`` file; pickled objects are refused."""

    def choose(present: Sequence[str]) -> tuple[str, ...]:
        missing = [name for name in names if name not in present]
        if missing:
            raise InputError(f"{path}: lacks {', '.join(missing)}; it holds {reprlib.repr(list(present))}")
        return names

    content = read(path)
    if content.startswith(MAGIC):
        raise InputError(f"{path}: holds a single array, expected an .npz file with {', '.join(names)}")
    return read_npz(content, str(path), choose, LARGEST)
