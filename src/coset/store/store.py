"""Trained networks kept on disk under the hash of their configuration."""

import os
import re
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from torch import Tensor

from coset.errors import InputError
from coset.files import cache_folder
from coset.locks import locked, remove_if_free
from coset.store.address import key_of
from coset.store.entry import DamagedEntryError, Entry, read_entry, read_header, write_entry

Made = Mapping[str, Tensor] | tuple[Mapping[str, Tensor], Mapping[str, object]]
"""What a maker returns: params, or params and what is to be noted beside them."""

STALE_PART_SECONDS = 3600.0
"""A half-written file that nobody touched for so long belongs to a process that is gone."""

_ENTRY = re.compile(r"[0-9a-f]{64}\.safetensors")
_PART = re.compile(r"\.[0-9a-f]{64}\.safetensors\..*\.part")
_LOCK = re.compile(r"\.[0-9a-f]{64}\.lock")


@dataclass(frozen=True)
class Row:
    """One line of the listing; ``problem`` says why the entry cannot be read, and is empty for a sound one."""

    key: str
    path: Path
    kind: str
    created: datetime
    size: int
    config: dict[str, Any]
    info: dict[str, Any]
    problem: str = ""


@dataclass(frozen=True)
class Pruned:
    """What ``prune`` removed (or would remove): entries, and files left behind by processes that are gone."""

    entries: tuple[Row, ...]
    leftovers: tuple[Path, ...]
    size: int


class Store:
    """A folder of trained networks addressed by the hash of their configuration.

    One file for each entry, ``<key[:2]>/<key>.safetensors``, written atomically. Any number of processes may use one
    store at once: readers see whole entries, and ``get_or_make`` computes each entry in one process only.
    """

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        """Use the folder ``root``; by default ``COSET_STORE``, else ``store`` in ``coset.files.cache_folder()``.

        The folder is made when something is first written.
        """
        self.root = default_root() if root is None else Path(root)
        if self.root.exists() and not self.root.is_dir():
            raise InputError(f"the store root must be a folder, found the file {self.root}")

    def __repr__(self) -> str:
        return f"Store({str(self.root)!r})"

    def key(self, config: Mapping[str, object]) -> str:
        """The address of ``config``: SHA-256 of its canonical JSON and the schema version."""
        return key_of(config)

    def path(self, config: Mapping[str, object]) -> Path:
        """The file that holds, or would hold, the entry of ``config``."""
        key = key_of(config)
        return self.root / key[:2] / f"{key}.safetensors"

    def get(self, config: Mapping[str, object]) -> Entry | None:
        """The entry of ``config``, or None. A damaged entry, or one of another schema version, is an InputError."""
        try:
            return read_entry(self.path(config))
        except FileNotFoundError:
            return None

    def put(
        self, config: Mapping[str, object], params: Mapping[str, Tensor], *, info: Mapping[str, object] | None = None
    ) -> Entry:
        """Write the entry of ``config``, in place of one that may be there, and read it back."""
        path = self.path(config)
        write_entry(path, config, params, info or {})
        return read_entry(path)

    def get_or_make(self, config: Mapping[str, object], make: Callable[[], Made]) -> Entry:
        """The entry of ``config``, computed by ``make`` if there is none; others that ask meanwhile wait for it.

        An interrupted or failing ``make`` leaves nothing behind, and the next one to ask starts again. A damaged entry
        is computed again with a warning; an entry of another schema version is an InputError and stays.
        """
        found = self._get_sound(config)
        if found is not None:
            return found
        path = self.path(config)
        with locked(path.with_name(f".{path.stem}.lock"), f"the store entry {path.stem}"):
            # Another may have finished while this one waited for the lock.
            found = self._get_sound(config, warn=True)
            if found is not None:
                return found
            params, info = _params_and_info(make())
            return self.put(config, params, info=info)

    def entries(self, *, check: bool = False) -> list[Row]:
        """All entries, oldest first; ``check=True`` reads them wholly and verifies their checksums.

        An entry that cannot be read is listed with its problem.
        """
        rows = (_row(path, check) for path in self._files() if _ENTRY.fullmatch(path.name))
        return sorted((row for row in rows if row is not None), key=lambda row: (row.created, row.key))

    def prune(
        self,
        predicate: Callable[[Row], bool] | None = None,
        *,
        kind: str | None = None,
        older_than: timedelta | None = None,
        keep: int | None = None,
        unreadable: bool = False,
        dry_run: bool = False,
    ) -> Pruned:
        """Remove the entries that meet every condition given, but the ``keep`` newest of them; without any, none.

        ``prune(keep=0)`` empties the store. Entries that cannot be read are removed only with ``unreadable=True``,
        which no other condition limits. Locks that nobody holds and half-written files untouched for an hour always go.
        With ``dry_run`` nothing is removed.
        """
        if keep is not None and keep < 0:
            raise InputError(f"keep must be 0 or more, found {keep}")
        rows = self.entries(check=unreadable)
        chosen = [row for row in rows if not row.problem]
        if predicate is not None:
            chosen = [row for row in chosen if predicate(row)]
        if kind is not None:
            chosen = [row for row in chosen if row.kind == kind]
        if older_than is not None:
            limit = datetime.now(UTC) - older_than
            chosen = [row for row in chosen if row.created < limit]
        if keep is not None:
            chosen = chosen[: max(len(chosen) - keep, 0)]
        elif predicate is None and kind is None and older_than is None:
            chosen = []
        if unreadable:
            chosen += [row for row in rows if row.problem]
        leftovers = tuple(path for path in self._files() if _is_leftover(path, dry_run))
        if not dry_run:
            for row in chosen:
                row.path.unlink(missing_ok=True)
        return Pruned(tuple(chosen), leftovers, sum(row.size for row in chosen))

    def _get_sound(self, config: Mapping[str, object], *, warn: bool = False) -> Entry | None:
        try:
            return self.get(config)
        except DamagedEntryError as error:
            if warn:
                warnings.warn(f"{error}; it is computed again", stacklevel=3)
            return None

    def _files(self) -> list[Path]:
        """The files in the store's subfolders, in order: entries, locks, parts, and perhaps what is not the store's."""
        return sorted(self.root.glob("[0-9a-f][0-9a-f]/*"))


