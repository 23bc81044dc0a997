"""The files of a store: how they are called, one line about each entry, and what may go."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coset._files.atomic import is_orphan, is_part, remove_part, untouched
from coset._files.locks import locked_if_free, remove_if_free
from coset.errors import InputError
from coset.store._entry import DamagedEntryError, read_entry, read_header

ENTRY = re.compile(r"[0-9a-f]{64}\.safetensors")
LOCK = re.compile(r"\.[0-9a-f]{64}\.lock")
CHECKPOINT = re.compile(r"\.[0-9a-f]{64}\.checkpoint")
PART = re.compile(r"\.([0-9a-f]{64}\.safetensors|\.[0-9a-f]{64}\.checkpoint)\.\w+\.part")

STALE_PART_SECONDS = 3600.0
"""A half-written file that nobody touched for so long belongs to a process that is gone."""

STALE_CHECKPOINT_SECONDS = 30 * 86400.0
"""Unfinished work that nobody touched for so long is not going to be resumed."""


@dataclass(frozen=True)
class Row:
    """One line of the listing.

    ``problem`` says why the entry cannot be read, and is empty for a sound one. It may be another's: ``damaged`` tells
    whether the file is broken, and not of another version of coset or kept from this user.
    """

    key: str
    path: Path
    kind: str
    created: datetime
    size: int
    config: dict[str, Any]
    info: dict[str, Any]
    problem: str = ""
    damaged: bool = False


def entry_file(root: Path, key: str) -> Path:
    """The file of the entry with the address ``key``."""
    return root / key[:2] / f"{key}.safetensors"


def lock_file(entry: Path) -> Path:
    """The lock of an entry's file."""
    return entry.with_name(f".{entry.stem}.lock")


def checkpoint_file(entry: Path) -> Path:
    """Where unfinished work on an entry is kept."""
    return entry.with_name(f".{entry.stem}.checkpoint")


def files(root: Path) -> list[Path]:
    """The files in a store's subfolders, in order: entries, locks, parts, and perhaps what is not the store's."""
    return sorted(root.glob("[0-9a-f][0-9a-f]/*"))


def row_of(path: Path, *, check: bool) -> Row | None:
    """The line about one entry, or None if it was removed meanwhile; ``check`` reads it wholly."""
    try:
        status = path.lstat()
        header = read_header(path)
        if check:
            read_entry(path)
    except FileNotFoundError:
        return None
    except InputError as error:
        modified = datetime.fromtimestamp(status.st_mtime, UTC)
        damaged = isinstance(error, DamagedEntryError)
        return Row(path.stem, path, "", modified, status.st_size, {}, {}, str(error), damaged)
    kind = header.config.get("kind", "")
    return Row(path.stem, path, str(kind), header.created, status.st_size, header.config, header.info)


@dataclass(frozen=True)
class Pruned:
    """What ``prune`` removed (or would remove): entries, and what processes that are gone left; ``size`` in bytes."""

    entries: tuple[Row, ...]
    leftovers: tuple[Path, ...]
    size: int


def prune(root: Path, chosen: list[Row], *, dry_run: bool) -> Pruned:
    """Remove the chosen entries and all leftovers; with ``dry_run`` only say what would go."""
    try:
        found = {path: _size(path) for path in files(root) if not ENTRY.fullmatch(path.name)}
        leftovers = tuple(path for path in found if _is_leftover(path, dry_run))
        gone = tuple(row for row in chosen if dry_run or _remove(row))
    except OSError as error:
        raise InputError(f"the store {root} cannot be pruned: {error}") from error
    return Pruned(gone, leftovers, sum(row.size for row in gone) + sum(found[path] for path in leftovers))


def _remove(row: Row) -> bool:
    """Remove an entry if it is still what was listed, and nobody is making it again; say whether it is gone."""
    with locked_if_free(lock_file(row.path)) as free:
        if not free:
            return False
        now = row_of(row.path, check=bool(row.problem))
        # Not the whole rows: their info may hold NaN, which does not equal itself.
        if now is None or (now.created, now.size, now.problem) != (row.created, row.size, row.problem):
            return False
        row.path.unlink(missing_ok=True)
        return True


def _is_leftover(path: Path, dry_run: bool) -> bool:
    """Whether ``path`` was left behind by a process that is gone; it is removed at once unless ``dry_run``."""
    if (PART.fullmatch(path.name) and is_part(path)) or is_orphan(path):
        stale = untouched(path) > STALE_PART_SECONDS
        if stale and not dry_run:
            remove_part(path)
        return stale
    if path.is_symlink() or not path.is_file():
        return False
    if LOCK.fullmatch(path.name):
        return remove_if_free(path, dry_run=dry_run)
    if CHECKPOINT.fullmatch(path.name):
        entry = entry_file(path.parent.parent, path.stem.removeprefix("."))
        if not entry.exists() and untouched(path) <= STALE_CHECKPOINT_SECONDS:
            return False
        with locked_if_free(lock_file(entry)) as free:
            if free and not dry_run:
                path.unlink(missing_ok=True)
            return free
    return False


def _size(path: Path) -> int:
    """The bytes of a file, or of those in a folder of a write that was not finished; 0 if it is gone."""
    try:
        return sum(file.lstat().st_size for file in (path.iterdir() if path.is_dir() else (path,)))
    except FileNotFoundError:
        return 0
