"""What readers of all formats share: files that may be compressed, read as plain bytes; arrays as the files hold them.

Every reader and every check finds its files here, so that all of them mean the same file.
"""

import gzip
import io
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coset.errors import InputError

LARGEST = 1 << 28
"""Far above any file of a dataset, in bytes; stops one that would fill the memory."""

Read = Callable[[Path], bytes]
"""How readers get the bytes of a file: ``read_plain``, or a function that remembers what that gave."""


def spellings(folder: Path, name: str) -> tuple[Path, Path]:
    """Where a file may be under ``folder``: as ``name``, which comes first, or compressed as ``name.gz``."""
    return folder / name, folder / f"{name}.gz"


def find_file(folder: Path, name: str) -> Path | None:
    """The first of the ``spellings`` that is a file, or None."""
    return next((path for path in spellings(folder, name) if path.is_file()), None)


def require_file(folder: Path, name: str) -> Path:
    """Like ``find_file``, but a missing file is an error."""
    path = find_file(folder, name)
    if path is None:
        raise InputError(f"{folder / name}: no such file, compressed (.gz) or not")
    return path


def read_plain(path: Path) -> bytes:
    """The bytes of ``path``, decompressed if its name ends in ``.gz``; at most ``LARGEST``, before and after."""
    try:
        _check_size(path.stat().st_size, path)
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if path.suffix != ".gz":
        return content
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
            content = stream.read(LARGEST + 1)
    except EOFError as error:
        raise InputError(f"{path}: the gzip stream is truncated: it ends after {len(content)} bytes") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: not a sound gzip file: {error}") from error
    _check_size(len(content), path)
    return content


def _check_size(size: int, path: Path) -> None:
    if size > LARGEST:
        raise InputError(f"{path}: holds more than {LARGEST} bytes, expected a file of a dataset")


@dataclass(frozen=True, eq=False)
class Raw:
    """Inputs as bytes (N, C, H, W) or float64 (N, D); labels (N,) as integers or targets (N, 1) as float64.

    ``scale`` is the largest value that a byte of the inputs can take, so that ``x / scale`` lies in [0, 1]; tables have
    scale 1. ``unlabelled`` are inputs without targets.
    """

    x_train: NDArray[Any]
    y_train: NDArray[Any]
    x_test: NDArray[Any]
    y_test: NDArray[Any]
    scale: float = 1.0
    unlabelled: NDArray[Any] | None = None


def check_labels(path: Path, labels: NDArray[Any], classes: int, kind: str = "label") -> None:
    """Refuse labels outside 0 .. classes − 1, naming the first of them."""
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise InputError(
            f"{path}: {kind} {int(labels[wrong[0]])} at position {int(wrong[0])}, expected 0 to {classes - 1}"
        )
