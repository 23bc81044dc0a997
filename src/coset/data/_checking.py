"""Where datasets are looked for, where downloads go; what is there, and whether it is right."""

import functools
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coset._files.atomic import cache_folder
from coset.data._content import Part, checksum, missing_files
from coset.data._dataset import Task
from coset.data._plain import Read, read_plain
from coset.data.catalog import CATALOG, Entry, lookup
from coset.errors import InputError

EMBEDDED = "scikit-learn"

State = Literal["ok", "missing", "unreadable", "different"]


@dataclass(frozen=True)
class Listing:
    """A dataset at a glance.

    ``found`` is the folder with all its files, or "scikit-learn", or None, and then ``command`` brings it;
    ``incomplete`` is then the first folder with some of its files, if there is one.
    """

    name: str
    summary: str
    task: Task
    train: int
    test: int
    shape: tuple[int, ...]
    outputs: int
    found: str | None
    incomplete: str | None
    command: str | None


@dataclass(frozen=True)
class PartReport:
    """The state of files that are checked together, and what is wrong with them."""

    files: tuple[str, ...]
    state: State
    problem: str | None = None


@dataclass(frozen=True)
class Report:
    """The state of a dataset: ok if every part is and if it parses as a whole; else ``problem`` says what is wrong.

    ``folder`` is where it was looked at. ``dataclasses.asdict`` gives what JSON can hold.
    """

    name: str
    folder: str
    ok: bool
    parts: tuple[PartReport, ...]
    problem: str | None


def download_folder() -> Path:
    """Where ``fetch`` puts datasets unless told otherwise."""
    return cache_folder() / "data"


def search_folders() -> tuple[Path, ...]:
    """The folders searched, in order: ``COSET_DATA`` if set, then ``download_folder()``."""
    chosen = os.environ.get("COSET_DATA")
    return (Path(chosen).expanduser(), download_folder()) if chosen else (download_folder(),)


def folders(root: str | os.PathLike[str] | None) -> tuple[Path, ...]:
    """``root`` alone if it is given, or else the folders searched."""
    return search_folders() if root is None else (Path(root),)


def missing(entry: Entry, folder: Path) -> tuple[str, ...]:
    """The files of a dataset that are not under ``folder``."""
    return tuple(name for part in entry.parts for name in missing_files(part, folder))


def find(entry: Entry, root: str | os.PathLike[str] | None = None) -> Path | None:
    """The first folder with all files of a dataset, in ``root`` alone or the folders searched; None without one."""
    return next((folder for folder in folders(root) if not missing(entry, folder)), None)


def incomplete(entry: Entry, root: str | os.PathLike[str] | None = None) -> list[Path]:
    """The folders with some files of a dataset, or all of them."""
    count = sum(len(part.files) for part in entry.parts)
    return [folder for folder in folders(root) if len(missing(entry, folder)) < count]


def fetch_command(entry: Entry, root: str | os.PathLike[str] | None = None) -> str:
    """What to type to get a dataset into ``root``, or to replace what is wrong there; without it, into the cache."""
    words = ["coset", "data", "fetch", entry.name]
    if root is not None and Path(root) != download_folder():
        words += ["--root", os.fspath(root)]
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)


def locate(entry: Entry, root: str | os.PathLike[str] | None = None) -> Path:
    """Like ``find``, but a missing dataset is an error that says which command brings it."""
    folder = find(entry, root)
    if folder is not None:
        return folder
    lacking = [
        f"; {candidate} lacks {absent[0]}" + (f" and {len(absent) - 1} more" if len(absent) > 1 else "")
        for candidate in incomplete(entry, root)
        if (absent := missing(entry, candidate))
    ]
    where = ", ".join(map(str, folders(root)))
    raise InputError(f"{entry.name} is not in {where}{''.join(lacking)}; run: {fetch_command(entry, root)}")


def available(root: str | os.PathLike[str] | None = None) -> tuple[Listing, ...]:
    """Every dataset, and where it is: in ``root``, or else in the folders searched. Contents are not read."""
    return tuple(_listing(entry, root) for entry in CATALOG.values())


def check(name: str, root: str | os.PathLike[str] | None = None) -> Report:
    """Whether all files of a dataset are there, have the known SHA-256 and parse, with every canonical split.

    Looks in ``root``, or else in the first folder searched that has all files, or else in the first one that has any.
    """
    entry = lookup(name)
    if not entry.parts:
        problem = _parse(entry, Path(), read_plain)
        return Report(name, EMBEDDED, problem is None, (), problem)
    folder = find(entry, root) or next(iter(incomplete(entry, root)), folders(root)[0])
    read = functools.cache(read_plain)
    parts = tuple(check_part(part, folder, read) for part in entry.parts)
    states = {part.state for part in parts}
    if "missing" in states:
        problem = f"incomplete; run: {fetch_command(entry, root)}"
    else:
        problem = _parse(entry, folder, read)
        if states != {"ok"}:
            # The folder by name: a copy elsewhere would not be looked at before this one.
            problem = f"{problem or 'other content than published'}; run: {fetch_command(entry, folder)}"
    return Report(name, str(folder), problem is None, parts, problem)


def _listing(entry: Entry, root: str | os.PathLike[str] | None) -> Listing:
    folder = find(entry, root)
    found = EMBEDDED if not entry.parts else None if folder is None else str(folder)
    return Listing(
        name=entry.name,
        summary=entry.summary,
        task=entry.task,
        train=entry.train,
        test=entry.test,
        shape=entry.shape,
        outputs=len(entry.classes) or 1,
        found=found,
        incomplete=None if found else next(map(str, incomplete(entry, root)), None),
        command=fetch_command(entry, root) if found is None else None,
    )


def check_part(part: Part, folder: Path, read: Read = read_plain) -> PartReport:
    """Whether the files of ``part`` are in ``folder`` with the content they should have."""
    absent = missing_files(part, folder)
    if absent:
        return PartReport(part.files, "missing", f"{', '.join(absent)} not in {folder}")
    try:
        found = checksum(part, folder, read)
    except InputError as error:
        return PartReport(part.files, "unreadable", str(error))
    if found != part.sha256:
        return PartReport(part.files, "different", f"SHA-256 is {found}, expected {part.sha256}")
    return PartReport(part.files, "ok")


def _parse(entry: Entry, folder: Path, read: Read) -> str | None:
    """Read every split and compare the sizes; the problem, or None."""
    try:
        for split in range(max(entry.splits, 1)):
            raw = entry.read(folder, split, read)
            found = (len(raw.x_train), len(raw.x_test), raw.x_train.shape[1:])
            expected = (entry.train, entry.test, entry.shape)
            if found != expected:
                return f"split {split} has sizes (train, test, input) {found}, expected {expected}"
    except InputError as error:
        return str(error)
    return None
