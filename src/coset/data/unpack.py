"""Archives: only the members that are asked for, never outside the target folder."""

import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO

from coset.errors import InputError
from coset.files import atomic_path

# Far above any member that is asked for; stops an archive that would fill the disk.
LARGEST = 1 << 28


def unpack(archive: Path, files: tuple[tuple[str, str], ...], folder: Path) -> None:
    """Write members of ``archive`` to files under ``folder``; ``files`` pairs each member with its path there.

    An archive that holds a name outside its own folder is refused whole, before anything is written.
    """
    suffix = next(suffix for suffix in UNPACKERS if archive.name.endswith(suffix))
    try:
        UNPACKERS[suffix](archive, dict(files), folder)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise InputError(f"{archive}: not a sound archive: {error}") from error


def is_archive(name: str) -> bool:
    """Whether ``unpack`` knows the suffix of ``name``."""
    return name.endswith(tuple(UNPACKERS))


def _tar(archive: Path, files: dict[str, str], folder: Path) -> None:
    with tarfile.open(archive, "r:gz") as tar:
        members = {_safe(archive, member.name): member for member in tar}
        for name in _present(archive, files, set(members)):
            stream = tar.extractfile(members[name]) if members[name].isreg() else None
            if stream is None:
                raise InputError(f"{archive}: member {name} is not a regular file")
            _write(archive, name, members[name].size, stream, folder / files[name])


def _zip(archive: Path, files: dict[str, str], folder: Path) -> None:
    with zipfile.ZipFile(archive) as bundle:
        members = {_safe(archive, member.filename): member for member in bundle.infolist()}
        for name in _present(archive, files, set(members)):
            with bundle.open(members[name]) as stream:
                _write(archive, name, members[name].file_size, stream, folder / files[name])


UNPACKERS: dict[str, Callable[[Path, dict[str, str], Path], None]] = {".tar.gz": _tar, ".zip": _zip}


def _safe(archive: Path, name: str) -> str:
    """``name`` without ``./``; refused if it leads out of the archive."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts:
        raise InputError(f"{archive}: member {name!r} leads outside the archive; nothing was unpacked")
    return path.as_posix()


def _present(archive: Path, files: dict[str, str], names: set[str]) -> list[str]:
    lacking = [name for name in files if name not in names]
    if lacking:
        raise InputError(f"{archive}: lacks {', '.join(lacking)}")
    return list(files)


def _write(archive: Path, name: str, size: int, stream: IO[bytes], target: Path) -> None:
    if size > LARGEST:
        raise InputError(f"{archive}: member {name} has {size} bytes, expected at most {LARGEST}")
    with atomic_path(target) as part, part.open("wb") as file:
        shutil.copyfileobj(stream, file)
