"""Archives: only the members that are asked for, never outside the target folder."""

import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO

from coset.data.plain import ARCHIVE_ERRORS
from coset.errors import InputError
from coset.files import atomic_path

# Far above any member that is asked for; stops an archive that would fill the disk.
LARGEST = 1 << 28


def unpack(archive: Path, files: tuple[tuple[str, str], ...], folder: Path) -> None:
    """Write members of ``archive`` to files under ``folder``; ``files`` pairs each member with its path there.

    An archive is refused whole, before anything is written, if it holds a name outside its own folder, or if a member
    that is asked for is missing, is not a regular file or is enormous.
    """
    suffix = next(suffix for suffix in UNPACKERS if archive.name.endswith(suffix))
    try:
        UNPACKERS[suffix](archive, dict(files), folder)
    except InputError:
        raise
    except ARCHIVE_ERRORS as error:
        raise InputError(f"{archive}: not a sound archive: {error}") from error


def is_archive(name: str) -> bool:
    """Whether ``unpack`` knows the suffix of ``name``."""
    return name.endswith(tuple(UNPACKERS))


def _tar(archive: Path, files: dict[str, str], folder: Path) -> None:
    with tarfile.open(archive, "r:gz") as tar:
        members = {_safe(archive, member.name): member for member in tar}
        _check(archive, files, {name: member.size for name, member in members.items() if member.isreg()})
        for name, file in files.items():
            stream = tar.extractfile(members[name])
            assert stream is not None  # A regular file has content.
            _write(stream, folder / file)


def _zip(archive: Path, files: dict[str, str], folder: Path) -> None:
    with zipfile.ZipFile(archive) as bundle:
        members = {_safe(archive, member.filename): member for member in bundle.infolist()}
        _check(archive, files, {name: member.file_size for name, member in members.items() if not member.is_dir()})
        for name, file in files.items():
            with bundle.open(members[name]) as stream:
                _write(stream, folder / file)


UNPACKERS: dict[str, Callable[[Path, dict[str, str], Path], None]] = {".tar.gz": _tar, ".zip": _zip}


def _safe(archive: Path, name: str) -> str:
    """``name`` without ``./``; refused if it leads out of the archive."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts:
        raise InputError(f"{archive}: member {name!r} leads outside the archive; nothing was unpacked")
    return path.as_posix()


def _check(archive: Path, files: dict[str, str], sizes: dict[str, int]) -> None:
    """Refuse an archive without the files that are asked for; ``sizes`` has all its regular files."""
    lacking = [name for name in files if name not in sizes]
    if lacking:
        raise InputError(f"{archive}: has no regular file {', '.join(lacking)}")
    for name in files:
        if sizes[name] > LARGEST:
            raise InputError(f"{archive}: member {name} has {sizes[name]} bytes, expected at most {LARGEST}")


def _write(stream: IO[bytes], target: Path) -> None:
    with atomic_path(target) as part, part.open("wb") as file:
        shutil.copyfileobj(stream, file)
