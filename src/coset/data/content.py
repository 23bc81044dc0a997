"""Checksums of what files say, whichever way they are written.

The same images may be compressed differently, and the same table written with other blanks: what is compared is the
decompressed content, the parsed numbers or the arrays, always by SHA-256.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coset.data.cifar import SLICE_ARRAYS, read_arrays
from coset.data.plain import find_file, read_plain, require_file
from coset.data.tables import read_numbers


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


def checksum(part: Part, root: Path) -> str:
    """SHA-256, in hexadecimal, of the content of the files of ``part`` in their order."""
    digest = hashlib.sha256()
    for name in part.files:
        for piece in KINDS[part.kind](require_file(root, name)):
            digest.update(piece)
    return digest.hexdigest()


def _bytes(path: Path) -> Iterator[bytes]:
    yield read_plain(path)


def _numbers(path: Path) -> Iterator[bytes]:
    table = read_numbers(path)
    # The shape keeps tables that follow each other apart.
    yield f"{table.shape[0]}x{table.shape[1]}\n".encode()
    yield table.astype("<f8").tobytes()


def _arrays(path: Path) -> Iterator[bytes]:
    for name, array in read_arrays(path, SLICE_ARRAYS).items():
        yield f"{name} {array.dtype.str} {array.shape}\n".encode()
        yield np.ascontiguousarray(array).tobytes()


KINDS: dict[str, Callable[[Path], Iterator[bytes]]] = {"bytes": _bytes, "numbers": _numbers, "arrays": _arrays}
