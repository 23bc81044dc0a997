"""The IDX format of MNIST and its relatives.

Two zero bytes, a type byte, the number of dimensions, each dimension as a big-endian 32-bit integer, then the values in
big-endian and row-major order (http://yann.lecun.com/exdb/mnist).
"""

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coset.data._plain import Raw, Read, check_labels, read_plain, require_file
from coset.errors import InputError

TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
DIMENSIONS = 32
"""More than NumPy took for long, and than any dataset has."""
CLASSES = 10
SIDE = 28


def read_idx(path: Path, read: Read = read_plain) -> NDArray[Any]:
    """The array in an IDX file, compressed or not, in the machine's own byte order."""
    content = read(path)
    if len(content) < 4:
        raise InputError(f"{path}: holds {len(content)} bytes, expected an IDX header of at least 8")
    zeros, code, dimensions = struct.unpack_from(">HBB", content)
    if zeros or code not in TYPES or not dimensions:
        known = ", ".join(f"{known:02x}" for known in TYPES)
        raise InputError(
            f"{path}: magic number 0x{content[:4].hex()}, expected 0x0000TTDD with type TT one of {known} "
            "and DD dimensions"
        )
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise InputError(
            f"{path}: holds {len(content)} bytes, expected a header of {start} for {dimensions} dimensions"
        )
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    if dimensions > DIMENSIONS:
        raise InputError(f"{path}: has {dimensions} dimensions, expected at most {DIMENSIONS}")
    stored = np.dtype(TYPES[code])
    expected = start + math.prod(shape) * stored.itemsize
    if len(content) != expected:
        sizes = " × ".join(map(str, shape))
        raise InputError(f"{path}: holds {len(content)} bytes, expected {expected} for {sizes} values")
    values = np.frombuffer(content, stored, offset=start).reshape(shape)
    return values.astype(stored.newbyteorder("="))


def read_mnist(folder: Path, train: int = 60_000, test: int = 10_000, *, read: Read = read_plain) -> Raw:
    """The four files of MNIST or Fashion-MNIST in ``folder``, which must hold ``train`` and ``test`` images."""
    x_train, y_train = _read_part(folder, "train", train, read)
    x_test, y_test = _read_part(folder, "t10k", test, read)
    return Raw(x_train, y_train, x_test, y_test, scale=255.0)


def _read_part(folder: Path, prefix: str, count: int, read: Read) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    image_file = require_file(folder, f"{prefix}-images-idx3-ubyte")
    label_file = require_file(folder, f"{prefix}-labels-idx1-ubyte")
    images, labels = read_idx(image_file, read), read_idx(label_file, read)
    for path, array, shape in ((image_file, images, (count, SIDE, SIDE)), (label_file, labels, (count,))):
        if array.dtype != np.uint8 or array.shape != shape:
            raise InputError(f"{path}: holds {array.dtype} of shape {array.shape}, expected uint8 of shape {shape}")
    check_labels(label_file, labels, CLASSES)
    return images[:, None], labels
