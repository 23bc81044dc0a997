"""Datasets from their official addresses into a folder, unpacked and checked before they are visible there."""

import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from coset._files.atomic import require_writable, write_bytes
from coset._files.locks import locked
from coset._show.progress import Ticker, progress
from coset.data._checking import check_part, download_folder, find
from coset.data._content import Part, verify
from coset.data._loading import read_published
from coset.data._plain import LARGEST, require_file, spellings
from coset.data._sources import Download, Source
from coset.data._transfer import file_sha256, transfer
from coset.data.catalog import Entry, lookup
from coset.data.cifar import write_slice
from coset.errors import InputError, refusing

# Steps of the progress bar for one download.
STEPS = 1000


def fetch(
    name: str,
    *,
    root: str | os.PathLike[str] | None = None,
    source: str | None = None,
    show: bool | None = None,
) -> tuple[Path, ...]:
    """Bring a dataset into ``root`` (by default the cache) and return its files, in their order.

    What is there already and has the right content stays. The rest is downloaded into a folder ``root/.fetch-name``,
    compared with its known SHA-256 and only then moved to its place. A transfer that was cut continues in the next call
    of ``fetch``; nothing is tried twice by itself. Of several calls at once, in any process, one works and the others
    wait for it. ``source`` is an address to use in place of the official one, with the same files.
    ``cifar10-slice`` is cut from ``cifar10``, which is fetched if it is nowhere. Nothing is done, and no file returned,
    for the datasets inside scikit-learn.
    """
    entry = lookup(name)
    folder = download_folder() if root is None else Path(root)
    if _wrong_parts(entry, folder):
        require_writable(folder, "root")
        # Beside each other in the root: no two datasets share a folder that either of them may remove.
        staging = folder / f".fetch-{entry.name.replace('/', '-')}"
        with locked(staging.with_name(f"{staging.name}.lock"), f"the dataset {entry.name} in {folder}"):
            # Another may have brought it while this one waited for the lock.
            wanted = _wrong_parts(entry, folder)
            if wanted:
                try:
                    _bring(entry, wanted, staging, folder, source, show)
                except OSError as error:  # a full disk, say; what arrived stays
                    raise InputError(f"{entry.name}: writing to {folder} failed: {error.strerror or error}") from error
                finally:
                    _remove_empty(staging)
    return tuple(require_file(folder, file) for part in entry.parts for file in part.files)


def _wrong_parts(entry: Entry, folder: Path) -> list[Part]:
    """The parts of a dataset that are not in ``folder`` with the content they should have."""
    # Unreadable content is wrong content, and will be replaced.
    return [part for part in entry.parts if check_part(part, folder).state != "ok"]


def _bring(
    entry: Entry, wanted: list[Part], staging: Path, folder: Path, address: str | None, show: bool | None
) -> None:
    """Gather the wanted parts under ``staging``, then move them to their places."""
    if entry.source is not None:
        _download(entry.source, wanted, staging, entry.name, address, show)
    elif entry.made_from is not None:
        _cut(lookup(entry.made_from), wanted, staging, folder, address, show)
    _install(wanted, staging, folder, entry.name)


def _download(
    official: Source, wanted: list[Part], staging: Path, name: str, address: str | None, show: bool | None
) -> None:
    """Download and unpack under ``staging`` what the wanted parts need."""
    files = {file for part in wanted for file in part.files}
    downloads = [
        download
        for download in official.downloads
        if any(file.removesuffix(".gz") in files for _, file in download.files)
    ]
    base = official.address if address is None else f"{address.rstrip('/')}/"
    with progress(name, STEPS * len(downloads), show=show) as bar:
        for download in downloads:
            _stage(base + download.address, download, staging, bar)


def _stage(url: str, download: Download, staging: Path, bar: Ticker) -> None:
    """One download, unpacked, under ``staging``."""
    archive = is_archive(download.address)
    target = staging / (download.address if archive else download.files[0][1])
    shown = 0

    def report(done: int, total: int) -> None:
        nonlocal shown
        reached = STEPS * done // total if total else 0
        bar.advance(reached - shown, note=f"{target.name} {done / 1e6:.1f} MB")
        shown = reached

    # What an interrupted call left whole is used; without a known checksum its content is checked later all the same.
    whole = target.is_file() and (download.sha256 is None or file_sha256(target) == download.sha256)
    if not whole:
        transfer(url, target, sha256=download.sha256, report=report)
    if archive:
        try:
            unpack(target, download.files, staging)
        except InputError as error:
            target.unlink()
            raise InputError(f"{error}; the download was deleted") from error
    bar.advance(STEPS - shown)


def _cut(whole: Entry, wanted: list[Part], staging: Path, folder: Path, address: str | None, show: bool | None) -> None:
    """Write the slice of CIFAR-10 under ``staging``, from wherever CIFAR-10 is; fetch that if it is nowhere."""
    place = find(whole, folder) or find(whole)
    if place is None:
        fetch(whole.name, root=folder, source=address, show=show)
        place = folder
    raw, _ = read_published(whole, place, 0)
    write_slice(raw, staging / wanted[0].files[0])


def _install(wanted: list[Part], staging: Path, folder: Path, name: str) -> None:
    """Check the content under ``staging``, then move it to its place; delete it if any of it is wrong."""
    try:
        for part in wanted:
            verify(part, staging)
    except InputError as error:
        shutil.rmtree(staging)
        raise InputError(f"{name} was not installed: {error}; what came was deleted") from error
    for part in wanted:
        for file in part.files:
            staged = require_file(staging, file)
            _put(staged, folder / staged.relative_to(staging), spellings(folder, file))
    shutil.rmtree(staging)


def _put(staged: Path, target: Path, names: tuple[Path, ...]) -> None:
    """Move ``staged`` to ``target``, the only one of ``names`` that stays; what is staged still is if this fails."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for other in names:
            # First, for a wrong file under the other name may be the one that is read.
            if other != target:
                other.unlink(missing_ok=True)
        staged.replace(target)
    except OSError as error:
        raise InputError(f"{target}: cannot be put in place: {error.strerror or error}") from error


def _remove_empty(staging: Path) -> None:
    """Remove ``staging`` and the folders in it that hold nothing to continue from."""
    for path in (*sorted(staging.rglob("*"), reverse=True), staging):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def unpack(archive: Path, files: tuple[tuple[str, str], ...], folder: Path) -> None:
    """Write members of ``archive`` to files under ``folder``; ``files`` pairs each member with its path there.

    An archive is refused whole, before anything is written, if it is damaged, if it holds a name outside its own
    folder, or if a member that is asked for is missing, is not a regular file or is enormous.
    """
    suffix = next(suffix for suffix in READERS if archive.name.endswith(suffix))
    with refusing(f"{archive}: not a sound archive"):
        contents = READERS[suffix](archive, [member for member, _ in files])
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
