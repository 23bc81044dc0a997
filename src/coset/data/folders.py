"""Where datasets are looked for, and where downloads go."""

import os
from pathlib import Path

from coset.data.catalog import Entry
from coset.data.content import missing_files
from coset.errors import InputError
from coset.files import cache_folder


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


def fetch_command(entry: Entry) -> str:
    """What to type to get a dataset."""
    return f"coset data fetch {entry.name}"


def locate(entry: Entry, root: str | os.PathLike[str] | None = None) -> Path:
    """Like ``find``, but a missing dataset is an error that says which command brings it."""
    folder = find(entry, root)
    if folder is not None:
        return folder
    folders = search_folders() if root is None else (Path(root),)
    lacking = [
        f"; {candidate} lacks {absent[0]}" + (f" and {len(absent) - 1} more" if len(absent) > 1 else "")
        for candidate in folders
        if len(absent := missing(entry, candidate)) < sum(len(part.files) for part in entry.parts)
    ]
    raise InputError(
        f"{entry.name} is not in {', '.join(map(str, folders))}{''.join(lacking)}; run: {fetch_command(entry)}"
    )
