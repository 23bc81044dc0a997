"""Files that may be compressed: found under either name, read as plain bytes.

Every reader and every check finds its files here, so that all of them mean the same file.
"""

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from coset.errors import InputError

# All that zipfile, tarfile and numpy raise over damaged archives; encryption, unknown methods and versions count too.
ARCHIVE_ERRORS = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    MemoryError,
    OSError,
    RuntimeError,
    ValueError,
)


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
    """The bytes of ``path``, decompressed if its name ends in ``.gz``."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if path.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except EOFError as error:
        raise InputError(f"{path}: the gzip stream is truncated: it ends after {len(content)} bytes") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: not a sound gzip file: {error}") from error
