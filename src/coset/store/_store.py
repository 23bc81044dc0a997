"""Trained networks kept on disk under the hash of their configuration."""

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from torch import Tensor

from coset._checks import is_count
from coset._files.atomic import cache_folder, require_writable
from coset._files.locks import locked
from coset.errors import InputError
from coset.store._address import key_of
from coset.store._entry import DamagedEntryError, Entry, read_entry, write_entry
from coset.store._listing import ENTRY, Pruned, Row, checkpoint_file, entry_file, files, lock_file, prune, row_of


class Work:
    """Adds up what entries cost to make, in seconds of all cores together, in this process without those it starts.

    One block at a time: threads that use one store at once count each other's work.
    """

    def __init__(self) -> None:
        self._told = 0.0
        """Processor time of this process that blocks which have ended account for."""
        self._open: list[dict[str, float | None]] = []
        """For every block that is measured now, from the outermost: the cost of the entries asked for in it."""

    def used(self, entry: Entry) -> None:
        """Note that ``entry`` was asked for."""
        if self._open:
            self._open[-1][entry.key] = entry.cost

    @contextmanager
    def measured(self) -> Iterator[Callable[[], float | None]]:
        """Measure a block; after it, the function that it gives tells the cost.

        That is the processor time of the block without what its entries took now, and the cost of each entry that it
        asked for itself, found or made, once. Where two of these were made of a third one, this is in the cost of both:
        then it is an upper bound. None where one of them has no known cost.
        """
        entries: dict[str, float | None] = {}
        start, told, own = time.process_time(), self._told, 0.0
        self._open.append(entries)
        try:
            yield lambda: _sum([own, *entries.values()])
        finally:
            self._open.pop()
            own = time.process_time() - start - (self._told - told)
            self._told += own


def _sum(costs: list[float | None]) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None


Made = Mapping[str, Tensor] | tuple[Mapping[str, Tensor], Mapping[str, object]]
"""What a maker returns: params, or params and what is to be noted beside them."""


class Store:
    """A folder of trained networks addressed by the hash of their configuration.

    One file for each entry, ``<key[:2]>/<key>.safetensors``, written atomically. Any number of processes may use one
    store at once: readers see whole entries, and ``get_or_make`` computes each entry in one process only.
    """

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        """Use the folder ``root``; by default ``COSET_STORE``, else ``store`` in ``_files.atomic.cache_folder()``.

        The folder is made when something is first written.
        """
        self.root = default_root() if root is None else Path(root)
        # Not Path.exists: that raises where a folder on the way may not be looked into, which reading will tell.
        if os.path.exists(self.root) and not self.root.is_dir():  # noqa: PTH110
            raise InputError(f"the store root must be a folder, found the file {self.root}")
        self.work = Work()

    def __repr__(self) -> str:
        return f"Store({str(self.root)!r})"

    def key(self, config: Mapping[str, object]) -> str:
        """The address of ``config``: SHA-256 of its canonical JSON and the schema version."""
        return key_of(config)

    def path(self, config: Mapping[str, object]) -> Path:
        """The file that holds, or would hold, the entry of ``config``."""
        return entry_file(self.root, key_of(config))

    def checkpoint(self, config: Mapping[str, object]) -> Path:
        """A file beside the entry of ``config`` for unfinished work, to be written by ``make`` and read by the next.

        It is removed once ``get_or_make`` has the entry.
        """
        return checkpoint_file(self.path(config))

    def get(self, config: Mapping[str, object]) -> Entry | None:
        """The entry of ``config``, or None. One that is damaged, unreadable or of another schema is an InputError."""
        try:
            return read_entry(self.path(config))
        except FileNotFoundError:
            return None

    def put(
        self,
        config: Mapping[str, object],
        params: Mapping[str, Tensor],
        *,
        info: Mapping[str, object] | None = None,
        cost: float | None = None,
    ) -> Entry:
        """Write the entry of ``config``, in place of one that may be there, and read it back."""
        return write_entry(self.path(config), config, params, info or {}, cost)

    def get_or_make(self, config: Mapping[str, object], make: Callable[[], Made]) -> Entry:
        """The entry of ``config``, computed by ``make`` if there is none; others that ask meanwhile wait for it.

        An interrupted or failing ``make`` leaves nothing behind but what it wrote to ``checkpoint(config)``, and the
        next one to ask starts again. A damaged entry is computed again with a warning; an entry of another schema
        version is an InputError and stays. That the entry can be written is tried before ``make`` is called. The
        processor time of ``make`` is kept as the entry's ``cost``, and ``work`` counts it.
        """
        entry = self._get_or_make(config, make)
        self.work.used(entry)
        return entry

    def _get_or_make(self, config: Mapping[str, object], make: Callable[[], Made]) -> Entry:
        found = self._get_sound(config)
        if found is not None:
            return found
        path = self.path(config)
        require_writable(path.parent, "the store folder")
        with locked(lock_file(path), f"the store entry {path.stem}"):
            # Another may have finished while this one waited for the lock.
            found = self._get_sound(config, warn=True)
            if found is not None:
                return found
            resumed = checkpoint_file(path).exists()
            with self.work.measured() as cost:
                params, info = _params_and_info(make())
            # What an interrupted maker did before is not known.
            entry = self.put(config, params, info=info, cost=None if resumed else cost())
            checkpoint_file(path).unlink(missing_ok=True)
            return entry

    def entries(self, *, check: bool = False) -> list[Row]:
        """All entries, oldest first; ``check=True`` reads them wholly and verifies their checksums.

        An entry that cannot be read is listed with its problem.
        """
        rows = (row_of(path, check=check) for path in files(self.root) if ENTRY.fullmatch(path.name))
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

        ``prune(keep=0)`` empties the store. Damaged entries are removed only with ``unreadable=True``, which no other
        condition limits; those of another schema version always stay, as do entries that are being made again. Locks
        that nobody holds, half-written files untouched for an hour, and unfinished work untouched for thirty days or
        whose entry is there always go. With ``dry_run`` nothing is removed.
        """
        if keep is not None and not is_count(keep, 0):
            raise InputError(f"keep must be a whole number of 0 or more, found {keep!r}")
        if older_than is not None and older_than < timedelta(0):
            raise InputError(f"older_than must be 0 or more, found {older_than}")
        rows = self.entries(check=unreadable)
        chosen = [row for row in rows if not row.problem]
        if predicate is not None:
            chosen = [row for row in chosen if predicate(row)]
        if kind is not None:
            chosen = [row for row in chosen if row.kind == kind]
        if older_than is not None:
            now = datetime.now(UTC)
            chosen = [row for row in chosen if now - row.created > older_than]
        if keep is not None:
            chosen = chosen[: max(len(chosen) - keep, 0)]
        elif predicate is None and kind is None and older_than is None:
            chosen = []
        if unreadable:
            chosen += [row for row in rows if row.damaged]
        return prune(self.root, chosen, dry_run=dry_run)

    def _get_sound(self, config: Mapping[str, object], *, warn: bool = False) -> Entry | None:
        try:
            return self.get(config)
        except DamagedEntryError as error:
            if warn:
                warnings.warn(f"{error}; it is computed again", stacklevel=3)
            return None


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
