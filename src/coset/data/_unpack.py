"""Archives: only the members that are asked for, never outside the target folder."""

import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from coset._files.atomic import write_bytes
from coset.data._plain import LARGEST
from coset.errors import InputError


def unpack(archive: Path, files: tuple[tuple[str, str], ...], folder: Path) -> None:
    """Write members of ``archive`` to files under ``folder``; ``files`` pairs each member with its path there.

    An archive is refused whole, before anything is written, if it is damaged, if it holds a name outside its own
    folder, or if a member that is asked for is missing, is not a regular file or is enormous.
    """
    suffix = next(suffix for suffix in READERS if archive.name.endswith(suffix))
    try:
        contents = READERS[suffix](archive, [member for member, _ in files])
    except InputError:
        raise
    # Damaged bytes can fail anywhere in zipfile, tarfile and their decompressors, with any exception.
    except Exception as error:
        raise InputError(f"{archive}: not a sound archive: {' '.join(str(error).split())}") from error
    for (_, file), content in zip(files, contents, strict=True):
        write_bytes(folder / file, content)


def is_archive(name: str) -> bool:
    """Whether ``unpack`` knows the suffix of ``name``."""
    return name.endswith(tuple(READERS))


def _read_tar(archive: Path, wanted: list[str]) -> list[bytes]:
    with tarfile.open(archive, "r:gz") as tar:
        members = {_safe(archive, member.name): member for member in tar}
        _check(archive, wanted, {name: member.size for name, member in members.items() if member.isreg()})
        streams = [tar.extractfile(members[name]) for name in wanted]
        return [stream.read() for stream in streams if stream is not None]


def _read_zip(archive: Path, wanted: list[str]) -> list[bytes]:
    with zipfile.ZipFile(archive) as bundle:
        members = {_safe(archive, member.filename): member for member in bundle.infolist()}
        _check(archive, wanted, {name: member.file_size for name, member in members.items() if not member.is_dir()})
        return [bundle.read(members[name]) for name in wanted]


READERS: dict[str, Callable[[Path, list[str]], list[bytes]]] = {".tar.gz": _read_tar, ".zip": _read_zip}


def _safe(archive: Path, name: str) -> str:
    """``name`` without ``./``; refused if it leads out of the archive."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts:
        raise InputError(f"{archive}: member {name!r} leads outside the archive; nothing was unpacked")
    return path.as_posix()


def _check(archive: Path, wanted: list[str], sizes: dict[str, int]) -> None:
    """Refuse an archive without the files that are asked for; ``sizes`` has all its regular files."""
    lacking = [name for name in wanted if name not in sizes]
    if lacking:
        raise InputError(f"{archive}: has no regular file {', '.join(lacking)}")
    for name in wanted:
        if sizes[name] > LARGEST:
            raise InputError(f"{archive}: member {name} has {sizes[name]} bytes, expected at most {LARGEST}")
