"""The files of a store: how they are called, and one line about each entry."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coset.errors import InputError
from coset.store._entry import DamagedEntryError, read_entry, read_header

ENTRY = re.compile(r"[0-9a-f]{64}\.safetensors")
LOCK = re.compile(r"\.[0-9a-f]{64}\.lock")
CHECKPOINT = re.compile(r"\.[0-9a-f]{64}\.checkpoint")
PART = re.compile(r"\.([0-9a-f]{64}\.safetensors|\.[0-9a-f]{64}\.checkpoint)\.\w+\.part")


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
