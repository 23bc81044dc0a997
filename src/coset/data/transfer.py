"""One file over HTTP: resumed where it stopped, checked, and visible only when whole."""

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from coset.errors import InputError

CHUNK = 1 << 18
TIMEOUT = 60.0  # seconds without a byte


def transfer(url: str, target: Path, *, sha256: str | None = None, report: Callable[[int, int], None]) -> None:
    """Download ``url`` to ``target``.

    Bytes gather in ``target.part``, which stays behind when the transfer is cut and is continued by the next call. If
    ``sha256`` is given and the file has another, it is deleted. ``report(done, total)`` is told of every chunk, with
    total 0 where the server does not say it.
    """
    part = target.with_name(f"{target.name}.part")
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{part.parent}: cannot be made: {error.strerror}") from error
    try:
        _receive(url, part, report)
    except urllib.error.HTTPError as error:
        raise InputError(f"{url}: the server answered {error.code} {error.reason}, expected the file") from error
    except urllib.error.URLError as error:
        raise InputError(f"{url}: cannot be reached: {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _cut(url, part, str(error) or type(error).__name__) from error
    if sha256 is not None:
        found = file_sha256(part)
        if found != sha256:
            part.unlink()
            raise InputError(f"{url}: SHA-256 is {found}, expected {sha256}; the download was deleted")
    part.replace(target)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _receive(url: str, part: Path, report: Callable[[int, int], None]) -> None:
    """Append to ``part`` what is still missing of it."""
    if not url.startswith(("http://", "https://")):
        raise InputError(f"{url}: expected an address that starts with http:// or https://")
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "coset"})
    if done:
        request.add_header("Range", f"bytes={done}-")
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416 and done:
            _beyond_the_end(url, part, done, error.headers.get("Content-Range", ""))
            return
        raise
    with response:
        if response.status == 206:
            _check_start(url, done, response.headers.get("Content-Range", ""))
        else:
            done = 0  # A server without ranges sends the file from its first byte.
        length = response.headers.get("Content-Length")
        total = 0 if length is None else done + int(length)
        with part.open("ab" if done else "wb") as file:
            while chunk := response.read(CHUNK):
                file.write(chunk)
                done += len(chunk)
                report(done, total)
    if done < total:
        raise _cut(url, part, f"{done} of {total} bytes arrived")


def _cut(url: str, part: Path, what: str) -> InputError:
    return InputError(f"{url}: the transfer was cut: {what}; run the same command again to continue {part}")


def _check_start(url: str, done: int, content_range: str) -> None:
    if not content_range.startswith(f"bytes {done}-"):
        raise InputError(f"{url}: the server sent the range {content_range!r}, expected one that starts at byte {done}")


def _beyond_the_end(url: str, part: Path, done: int, content_range: str) -> None:
    """Nothing follows byte ``done``: the part is whole, or it belongs to another version of the file."""
    if content_range != f"bytes */{done}":
        part.unlink()
        raise InputError(
            f"{url}: cannot continue from byte {done} (the server says {content_range!r}); the part was deleted, "
            "run the same command again to start afresh"
        )
