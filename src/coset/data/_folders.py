"""Where datasets are looked for, and where downloads go."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

from coset._files.atomic import cache_folder
from coset.data._content import missing_files
from coset.data.catalog import Entry
from coset.errors import InputError


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
