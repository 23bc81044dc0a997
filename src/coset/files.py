"""Files that are either whole or absent, and the folder for those that can be made again."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coset.errors import InputError


@contextmanager
def atomic_path(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``target``; move it there on success, remove it on any failure.

    The move is a rename within one folder, so readers see the old file or the new one, never a part of it.
    """
    destination = Path(target)
    destination.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{destination.name}.", suffix=".part", dir=destination.parent)
    os.close(handle)
    part = Path(name)
    try:
        yield part
        # mkstemp makes private files; the result gets the permissions any new file would have.
        mask = os.umask(0)
        os.umask(mask)
        part.chmod(0o666 & ~mask)
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


def output_folder(path: str | os.PathLike[str]) -> Path:
    """``path`` as a folder to write into, which may be yet to be made; a file in its place is refused."""
    folder = Path(path)
    for part in (folder, *folder.parents):
        if part.exists() and not part.is_dir():
            raise InputError(f"out must be a folder, found the file {part}")
    return folder


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
