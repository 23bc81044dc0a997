"""Files that are whole or absent, JSON from them, folders to write to, and the one for what can be made again."""

import json
import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from coset.errors import InputError

STALE_SECONDS = 86400.0
"""A half-written file that nobody touched for so long belongs to a process that is gone."""

DEEPEST = 100
"""Levels of lists and mappings in a JSON text: far more than any file has, and few enough for functions that recur."""

# Once, at import: it can only be read by setting it, which other threads would notice.
_UMASK = os.umask(0o077)
os.umask(_UMASK)


_PART = re.compile(r"\.(.+)\.\w{8}\.part")
_ORPHAN = re.compile(r"\.tmp[A-Za-z0-9]{6}")
"""What safetensors calls the file that it writes to, beside the one that is asked for, before it renames it."""

_LARGEST_HEADER = 100_000_000
"""As safetensors has it, in bytes."""


@contextmanager
def atomic_path(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path near ``target``; move it there on success, remove it on any failure.

    The move is a rename of content that has reached the disk: readers see the old file or the new one, never a part of
    it, even after a loss of power. The path is in a folder of its own beside ``target``, where libraries may put
    temporary files, too; what killed processes left of such folders is removed once it is ``STALE_SECONDS`` old.
    Whatever the system says against the write, such as a full disk, is an InputError that names ``target``.
    """
    destination = Path(target)
    require_reachable(destination)
    if destination.is_dir():
        raise InputError(f"{destination} is a folder, expected a file or a new path")
    # Inside of another such write, its target is what people know.
    within = _PART.fullmatch(destination.parent.name)
    told = destination.parents[1] / destination.name if within and within[1] == destination.name else destination
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        _sweep(destination)
        folder = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", suffix=".part", dir=destination.parent))
    except (OSError, ValueError) as error:
        raise InputError(f"{told} cannot be written: {_reason(error, destination.name)}") from error
    part = folder / destination.name
    try:
        part.touch()
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        # Libraries make private files; the result gets the permissions any new file would have.
        part.chmod(0o666 & ~_UMASK)
        part.replace(destination)
    except OSError as error:
        raise InputError(f"{told} cannot be written: {_reason(error, destination.name)}") from error
    finally:
        with suppress(OSError):  # what stays is swept later, and an error on its way matters more
            remove_part(folder)


def require_reachable(path: Path) -> None:
    """Raise unless there is something at ``path`` or there may be: not where links lead in a circle, say."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # nothing there; or a file on the way, which is told when folders are made
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be written: {_reason(error, path.name)}") from error


def write_bytes(target: str | os.PathLike[str], content: bytes) -> None:
    """Write ``content`` to ``target`` atomically."""
    with atomic_path(target) as part:
        part.write_bytes(content)


def write_text(target: str | os.PathLike[str], content: str) -> None:
    """Write ``content`` to ``target`` atomically, as UTF-8."""
    write_bytes(target, content.encode("utf-8"))


def parse_json(text: str | bytes, what: str) -> Any:
    """The value of a JSON text from a file; one that is damaged or nested absurdly is an InputError about ``what``."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what} is not JSON: {error}") from error
    layer = [value]
    for _ in range(DEEPEST):
        layer = [
            item
            for part in layer
            if isinstance(part, dict | list)
            for item in (part.values() if isinstance(part, dict) else part)
        ]
        if not layer:
            return value
    raise InputError(f"{what} is nested more than {DEEPEST} levels deep; expected a file that coset wrote")


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


@contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder to fill, which must be new or empty; if the block fails, what it has written goes again."""
    folder = Path(path)
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty; expected a new folder")
    with output_folder(folder):
        try:
            yield folder
        except BaseException:
            for inside in sorted(folder.rglob("*"), reverse=True):
                inside.rmdir() if inside.is_dir() else inside.unlink()
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


def untouched(part: Path) -> float:
    """For how many seconds nobody has written to a temporary file, or to a folder of them; 0 if it is gone."""
    try:
        inside = list(part.iterdir()) if part.is_dir() else []
        return time.time() - max(path.lstat().st_mtime for path in (part, *inside))
    except FileNotFoundError:  # its writer has just finished
        return 0.0


def is_part(path: Path) -> bool:
    """Whether a write has made ``path`` for itself: a file, as earlier versions did, or a folder with its own alone."""
    form = _PART.fullmatch(path.name)
    if form is None or path.is_symlink():
        return False
    if not path.is_dir():
        return path.is_file()
    return all(inside.name == form[1] or _ORPHAN.fullmatch(inside.name) for inside in path.iterdir())


def remove_part(part: Path) -> None:
    """Remove a temporary file, or a folder of them."""
    if not part.is_dir():
        part.unlink(missing_ok=True)
        return
    for path in part.iterdir():
        path.unlink(missing_ok=True)
    part.rmdir()


def is_orphan(path: Path) -> bool:
    """Whether ``path`` is a file that safetensors began to write for coset, beside its target, and did not finish.

    Earlier versions of coset left such files when they were killed. Its name is one that safetensors gives, it is
    private, and its header, which comes first, has an entry of coset.
    """
    if not _ORPHAN.fullmatch(path.name):
        return False
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            return False
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size)) if size <= min(status.st_size, _LARGEST_HEADER) else None
    except (OSError, ValueError, RecursionError):
        return False
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    return isinstance(metadata, dict) and any(name.startswith("coset.") for name in metadata)


def _sweep(destination: Path) -> None:
    """Remove what is left of earlier writes of ``destination`` and old; a writer at work touches its own."""
    form = re.compile(rf"\.{re.escape(destination.name)}\.\w{{8}}\.part")
    with suppress(OSError):  # a folder that cannot be looked into can perhaps be written to
        for path in destination.parent.iterdir():
            with suppress(OSError):  # another process sweeps too, or the file is another user's
                ours = (form.fullmatch(path.name) and is_part(path)) or is_orphan(path)
                if ours and untouched(path) > STALE_SECONDS:
                    remove_part(path)


def _reason(error: OSError | ValueError, name: str) -> str:
    """What the system says; with the file, if it is neither ``name`` nor temporary."""
    if not isinstance(error, OSError):
        return str(error)
    told = error.strerror or str(error)
    about = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    return told if not about or Path(about).name == name or f".{name}." in about else f"{told}: {about}"