def default_root() -> Path:
    """``COSET_STORE``, else ``store`` in the folder for caches."""
    if store := os.environ.get("COSET_STORE"):
        return Path(store).expanduser()
    return cache_folder() / "store"


def _params_and_info(made: Made) -> tuple[Mapping[str, Tensor], Mapping[str, object]]:
    if isinstance(made, Mapping):
        return made, {}
    if isinstance(made, tuple) and len(made) == 2:
        return made
    raise InputError(f"make must return params or (params, info), found {type(made).__qualname__}")


def _row(path: Path, check: bool) -> Row | None:
    """The listing of one file, or None if it was removed meanwhile."""
    try:
        status = path.stat()
        header = read_header(path)
        if check:
            read_entry(path)
    except FileNotFoundError:
        return None
    except InputError as error:
        modified = datetime.fromtimestamp(status.st_mtime, UTC)
        return Row(path.stem, path, "", modified, status.st_size, {}, {}, problem=str(error))
    kind = header.config.get("kind", "")
    return Row(path.stem, path, str(kind), header.created, status.st_size, header.config, header.info)


def _is_leftover(path: Path, dry_run: bool) -> bool:
    """Whether ``path`` was left behind by a process that is gone; it is removed at once unless ``dry_run``."""
    if _LOCK.fullmatch(path.name):
        return remove_if_free(path, dry_run=dry_run)
    if not _PART.fullmatch(path.name):
        return False
    try:
        stale = time.time() - path.stat().st_mtime > STALE_PART_SECONDS
    except FileNotFoundError:  # its writer has just finished
        return False
    if stale and not dry_run:
        path.unlink(missing_ok=True)
    return stale
