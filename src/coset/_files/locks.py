"""A lock per file, held by the operating system: it ends with its holder, however that ends."""

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from coset.errors import InputError


class _Held(threading.local):
    """The locks that the running thread holds."""

    def __init__(self) -> None:
        self.paths: set[Path] = set()


_PATIENCE = 2.0  # seconds of waiting before a person is told
_held = _Held()
_log = logging.getLogger(__name__)


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold ``path`` as a lock against every other process and thread; wait as long as another holds it.

    ``what`` says for people what the holder works on, such as "the store entry abc"; who asks for a lock that the same
    thread holds would wait for ever, and gets an InputError.

    A holder that crashes frees the lock at once, for the operating system owns it. The lock file is removed when it
    is freed.
    """
    if path in _held.paths:
        raise InputError(f"{what} needs itself: what makes it asked for it again")
    lock = _lock(path)
    try:
        if not _taken(lock, path, seconds=_PATIENCE):
            _log.warning("waiting for another process that works on %s", what)
            _taken(lock, path, seconds=-1)
    except OSError as error:
        raise InputError(f"the lock {path} cannot be made: {error.strerror or error}") from error
    _held.paths.add(path)
    try:
        yield
    finally:
        _held.paths.discard(path)
        _release(lock, path)


@contextmanager
def locked_if_free(path: Path, *, keep: bool = False) -> Iterator[bool]:
    """Hold ``path`` as a lock unless another holds it, and say whether it is held; never wait.

    The lock file is removed when it is freed, unless ``keep``.
    """
    lock = _lock(path, keep=keep)
    free = _taken(lock, path, seconds=0)
    try:
        yield free
    finally:
        if free:
            _release(lock, path, keep=keep)


def remove_if_free(path: Path, *, dry_run: bool = False) -> bool:
    """Remove the lock file ``path`` unless somebody holds it; say whether it was (or would be) removed."""
    with locked_if_free(path, keep=dry_run) as free:
        return free


def _lock(path: Path, *, keep: bool = False) -> FileLock:
    # No soft lock where the disk has no others: it would outlive a holder that crashes.
    return FileLock(path, fallback_to_soft=False, preserve_lock_file=keep)


def _taken(lock: FileLock, path: Path, *, seconds: float) -> bool:
    """Whether the lock was free within so many seconds, and is held now; −1: wait for ever."""
    try:
        lock.acquire(timeout=seconds)
    except Timeout:
        return False
    except OSError as error:
        # A file that cannot be opened is named; a lock that the disk does not have is not.
        if error.filename is None:
            raise InputError(
                f"the folder {path.parent} cannot be locked ({error}); choose one on a local disk"
            ) from error
        raise
    return True


def _release(lock: FileLock, path: Path, *, keep: bool = False) -> None:
    try:
        # While it is held: who waits sees that the file is gone, and takes a new one. On Windows, where an open file
        # cannot be removed, filelock does so behind the release.
        if not keep and sys.platform != "win32":
            path.unlink(missing_ok=True)
    finally:
        lock.release()
