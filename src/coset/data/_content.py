"""Checksums of what files say, whichever way they are written.

The same images may be compressed differently, and the same table written with other blanks: what is compared is the
decompressed content, the parsed numbers or the arrays, always by SHA-256.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coset.data._plain import Read, find_file, read_plain, require_file
from coset.data._tables import read_numbers
from coset.data.cifar import SLICE_ARRAYS, read_arrays
from coset.errors import InputError


@dataclass(frozen=True)
class Part:
    """Files of a dataset that are checked together: names under the root, without ``.gz``, and their checksum.

    ``kind`` is "bytes" (of the decompressed file), "numbers" (of text tables) or "arrays" (of an ``.npz`` file).
    """

    files: tuple[str, ...]
    kind: str
    sha256: str


def missing_files(part: Part, root: Path) -> tuple[str, ...]:
    """The files of ``part`` that are not under ``root``."""
    return tuple(name for name in part.files if find_file(root, name) is None)


def checksum(part: Part, root: Path, read: Read = read_plain) -> str:
    """SHA-256, in hexadecimal, of the content of the files of ``part`` in their order."""
    digest = hashlib.sha256()
    for name in part.files:
        for piece in KINDS[part.kind](require_file(root, name), read):
            digest.update(piece)
    return digest.hexdigest()


def verify(part: Part, root: Path, read: Read = read_plain) -> str:
    """The checksum of ``part``, which must be the known one; else an error that names the file."""
    found = checksum(part, root, read)
    if found != part.sha256:
        first, more = require_file(root, part.files[0]), len(part.files) - 1
        files = f"{first} and {more} more" if more else str(first)
        raise InputError(f"{files}: SHA-256 of the content is {found}, expected {part.sha256}")
    return found


def _bytes(path: Path, read: Read) -> Iterator[bytes]:
    yield read(path)


def _numbers(path: Path, read: Read) -> Iterator[bytes]:
    table = read_numbers(path, read)
    # The shape keeps tables that follow each other apart.
    yield f"{table.shape[0]}x{table.shape[1]}\n".encode()
    yield table.astype("<f8").tobytes()


def _arrays(path: Path, read: Read) -> Iterator[bytes]:
    for name, array in read_arrays(path, SLICE_ARRAYS, read).items():
        yield f"{name} {array.dtype.str} {array.shape}\n".encode()
        yield np.ascontiguousarray(array).tobytes()


KINDS: dict[str, Callable[[Path, Read], Iterator[bytes]]] = {"bytes": _bytes, "numbers": _numbers, "arrays": _arrays}
