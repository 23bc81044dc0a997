"""A lock per file, held by the operating system: it ends with its holder, however that ends."""

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coset.errors import InputError

if sys.platform == "win32":
    import msvcrt

    def _try_lock(handle: int) -> bool:
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

    def _unlock(handle: int) -> None:
        os.lseek(handle, 0, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try_lock(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(handle: int) -> None:
        # Said aloud, not left to close(): a forked worker that outlives this block shares the handle.
        fcntl.flock(handle, fcntl.LOCK_UN)


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
    is freed (where an open file can be removed).
    """
    if path in _held.paths:
        raise InputError(f"{what} needs itself: what makes it asked for it again")
    handle = _wait_for(path, what)
    _held.paths.add(path)
    try:
        yield
    finally:
        _held.paths.discard(path)
        _release(path, handle, remove=True)


@contextmanager
def locked_if_free(path: Path) -> Iterator[bool]:
    """Hold ``path`` as a lock unless another holds it, and say whether it is held; never wait."""
    handle = _acquire(path)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            _release(path, handle, remove=True)


def remove_if_free(path: Path, *, dry_run: bool = False) -> bool:
    """Remove the lock file ``path`` unless somebody holds it; say whether it was (or would be) removed."""
    handle = _acquire(path)
    if handle is None:
        return False
    _release(path, handle, remove=not dry_run)
    if sys.platform == "win32" and not dry_run:
        # An open file cannot be removed there, so _release left it.
        try:
            path.unlink(missing_ok=True)
        except PermissionError:  # somebody took the lock in the meantime
            return False
    return True


def _wait_for(path: Path, what: str) -> int:
    """An open handle that holds the lock on ``path``."""
    try:
        return _waited_for(path, what)
    except OSError as error:
        raise InputError(f"the lock {path} cannot be made: {error.strerror or error}") from error


def _waited_for(path: Path, what: str) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    start, told, pause = time.monotonic(), False, 0.01
    while (handle := _acquire(path)) is None:
        if not told and time.monotonic() - start > _PATIENCE:
            _log.warning("waiting for another process that works on %s", what)
            told = True
        time.sleep(pause)
        pause = min(2 * pause, 0.25)
    return handle


def _acquire(path: Path) -> int | None:
    """A handle that holds the lock on ``path``, or None where another holds it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        # A holder removes the file as it lets go: a lock on a removed file keeps nobody else out.
        if _try_lock(handle) and _is_still(path, handle):
            return handle
    except OSError as error:
        os.close(handle)
        raise InputError(f"the folder {path.parent} cannot be locked ({error}); choose one on a local disk") from error
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None


def _is_still(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _release(path: Path, handle: int, *, remove: bool) -> None:
    try:
        if remove and sys.platform != "win32":
            path.unlink(missing_ok=True)
        _unlock(handle)
    finally:
        os.close(handle)
