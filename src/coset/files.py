"""Files that are either whole or absent."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
