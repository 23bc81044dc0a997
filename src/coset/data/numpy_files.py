"""Arrays from NumPy files: sizes are compared before anything is allocated, and pickled objects are refused.

An ``.npy`` file is a magic number, a header with type, order and shape, and the values; an ``.npz`` file is a zip
archive of them (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).
"""

import io
import math
import zipfile
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from coset.errors import InputError, refusing

_HEADERS: dict[tuple[int, int], Callable[[Any], tuple[tuple[int, ...], bool, np.dtype[Any]]]] = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
}
"""Version → the reader of its header. Version 3 is for names of fields, which plain numbers do not have."""

MAGIC = npy.MAGIC_PREFIX
"""With these bytes an ``.npy`` file begins."""


def read_npy(content: bytes, where: str) -> NDArray[Any]:
    """The array in the bytes of an ``.npy`` file; ``where`` begins what is said against it."""
    with refusing(f"{where}: not a sound .npy file"):
        return _array(io.BytesIO(content), len(content), where)


def read_npz(
    content: bytes, where: str, choose: Callable[[Sequence[str]], Sequence[str]], largest: int
) -> dict[str, NDArray[Any]]:
    """Those arrays of an ``.npz`` file that ``choose`` picks by their names, of at most ``largest`` bytes each."""
    found = {}
    with refusing(f"{where}: not a sound .npz file"), zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        for name in choose(list(members)):
            size = members[name].file_size
            if size > largest:
                raise InputError(f"{where}: {name} has {size} bytes, expected at most {largest}")
            with archive.open(members[name]) as file:
                # Checksums are compared at the end of a member: reading must come to it.
                found[name] = _array(io.BytesIO(file.read(size + 1)), size, where)
    return found


def _array(file: BinaryIO, size: int, where: str) -> NDArray[Any]:
    version = npy.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"its version is {version}, expected (1, 0) or (2, 0)")
    shape, fortran, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise InputError(f"{where}: holds pickled objects, which are not read; expected plain numbers")
    if any(length < 0 for length in shape):
        raise ValueError(f"its shape is {shape}")
    claimed, there = math.prod(shape) * dtype.itemsize, size - file.tell()
    if claimed != there:
        raise InputError(f"{where}: holds {there} bytes of values, expected {claimed} for {dtype} of shape {shape}")
    values = np.frombuffer(file.read(), dtype) if claimed else np.empty(0, dtype)
    return values.reshape(shape, order="F" if fortran else "C")
