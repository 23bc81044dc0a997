"""Files that are either whole or absent, folders that can be written to, and the folder for what can be made again."""

import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from coset.errors import InputError

STALE_SECONDS = 86400.0
"""A half-written file that nobody touched for so long belongs to a process that is gone."""

# Once, at import: it can only be read by setting it, which other threads would notice.
_UMASK = os.umask(0o077)
os.umask(_UMASK)


@contextmanager
def atomic_path(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``target``; move it there on success, remove it on any failure.

    The move is a rename within one folder, of content that has reached the disk: readers see the old file or the new
    one, never a part of it, even after a loss of power. What killed processes left of earlier writes is removed once it
    is ``STALE_SECONDS`` old.
    """
    destination = Path(target)
    if destination.is_dir():
        raise InputError(f"{destination} is a folder, expected a file or a new path")
    destination.parent.mkdir(parents=True, exist_ok=True)
    _sweep(destination)
    handle, name = tempfile.mkstemp(prefix=f".{destination.name}.", suffix=".part", dir=destination.parent)
    os.close(handle)
    part = Path(name)
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        # mkstemp makes private files; the result gets the permissions any new file would have.
        part.chmod(0o666 & ~_UMASK)
        part.replace(destination)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_bytes(target: str | os.PathLike[str], content: bytes) -> None:
    """Write ``content`` to ``target`` atomically."""
    with atomic_path(target) as part:
        part.write_bytes(content)


def write_text(target: str | os.PathLike[str], content: str) -> None:
    """Write ``content`` to ``target`` atomically, as UTF-8."""
    write_bytes(target, content.encode("utf-8"))


@contextmanager
def output_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder to write into, made and tried before any work is done; one that cannot be written to is an InputError.

    If the block fails, the folders that were made for it and are still empty go again.
    """
    folder = Path(path)
    for part in (folder, *folder.parents):
        # Not exists(): that raises where a folder on the way may not be looked into, which is told below.
        if os.path.isfile(part):  # noqa: PTH113
            raise InputError(f"out must be a folder, found the file {part}")
    missing = [part for part in (folder, *folder.parents) if not os.path.lexists(part)]
    try:
        require_writable(folder, "out")
        yield folder
    except BaseException:
        for part in missing:
            with suppress(OSError):  # never made, or no longer empty
                part.rmdir()
        raise


def require_writable(folder: Path, what: str) -> None:
    """Make ``folder`` and try to write into it; raise an InputError that begins with ``what`` if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"{what} {folder} cannot be written to: {error.strerror or error}") from error


def cache_folder() -> Path:
    """``COSET_CACHE`` if set, else ``coset`` in the platform's folder for caches (``~/.cache`` on Linux)."""
    chosen = os.environ.get("COSET_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "coset"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "coset"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coset"


def _sweep(destination: Path) -> None:
    """Remove the parts of ``destination`` that nobody has touched for long; a writer at work touches its own."""
    form = re.compile(rf"\.{re.escape(destination.name)}\.\w{{8}}\.part")
    for part in destination.parent.iterdir():
        if form.fullmatch(part.name):
            with suppress(FileNotFoundError):  # another process sweeps too
                if time.time() - part.stat().st_mtime > STALE_SECONDS:
                    part.unlink()
