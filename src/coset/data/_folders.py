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


def missing(entry: Entry, folder: Path) -> tuple[str, ...]:
    """The files of a dataset that are not under ``folder``."""
    return tuple(name for part in entry.parts for name in missing_files(part, folder))


def find(entry: Entry, root: str | os.PathLike[str] | None = None) -> Path | None:
    """The first folder with all files of a dataset, in ``root`` alone or the folders searched; None without one."""
    folders = search_folders() if root is None else (Path(root),)
    return next((folder for folder in folders if not missing(entry, folder)), None)


def has_some(entry: Entry, folder: Path) -> bool:
    """Whether at least one file of a dataset is under ``folder``."""
    return len(missing(entry, folder)) < sum(len(part.files) for part in entry.parts)


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
    folders = search_folders() if root is None else (Path(root),)
    lacking = [
        f"; {candidate} lacks {absent[0]}" + (f" and {len(absent) - 1} more" if len(absent) > 1 else "")
        for candidate in folders
        if has_some(entry, candidate) and (absent := missing(entry, candidate))
    ]
    raise InputError(
        f"{entry.name} is not in {', '.join(map(str, folders))}{''.join(lacking)}; run: {fetch_command(entry, root)}"
    )
